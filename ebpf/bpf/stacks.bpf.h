/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The stacks of waits, remembered rather than walked. A thread that blocks again at the same place has the same
 * stack, and its user registers at the kernel's entry tell the place: their hash names a remembered stack. The
 * memory is checked: a place must give the same stack several times in a row before it is trusted, then it is checked
 * now and then, and each time that it was wrong it must prove itself for twice as long.
 */
#ifndef PODPERF_STACKS_BPF_H
#define PODPERF_STACKS_BPF_H

#include "drops.bpf.h"
#include "kernel.h"
#include "podperf.h"

/* Waits at least this long are sent one by one, with their time; 0 sends none. */
const volatile __u64 long_wait_ns = 0;

/* Walks in a row that must agree before a place is trusted; doubled for each time that it was wrong. */
#define TRUSTED_AFTER 8U
#define MAX_DOUBLINGS 16
/* One in so many uses of a trusted place is walked all the same. */
#define CHECK_EVERY 64

struct memo {
	__u64 stack;
	__u32 agreed; /* walks in a row that found this stack */
	__u32 uses;   /* since it is trusted */
	__u32 wrong;  /* walks that found another one */
	__u32 _pad;
};

/* Signature of a place -> its stack; written and read by the scheduling sensor only. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 32768); /* set by the agent */
	__type(key, __u64);
	__type(value, struct memo);
} stack_memo SEC(".maps");

/* Stack -> 1 when its frames have been sent; the agent deletes what it has forgotten. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 32768); /* set by the agent */
	__type(key, __u64);
	__type(value, __u8);
} stacks_sent SEC(".maps");

/* New stacks and long waits, for the agent. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 20);
} stack_ring SEC(".maps");

/* Time off the CPU by stack, cgroup, process and state; two tables in turn. */
struct wait_table {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384); /* set by the agent */
	__type(key, struct podperf_wait_key);
	__type(value, struct podperf_wait_sum);
};
struct wait_table waits0 SEC(".maps");
struct wait_table waits1 SEC(".maps");

/* The one entry -> which of the two is written (even, odd); the agent adds one and empties the other. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} waits_epoch SEC(".maps");

/* Where a stack is walked to: too large for the BPF stack. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct podperf_stack);
} walk_buffer SEC(".maps");

static __always_inline __u64 mix(__u64 hash, __u64 word)
{
	hash = (hash ^ word) * 0x9E3779B97F4A7C15ULL;
	return hash ^ (hash >> 29);
}

#define FRAMES_BYTES (PODPERF_MAX_FRAMES * sizeof(__u64))

/* Walks the stack of the current task and sends it, if it is new; 0 when there is none. */
static __noinline __u64 walk_stack(void *ctx)
{
	__u32 zero = 0;
	struct podperf_stack *stack = bpf_map_lookup_elem(&walk_buffer, &zero);
	__u8 sent = 1;
	__s64 bytes;
	__u64 user, kernel, frames, hash;

	if (!stack)
		return 0;
	bytes = bpf_get_stack(ctx, stack->frames, FRAMES_BYTES, BPF_F_USER_STACK);
	user = bytes > 0 ? bytes : 0;
	if (user > FRAMES_BYTES)
		return 0;
	bytes = bpf_get_stack(ctx, (void *)stack->frames + user, FRAMES_BYTES, 0);
	kernel = bytes > 0 ? bytes : 0;
	if (kernel > FRAMES_BYTES)
		return 0;
	if (!user && !kernel) {
		drop(PODPERF_DROP_STACK_WALK);
		return 0;
	}
	frames = (user + kernel) / sizeof(__u64);
	hash = mix(user, kernel);
	for (__u32 i = 0; i < 2 * PODPERF_MAX_FRAMES; i++) {
		if (i >= frames)
			break;
		hash = mix(hash, stack->frames[i]);
	}
	hash |= 1; /* 0 means none */
	if (bpf_map_lookup_elem(&stacks_sent, &hash))
		return hash;

	stack->record = PODPERF_RECORD_STACK;
	stack->user_frames = user / sizeof(__u64);
	stack->kernel_frames = kernel / sizeof(__u64);
	stack->id = hash;
	/* No wake-up: the agent looks several times a second, and waking it here would cost more than the walk. */
	if (bpf_ringbuf_output(&stack_ring, stack, offsetof(struct podperf_stack, frames) + user + kernel,
			       BPF_RB_NO_WAKEUP))
		drop(PODPERF_DROP_STACK_RING);
	else
		bpf_map_update_elem(&stacks_sent, &hash, &sent, BPF_ANY);
	return hash;
}

