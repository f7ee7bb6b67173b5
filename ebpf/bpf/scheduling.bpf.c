// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * The scheduling sensor: one hook at the context switch for time, facts, counters and stacks.
 *
 * A task's facts (run time, faults, switches, ...) are kept by the kernel in the task itself. What they grew by is
 * charged when the task leaves the CPU, to the cgroup that was recorded when it came on, and with it the wait that ended
 * then: of a task that comes on nothing is touched. One that moves itself or is moved between cgroups is settled in
 * cgroup_attach_task, and one that stays on its CPU by `flush`, which the agent runs on each CPU before it reads. The
 * kernel runs tracepoints with preemption off, so a CPU's rows have one writer at a time.
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
	__u64 left_ns;        /* when it left the CPU; 0 when the wait since is settled */
	__u64 left_run_ns;    /* its run time then */
	__u64 stack;          /* of the wait since, 0 without */
	__u32 state;          /* of that wait, enum podperf_wait */
	__u32 busy;           /* being settled: only one CPU at a time may */
	__u64 moved_to;       /* on whose account it runs since it was moved while it ran; 0: as its CPU says */
	bool seen;            /* it has a record for longer than this */
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

/*
 * The record of `task`, which is on a CPU since `since_ns` (0: not known); made at its first sight. A task that was
 * there before the programs counts from when it came on: what else it did until then is not known.
 */
static __always_inline struct task *task_of(struct task_struct *task, __u64 since_ns, __u64 now)
{
	struct task *t = bpf_task_storage_get(&tasks, task, NULL, BPF_LOCAL_STORAGE_GET_F_CREATE);

	if (!t) {
		drop(PODPERF_DROP_TASK_STORAGE);
		return NULL;
	}
	if (!t->seen) {
		t->seen = true;
		if (task->start_time < loaded_at_ns) {
			__u64 ran = since_ns ? now - since_ns : 0;

			read_facts(task, &t->settled);
			t->left_run_ns = t->settled.run_ns;
			t->settled.run_ns -= ran < t->settled.run_ns ? ran : t->settled.run_ns;
		}
	}
	return t;
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

#define CHARGE(field)                                       \
	do {                                                \
		row->field += now.field - t->settled.field; \
		t->settled.field = now.field;               \
	} while (0)

/* The wait of `task` ended when it came on, at `at`. */
static __always_inline void settle_wait(struct task_struct *task, struct task *t, __u64 cgroup, __u64 at,
					struct podperf_cgroup *row, struct podperf_cpu *cpu)
{
	__u64 ns = at > t->left_ns ? at - t->left_ns : 0;

	t->left_ns = 0;
	if (row && t->state < PODPERF_WAITS)
		row->offcpu_ns[t->state] += ns;
	if (t->stack) {
		struct podperf_wait_key key = {
		    .stack = t->stack,
		    .cgroup = cgroup,
		    .tgid = task->tgid,
		    .state = t->state,
		};

		t->stack = 0;
		profile_wait(&key, task->pid, at, ns, cpu);
	} else if (wants_stack(task, t->state)) {
		cpu->unprofiled_ns += ns;
	}
}

/*
 * Charges what `task`, which is on a CPU since `at`, did since it was last settled, and the wait before that, to
 * `cgroup`. Gives back the row, NULL without.
 */
static __always_inline struct podperf_cgroup *settle(struct task_struct *task, struct task *t, __u64 cgroup, __u64 at,
						     struct podperf_cpu *cpu)
{
	struct podperf_cgroup *row;
	struct facts now;

	/* cgroup_attach_task may run elsewhere for a task that is leaving its CPU. Who comes second leaves the
	 * facts for the next switch, and the wait before to who came first. */
	if (__sync_lock_test_and_set(&t->busy, 1)) {
		drop(PODPERF_DROP_TASK_BUSY);
		return NULL;
	}
	row = cgroup_row(cgroup);
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
	}
	if (t->left_ns)
		settle_wait(task, t, cgroup, at, row, cpu);
	t->busy = 0;
	return row;
}

static __always_inline void end_idle(struct podperf_cpu *cpu, __u64 at)
{
	if (!cpu->pid && cpu->since_ns)
		cpu->idle_ns += at - cpu->since_ns;
}

/* The task `pid` comes on, on the account of `cgroup`. Nothing of its own is touched: what there is to do is done when it
 * leaves. */
static __always_inline void enter(struct podperf_cpu *cpu, __s32 pid, __u64 cgroup, __u64 now)
{
	cpu->pid = pid;
	cpu->since_ns = now;
	cpu->cgroup = cgroup;
}

/*
 * The record of `task`, which is current. When its coming on was not reported, its run time tells when it was, and the
 * CPU is made to know.
 */
