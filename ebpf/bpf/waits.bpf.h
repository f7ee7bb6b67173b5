/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Charges waits to the cgroup's row and to the profile: when a wait ends, and before each reading of the agent. The
 * record's `left_ns` is the time from which a wait is not charged yet.
 */
#ifndef PODPERF_WAITS_BPF_H
#define PODPERF_WAITS_BPF_H

#include "cgroup.bpf.h"
#include "control.bpf.h"
#include "filters.bpf.h"
#include "kernel.h"
#include "stack_cache.bpf.h"
#include "podperf.h"
#include "riders.bpf.h"
#include "samples.bpf.h"
#include "tasks.bpf.h"

/*
 * The length from which a wait is never left to chance, in nanoseconds: if the budget has no walk for it, its call site
 * is named.
 */
#define CERTAIN_NS 10000000
/*
 * The largest difference between the length of a wait for a CPU and the kernel's own account, in nanoseconds. The
 * clocks differ a little, and the time of an unreported switch-in is found by run times, which may be a tick old.
 */
#define SKEW_NS 10000000
/*
 * The length from which a wait is charged before it ends, in nanoseconds. It is much more than CERTAIN_NS: the program
 * that settles a wait expects an iterator to change `left_ns` only if that is CERTAIN_NS ago. If an iterator finds a
 * task off the CPU with a `left_ns` this old, the wait goes on, or such a program settles it at this moment.
 */
#define GOES_ON_NS 100000000

/*
 * Cgroup id -> the time of its waits before they ended: `offcpu_ns` and `unprofiled_ns`. The iterators write it instead
 * of the cgroup's row: they may be preempted, and a row has one writer at a time. The agent runs one iterator at a
 * time.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096); /* set by the agent */
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u64);
	__type(value, struct podperf_cgroup);
} rows_so_far SEC(".maps");

/*
 * Returns `state` as an index. The compiler cannot remove the mask, and the verifier sees it wherever the value goes.
 */
static __always_inline __u64 index_of(__u64 state)
{
	_Static_assert(PODPERF_WAITS == 4, "the mask");
	asm volatile("%0 &= 3" : "+r"(state));
	return state;
}

/*
 * Returns the activity of a task that leaves the CPU. Idle kernel threads sleep uninterruptibly, but TASK_NOLOAD marks
 * them as idle. If another CPU already wakes the task, `was` is the state in which it left, on kernels that report it
 * (since 5.18).
 */
static __always_inline __u32 wait_activity(struct task_struct *task, bool preempt, __u32 was)
{
	__u32 state = task->__state;

	if ((state & TASK_WAKING) && was)
		state = was;
	if (preempt || !state)
		return is_throttled(task) ? PODPERF_THROTTLED : PODPERF_RUN_QUEUE;
	if ((state & (TASK_UNINTERRUPTIBLE | TASK_RTLOCK_WAIT)) && !(state & TASK_NOLOAD))
		return PODPERF_UNINTERRUPTIBLE;
	return PODPERF_INTERRUPTIBLE;
}

/*
 * Moves the sum of the record into the table. If the table has no room and `may_stay` is set, the sum stays in the
 * record for the next table. The verifier checks this function separately.
 */
__noinline int flush_sum(struct task *t, __u32 tgid, __u32 odd, bool may_stay)
{
	struct podperf_sample_key key = {};
	struct podperf_sample_sum fresh = {};
	long error;

	if (!t || !t->sum.count)
		return 0;
	key.stack = name_in_table(stack_of_copy(t->sum.stack), t->sum.kernel_part, t->sum.cgroup, odd);
	key.cgroup = t->sum.cgroup;
	key.waker = t->sum.waker;
	key.tgid = tgid;
	key.activity = t->sum.activity;
	key.lock = t->sum.lock;
	key.filters = t->sum.filters;
	fresh.ns = t->sum.ns;
	fresh.queued_ns = t->sum.queued_ns;
	fresh.count = t->sum.count;
	fresh.last_ns = t->sum.last_ns;
	error = add_wait_sum(&key, &fresh, odd);
	t->sum_stays = error && may_stay;
	if (t->sum_stays)
		return 0;
	t->sum.ns = 0;
	t->sum.queued_ns = 0;
	t->sum.count = 0;
	if (error)
		add_unprofiled(&key, &fresh, error);
	return 0;
}

