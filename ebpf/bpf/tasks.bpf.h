/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The record of each task. */
#ifndef PODPERF_TASKS_BPF_H
#define PODPERF_TASKS_BPF_H

#include "control.bpf.h"
#include "drops.bpf.h"
#include "kernel.h"
#include "podperf.h"

const volatile bool stacks_enabled = false;
/* CLOCK_MONOTONIC when the programs were loaded. Tasks that are older count from the first time that they are seen. */
const volatile __u64 loaded_at_ns = 0;
/* True if the agent sees all tasks: its iterators see only the tasks of its own pid namespace. */
const volatile bool sees_all_tasks = false;
/*
 * True if there is a previous generation with another layout. `carried` has the offsets of the fields in its task
 * records.
 */
const volatile bool carries = false;
const volatile struct podperf_carried carried[PODPERF_CARRIED] = {};

/* The size of the smallest kernel stack of a task, in bytes. */
#define TASK_STACK_BYTES (16 << 10)

/* The facts that the kernel keeps per task. */
struct facts {
	__u64 run_ns;
	__u64 runqueue_ns;
	__u64 voluntary;
	__u64 involuntary;
	__u64 rare; /* sum of the fields below: while it stays the same, none of them has changed */
	__u64 migrations;
	__u64 minor_faults;
	__u64 major_faults;
};

/*
 * The sum of waits of one key, in the task's own record, which is at hand: a thread mostly waits where it waited
 * before. The sum moves to the table when the thread waits elsewhere, when it ends, and when the agent takes the table
 * (`collect`).
 */
struct task_sum {
	__u64 kernel_part; /* of `stack`, if that is a copy */
	__u64 stack;       /* from here to filters: see podperf_sample_key */
	__u64 cgroup;
	__u64 waker;
	__u16 activity;
	__u16 lock;
	__u32 filters;
	__u64 ns; /* from here to last_ns: see podperf_sample_sum */
	__u64 queued_ns;
	__u64 count;
	__u64 last_ns;
};

/* The record of a task between its switches. The fields that every switch touches come first. */
struct task {
	__u32 busy;    /* lock: only one CPU at a time may settle the task */
	__u8 activity; /* kind of the last wait, enum podperf_activity */
	__u8 lock;     /* of the last wait, see podperf_sample_key */
	__u8 call;     /* the system call of the last wait, set and read by the sensor `syscalls` */
	__u8 reserved;
	bool in_profile;   /* the last wait is to be in the profile */
	bool seen;         /* the record is filled */
	bool walked;       /* the stack of the last wait was walked, and not taken from the cache */
	__u8 shadow;       /* enum shadow, of the last wait */
	__u32 weight;      /* number of short waits that the last one stands for; 0: others stand for it */
	__u64 moved_to;    /* its cgroup, if another task moved it while it ran; 0: the cgroup in the CPU's state */
	__u64 left_ns;     /* when it left the CPU, or up to when the last wait is charged; 0: that wait is settled */
	__u64 left_run_ns; /* its run time when it left */
	__u64 charged_ns;  /* `left_ns` of a wait that was charged while it goes on, see waits.bpf.h */
	__u64 cgroup;      /* its cgroup when it was last settled or moved */
	struct facts settled; /* its facts when they were last charged */
	__u64 moved_since_ns; /* when it came on the CPU before it was moved: `moved_to` holds until it leaves */
	__u64 stack;          /* of the last wait, see podperf_sample_key */
	__u64 kernel_part;    /* of `stack`, if that is a copy; 0: it is not known */
	__u64 waker;          /* of the last wait, see podperf_sample_key */
	__u64 began_ns;       /* when the wait of `charged_ns` began */
	__u64 seen_stack;     /* of the wait that began at `seen_of`, see podperf_sample_key */
	__u64 seen_of;
	__u64 queued_ns;    /* time in the run queue of the wait that ends */
	__u64 so_far_ns;    /* the part of the wait that ends that was charged before */
	__u32 filters;      /* of the wait that ends, see podperf_sample_key */
	__u32 memory_uses;  /* number of uses of `memory_stack` that remain without a lookup in the cache */
	__u64 memory_site;  /* call site of `memory_stack` */
	__u64 memory_stack; /* stack of a trusted call site, from the cache */
	struct task_sum sum;
	__u32 sum_busy;  /* lock: the sum is being changed */
	__u32 sum_stays; /* no table had room for the sum: the next table may have */
};

/* Task -> its record. The kernel frees the record with the task. */
struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct task);
} tasks SEC(".maps");

/* Task -> its record of a previous generation with another layout. It is read once, and `carry` deletes it. */
struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, __u64);
} tasks_before SEC(".maps");

/* Takes a lock without waiting. Returns false when another CPU holds the lock. */
static __always_inline bool try_lock(__u32 *busy)
{
	return !__sync_lock_test_and_set(busy, 1);
}

static __always_inline void unlock(__u32 *busy)
{
#if defined(__TARGET_ARCH_arm64)
	__sync_lock_test_and_set(busy, 0); /* earlier writes become visible first */
#else
	*busy = 0;
#endif
}

/* Returns true if waits of `task` are profiled. Waits of kernel threads are not: they wait for work. */
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
 * Fills a new record from the task's record of a previous generation with another layout. Returns false if there is
 * none. The previous generation settled the task up to the takeover, so charges begin there. Fields that the previous
 * record does not have begin now.
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

		/* Sizes and offsets are constants to the verifier, so it knows each address. */
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

/*
 * Returns the record of `task`, and makes it if there is none. On older kernels no run queue may be locked: the
 * allocator takes locks.
 */
static __always_inline struct task *make_record(struct task_struct *task)
{
	struct task *t = bpf_task_storage_get(&tasks, task, NULL, BPF_LOCAL_STORAGE_GET_F_CREATE);

	if (!t)
		drop(PODPERF_DROP_TASK_STORAGE);
	return t;
}

/*
 * Returns the record of `task`, or NULL; a run queue may be locked. `task_newtask` or `adopt` made the record. If there
 * was no memory then, or `adopt` did not see the task, the record is made here where that is safe. Kernels before 6.4
 * make it here only for a task that is older than the programs, and only if the agent cannot see all tasks.
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
 * Returns the record of `task`, which is on a CPU since `since_ns` (0: unknown), and fills it when the task is first
 * seen. A task that is older than the programs counts from its switch-in: its work before that is not known.
 */
static __always_inline struct task *task_of(struct task_struct *task, __u64 since_ns, __u64 now)
{
	struct task *t = find_record(task);

	if (!t)
		return NULL;
	if (t->seen)
		return t;
	/* `carry` may fill the same record on another CPU at this moment. */
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

/* Returns true if `ctx` lies on the kernel stack of `task`. Interrupts of the kernel have a stack of their own. */
static __always_inline bool is_on_stack_of(struct task_struct *task, void *ctx)
{
	__u64 begin = (__u64)task->stack, end = begin + TASK_STACK_BYTES;

	if ((__u64)ctx < begin)
		return false;
	/* Two comparisons replace a difference, which the verifier rejects for a pointer. */
	asm volatile("" : "+r"(end));
	return (__u64)ctx < end;
}

#endif
