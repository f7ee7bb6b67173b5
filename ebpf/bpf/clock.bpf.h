/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The time of a context switch. The kernel has just read the clock for it, and has stored the time in the run queue: it
 * costs a tenth of another reading. But that clock has another zero, other clocks of CPUs may differ from it, and NTP
 * does not adjust it. So each CPU compares it with CLOCK_MONOTONIC every millisecond in which it switches.
 */
#ifndef PODPERF_CLOCK_BPF_H
#define PODPERF_CLOCK_BPF_H

#include "kernel.h"
#include "podperf.h"

/* The time after which the two clocks are compared again, in nanoseconds. */
#define CLOCK_HOLDS_NS 1000000
/* The two clocks drift apart by at most 2^-11 (488 ppm): the kernel's limit for NTP is 500 ppm. */
#define CLOCK_DRIFT_SHIFT 11
/* A difference that has grown by more than this, in nanoseconds, is a jump of a clock. */
#define CLOCK_JUMP_NS 1000000

/*
 * Compares the clocks, and returns the time, CLOCK_MONOTONIC. The kernel stores the time of the run queue when it begins
 * to switch. If it then looks for a task on other CPUs, the time is old here, and the difference is too large. So of two
 * differences the smaller one is right, but for the drift since then.
 */
static __noinline __u64 compare_clocks(struct podperf_cpu *cpu, __u64 clock)
{
	__u64 now = bpf_ktime_get_ns(), behind = now - clock, since, most;

	if (!cpu)
		return now;
	since = clock - (cpu->clock_until_ns - CLOCK_HOLDS_NS);
	most = cpu->clock_behind_ns + (since >> CLOCK_DRIFT_SHIFT);
	if (cpu->clock_until_ns && (__s64)(behind - most) > 0 && behind - most < CLOCK_JUMP_NS)
		behind = most;
	cpu->clock_behind_ns = behind;
	cpu->clock_until_ns = clock + CLOCK_HOLDS_NS;
	return clock + behind;
}

/* Returns the time at which `prev` leaves this CPU, CLOCK_MONOTONIC. It is not before the last switch. */
static __always_inline __u64 switch_time(struct task_struct *prev, struct podperf_cpu *cpu)
{
	struct rq *queue = (void *)0;
	__u64 clock, now;

	if (!bpf_core_field_exists(prev->se.cfs_rq) || !bpf_core_field_exists(prev->se.cfs_rq->rq) ||
	    !bpf_core_field_exists(queue->clock))
		return bpf_ktime_get_ns();
	clock = prev->se.cfs_rq->rq->clock;
	if (cpu->clock_until_ns - clock <= CLOCK_HOLDS_NS)
		now = clock + cpu->clock_behind_ns;
	else
		now = compare_clocks(cpu, clock);
	return now > cpu->since_ns ? now : cpu->since_ns;
}

#endif