/* Adds one wait to the table, or sends it. */
static __always_inline int add_wait(struct task *t, __u32 tgid, __u32 pid, __u64 cgroup, __u64 at, __u64 ns)
{
	struct podperf_sample_key key = {
	    .stack = stack_of_copy(t->stack),
	    .seen = ns >= CERTAIN_NS && t->seen_of == at - ns ? t->seen_stack : 0,
	    .cgroup = cgroup,
	    .waker = t->waker,
	    .tgid = tgid,
	    .activity = t->activity,
	    .lock = t->lock,
	    .filters = t->filters,
	};
	struct podperf_sample_sum fresh = {
	    .ns = ns - t->so_far_ns - t->queued_ns,
	    .queued_ns = t->queued_ns,
	    .count = 1,
	    .last_ns = at,
	};
	__u32 odd;
	long error;

	if (ns >= CERTAIN_NS) {
		/*
		 * If a part of a wait for a lock was sent before, that sample has no lock. So the end is sent alone, with
		 * `so_far_ns`, and the agent adds the earlier part to the profile of locks.
		 */
		bool alone = (long_wait_ns && ns >= long_wait_ns) || (t->lock && t->so_far_ns);

		if (!t->weight && !(t->stack & 1))
			name_site(t->stack);
		if (alone && send_long_wait(&key, pid, &fresh, t->so_far_ns))
			return 0;
	} else {
		fresh.ns *= t->weight;
		fresh.queued_ns *= t->weight;
		fresh.count = t->weight;
	}
	odd = orders.epoch & 1;
	key.stack = name_in_table(key.stack, t->kernel_part, cgroup, odd);
	error = add_wait_sum(&key, &fresh, odd);
	if (error)
		add_unprofiled(&key, &fresh, error);
	return 0;
}

/*
 * Adds a wait that has ended to the profile. The first `t->so_far_ns` of the wait are there already, and `t->queued_ns`
 * of it were in the run queue. `ids` are the ids of process and thread. The verifier checks this function separately.
 */
__noinline int profile_wait(struct task *t, __u64 ids, __u64 cgroup, __u64 at, __u64 ns)
{
	struct podperf_cpu *cpu = this_cpu();
	struct task_sum *sum;

	if (!t || !cpu)
		return 0;
	sum = &t->sum;
	if (ns < CERTAIN_NS && !t->weight) {
		cpu->sampled_out++;
		return 0;
	}
	/* Long waits are few, and may be sent alone. If the sum is locked, the agent holds the lock, for a moment. */
	if (!sees_all_tasks || ns >= CERTAIN_NS || !try_lock(&t->sum_busy))
		return add_wait(t, ids >> 32, ids, cgroup, at, ns);
	if (t->sum_stays || sum->stack != t->stack || sum->cgroup != cgroup || sum->waker != t->waker ||
	    sum->activity != t->activity || sum->lock != t->lock || sum->filters != t->filters) {
		flush_sum(t, ids >> 32, orders.epoch & 1, false);
		sum->kernel_part = t->kernel_part;
		sum->stack = t->stack;
		sum->cgroup = cgroup;
		sum->waker = t->waker;
		sum->activity = t->activity;
		sum->lock = t->lock;
		sum->filters = t->filters;
	}
	sum->ns += (ns - t->queued_ns) * t->weight;
	sum->queued_ns += t->queued_ns * t->weight;
	sum->count += t->weight;
	sum->last_ns = at;
	unlock(&t->sum_busy);
	return 0;
}

/*
 * Adds the length of the wait that began at `began` to the sums of shadow mode. The cached stack of the wait was walked
 * as well. The verifier checks this function separately.
 */
__noinline int count_shadow(struct task *t, __u64 began, __u64 ns)
{
	struct podperf_cpu *cpu = this_cpu();

	if (!t || !cpu)
		return 0;
	cpu->shadow_ns += ns;
	if (t->shadow == SHADOW_WRONG && t->seen_of != began)
		cpu->shadow_wrong_ns += ns;
	return 0;
}

/*
 * Returns true if the wait of `t` is added to the profile. While stacks are given up, only waits for a CPU are: they
 * have none.
 */
static __always_inline bool is_profiled(struct task *t)
{
	return t->in_profile && (t->activity >= PODPERF_RUN_QUEUE || !is_shed(PODPERF_SHED_STACKS));
}

/*
 * Adds the wait of `task` to the profile, or counts it as missing there. The wait was `ns` long and ended at `at`.
 * `t->so_far_ns` of it are there already, and `t->queued_ns` of it were in the run queue.
 */