/* The place where `task`, which is current, sleeps: what the kernel saved of its user registers on entry. */
static __always_inline __u64 signature(struct task_struct *task, __u32 state)
{
	struct pt_regs *regs = (struct pt_regs *)bpf_task_pt_regs(task);
	/* Thread ids are used again, by exec the same one; its start and the count of execs are not. */
	__u64 hash = mix(task->start_time ^ state, task->self_exec_id);

#if defined(__TARGET_ARCH_x86)
	hash = mix(mix(hash, regs->ip), regs->sp);
	return mix(mix(hash, regs->bp), regs->orig_ax);
#elif defined(__TARGET_ARCH_arm64)
	hash = mix(mix(hash, regs->pc), regs->sp);
	return mix(mix(hash, regs->regs[29]), regs->syscallno);
#endif
}

/* The stack of the current task, which goes to sleep; 0 when there is none. */
static __always_inline __u64 stack_of_wait(void *ctx, struct task_struct *task, __u32 state, struct podperf_cpu *cpu)
{
	__u64 place = signature(task, state), stack;
	struct memo *memo = bpf_map_lookup_elem(&stack_memo, &place);
	struct memo fresh = {};

	cpu->waits++;
	if (memo) {
		__u32 doublings = memo->wrong < MAX_DOUBLINGS ? memo->wrong : MAX_DOUBLINGS;
		bool trusted = memo->agreed >= TRUSTED_AFTER << doublings;

		if (trusted && ++memo->uses % CHECK_EVERY)
			return memo->stack;
		cpu->walks++;
		cpu->checks += trusted;
		stack = walk_stack(ctx);
		if (stack == memo->stack) {
			memo->agreed++;
		} else {
			cpu->checks_wrong += trusted;
			memo->stack = stack;
			memo->agreed = 0;
			memo->wrong++;
		}
		return stack;
	}
	cpu->walks++;
	fresh.stack = walk_stack(ctx);
	if (bpf_map_update_elem(&stack_memo, &place, &fresh, BPF_ANY))
		drop(PODPERF_DROP_STACK_MEMO);
	return fresh.stack;
}

/* Puts a wait that has ended into the profile. */
static __always_inline void profile_wait(struct podperf_wait_key *key, __u32 tid, __u64 end_ns, __u64 ns,
					 struct podperf_cpu *cpu)
{
	struct podperf_wait_sum fresh = {.ns = ns, .waits = 1, .last_ns = end_ns}, *sum;
	__u32 zero = 0, *epoch = bpf_map_lookup_elem(&waits_epoch, &zero);
	void *waits;

	if (long_wait_ns && ns >= long_wait_ns) {
		struct podperf_long_wait wait = {
		    .record = PODPERF_RECORD_LONG_WAIT,
		    .tid = tid,
		    .key = *key,
		    .end_ns = end_ns,
		    .ns = ns,
		};

		if (!bpf_ringbuf_output(&stack_ring, &wait, sizeof(wait), BPF_RB_NO_WAKEUP))
			return;
		drop(PODPERF_DROP_WAIT_RING);
	}
	waits = epoch && *epoch & 1 ? (void *)&waits1 : (void *)&waits0;
	sum = bpf_map_lookup_elem(waits, key);
	if (!sum) {
		if (!bpf_map_update_elem(waits, key, &fresh, BPF_NOEXIST))
			return;
		sum = bpf_map_lookup_elem(waits, key); /* another CPU was first, or the table is full */
	}
	if (sum) {
		__sync_fetch_and_add(&sum->ns, ns);
		__sync_fetch_and_add(&sum->waits, 1);
		sum->last_ns = end_ns;
	} else {
		drop(PODPERF_DROP_WAIT_TABLE);
		cpu->unprofiled_ns += ns;
	}
}

#endif
