/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The stack cache: stacks of waits are remembered instead of walked. A thread that blocks again at the same call site
 * has the same stack. The hash of its user registers at the kernel's entry identifies the call site. The cache is
 * checked: a call site must give the same stack several times in a row before it is trusted. A trusted call site is
 * checked from time to time. A check walks the stack, and a call site whose stack was wrong must agree twice as often as
 * before to be trusted again.
 *
 * While user frames are shed, walks find only the kernel's part of a stack. They do not confirm or replace a whole
 * stack. A stack that they find is remembered as cut: once user frames are taken again, it is not trusted, and the next
 * walk replaces it.
 */
#ifndef PODPERF_MEMO_BPF_H
#define PODPERF_MEMO_BPF_H

#include "budget.bpf.h"
#include "copies.bpf.h"
#include "hash.h"
#include "tasks.bpf.h"
#include "walk.bpf.h"

/* Shadow mode: walks each cached stack as well, and counts how often the two differ. It changes nothing else. */
const volatile bool shadow = false;

/*
 * Number of walks in a row that must agree before a call site is trusted; doubled for each time that its stack was
 * wrong.
 */
#define TRUSTED_AFTER 8U
#define MAX_DOUBLINGS 16
/*
 * One in CHECK_EVERY uses of a trusted call site is walked as well. A newly trusted one is walked more often, and half
 * as often after each check that agrees. The reason: with a runtime such as Go's, many tasks wait on one stack in turn,
 * each for a while.
 */
#define CHECK_EVERY 64
#define CHECK_DOUBLINGS 3
/* Number of uses without a lookup in the cache; a divisor of CHECK_EVERY. */
#define MEMORY_USES 16

struct memo {
	__u64 stack;  /* 0: unknown */
	__u32 agreed; /* walks in a row that found this stack */
	__u32 uses;   /* uses since it is trusted, or since the last check */
	__u32 wrong;  /* walks that found another stack; with copies: another kernel part of it */
	__u8 cut;     /* 1: the user frames of this stack were shed */
	__u8 named;   /* 1: samples have named the call site, and wait for its stack */
	__u8 several; /* 1: a recipe has found other user frames */
	__u8 reserved;
};

/* Id of a call site -> its stack. The sensors of scheduling and of moves write and read it, but not the sampler. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 32768); /* set by the agent */
	__type(key, __u64);
	__type(value, struct memo);
} stack_memo SEC(".maps");

/* The stack of a wait, as far as it is known when the wait begins. */
struct wait_stack {
	__u64 id;     /* see podperf_sample_key */
	__u32 weight; /* number of short waits it stands for; 0: other waits stand for it if it is short */
	bool walked;  /* walked now, and not taken from the cache */
	__u8 shadow;  /* enum shadow */
};

/* The result of a walk in shadow mode for a cached stack. */
enum shadow {
	SHADOW_NONE,
	SHADOW_RIGHT,
	SHADOW_WRONG,
};

/*
 * The system calls of epoll, and their fourth argument, the timeout. A wait without a timeout takes another path in the
 * kernel, which the other registers do not show: a runtime's poller uses one call site for both.
 */
#if defined(__TARGET_ARCH_x86)
#define IS_EPOLL(regs) ((regs)->orig_ax == 232 || (regs)->orig_ax == 281)
#define EPOLL_TIMEOUT(regs) ((__s32)(regs)->r10)
#elif defined(__TARGET_ARCH_arm64)
#define IS_EPOLL(regs) ((regs)->syscallno == 22)
#define EPOLL_TIMEOUT(regs) ((__s32)(regs)->regs[3])
#endif

/*
 * Registers that tell call sites apart. A function of arm64 that makes a system call may have its caller in x30 alone; a
 * walk by frame pointers does not look there.
 */
#if defined(__TARGET_ARCH_x86)
#define PC_OF(regs) (regs)->ip
#define FP_OF(regs) (regs)->bp
#define LINK_OF(regs) 0
#define CALL_OF(regs) (regs)->orig_ax
#elif defined(__TARGET_ARCH_arm64)
#define PC_OF(regs) (regs)->pc
#define FP_OF(regs) (regs)->regs[29]
#define LINK_OF(regs) (WITHOUT_SIGNATURE((regs)->regs[30]) << 16)
#define CALL_OF(regs) (regs)->syscallno
#endif

static __always_inline __u64 site_of(struct task_struct *task, struct pt_regs *regs, __u64 sp, __u64 fp, __u32 state)
{
	__u64 link = copies_enabled ? LINK_OF(regs) : 0;
	/*
	 * The id of a thread or process is used again later, and stays the same in exec: the first two words distinguish
	 * such tasks.
	 */
	__u64 words[PODPERF_SITE_WORDS] = {
	    task->start_time, task->self_exec_id, PC_OF(regs), sp, fp ^ link, CALL_OF(regs), state,
	};

	if (IS_EPOLL(regs))
		words[PODPERF_SITE_WORDS - 1] += (EPOLL_TIMEOUT(regs) < 0 ? 2 : 1) * PODPERF_ACTIVITIES;
	return hash_site(words, hash_key.sites);
}

/*
 * Returns the id of the call site where `task`, which is current, sleeps: the hash of the user registers that the
 * kernel saved on entry. The id is even.
 */
static __always_inline __u64 signature(struct task_struct *task, __u32 state)
{
	struct pt_regs *regs = (struct pt_regs *)bpf_task_pt_regs(task);

	return site_of(task, regs, regs->sp, FP_OF(regs), state);
}

