/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* What is remembered of each task. */
#ifndef PODPERF_TASKS_BPF_H
#define PODPERF_TASKS_BPF_H

#include "control.bpf.h"
#include "drops.bpf.h"
#include "kernel.h"
#include "podperf.h"

const volatile bool stacks_enabled = false;
/* CLOCK_MONOTONIC when the programs were loaded: tasks that were there before count from their first sight. */
const volatile __u64 loaded_at_ns = 0;
/* Whether the agent sees all tasks: its iterators see those of its own pid namespace. */
const volatile bool sees_all_tasks = false;
/* Whether there were programs of another layout, and where what they remember of a task is. */
const volatile bool carries = false;
const volatile struct podperf_carried carried[PODPERF_CARRIED] = {};

/* What the kernel keeps per task. */
struct facts {
	__u64 run_ns;
	__u64 runqueue_ns;
	__u64 voluntary;
	__u64 involuntary;
	__u64 rare; /* sum of those below: while it stays the same, none of them has changed */
	__u64 migrations;
	__u64 minor_faults;
	__u64 major_faults;
};

/*
 * Waits of one key, summed in the task's own record, which is at hand: a thread mostly waits where it waited before. They
 * come to the table when it waits elsewhere, when it ends, and when the agent takes the table (`collect`).
 */
struct task_sum {
	__u64 stack; /* this to filters: see podperf_sample_key */
	__u64 cgroup;
	__u64 waker;
	__u32 activity;
	__u32 filters;
	__u64 ns; /* this to last_ns: see podperf_sample_sum */
	__u64 queued_ns;
	__u64 count;
	__u64 last_ns;
};

/* The memory of a task between its switches. The fields that every switch touches come first. */
struct task {
	__u32 busy;        /* being settled: only one CPU at a time may */
	__u32 activity;    /* what the wait since is, enum podperf_activity */
	bool in_profile;   /* that wait is to be in the profile */
	bool seen;         /* it has a record for longer than this */
	bool walked;       /* the stack of that wait was walked and not remembered */
	__u8 shadow;       /* enum shadow, of that wait */
	__u32 weight;      /* of that wait, see wait_stack */
	__u64 moved_to;    /* its cgroup, if another task moved it while it ran; 0: the cgroup that its CPU says */
	__u64 left_ns;     /* when it left the CPU, or up to when the wait since is charged; 0: that wait is settled */
	__u64 left_run_ns; /* its run time when it left */
	__u64 charged_ns;  /* `left_ns` of a wait that was charged while it goes on, see waits.bpf.h */
	__u64 cgroup;      /* its cgroup when it was settled or moved last */
	struct facts settled; /* its facts when they were last charged */
	__u64 moved_since_ns; /* when it had come on the CPU when it was moved: `moved_to` holds until it leaves */
	__u64 stack;          /* of the wait since, see podperf_sample_key */
	__u64 waker;          /* of that wait, see podperf_sample_key */
	__u64 began_ns;       /* when the wait of `charged_ns` began */
	__u64 seen_stack;     /* see podperf_sample_key, of the wait that began at `seen_of` */
	__u64 seen_of;
	__u64 queued_ns;    /* of the wait that ends: time in the run queue */
	__u64 so_far_ns;    /* of the wait that ends: what was charged before */
	__u32 filters;      /* of the wait that ends, see podperf_sample_key */
	__u32 memory_uses;  /* how often `memory` is still believed without a look */
	__u64 memory_place; /* where it waited last */
	__u64 memory_stack; /* and with which stack */
	struct task_sum sum;
	__u32 sum_busy;  /* being changed */
	__u32 sum_stays; /* no table had room for the sum: the next one may have */
};

/* Task -> what is remembered of it; freed by the kernel with the task. */
struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct task);
} tasks SEC(".maps");

/* The same of programs of another layout, which had counted until these did: read once, and deleted by `carry`. */
struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, __u64);
} tasks_before SEC(".maps");

/* Takes a lock that nobody waits for; false when another has it. */
static __always_inline bool try_lock(__u32 *busy)
{
	return !__sync_lock_test_and_set(busy, 1);
}