static __always_inline void profile_ended_wait(struct task_struct *task, struct task *t, __u64 cgroup, __u64 at,
					       __u64 ns)
{
	if (is_profiled(t)) {
		if (shadow && t->shadow)
			count_shadow(t, at - ns, ns - t->queued_ns);
		t->filters = filters_of(task, ns);
		profile_wait(t, (__u64)task->tgid << 32 | (__u32)task->pid, cgroup, at, ns);
		return;
	}
	if (t->queued_ns)
		keep_unprofiled(cgroup, PODPERF_RUN_QUEUE, t->queued_ns);
	keep_unprofiled(cgroup, t->activity, ns - t->so_far_ns - t->queued_ns);
}

/* Returns when the wait of `t` began. It is not charged since `left_ns`. */
static __always_inline __u64 began_of(struct task *t, __u64 left_ns)
{
	return t->charged_ns == left_ns ? t->began_ns : left_ns;
}

/*
 * Takes the wait of `t` to settle it: from here on no iterator charges it. Returns the time since which the wait is not
 * charged.
 */
static __always_inline __u64 take_wait(struct task *t, __u64 left_ns, __u64 at)
{
	if (at > left_ns && at - left_ns >= CERTAIN_NS)
		return __sync_lock_test_and_set(&t->left_ns, 0);
	t->left_ns = 0;
	return left_ns;
}

/*
 * Charges the rest of the wait of `task`, from `left_ns` until the task came on the CPU at `at`, to `row`, which is
 * that of `cgroup`. By the kernel's own account, the task was in the run queue for `delay` of that, after it was woken.
 * A task that did not sleep was in the run queue all the time: then `delay` is the length.
 */
static __always_inline void settle_wait(struct task_struct *task, struct task *t, __u64 cgroup, __u64 left_ns, __u64 at,
					__u64 delay, struct podperf_cgroup *row)
{
	__u64 rest = at > left_ns ? at - left_ns : 0, queued = 0, began, so_far, ns;
	__u32 state = t->activity;

	if (state < PODPERF_RUN_QUEUE) {
		queued = delay;
		if (rest < queued)
			rest = queued;
	} else {
		began = began_of(t, left_ns);
		so_far = left_ns - began;
		ns = rest + so_far;
		if (delay + SKEW_NS - ns < 2 * SKEW_NS) {
			rest = delay > so_far ? delay - so_far : 0;
			at = left_ns + rest;
		}
	}
	began = began_of(t, left_ns);
	if (row && state < PODPERF_WAITS) {
		row->offcpu_ns[index_of(state)] += rest - queued;
		row->offcpu_ns[PODPERF_RUN_QUEUE] += queued;
		ride_wait_end(cgroup, t->call, state, rest - queued + left_ns - began, queued);
	}
	if (!wants_profile(task))
		return;
	t->queued_ns = queued;
	t->so_far_ns = left_ns - began;
	profile_ended_wait(task, t, cgroup, at, rest + left_ns - began);
}

/* Charges the wait of a new task for its first time on a CPU. The stack of this wait is not known. */
static __always_inline void settle_first_wait(struct task_struct *task, struct podperf_cgroup *row, __u64 ns)
{
	row->offcpu_ns[PODPERF_RUN_QUEUE] += ns;
	ride_wait_end(row->id, 0, PODPERF_RUN_QUEUE, ns, 0);
	if (wants_profile(task))
		row->unprofiled_ns[PODPERF_RUN_QUEUE] += ns;
}

/*
 * Returns true if the wait of `task` goes on at `at`, which is at least GOES_ON_NS after `left_ns`. The wait is charged
 * up to `left_ns`. A task that is woken up, but has no CPU yet, is charged when it has one: the length of its sleep is
 * known only then. A task that has ended waits only to be reaped, and is not charged. The run time shows that the task
 * has not run since it left the CPU: its last switch may have found no record.
 */
static __always_inline bool goes_on(struct task_struct *task, struct task *t, __u64 left_ns, __u64 at)
{
	volatile struct task_struct *its = task;

	return left_ns && at >= left_ns + GOES_ON_NS && !LOW_BYTE(task, on_cpu) && !(its->__state & TASK_DEAD) &&
	       its->se.sum_exec_runtime == t->left_run_ns && (t->activity >= PODPERF_RUN_QUEUE || is_asleep(task));
}

/*
 * Charges to `row` the wait of `task` since `left_ns`, and adds it to the table `odd` of samples. The task may come on
 * a CPU at any moment: the one of the two programs that changes `t->left_ns` charges the time before it.
 */
