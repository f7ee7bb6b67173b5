/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The time that a sample by cycles stands for. This file is plain C: a test compiles it for the build machine. */
#ifndef PODPERF_SAMPLE_TIME_H
#define PODPERF_SAMPLE_TIME_H

#include "podperf.h"

/*
 * The longest busy time since the last sample. If the busy time was longer, there was no sampler: no agent ran, or
 * another user had the counter.
 */
#define SAMPLE_TIME_MOST_NS 1000000000ULL
#define SAMPLE_TIME_MOST_SAMPLES 4

/*
 * Returns the time that a sample stands for, in nanoseconds. By cycles, the kernel takes as many samples each second of
 * a nearly idle CPU as of a busy one. So each sample stands for the time since the last one in which the CPU was not
 * idle. `sample_ns` is the time between two samples of a busy CPU.
 */
static inline __u64 sample_time(struct podperf_cpu *cpu, __u64 now, __u64 sample_ns)
{
	__u64 idle_ns = cpu->idle_ns, passed = now - cpu->sampled_ns, idle = idle_ns - cpu->sampled_idle_ns;
	__u64 most = SAMPLE_TIME_MOST_SAMPLES * sample_ns;
	bool first = !cpu->sampled_ns;

	cpu->sampled_ns = now;
	cpu->sampled_idle_ns = idle_ns;
	if (first)
		return sample_ns;
	if (idle > passed) {
		/* Idle time was charged late: the previous sample stood for too much time. */
		cpu->sampled_idle_ns -= idle - passed;
		return 0;
	}
	if (most < SAMPLE_TIME_MOST_NS)
		most = SAMPLE_TIME_MOST_NS;
	return passed - idle > most ? sample_ns : passed - idle;
}

#endif