static __always_inline void unlock(__u32 *busy)
{
#if defined(__TARGET_ARCH_arm64)
	__sync_lock_test_and_set(busy, 0); /* what was written before is seen before */
#else
	*busy = 0;
#endif
}

/* Whether waits of `task` are profiled: not those of kernel threads, which wait for work. */
static __always_inline bool wants_profile(struct task_struct *task)
{
	return stacks_enabled && !(task->flags & PF_KTHREAD);
}

static __always_inline void read_facts(struct task_struct *task, struct facts *facts)
{
	facts->run_ns = task->se.sum_exec_runtime;
	facts->runqueue_ns = task->sched_info.run_delay;
	facts->voluntary = task->nvcsw;
	facts->involuntary = task->nivcsw;
	facts->migrations = task->se.nr_migrations;
	facts->minor_faults = task->min_flt;
	facts->major_faults = task->maj_flt;
	facts->rare = facts->migrations + facts->minor_faults + facts->major_faults;
}

/*
 * Fills a new record with what programs of another layout remember of the task; false when that is nothing. They have
 * settled it up to when they gave way, so what is charged here begins there. What they do not have begins now.
 */
static __noinline bool carry_over(struct task_struct *task, struct task *t)
{
	void *before = bpf_task_storage_get(&tasks_before, task, NULL, 0);

	if (!before || !t)
		return false;
	read_facts(task, &t->settled);
#pragma unroll
	for (int i = 0; i < PODPERF_CARRIED; i++) {
		void *from = before + carried[i].from, *to = (void *)t + carried[i].to;
		__u32 size = carried[i].size;

		/* Constants to the verifier: it knows each place. */
		if (size == 8)
			*(__u64 *)to = *(__u64 *)from;
		else if (size == 4)
			*(__u32 *)to = *(__u32 *)from;
		else if (size == 1)
			*(__u8 *)to = *(__u8 *)from;
	}
	t->settled.rare = t->settled.migrations + t->settled.minor_faults + t->settled.major_faults;
	return true;
}

/* Returns the record of `task`, and makes it if there is none. Not with a run queue locked: the allocator takes locks. */
static __always_inline struct task *make_record(struct task_struct *task)
{
	struct task *t = bpf_task_storage_get(&tasks, task, NULL, BPF_LOCAL_STORAGE_GET_F_CREATE);

	if (!t)
		drop(PODPERF_DROP_TASK_STORAGE);
	return t;
}

/*
 * Returns the record of `task`; a run queue may be locked. `task_newtask` or `adopt` made the record. If there was no memory
 * then, or `adopt` did not see the task, the record is made here where that is safe. Kernels before 6.4 make it here only for a
 * task that is older than the programs, and only if the agent cannot see all tasks.
 */
static __always_inline struct task *find_record(struct task_struct *task)
{
	struct task *t = bpf_task_storage_get(&tasks, task, NULL, 0);

	if (t)
		return t;
	if (allocates_anywhere() || (!sees_all_tasks && task->start_time < orders.births_since_ns))
		return make_record(task);
	drop(PODPERF_DROP_TASK_STORAGE);
	return NULL;
}

/*
 * Returns the record of `task`, which is on a CPU since `since_ns` (0: not known), and fills it at its first sight. A task
 * that was there before the programs counts from when it came on: what else it did until then is not known.
 */
static __always_inline struct task *task_of(struct task_struct *task, __u64 since_ns, __u64 now)
{
	struct task *t = find_record(task);

	if (!t)
		return NULL;
	if (t->seen)
		return t;
	/* `carry` may be about to do the same on another CPU. */
	if (!try_lock(&t->busy)) {
		drop(PODPERF_DROP_TASK_BUSY);
		return NULL;
	}
	if (!t->seen && !(carries && carry_over(task, t)) && task->start_time < loaded_at_ns) {
		__u64 ran = since_ns ? now - since_ns : 0;

		read_facts(task, &t->settled);
		t->left_run_ns = t->settled.run_ns;
		t->settled.run_ns -= ran < t->settled.run_ns ? ran : t->settled.run_ns;
	}
	t->seen = true;
	unlock(&t->busy);
	return t;
}

#endif
