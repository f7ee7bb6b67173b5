/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The stacks of waits, remembered rather than walked. A thread that blocks again at the same place has the same
 * stack, and its user registers at the kernel's entry tell the place: their hash names a remembered stack. The
 * memory is checked: a place must give the same stack several times in a row before it is trusted, then it is checked
 * now and then, and each time that it was wrong it must prove itself for twice as long.
 */
#ifndef PODPERF_MEMO_BPF_H
#define PODPERF_MEMO_BPF_H

#include "budget.bpf.h"
#include "hash.h"
#include "tasks.bpf.h"
#include "walk.bpf.h"

/* Walks each remembered stack all the same, and counts how often it was another one. Changes nothing else. */
const volatile bool shadow = false;

/* Walks in a row that must agree before a place is trusted; doubled for each time that it was wrong. */
#define TRUSTED_AFTER 8U
#define MAX_DOUBLINGS 16
/* One in so many uses of a trusted place is walked all the same; of one that is newly trusted more, and half as many
 * after each check that agrees: on one stack of a runtime's, such as Go's, many tasks wait by turns, for a while each. */
#define CHECK_EVERY 64
#define CHECK_DOUBLINGS 3
/* So many uses are made without a look at the memory; a part of the former. */
#define MEMORY_USES 16

struct memo {
	__u64 stack;  /* 0: not known, but samples name the place */
	__u32 agreed; /* walks in a row that found this stack */
	__u32 uses;   /* since it is trusted, and was checked */
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

/* What is known of a wait's stack when it begins. */
struct wait_stack {
	__u64 id;     /* see podperf_sample_key */
	__u32 weight; /* how many short waits it stands for; 0: others stand for it if it turns out short */
	bool walked;  /* now, and not remembered */
	__u8 shadow;  /* enum shadow */
};

/* What `shadow` found out of a remembered stack. */
enum shadow {
	SHADOW_NONE,
	SHADOW_RIGHT,
	SHADOW_WRONG,
};

/* epoll's calls, and their fourth argument: how long to wait. For ever is another way in the kernel, which the other
 * registers do not tell: a runtime's poller comes from one place for both. */
#if defined(__TARGET_ARCH_x86)
#define IS_EPOLL(regs) ((regs)->orig_ax == 232 || (regs)->orig_ax == 281)
#define EPOLL_TIMEOUT(regs) ((__s32)(regs)->r10)
#elif defined(__TARGET_ARCH_arm64)
#define IS_EPOLL(regs) ((regs)->syscallno == 22)
#define EPOLL_TIMEOUT(regs) ((__s32)(regs)->regs[3])
#endif

/* The place where `task`, which is current, sleeps: what the kernel saved of its user registers on entry. Even. */
static __always_inline __u64 signature(struct task_struct *task, __u32 state)
{
	struct pt_regs *regs = (struct pt_regs *)bpf_task_pt_regs(task);
	__u64 words[PODPERF_SITE_WORDS] = {
		/* A thread id is used again later, and stays the same in exec: these two tell such tasks apart. */
		task->start_time,
		task->self_exec_id,
#if defined(__TARGET_ARCH_x86)
		regs->ip,
		regs->sp,
		regs->bp,
		regs->orig_ax,
#elif defined(__TARGET_ARCH_arm64)
		regs->pc,
		regs->sp,
		regs->regs[29],
		regs->syscallno,
#endif
		state,
	};

	if (IS_EPOLL(regs))
		words[PODPERF_SITE_WORDS - 1] += (EPOLL_TIMEOUT(regs) < 0 ? 2 : 1) * PODPERF_ACTIVITIES;
	return hash_site(words, hash_key.sites);
}

/* Tells the agent the stack of a place that samples have named. */
static __always_inline void send_place(__u64 place, __u64 stack)
{
	struct podperf_place record = {.record = PODPERF_RECORD_PLACE, .place = place, .stack = stack};

	if (bpf_ringbuf_output(&stack_ring, &record, sizeof(record), BPF_RB_NO_WAKEUP))
		drop(PODPERF_DROP_STACK_RING);
}

/* From now on samples name `place`, whose stack is not known. */
static __always_inline void name_place(__u64 place)
{
	struct memo fresh = {};

	if (bpf_map_update_elem(&stack_memo, &place, &fresh, BPF_NOEXIST) && !bpf_map_lookup_elem(&stack_memo, &place))
		drop(PODPERF_DROP_STACK_MEMO);
}

static __always_inline __u8 compare(struct podperf_cpu *cpu, bool right)
{
	cpu->shadow_waits++;
	cpu->shadow_wrong += !right;
	return right ? SHADOW_RIGHT : SHADOW_WRONG;
}

/*
 * The stack of the current task, which goes to sleep on the account of `cgroup`. It is walked at one line only: the
 * address to which the walk returns is one of the kernel's frames.
 */
static __always_inline struct wait_stack stack_of_wait(void *ctx, struct task_struct *task, struct task *t,
						       __u64 cgroup, __u64 now, struct podperf_cpu *cpu)
{
	__u64 place = signature(task, t->activity), walked = 0;
	struct memo *memo = NULL;
	struct memo fresh = {};
	struct wait_stack found = {};
	__u32 walk, check_every = CHECK_EVERY;
	bool at_hand = t->memory_place == place && t->memory_uses;
	bool known = false, trusted = false, believed = false;

	cpu->waits++;
	if (at_hand) {
		t->memory_uses--;
		found.id = t->memory_stack;
		found.weight = 1;
		if (!shadow)
			return found;
	} else {
		memo = bpf_map_lookup_elem(&stack_memo, &place);
		known = memo && memo->stack;
	}
	if (known) {
		__u32 needed = TRUSTED_AFTER << (memo->wrong < MAX_DOUBLINGS ? memo->wrong : MAX_DOUBLINGS);

		trusted = memo->agreed >= needed;
		if (memo->agreed - needed < CHECK_DOUBLINGS)
			check_every >>= CHECK_DOUBLINGS - (memo->agreed - needed);
		/* Over the budget what was never wrong is believed, and so is what has proved itself since. */
		believed = trusted || !memo->wrong;
	}
	if (known && trusted)
		memo->uses += t->memory_place == place ? MEMORY_USES : 1;
	walk = shadow;
	if (at_hand) {
		/* Walked for the shadow only. */
	} else if (!known && memo) {
		found.weight = 1; /* samples have named it */
		walk = 1;
	} else if (!trusted || memo->uses >= check_every) {
		found.weight = may_walk(cgroup, now);
		walk |= found.weight;
		if (trusted && found.weight)
			memo->uses = 0;
	}
	/* The compiler must not know what is in these: it would make a path, and a call, for each case. */
	asm volatile("" : "+r"(walk));
	if (walk)
		walked = walk_stack(ctx, true);
	asm volatile("" : "+r"(found.weight));
	if (at_hand) {
		found.shadow = compare(cpu, walked == found.id);
		return found;
	}
	if (!found.weight) {
		found.id = known ? memo->stack : place;
		found.weight = believed;
		if (trusted && check_every == CHECK_EVERY) {
			t->memory_place = place;
			t->memory_stack = memo->stack;
			t->memory_uses = MEMORY_USES - 1;
		}
		if (shadow && believed)
			found.shadow = compare(cpu, walked == memo->stack);
		return found;
	}
	cpu->walks++;
	found.id = walked;
	found.walked = true;
	if (known) {
		cpu->checks += trusted;
		if (believed)
			found.weight = 1;
		if (walked == memo->stack) {
			memo->agreed++;
		} else {
			cpu->checks_wrong += trusted;
			memo->stack = walked;
			memo->agreed = 0;
			memo->wrong++;
		}
		return found;
	}
	if (memo && walked)
		send_place(place, walked);
	fresh.stack = walked;
	if (bpf_map_update_elem(&stack_memo, &place, &fresh, BPF_ANY))
		drop(PODPERF_DROP_STACK_MEMO);
	return found;
}

#endif