static __always_inline struct task *current_task(struct task_struct *task, __u64 now, struct podperf_cpu *cpu)
{
	bool reported = cpu->pid == task->pid;
	struct task *t = task_of(task, reported ? cpu->since_ns : 0, now);

	if (t && !reported) {
		__u64 at = now - (task->se.sum_exec_runtime - t->left_run_ns);

		if (at < t->left_ns)
			at = t->left_ns;
		if (at < cpu->since_ns)
			at = cpu->since_ns;
		cpu->switches_recovered++;
		if (cpu->since_ns)
			cpu->recovered_ns += at - cpu->since_ns;
		end_idle(cpu, at);
		enter(cpu, task->pid, cgroup_id(task), at);
	}
	return t;
}

/* Settles `task`, which is current: its CPU knows when it came on and on whose account. */
static __always_inline struct podperf_cgroup *settle_current(struct task_struct *task, struct task *t,
							     struct podperf_cpu *cpu)
{
	__u64 cgroup = t->moved_to ? t->moved_to : cpu->cgroup;

	t->moved_to = 0;
	return settle(task, t, cgroup, cpu->since_ns, cpu);
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
	t = current_task(task, now, cpu);
	if (!t)
		return NULL;
	row = settle_current(task, t, cpu);
	if (task->__state & TASK_DEAD)
		return row;
	t->state = wait_state(task, preempt);
	t->left_ns = now;
	t->left_run_ns = task->se.sum_exec_runtime;
	t->stack = 0;
	if (!wants_stack(task, t->state))
		return row;
	if (is_shed(PODPERF_SHED_STACKS))
		drop(PODPERF_DROP_STACK_SHED);
	else
		t->stack = stack_of_wait(ctx, task, t->state, cpu);
	return row;
}

/* `prev` makes room for the task `pid` of `cgroup`. */
static __always_inline int on_switch(void *ctx, struct task_struct *prev, bool preempt, __s32 pid, __u64 cgroup)
{
	struct podperf_cpu *cpu = this_cpu();
	struct podperf_cgroup *row = NULL;
	__u64 now = 0, began;

	if (!cpu)
		return 0;
	began = begin_run(cpu, PODPERF_PROGRAM_SWITCH);
	if (facts_enabled) {
		now = bpf_ktime_get_ns();
		row = leave(ctx, prev, preempt, now, cpu);
	}
	if (nr_events && cgroup != cpu->cgroup)
		charge_counters(cpu, row);
	enter(cpu, pid, cgroup, now);
	end_run(cpu, PODPERF_PROGRAM_SWITCH, began);
	return 0;
}

SEC("tp_btf/sched_switch")
int BPF_PROG(sched_switch, bool preempt, struct task_struct *prev, struct task_struct *next)
{
	return on_switch(ctx, prev, preempt, next->pid, next->pid ? cgroup_id(next) : PODPERF_IDLE);
}

/* The twin for kernels that refuse BTF-typed tracepoints: `next` is then a bare address. */
SEC("raw_tp/sched_switch")
int sched_switch_raw(struct bpf_raw_tracepoint_args *ctx)
{
	struct task_struct *next = (struct task_struct *)ctx->args[2];
	__s32 pid = BPF_CORE_READ(next, pid);

	return on_switch(ctx, bpf_get_current_task_btf(), ctx->args[0], pid,
			 pid ? BPF_CORE_READ(next, cgroups, dfl_cgrp, kn, id) : PODPERF_IDLE);
}

/* `task`, which is current, has moved itself or is of a process that has. */
static __always_inline void move_current(struct task_struct *task, struct podperf_cpu *cpu)
{
	__u64 cgroup = cgroup_id(task);
	struct task *t;

	if (facts_enabled) {
		t = current_task(task, bpf_ktime_get_ns(), cpu);
		if (t && cpu->cgroup != cgroup)
			settle_current(task, t, cpu);
	}
	if (cpu->cgroup != cgroup) {
		charge_counters(cpu, NULL);
		cpu->cgroup = cgroup;
	}
}

/* `task` was moved by another one. If it runs, what it did so far belongs to its old cgroup; if not, it is settled. */
static __always_inline void move_other(struct task_struct *task, struct podperf_cpu *cpu)
{
	struct podperf_cpu *its = cpu_of(task);
	struct task *t;

	if (!facts_enabled || !its || its->pid != task->pid)
		return;
	t = task_of(task, its->since_ns, bpf_ktime_get_ns());
	if (!t)
		return;
	settle(task, t, t->moved_to ? t->moved_to : its->cgroup, its->since_ns, cpu);
	t->moved_to = cgroup_id(task);
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
	if (task != current)
		move_other(task, cpu);
	/* One event stands for a whole process. A sibling that runs elsewhere is settled when it leaves its CPU. */
	if (task->tgid == current->tgid)
		move_current(current, cpu);
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
	if (!current->pid) {
		end_idle(cpu, now);
		charge_counters(cpu, NULL);
		enter(cpu, 0, PODPERF_IDLE, now);
	} else {
		if (facts_enabled) {
			t = current_task(current, now, cpu);
			if (t)
				settle_current(current, t, cpu);
		}
		charge_counters(cpu, NULL);
		cpu->cgroup = cgroup_id(current);
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