/*
 * Returns the id of the path to the place where `task`, which is current, sleeps. Threads of a process that came the same
 * way have the same path: their stack pointers differ by whole pages, and the distance to the frame pointer is the same,
 * if it points to the stack. Other ways may have the same path as well. The id is even. Like `place_of`, it is a function
 * of its own since the stack of all nested calls may have 512 bytes.
 */
static __noinline __u64 path_of(struct task_struct *task, __u32 state)
{
	struct pt_regs *regs = (struct pt_regs *)bpf_task_pt_regs(task);
	__u64 sp = regs->sp, fp = FP_OF(regs) - sp;

	return site_of(task->group_leader, regs, sp & (PODPERF_PAGE - 1), fp < STACK_SPAN ? fp : STACK_SPAN, state);
}

static __noinline __u64 place_of(struct task_struct *task, __u32 state)
{
	return signature(task, state);
}

/* Sends the stack of a call site that samples have named to the agent. */
static __always_inline void send_place(__u64 place, __u64 stack)
{
	struct podperf_place record = {.record = PODPERF_RECORD_PLACE, .place = place, .stack = stack};

	if (bpf_ringbuf_output(&stack_ring, &record, sizeof(record), BPF_RB_NO_WAKEUP))
		drop(PODPERF_DROP_STACK_RING);
}

/* Adds `place`, a call site without a known stack, to the cache: from now on samples name it. */
static __always_inline void name_place(__u64 place)
{
	struct memo fresh = {.named = 1}, *memo = bpf_map_lookup_elem(&stack_memo, &place);

	if (memo)
		memo->named = 1;
	else if (bpf_map_update_elem(&stack_memo, &place, &fresh, BPF_NOEXIST) &&
		 !bpf_map_lookup_elem(&stack_memo, &place))
		drop(PODPERF_DROP_STACK_MEMO);
}

static __always_inline __u8 compare(struct podperf_cpu *cpu, bool right)
{
	cpu->shadow_waits++;
	cpu->shadow_wrong += !right;
	return right ? SHADOW_RIGHT : SHADOW_WRONG;
}

/*
 * Returns the stack of the current task, which goes to sleep and is charged to `cgroup`. Only one line calls the walk:
 * the return address of the walk is one of the kernel's frames.
 */
static __always_inline struct wait_stack stack_of_wait(void *ctx, struct task_struct *task, struct task *t,
						       __u64 cgroup, __u64 now, struct podperf_cpu *cpu)
{
	__u64 place = signature(task, t->activity), walked = 0;
	struct memo *memo = NULL;
	__u32 walk, check_every = CHECK_EVERY, cut = is_shed(PODPERF_SHED_USER_FRAMES);
	struct memo fresh = {.cut = cut};
	struct wait_stack found = {};
	bool shadows = shadow && !cut, is_whole = false, is_stale = false;
	bool at_hand = t->memory_place == place && t->memory_uses;
	bool known = false, trusted = false, believed = false;

	cpu->waits++;
	if (at_hand) {
		t->memory_uses--;
		found.id = t->memory_stack;
		found.weight = 1;
		if (!shadows)
			return found;
	} else {
		memo = bpf_map_lookup_elem(&stack_memo, &place);
		known = memo && memo->stack;
	}
	if (known) {
		__u32 needed = TRUSTED_AFTER << (memo->wrong < MAX_DOUBLINGS ? memo->wrong : MAX_DOUBLINGS);

		is_whole = memo->cut < cut;
		is_stale = memo->cut > cut;
		trusted = memo->agreed >= needed && !is_stale;
		if (memo->agreed - needed < CHECK_DOUBLINGS)
			check_every >>= CHECK_DOUBLINGS - (memo->agreed - needed);
		/* Over the budget, a stack is believed if it is trusted or was never wrong. */
		believed = trusted || !memo->wrong;
	}
	if (known && trusted)
		memo->uses += t->memory_place == place ? MEMORY_USES : 1;
	walk = shadows;
	if (at_hand) {
		/* Walked for the shadow only. */
	} else if (!known && memo && memo->named) {
		found.weight = 1;
		walk = 1;
	} else if (!trusted || (memo->uses >= check_every && !is_whole)) {
		found.weight = may_walk(cgroup, now);
		walk |= found.weight;
		if (trusted && found.weight)
			memo->uses = 0;
	}
	/* Hides these values from the compiler: if it knew them, it would make a path, and a call, for each case. */
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
		if (trusted && !memo->cut && check_every == CHECK_EVERY) {
			t->memory_place = place;
			t->memory_stack = memo->stack;
			t->memory_uses = MEMORY_USES - 1;
		}
		if (shadows && believed)
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
		if (is_whole)
			return found;
		if (walked == memo->stack) {
			memo->agreed++;
		} else {
			cpu->checks_wrong += trusted;
			memo->stack = walked;
			memo->agreed = 0;
			memo->wrong += !is_stale;
			memo->cut = cut;
		}
		return found;
	}
	if (memo && memo->named && walked)
		send_place(place, walked);
	fresh.stack = walked;
	fresh.named = !walked && memo && memo->named;
	if (bpf_map_update_elem(&stack_memo, &place, &fresh, BPF_ANY))
		drop(PODPERF_DROP_STACK_MEMO);
	return found;
}

#endif