static __always_inline void charge_so_far(struct task_struct *task, struct task *t, struct podperf_cgroup *row,
					  __u64 left_ns, __u64 at, __u32 odd)
{
	struct podperf_sample_key key = {};
	struct podperf_sample_sum fresh = {};
	volatile struct task *its = t;
	__u32 activity = its->activity, weight = its->weight;
	bool in_profile = is_profiled(t);
	__u64 began = its->charged_ns == left_ns ? its->began_ns : left_ns;
	long error = 0;

	key.stack = name_in_table(stack_of_copy(its->stack), its->kernel_part, row->id, odd);
	key.seen = its->seen_of == began ? its->seen_stack : 0;
	if (activity >= PODPERF_WAITS)
		return;
	its->began_ns = began;
	its->charged_ns = at;
	if (__sync_val_compare_and_swap(&t->left_ns, left_ns, at) != left_ns)
		return;
	t->cgroup = cgroup_id(task);
	fresh.ns = at - left_ns;
	fresh.last_ns = at;
	row->offcpu_ns[index_of(activity)] += fresh.ns;
	if (!wants_profile(task))
		return;
	key.cgroup = row->id;
	key.waker = PODPERF_GOES_ON;
	key.tgid = task->tgid;
	key.activity = activity;
	key.filters = filters_of(task, at - began);
	if (in_profile)
		error = add_wait_sum(&key, &fresh, odd);
	if (error)
		drop(error == -E2BIG ? PODPERF_DROP_SAMPLE_STACK : PODPERF_DROP_SAMPLE_BUSY);
	if (!in_profile || error)
		row->unprofiled_ns[index_of(activity)] += fresh.ns;
	else if (!key.seen && !weight && !(key.stack & 1))
		name_site(key.stack);
}

/* Returns the row in which the iterators charge `task`, which is in `cgroup`, or NULL when there is no room. */
static __always_inline struct podperf_cgroup *row_so_far(struct task_struct *task, __u64 cgroup)
{
	struct podperf_cgroup *row = bpf_map_lookup_elem(&rows_so_far, &cgroup);

	if (row)
		return row;
	cgroup = charged_to(cgroup, (__u64)BPF_CORE_READ(task, cgroups, dfl_cgrp));
	if (!cgroup)
		return NULL;
	bpf_map_update_elem(&rows_so_far, &cgroup, &no_facts, BPF_NOEXIST);
	row = bpf_map_lookup_elem(&rows_so_far, &cgroup);
	if (row)
		row->id = cgroup;
	return row;
}

/*
 * Returns true if the stack of `t` must be checked: it is from the cache, and may be wrong, or it is a copy that the
 * agent has not unwound, perhaps one for an agent that has ended. The wait began at `began`.
 */
static __always_inline bool needs_a_look(struct task *t, __u64 began)
{
	bool is_known = t->walked && (!copies_enabled || (stack_of_copy(t->stack) & 1));

	return is_profiled(t) && !is_known && t->activity < PODPERF_RUN_QUEUE && t->seen_of != began;
}

/* Charges the wait of `task` so far to its cgroup, if the wait goes on. For iterators. */
static __always_inline void charge_waiting(struct task_struct *task, struct task *t, __u32 odd)
{
	__u64 left_ns = *(volatile __u64 *)&t->left_ns, at = bpf_ktime_get_ns(), began;
	struct podperf_stack *stack;
	struct podperf_cgroup *row;
	__u32 zero = 0;

	if (!goes_on(task, t, left_ns, at))
		return;
	row = row_so_far(task, cgroup_id(task));
	if (!row)
		return;
	began = began_of(t, left_ns);
	stack = bpf_map_lookup_elem(&iterator_buffer, &zero);
	/* If the task comes on meanwhile, `seen_of` matches no wait: the next wait begins at another time. */
	if (stack && needs_a_look(t, began)) {
		t->seen_of = 0;
		t->seen_stack = look_preemptibly(task, stack);
		t->seen_of = t->seen_stack ? began : 0;
	}
	charge_so_far(task, t, row, left_ns, at, odd);
}

/*
 * Fills the record of a task that these programs have not seen yet and that does not run. Its wait began before these
 * programs counted: it is charged from now on, and its stack is not known. The record is locked.
 */
static __always_inline void see_waiting(struct task_struct *task, struct task *t)
{
	if (t->seen || (task->__state & (TASK_DEAD | TASK_NEW)))
		return;
	if (!(carries && carry_over(task, t))) {
		read_facts(task, &t->settled);
		t->left_run_ns = t->settled.run_ns;
	}
	if (!t->left_ns) {
		t->left_ns = bpf_ktime_get_ns();
		t->activity = wait_activity(task, false, 0);
		t->cgroup = cgroup_id(task);
		t->weight = 1;
		t->in_profile = wants_profile(task);
	}
	ride_wait_begin(task, t);
	t->seen = true;
}

#endif
