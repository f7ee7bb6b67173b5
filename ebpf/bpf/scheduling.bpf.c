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
#include "filters.bpf.h"
#include "handover.bpf.h"
#include "kernel.h"
#include "memo.bpf.h"
#include "podperf.h"
#include "samples.bpf.h"
#include "tasks.bpf.h"

const volatile bool facts_enabled = true;

/* Waits at least this long are never left to chance: if the budget has no walk for one, its place is named. */
#define CERTAIN_NS 10000000

/* How a task leaves the CPU. Idle kernel threads sleep uninterruptibly, but TASK_NOLOAD marks them as idle. If another CPU
 * already wakes the task, `was` is the state in which it left, on kernels that report it (since 5.18). */
static __always_inline __u32 wait_activity(struct task_struct *task, bool preempt, __u32 was)
{
	__u32 state = task->__state;

	if ((state & TASK_WAKING) && was)
		state = was;
	if (preempt || !state)
		return is_throttled(task) ? PODPERF_THROTTLED : PODPERF_PREEMPTED;
	if ((state & (TASK_UNINTERRUPTIBLE | TASK_RTLOCK_WAIT)) && !(state & TASK_NOLOAD))
		return PODPERF_UNINTERRUPTIBLE;
	return PODPERF_INTERRUPTIBLE;
}

#define CHARGE(field)                                       \
	do {                                                \
		row->field += now.field - t->settled.field; \
		t->settled.field = now.field;               \
	} while (0)

/* Moves the sum of the record into the table. If the table has no room and `may_stay` is set, the sum stays in the record for
 * the next table. Verified by itself. */
__noinline int flush_sum(struct task *t, __u32 tgid, __u32 odd, bool may_stay)
{
	struct podperf_sample_key key = {};
	struct podperf_sample_sum fresh = {};
	long error;

	if (!t || !t->sum.count)
		return 0;
	key.stack = t->sum.stack;
	key.cgroup = t->sum.cgroup;
	key.waker = t->sum.waker;
	key.tgid = tgid;
	key.activity = t->sum.activity;
	key.filters = t->sum.filters;
	fresh.ns = t->sum.ns;
	fresh.count = t->sum.count;
	fresh.last_ns = t->sum.last_ns;
	error = add_wait_sum(&key, &fresh, odd);
	t->sum_stays = error && may_stay;
	if (t->sum_stays)
		return 0;
	t->sum.ns = 0;
	t->sum.count = 0;
	if (error)
		add_unprofiled(&key, fresh.ns, error);
	return 0;
}

/* Puts one wait into the table, or sends it. */
static __always_inline int add_wait(struct task *t, __u32 tgid, __u32 pid, __u64 cgroup, __u64 at, __u64 ns)
{
	struct podperf_sample_key key = {
	    .stack = t->stack,
	    .cgroup = cgroup,
	    .waker = t->waker,
	    .tgid = tgid,
	    .activity = t->activity,
	    .filters = t->filters,
	};
	struct podperf_sample_sum fresh = {.ns = ns, .count = 1, .last_ns = at};
	long error;

	if (ns >= CERTAIN_NS) {
		if (!t->weight && !(t->stack & 1))
			name_place(t->stack);
		if (long_wait_ns && ns >= long_wait_ns && send_long_wait(&key, pid, at, ns))
			return 0;
	} else {
		fresh.ns = ns * t->weight;
		fresh.count = t->weight;
	}
	error = add_wait_sum(&key, &fresh, orders.epoch & 1);
	if (error)
		add_unprofiled(&key, fresh.ns, error);
	return 0;
}

/* Puts a wait that has ended into the profile; `ids` are those of process and thread. Verified by itself. */
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
	/* The long ones are few, and may be sent alone. If the record is taken, that is the agent, for a moment. */
	if (!sees_all_tasks || ns >= CERTAIN_NS || !try_lock(&t->sum_busy))
		return add_wait(t, ids >> 32, ids, cgroup, at, ns);
	if (t->sum_stays || sum->stack != t->stack || sum->cgroup != cgroup || sum->waker != t->waker ||
	    sum->activity != t->activity || sum->filters != t->filters) {
		flush_sum(t, ids >> 32, orders.epoch & 1, false);
		sum->stack = t->stack;
		sum->cgroup = cgroup;
		sum->waker = t->waker;
		sum->activity = t->activity;
		sum->filters = t->filters;
	}
	sum->ns += ns * t->weight;
	sum->count += t->weight;
	sum->last_ns = at;
	unlock(&t->sum_busy);
	return 0;
}

