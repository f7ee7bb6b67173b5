// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * The scheduling sensor: one hook at the context switch for time, facts, counters and stacks.
 *
 * A task's facts (run time, faults, switches, ...) are kept by the kernel in the task itself. What they grew by is
 * charged when the task leaves the CPU, to the cgroup that was recorded when it came on; a task that moves itself or
 * is moved between cgroups is settled in cgroup_attach_task, and one that stays on its CPU by `flush`, which the
 * agent runs on each CPU before it reads. The kernel runs tracepoints with preemption off, so a CPU's rows have one
 * writer at a time.
 */
#include "cgroup.bpf.h"
#include "control.bpf.h"
#include "counters.bpf.h"
#include "cpu.bpf.h"
#include "drops.bpf.h"
#include "kernel.h"
#include "podperf.h"
#include "stacks.bpf.h"

const volatile bool facts_enabled = true;
const volatile bool stacks_enabled = false;
/* CLOCK_MONOTONIC when the programs were loaded: tasks that were there before count from their first sight. */
const volatile __u64 loaded_at_ns = 0;

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

/* What is remembered of a task between its switches. */
struct task {
	__u64 cgroup;         /* on whose account it runs, recorded when it came on; 0 at first sight */
	__u64 left_ns;        /* when it left the CPU; 0 while it is on it */
	__u64 left_run_ns;    /* its run time then */
	__u64 waited_ns;      /* its last wait, not charged yet */
	__u64 stack;          /* of that wait, 0 without */
	__u32 state;          /* of that wait, enum podperf_wait */
	__u32 busy;           /* being settled: only one CPU at a time may */
	struct facts settled; /* its facts when they were last charged */
};

/* Task -> what is remembered of it; freed by the kernel with the task. */
struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct task);
} tasks SEC(".maps");

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

/* The record of `task`, made at its first sight. */
static __always_inline struct task *task_of(struct task_struct *task)
{
	struct task *t = bpf_task_storage_get(&tasks, task, NULL, BPF_LOCAL_STORAGE_GET_F_CREATE);

	if (!t) {
		drop(PODPERF_DROP_TASK_STORAGE);
		return NULL;
	}
	if (!t->cgroup) {
		t->cgroup = cgroup_id(task);
		if (task->start_time < loaded_at_ns)
			read_facts(task, &t->settled);
	}
	return t;
}

#define CHARGE(field)                                       \
	do {                                                \
		row->field += now.field - t->settled.field; \
		t->settled.field = now.field;               \
	} while (0)

/* Charges what `task` did since it was last settled to the cgroup on whose account it ran, whose row it gives back. */
static __always_inline struct podperf_cgroup *settle(struct task_struct *task, struct task *t)
{
	struct podperf_cgroup *row;
	struct facts now;

	if (!facts_enabled)
		return NULL;
	/* cgroup_attach_task may run elsewhere for a task that is leaving its CPU. Who comes second has nothing to lose:
	 * what it would charge is still there at the next switch. */
	if (__sync_lock_test_and_set(&t->busy, 1)) {
		drop(PODPERF_DROP_TASK_BUSY);
		return NULL;
	}
	row = cgroup_row(t->cgroup);
	if (row) {
		read_facts(task, &now);
		CHARGE(run_ns);
		CHARGE(runqueue_ns);
		CHARGE(voluntary);
		CHARGE(involuntary);
		if (now.rare != t->settled.rare) {
			CHARGE(migrations);
			CHARGE(minor_faults);
			CHARGE(major_faults);
			t->settled.rare = now.rare;
		}
		if (t->waited_ns && t->state < PODPERF_WAITS) {
			row->offcpu_ns[t->state] += t->waited_ns;
			t->waited_ns = 0;
		}
	}
	t->busy = 0;
	return row;
}

/* How a task leaves the CPU. Idle kernel threads sleep uninterruptibly, but by TASK_NOLOAD do not mean it. */
static __always_inline __u32 wait_state(struct task_struct *task, bool preempt)
{
	__u32 state = task->__state;

	if (preempt || !state)
		return PODPERF_PREEMPTED;
	if ((state & (TASK_UNINTERRUPTIBLE | TASK_RTLOCK_WAIT)) && !(state & TASK_NOLOAD))
		return PODPERF_UNINTERRUPTIBLE;
	return PODPERF_INTERRUPTIBLE;
}

