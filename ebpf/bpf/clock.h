/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The time of the run queue's clock as CLOCK_MONOTONIC. The two have different zeros, NTP adjusts only one of them, and
 * the clocks of two CPUs may differ. So each CPU compares them again and again. This file is plain C: a test compiles it
 * for the build machine.
 */
#ifndef PODPERF_CLOCK_H
#define PODPERF_CLOCK_H

#include "podperf.h"

/* The time after which the clocks are compared again, in nanoseconds. */
#define CLOCK_HOLDS_NS 1000000ULL
/* The clocks drift apart by at most 2^-11 (488 ppm), about the kernel's limit for NTP, which is 500 ppm. */
#define CLOCK_DRIFT_SHIFT 11
/* If the difference has grown by more than this, in nanoseconds, a clock has jumped. */
#define CLOCK_JUMP_NS 1000000ULL

/* Returns true if the difference of the clocks is known well enough at the time `clock` of the run queue. */
static inline bool clocks_are_compared(struct podperf_cpu *cpu, __u64 clock)
{
	return clock && cpu->clock_until_ns - clock <= CLOCK_HOLDS_NS;
}

/*
 * Compares the time `clock` of the run queue with `now`, CLOCK_MONOTONIC. The kernel reads the clock of the run queue
 * when it begins to switch. If it then looks for a task on other CPUs first, the difference is too large. So the smaller
 * one of two differences is right, apart from the drift between the two.
 */
static inline void compare_clocks(struct podperf_cpu *cpu, __u64 clock, __u64 now)
{
	__u64 behind_ns = now - clock, passed = clock + CLOCK_HOLDS_NS - cpu->clock_until_ns;
	__u64 most = cpu->clock_behind_ns + (passed >> CLOCK_DRIFT_SHIFT), more = behind_ns - most;

	if (!cpu->clock_until_ns || (__s64)more <= 0 || more > CLOCK_JUMP_NS)
		cpu->clock_behind_ns = behind_ns;
	else
		cpu->clock_behind_ns = most;
	cpu->clock_until_ns = clock + CLOCK_HOLDS_NS;
}

#endif