/* Charges the wait of `task`, from `left_ns` until the task came on the CPU at `at`. */
static __always_inline void settle_wait(struct task_struct *task, struct task *t, __u64 cgroup, __u64 left_ns, __u64 at,
					struct podperf_cgroup *row)
{
	__u64 ns = at > left_ns ? at - left_ns : 0;
	__u32 state = t->activity == PODPERF_THROTTLED ? PODPERF_PREEMPTED : t->activity;

	if (row && state < PODPERF_WAITS)
		row->offcpu_ns[state] += ns;
	if (!wants_profile(task))
		return;
	if (t->in_profile) {
		t->filters = filters_of(task, ns);
		profile_wait(t, (__u64)task->tgid << 32 | (__u32)task->pid, cgroup, at, ns);
	} else {
		keep_unprofiled(cgroup, state, ns);
	}
}

/* Charges to `cgroup` what the facts of `task` grew by since the last charge. Returns the cgroup's row, or NULL. */
static __always_inline struct podperf_cgroup *charge_facts(struct task_struct *task, struct task *t, __u64 cgroup)
{
	struct podperf_cgroup *row = cgroup_row(cgroup);
	struct facts now;

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
	return row;
}

/*
 * Charges to `cgroup` what `task` did since it was last settled, and its last wait. The task is on this CPU since `at`.
 * Returns the row, or NULL.
 */
static __always_inline struct podperf_cgroup *settle(struct task_struct *task, struct task *t, __u64 cgroup, __u64 at)
{
	struct podperf_cgroup *row;
	__u64 left_ns;

	/* cgroup_attach_task may run on another CPU while the task leaves this one. The program that comes second
	 * leaves the facts to the next switch, and the wait to the program that came first. */
	if (!try_lock(&t->busy)) {
		drop(PODPERF_DROP_TASK_BUSY);
		return NULL;
	}
	row = charge_facts(task, t, cgroup);
	left_ns = t->left_ns;
	if (left_ns) {
		t->left_ns = 0;
		settle_wait(task, t, cgroup, left_ns, at, row);
	}
	unlock(&t->busy);
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
	__u64 cgroup = cpu->cgroup;

	if (t->moved_to) {
		if (t->moved_since_ns == cpu->since_ns)
			cgroup = t->moved_to;
		t->moved_to = 0;
	}
	return settle(task, t, cgroup, cpu->since_ns);
}

/* `task`, which is current, leaves the CPU in the state `was` (0: not known). Returns the row that it was charged to, or
 * NULL. */
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
		if (try_lock(&t->sum_busy)) {
			flush_sum(t, task->tgid, orders.epoch & 1, false);
			unlock(&t->sum_busy);
		}
		return row;
	}
	t->activity = wait_activity(task, preempt, was);
	t->left_ns = now;
	t->left_run_ns = task->se.sum_exec_runtime;
	t->in_profile = false;
	if (!wants_profile(task))
		return row;
	if (is_shed(PODPERF_SHED_STACKS)) {
		drop(PODPERF_DROP_STACK_SHED);
		return row;
	}
	t->in_profile = true;
	t->waker = 0;
	if (t->activity >= PODPERF_PREEMPTED) {
		/* Where that happened says nothing of why. */
		t->stack = 0;
		t->weight = 1;
	} else {
		struct wait_stack found = stack_of_wait(ctx, task, t, cpu->cgroup, now, cpu);

		t->stack = found.id;
		t->weight = found.weight;
	}
	return row;
}