static __always_inline bool wants_stack(struct task_struct *task, __u32 state)
{
	return stacks_enabled && state != PODPERF_PREEMPTED && !(task->flags & PF_KTHREAD);
}

/* `task` came back to the CPU at `at`: its wait is over. */
static __always_inline void end_wait(struct task_struct *task, struct task *t, __u64 at, struct podperf_cpu *cpu)
{
	__u64 ns = at - t->left_ns;

	t->left_ns = 0;
	t->waited_ns += ns;
	if (t->stack) {
		struct podperf_wait_key key = {
		    .stack = t->stack,
		    .cgroup = t->cgroup,
		    .tgid = task->tgid,
		    .state = t->state,
		};

		t->stack = 0;
		profile_wait(&key, task->pid, at, ns, cpu);
	} else if (wants_stack(task, t->state)) {
		cpu->unprofiled_ns += ns;
	}
}

static __always_inline void end_idle(struct podperf_cpu *cpu, __u64 at)
{
	if (cpu->idle_since) {
		cpu->idle_ns += at - cpu->idle_since;
		cpu->idle_since = 0;
	}
}

/* `task`, which is current, leaves the CPU. Gives back the row that it was charged to, NULL without. */
static __always_inline struct podperf_cgroup *leave(void *ctx, struct task_struct *task, bool preempt, __u64 now,
						    struct podperf_cpu *cpu)
{
	struct podperf_cgroup *row;
	struct task *t;

	if (!task->pid) {
		end_idle(cpu, now);
		return NULL;
	}
	t = task_of(task);
	if (!t)
		return NULL;
	if (t->left_ns) {
		/* Its coming on was not reported (or cannot be: raw_tp). Its run time tells when it was. */
		__u64 at = now - (task->se.sum_exec_runtime - t->left_run_ns);

		if (at < t->left_ns)
			at = t->left_ns;
		cpu->switches_recovered++;
		end_idle(cpu, at);
		t->cgroup = cgroup_id(task);
		cpu->cgroup = t->cgroup;
		end_wait(task, t, at, cpu);
	}
	row = settle(task, t);
	if (task->__state & TASK_DEAD)
		return row;
	t->state = wait_state(task, preempt);
	t->left_ns = now;
	t->left_run_ns = task->se.sum_exec_runtime;
	if (!wants_stack(task, t->state))
		return row;
	if (is_shed(PODPERF_SHED_STACKS))
		drop(PODPERF_DROP_STACK_SHED);
	else
		t->stack = stack_of_wait(ctx, task, t->state, cpu);
	return row;
}

/* `task` comes on. */
static __always_inline void enter(struct task_struct *task, __u64 cgroup, __u64 now, struct podperf_cpu *cpu)
{
	struct task *t;

	if (!task->pid) {
		cpu->idle_since = now;
		return;
	}
	t = task_of(task);
	if (!t)
		return;
	t->cgroup = cgroup;
	if (t->left_ns)
		end_wait(task, t, now, cpu);
}

SEC("tp_btf/sched_switch")
int BPF_PROG(sched_switch, bool preempt, struct task_struct *prev, struct task_struct *next)
{
	struct podperf_cpu *cpu = this_cpu();
	struct podperf_cgroup *row = NULL;
	__u64 cgroup = next->pid ? cgroup_id(next) : PODPERF_IDLE, began;

	if (!cpu)
		return 0;
	began = begin_run(cpu, PODPERF_PROGRAM_SWITCH);
	if (facts_enabled) {
		__u64 now = bpf_ktime_get_ns();

		row = leave(ctx, prev, preempt, now, cpu);
		enter(next, cgroup, now, cpu);
	}
	if (nr_events && cgroup != cpu->cgroup)
		charge_counters(cpu, cgroup, row);
	end_run(cpu, PODPERF_PROGRAM_SWITCH, began);
	return 0;
}

