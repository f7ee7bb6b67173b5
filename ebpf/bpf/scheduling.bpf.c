// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * The scheduling sensor: one hook at the context switch for time, facts, counters and stacks.
 *
 * The kernel keeps a task's facts (run time, faults, switches, ...) in the task itself. When the task leaves the CPU,
 * their growth is charged to the cgroup that was recorded when the task came on. The wait that ended when the task came
 * on is charged at the same time. So a task that comes on is not touched.
 *
 * `collect` charges a wait that goes on. cgroup_attach_task settles a task that moves itself or is moved between
 * cgroups. `flush` settles a task that stays on its CPU: the agent runs it on each CPU before it reads. The kernel
 * switches with interrupts off, and runs `flush` in an interrupt, so a CPU's rows have one writer at a time.
 */
#include "cgroup.bpf.h"
#include "control.bpf.h"
#include "copied_waits.bpf.h"
#include "counters.bpf.h"
#include "cpu.bpf.h"
#include "drops.bpf.h"
#include "handover.bpf.h"
#include "kernel.h"
#include "podperf.h"
#include "settle.bpf.h"
#include "tasks.bpf.h"
#include "waits.bpf.h"

static __always_inline void has_no_stack(struct task *t, __u64 reason)
{
	t->stack = reason;
	t->weight = 1;
	t->walked = false;
	t->shadow = SHADOW_NONE;
}

/*
 * Settles `task`, which is current and leaves the CPU in the state `was` (0: unknown). Returns the row to which work in
 * the cgroup on the CPU is charged, or NULL if it is not known.
 */
static __always_inline struct podperf_cgroup *leave(void *ctx, struct task_struct *task, bool preempt, __u32 was,
						    __u64 now, struct podperf_cpu *cpu)
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
	if (task->__state & TASK_DEAD) {
		ride_exit(task->pid);
		if (try_lock(&t->sum_busy)) {
			flush_sum(t, task->tgid, orders.epoch & 1, false);
			unlock(&t->sum_busy);
		}
		return row;
	}
	t->activity = wait_activity(task, preempt, was);
	t->left_ns = now;
	t->left_run_ns = task->se.sum_exec_runtime;
	t->lock = 0;
	ride_wait_begin(task, t);
	if (!wants_profile(task))
		return row;
	t->in_profile = false;
	t->waker = 0;
	t->kernel_part = 0;
	if (t->activity >= PODPERF_RUN_QUEUE) {
		/* The stack does not show why the task lost the CPU, so none is taken. */
		has_no_stack(t, 0);
	} else if (is_shed(PODPERF_SHED_STACKS | PODPERF_SHED_WAIT_STACKS)) {
		/* If the wait is long, the kernel's part of its stack is read while the task sleeps. */
		drop(PODPERF_DROP_STACK_SHED);
		has_no_stack(t, PODPERF_NOT_TAKEN);
	} else if (has_copy(task) && !is_shed(PODPERF_SHED_USER_FRAMES)) {
		stack_of_copied_wait(ctx, task, t, now);
	} else {
		stack_of_wait(ctx, task, t, now);
	}
	t->in_profile = true;
	return row;
}

/* Handles the switch from `prev` to the task `pid` of `cgroup`. */
static __always_inline int on_switch(void *ctx, struct task_struct *prev, bool preempt, __u32 was, __s32 pid,
				     __u64 cgroup)
{
	struct podperf_cpu *cpu = this_cpu();
	struct podperf_cgroup *row = NULL;
	__u64 now = 0, began;

	if (!cpu || !counts())
		return 0;
	began = begin_run(cpu, PODPERF_PROGRAM_SCHED_SWITCH);
	if (facts_enabled) {
		now = bpf_ktime_get_ns();
		row = leave(ctx, prev, preempt, was, now, cpu);
	}
	if (nr_events && cgroup != cpu->cgroup)
		charge_counters(cpu, row);
	enter(cpu, pid, cgroup, now);
	end_run(cpu, PODPERF_PROGRAM_SCHED_SWITCH, began);
	return 0;
}

SEC("tp_btf/sched_switch")
int BPF_PROG(sched_switch, bool preempt, struct task_struct *prev, struct task_struct *next)
{
	__u32 was = bpf_core_type_exists(btf_trace_sched_switch) ? ctx[3] : 0;

	return on_switch(ctx, prev, preempt, was, next->pid, next->pid ? cgroup_id(next) : PODPERF_IDLE);
}

/* The variant for kernels that reject BTF-typed tracepoints, where `next` is a plain address. */
SEC("raw_tp/sched_switch")
int sched_switch_raw(struct bpf_raw_tracepoint_args *ctx)
{
	struct task_struct *next = (struct task_struct *)ctx->args[2];
	__s32 pid = BPF_CORE_READ(next, pid);
	__u32 was = bpf_core_type_exists(btf_trace_sched_switch) ? ctx->args[3] : 0;

	return on_switch(ctx, bpf_get_current_task_btf(), ctx->args[0], was, pid,
			 pid ? BPF_CORE_READ(next, cgroups, dfl_cgrp, kn, id) : PODPERF_IDLE);
}

