/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The time of a context switch. The kernel has just read a clock for the switch and stored the time in the run queue.
 * Reading that time costs a tenth of reading a clock.
 */
#ifndef PODPERF_CLOCK_BPF_H
#define PODPERF_CLOCK_BPF_H

#include "clock.h"
#include "kernel.h"
#include "podperf.h"

/* Returns the time of the run queue of `task`, which is current; 0: unknown. */
static __always_inline __u64 queue_clock(struct task_struct *task)
{
	struct rq *queue = (void *)0;

	if (!bpf_core_field_exists(task->se.cfs_rq) || !bpf_core_field_exists(task->se.cfs_rq->rq) ||
	    !bpf_core_field_exists(queue->clock))
		return 0;
	return task->se.cfs_rq->rq->clock;
}

/* Returns the time at which `prev`, which is current, leaves the CPU, CLOCK_MONOTONIC. It is not before the last switch. */
static __always_inline __u64 switch_time(struct task_struct *prev, struct podperf_cpu *cpu)
{
	__u64 clock = queue_clock(prev), now;

	if (!clock)
		return bpf_ktime_get_ns();
	if (!clocks_are_compared(cpu, clock))
		compare_clocks(cpu, clock, bpf_ktime_get_ns());
	now = clock + cpu->clock_behind_ns;
	return now > cpu->since_ns ? now : cpu->since_ns;
}

#endif
