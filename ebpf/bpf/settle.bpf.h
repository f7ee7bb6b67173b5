/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Charges a task to a cgroup. The kernel keeps a task's facts (run time, faults, switches, ...) in the task itself.
 * Their growth since the last charge is charged, and the wait before the task came on the CPU.
 */
#ifndef PODPERF_SETTLE_BPF_H
#define PODPERF_SETTLE_BPF_H

#include "cgroup.bpf.h"
#include "cpu.bpf.h"
#include "drops.bpf.h"
#include "kernel.h"
#include "podperf.h"
#include "tasks.bpf.h"
#include "waits.bpf.h"

/* False if only counters are charged, without times and facts. */
const volatile bool facts_enabled = true;

#define CHARGE(field)                                       \
	do {                                                \
		row->field += now.field - t->settled.field; \
		t->settled.field = now.field;               \
	} while (0)

/*
 * Charges the growth of the facts of `task` since the last charge to `cgroup`. Writes the growth of its time in run
 * queues to `delay`, in nanoseconds, and to `cgroup` the cgroup whose row was charged. Returns that row, or NULL.
 */
static __always_inline struct podperf_cgroup *charge_facts(struct task_struct *task, struct task *t, __u64 *cgroup,
							   __u64 *delay)
{
	struct podperf_cgroup *row = charged_row(task, cgroup);
	struct facts now;

	*delay = 0;
	if (row) {
		read_facts(task, &now);
		CHARGE(run_ns);
		*delay = now.runqueue_ns - t->settled.runqueue_ns;
		t->settled.runqueue_ns = now.runqueue_ns;
		if (now.voluntary != t->settled.voluntary)
			CHARGE(voluntary);
		if (now.involuntary != t->settled.involuntary)
			CHARGE(involuntary);
		if (now.rare != t->settled.rare) {
			CHARGE(migrations);
			CHARGE(minor_faults);
			CHARGE(major_faults);
			t->settled.rare = now.rare;
		}
	}
	return row;
}

/*
 * Charges to `cgroup` the work of `task` since it was last settled, and its last wait. The task is on this CPU since
 * `at`. Returns the row, or NULL.
 */
static __always_inline struct podperf_cgroup *settle(struct task_struct *task, struct task *t, __u64 cgroup, __u64 at)
{
	struct podperf_cgroup *row;
	__u64 left_ns, delay;

	/*
	 * cgroup_attach_task may run on another CPU while the task leaves this one. The program that comes second
	 * leaves the facts to the next switch, and the wait to the program that came first.
	 */
	if (!try_lock(&t->busy)) {
		drop(PODPERF_DROP_TASK_BUSY);
		return NULL;
	}
	t->cgroup = cgroup;
	row = charge_facts(task, t, &cgroup, &delay);
	left_ns = t->left_ns;
	if (left_ns) {
		settle_wait(task, t, cgroup, take_wait(t, left_ns, at), at, delay, row);
	} else if (row && delay) {
		settle_first_wait(task, row, delay);
	}
	unlock(&t->busy);
	return row;
}

static __always_inline void end_idle(struct podperf_cpu *cpu, __u64 at)
{
	if (!cpu->pid && cpu->since_ns)
		cpu->idle_ns += at - cpu->since_ns;
}

/*
 * Records that the task `pid` comes on the CPU and is charged to `cgroup`. The task itself is not touched: it is
 * settled when it leaves.
 */
static __always_inline void enter(struct podperf_cpu *cpu, __s32 pid, __u64 cgroup, __u64 now)
{
	cpu->pid = pid;
	cpu->since_ns = now;
	cpu->cgroup = cgroup;
}

/*
 * Returns the record of `task`, which is current. If its switch-in was not reported, the time of the switch-in is found
 * by the run time, and recorded in the state of the CPU.
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

/*
 * Settles `task`, which is current. The state of its CPU has the time of its switch-in and its cgroup. Returns the row
 * to which work in this cgroup is charged, or NULL if it is not known.
 */
static __always_inline struct podperf_cgroup *settle_current(struct task_struct *task, struct task *t,
							     struct podperf_cpu *cpu)
{
	__u64 cgroup = cpu->cgroup;
	struct podperf_cgroup *row;

	if (t->moved_to) {
		if (t->moved_since_ns == cpu->since_ns)
			cgroup = t->moved_to;
		t->moved_to = 0;
	}
	row = settle(task, t, cgroup, cpu->since_ns);
	/* If the task was moved, its own cgroup was charged. */
	return t->cgroup == cpu->cgroup ? row : NULL;
}

#endif