/* Settles the task on the CPU. The agent runs this program on each CPU before a reading. */
SEC("raw_tp")
int flush(void *ctx)
{
	struct task_struct *current = bpf_get_current_task_btf();
	struct podperf_cpu *cpu = this_cpu();
	struct task *t;
	__u64 now;

	if (!cpu || !counts())
		return 0;
	now = begin_run(cpu, PODPERF_PROGRAM_FLUSH);
	if (!current->pid) {
		end_idle(cpu, now);
		charge_counters(cpu, NULL);
		enter(cpu, 0, PODPERF_IDLE, now);
	} else {
		if (facts_enabled) {
			/* No run queue is locked here, so a record may be made. */
			make_record(current);
			t = current_task(current, now, cpu);
			if (t)
				settle_current(current, t, cpu);
		}
		charge_counters(cpu, NULL);
		cpu->cgroup = cgroup_id(current);
		/* After the levels of names have changed, this finds the outer cgroup again. */
		list_cgroup_of(current);
	}
	end_run(cpu, PODPERF_PROGRAM_FLUSH, now);
	return 0;
}

/*
 * Charges the waits that go on, moves the sums of tasks to the table that the agent takes, and finds outer cgroups
 * again. The agent runs this program over all tasks after it has switched the tables, and before it reads.
 */
SEC("iter/task")
int collect(struct bpf_iter__task *ctx)
{
	struct task_struct *task = ctx->task;
	struct podperf_cpu *cpu = this_cpu();
	struct task *t;

	if (!task || !cpu)
		return 0;
	cpu->programs[PODPERF_PROGRAM_COLLECT].runs++;
	t = bpf_task_storage_get(&tasks, task, NULL, 0);
	if (!t)
		return 0;
	if (t->sum.count && try_lock(&t->sum_busy)) {
		flush_sum(t, task->tgid, (orders.epoch & 1) ^ 1, true);
		unlock(&t->sum_busy);
	}
	if (counts()) {
		find_outer_again(task);
		charge_waiting(task, t, (orders.epoch & 1) ^ 1);
	}
	return 0;
}

/* Makes the record of a new task at its birth, since no lock is held yet. */
SEC("tp_btf/task_newtask")
int BPF_PROG(task_newtask, struct task_struct *task)
{
	struct podperf_cpu *cpu = this_cpu();
	__u64 began;

	if (!cpu)
		return 0;
	began = begin_run(cpu, PODPERF_PROGRAM_TASK_NEWTASK);
	make_record(task);
	end_run(cpu, PODPERF_PROGRAM_TASK_NEWTASK, began);
	return 0;
}

/*
 * Makes the records of tasks that have none. The agent runs this program over all tasks before these programs count,
 * and after the kernel had no memory for a record.
 */
SEC("iter/task")
int adopt(struct bpf_iter__task *ctx)
{
	struct task_struct *task = ctx->task;

	if (task)
		make_record(task);
	return 0;
}

/*
 * Fills the records of tasks that wait since before these programs counted. The agent runs this program over all tasks
 * once they count.
 */
SEC("iter/task")
int see(struct bpf_iter__task *ctx)
{
	struct task_struct *task = ctx->task;
	struct task *t;

	if (!task || !task->pid || !counts())
		return 0;
	t = bpf_task_storage_get(&tasks, task, NULL, 0);
	if (!t || LOW_BYTE(task, on_cpu))
		return 0;
	if (t->seen) {
		/* The riders of these programs may be others than those that saw the wait begin. */
		ride_wait_begin(task, t);
	} else if (try_lock(&t->busy)) {
		/* A task that has come on meanwhile is seen when it leaves. */
		if (!LOW_BYTE(task, on_cpu))
			see_waiting(task, t);
		unlock(&t->busy);
	}
	return 0;
}

/*
 * Migrates the task records of a previous generation with another layout. The agent runs this program over all tasks
 * after the takeover, and the previous records are deleted. So the record of a task that does not run before the next
 * takeover is migrated, too.
 */
SEC("iter/task")
int carry(struct bpf_iter__task *ctx)
{
	struct task_struct *task = ctx->task;
	struct task *t;

	if (!task || !carries || !counts() || !bpf_task_storage_get(&tasks_before, task, NULL, 0) || !make_record(task))
		return 0;
	t = task_of(task, 0, 0);
	if (!t)
		return 0;
	if (!LOW_BYTE(task, on_cpu))
		ride_wait_begin(task, t);
	bpf_task_storage_delete(&tasks_before, task);
	return 0;
}

/*
 * Frees the slots of removed cgroups on this CPU. The agent runs this program on each CPU, with their ids as arguments.
 */
SEC("raw_tp")
int forget(struct bpf_raw_tracepoint_args *ctx)
{
	struct podperf_cpu *cpu = this_cpu();
	__u64 began;

	if (!cpu)
		return 0;
	began = begin_run(cpu, PODPERF_PROGRAM_FORGET);
#pragma unroll
	for (int i = 0; i < PODPERF_FORGET_MAX; i++) {
		free_slot(ctx->args[i]);
		free_sensor_slots(ctx->args[i]);
	}
	end_run(cpu, PODPERF_PROGRAM_FORGET, began);
	return 0;
}