/*
 * The twin for kernels that refuse BTF-typed tracepoints. `next` is then a bare address that no task storage can be
 * had for, so only the leaving task is looked at, and its coming on is told by its run time.
 */
SEC("raw_tp/sched_switch")
int sched_switch_raw(struct bpf_raw_tracepoint_args *ctx)
{
	struct task_struct *next = (struct task_struct *)ctx->args[2];
	struct podperf_cpu *cpu = this_cpu();
	struct podperf_cgroup *row = NULL;
	__u64 cgroup = BPF_CORE_READ(next, pid) ? BPF_CORE_READ(next, cgroups, dfl_cgrp, kn, id) : PODPERF_IDLE;
	__u64 began;

	if (!cpu)
		return 0;
	began = begin_run(cpu, PODPERF_PROGRAM_SWITCH);
	if (facts_enabled) {
		__u64 now = bpf_ktime_get_ns();

		row = leave(ctx, bpf_get_current_task_btf(), ctx->args[0], now, cpu);
		if (cgroup == PODPERF_IDLE)
			cpu->idle_since = now;
	}
	if (nr_events && cgroup != cpu->cgroup)
		charge_counters(cpu, cgroup, row);
	end_run(cpu, PODPERF_PROGRAM_SWITCH, began);
	return 0;
}

/* Settles `task` on its old cgroup's account, and opens one with its new cgroup. */
static __always_inline void move(struct task_struct *task)
{
	struct task *t = task_of(task);
	__u64 cgroup = cgroup_id(task);

	if (!t || t->cgroup == cgroup)
		return;
	settle(task, t);
	t->cgroup = cgroup;
}

SEC("tp_btf/cgroup_attach_task")
int BPF_PROG(cgroup_attach_task, struct cgroup *to, const char *path, struct task_struct *task, bool threadgroup)
{
	struct task_struct *current = bpf_get_current_task_btf();
	struct podperf_cpu *cpu = this_cpu();
	__u64 began;

	if (!cpu || to->root->hierarchy_id)
		return 0;
	began = begin_run(cpu, PODPERF_PROGRAM_ATTACH_TASK);
	move(task);
	/* One event stands for a whole process. A sibling that runs elsewhere is settled when it leaves its CPU. */
	if (task->tgid == current->tgid) {
		if (task != current)
			move(current);
		if (nr_events && cpu->cgroup != cgroup_id(current))
			charge_counters(cpu, cgroup_id(current), NULL);
	}
	end_run(cpu, PODPERF_PROGRAM_ATTACH_TASK, began);
	return 0;
}

/* Run by the agent on each CPU before a reading: settles what is on the CPU at that moment. */
SEC("raw_tp")
int flush(void *ctx)
{
	struct task_struct *current = bpf_get_current_task_btf();
	struct podperf_cpu *cpu = this_cpu();
	struct task *t;
	__u64 now;

	if (!cpu)
		return 0;
	now = begin_run(cpu, PODPERF_PROGRAM_FLUSH);
	if (cpu->idle_since) {
		cpu->idle_ns += now - cpu->idle_since;
		cpu->idle_since = now;
	}
	charge_counters(cpu, current->pid ? cgroup_id(current) : PODPERF_IDLE, NULL);
	if (current->pid && facts_enabled) {
		t = task_of(current);
		if (t)
			settle(current, t);
	}
	end_run(cpu, PODPERF_PROGRAM_FLUSH, now);
	return 0;
}

/* Run by the agent on each CPU when cgroups are gone, whose ids are the arguments: frees their rows there. */
SEC("raw_tp")
int forget(struct bpf_raw_tracepoint_args *ctx)
{
	struct podperf_cpu *cpu = this_cpu();
	__u64 began;

	if (!cpu)
		return 0;
	began = begin_run(cpu, PODPERF_PROGRAM_FORGET);
#pragma unroll
	for (int i = 0; i < PODPERF_FORGET_MAX; i++)
		free_slot(ctx->args[i]);
	end_run(cpu, PODPERF_PROGRAM_FORGET, began);
	return 0;
}
