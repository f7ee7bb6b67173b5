// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* The sensor of moves between cgroups: the work of a task until its move is charged to the cgroup that it leaves. */
#include "cgroup.bpf.h"
#include "control.bpf.h"
#include "counters.bpf.h"
#include "cpu.bpf.h"
#include "drops.bpf.h"
#include "handover.bpf.h"
#include "kernel.h"
#include "podperf.h"
#include "settle.bpf.h"
#include "tasks.bpf.h"
#include "waits.bpf.h"

/*
 * Settles `task`, which is current, after it has moved itself or belongs to a process that has moved. If its switch-in
 * was not reported, it came on in the cgroup of its record.
 */
static __always_inline void move_current(struct task_struct *task, struct podperf_cpu *cpu)
{
	bool reported = cpu->pid == task->pid;
	__u64 cgroup = cgroup_id(task);
	struct task *t;

	if (facts_enabled) {
		t = current_task(task, bpf_ktime_get_ns(), cpu);
		if (t && !reported && t->cgroup)
			cpu->cgroup = t->cgroup;
		if (t && cpu->cgroup != cgroup)
			settle_current(task, t, cpu);
	}
	if (cpu->cgroup != cgroup) {
		charge_counters(cpu, NULL);
		cpu->cgroup = cgroup;
	}
}

/*
 * Returns the row on this CPU to which work in `id` is charged, or NULL if no work in it was charged yet. The task has
 * left `id`, so no cgroup above it is searched for.
 */
static __noinline struct podperf_cgroup *row_left(__u64 id)
{
	struct podperf_cgroup *row;

	id = charged_of(id);
	row = id ? known_row(id) : NULL;
	if (row)
		return row;
	id = outer_of(id);
	return id ? known_row(id) : NULL;
}

/*
 * Charges the wait of `task` so far to the cgroup that it left. Another task moved it while it waited. If no work in
 * the old cgroup was charged yet, the new one gets the whole wait. Its stack is not part of its caller's: the stacks of
 * all calls together are limited.
 */
static __noinline int move_waiting(struct task_struct *task)
{
	struct task *t = bpf_task_storage_get(&tasks, task, NULL, 0);
	__u64 at = bpf_ktime_get_ns(), left_ns, from, to = cgroup_id(task);
	struct podperf_cgroup *row;

	if (!t)
		return 0;
	left_ns = *(volatile __u64 *)&t->left_ns;
	from = t->cgroup;
	t->cgroup = to;
	if (!from || from == to || !goes_on(task, t, left_ns, at))
		return 0;
	row = row_left(from);
	if (!row)
		return 0;
	charge_so_far(task, t, row, left_ns, at, orders.epoch & 1);
	return 0;
}

/*
 * Settles `task`, which another task has moved: its work so far is charged to its old cgroup. If it does not run, its
 * wait so far is charged, too. If the last switch of the task was not reported, the state of the CPU tells nothing
 * about it, and its run time has grown since its last settled switch. Until the first tick after such a switch the run
 * time has not grown: then the next switch charges the wait before to the new cgroup.
 */
static __always_inline void move_other(struct task_struct *task)
{
	volatile struct podperf_cpu *its = cpu_of(task);
	volatile struct task_struct *now_of = task;
	__u64 since_ns, left_ns, cgroup, delay, ran;
	struct podperf_cgroup *row;
	struct task *t;
	bool reported, holds;

	if (!facts_enabled || !its)
		return;
	since_ns = its->since_ns;
	reported = its->pid == task->pid;
	if (reported)
		t = task_of(task, since_ns, bpf_ktime_get_ns());
	else
		t = bpf_task_storage_get(&tasks, task, NULL, 0);
	if (!t)
		return;
	if (!try_lock(&t->busy)) {
		drop(PODPERF_DROP_TASK_BUSY);
		goto waiting;
	}
	left_ns = *(volatile __u64 *)&t->left_ns;
	if (reported) {
		cgroup = t->moved_to && t->moved_since_ns == since_ns ? t->moved_to : its->cgroup;
		/* The task may have left meanwhile, and be settled. */
		holds = its->pid == task->pid && its->since_ns == since_ns;
	} else {
		ran = now_of->se.sum_exec_runtime - t->left_run_ns;
		cgroup = t->cgroup;
		since_ns = bpf_ktime_get_ns() - ran;
		holds = t->seen && cgroup && ran;
	}
	/* A wait that began after the task came on has not ended. */
	if (holds && left_ns <= since_ns) {
		row = charge_facts(task, t, &cgroup, &delay);
		if (!reported && !LOW_BYTE(task, on_cpu)) {
			/* Nobody knows when the wait before the run ended: the next switch charges it. */
			t->settled.runqueue_ns -= delay;
		} else if (left_ns) {
			/* The task may leave at this moment, too: then `left_ns` holds its new wait, and is not changed. */
			if (__sync_val_compare_and_swap(&t->left_ns, left_ns, 0) == left_ns)
				settle_wait(task, t, cgroup, left_ns, since_ns, delay, row);
		} else if (row && delay) {
			settle_first_wait(task, row, delay);
		}
		if (reported) {
			t->moved_since_ns = since_ns;
			t->moved_to = cgroup_id(task);
		} else {
			t->cgroup = cgroup_id(task);
		}
	}
	unlock(&t->busy);
waiting:
	if (!reported && !LOW_BYTE(task, on_cpu))
		move_waiting(task);
}

SEC("tp_btf/cgroup_attach_task")
int BPF_PROG(cgroup_attach_task, struct cgroup *to, const char *path, struct task_struct *task, bool threadgroup)
{
	struct task_struct *current = bpf_get_current_task_btf();
	struct podperf_cpu *cpu = this_cpu();
	__u64 began;

	if (!cpu || !counts() || to->root->hierarchy_id)
		return 0;
	began = begin_run(cpu, PODPERF_PROGRAM_CGROUP_ATTACH_TASK);
	/* Here the cgroups above the new one are known, also if the task leaves it before its first switch. */
	list_cgroup_of(task);
	if (task != current)
		move_other(task);
	/*
	 * One event stands for a whole process. A thread that runs on another CPU is settled when it leaves that CPU.
	 */
	if (task->tgid == current->tgid)
		move_current(current, cpu);
	end_run(cpu, PODPERF_PROGRAM_CGROUP_ATTACH_TASK, began);
	return 0;
}