/* `prev` makes room for the task `pid` of `cgroup`. */
static __always_inline int on_switch(void *ctx, struct task_struct *prev, bool preempt, __u32 was, __s32 pid,
				     __u64 cgroup)
{
	struct podperf_cpu *cpu = this_cpu();
	struct podperf_cgroup *row = NULL;
	__u64 now = 0, began;

	if (!cpu || !counts())
		return 0;
	began = begin_run(cpu, PODPERF_PROGRAM_SWITCH);
	if (facts_enabled) {
		now = bpf_ktime_get_ns();
		row = leave(ctx, prev, preempt, was, now, cpu);
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
	__u32 was = bpf_core_type_exists(btf_trace_sched_switch) ? ctx[3] : 0;

	return on_switch(ctx, prev, preempt, was, next->pid, next->pid ? cgroup_id(next) : PODPERF_IDLE);
}

/* The twin for kernels that refuse BTF-typed tracepoints: `next` is then a bare address. */
SEC("raw_tp/sched_switch")
int sched_switch_raw(struct bpf_raw_tracepoint_args *ctx)
{
	struct task_struct *next = (struct task_struct *)ctx->args[2];
	__s32 pid = BPF_CORE_READ(next, pid);
	__u32 was = bpf_core_type_exists(btf_trace_sched_switch) ? ctx->args[3] : 0;

	return on_switch(ctx, bpf_get_current_task_btf(), ctx->args[0], was, pid,
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
static __always_inline void move_other(struct task_struct *task)
{
	volatile struct podperf_cpu *its = cpu_of(task);
	struct podperf_cgroup *row;
	__u64 since_ns, left_ns, cgroup;
	struct task *t;

	if (!facts_enabled || !its || its->pid != task->pid)
		return;
	since_ns = its->since_ns;
	t = task_of(task, since_ns, bpf_ktime_get_ns());
	if (!t)
		return;
	if (!try_lock(&t->busy)) {
		drop(PODPERF_DROP_TASK_BUSY);
		return;
	}
	left_ns = *(volatile __u64 *)&t->left_ns;
	/* The task may have left meanwhile, and be settled. A wait that began after it came on has not ended. */
	if (its->pid == task->pid && its->since_ns == since_ns && left_ns <= since_ns) {
		cgroup = t->moved_to && t->moved_since_ns == since_ns ? t->moved_to : its->cgroup;
		row = charge_facts(task, t, cgroup);
		/* The task may leave at this moment, too: then its new wait is there, and stays. */
		if (left_ns) {
			__sync_val_compare_and_swap(&t->left_ns, left_ns, 0);
			settle_wait(task, t, cgroup, left_ns, since_ns, row);
		}
		t->moved_since_ns = since_ns;
		t->moved_to = cgroup_id(task);
	}
	unlock(&t->busy);
}

SEC("tp_btf/cgroup_attach_task")
int BPF_PROG(cgroup_attach_task, struct cgroup *to, const char *path, struct task_struct *task, bool threadgroup)
{
	struct task_struct *current = bpf_get_current_task_btf();
	struct podperf_cpu *cpu = this_cpu();
	__u64 began;

	if (!cpu || !counts() || to->root->hierarchy_id)
		return 0;
	began = begin_run(cpu, PODPERF_PROGRAM_ATTACH_TASK);
	if (task != current)
		move_other(task);
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

	if (!cpu || !counts())
		return 0;
	now = begin_run(cpu, PODPERF_PROGRAM_FLUSH);
	if (!current->pid) {
		end_idle(cpu, now);
		charge_counters(cpu, NULL);
		enter(cpu, 0, PODPERF_IDLE, now);
	} else {
		if (facts_enabled) {
			/* No run queue is locked where this runs. */
			make_record(current);
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

/* Run by the agent over all tasks after it has told to write to the other table: what they have summed goes to the one
 * that it takes. */
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
	if (t && t->sum.count && try_lock(&t->sum_busy)) {
		flush_sum(t, task->tgid, (orders.epoch & 1) ^ 1, true);
		unlock(&t->sum_busy);
	}
	return 0;
}

/* A task is born: no lock is held yet, so its record is made now. */
SEC("tp_btf/task_newtask")
int BPF_PROG(task_newtask, struct task_struct *task)
{
	struct podperf_cpu *cpu = this_cpu();
	__u64 began;

	if (!cpu)
		return 0;
	began = begin_run(cpu, PODPERF_PROGRAM_NEWTASK);
	make_record(task);
	end_run(cpu, PODPERF_PROGRAM_NEWTASK, began);
	return 0;
}

/* Makes the records of tasks that have none. The agent runs it over all tasks before these programs count, and after the
 * kernel had no memory for a record. */
SEC("iter/task")
int adopt(struct bpf_iter__task *ctx)
{
	struct task_struct *task = ctx->task;

	if (task)
		make_record(task);
	return 0;
}

/* Run by the agent over all tasks when these programs have taken over from others of another layout, whose records end with
 * it: of a task that does not run until programs of yet another layout take over, too. */
SEC("iter/task")
int carry(struct bpf_iter__task *ctx)
{
	struct task_struct *task = ctx->task;

	if (!task || !carries || !counts())
		return 0;
	if (bpf_task_storage_get(&tasks_before, task, NULL, 0) && make_record(task) && task_of(task, 0, 0))
		bpf_task_storage_delete(&tasks_before, task);
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
