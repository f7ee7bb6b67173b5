/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The time that a sample by cycles stands for. Plain C: a test compiles it for the machine that builds. */
#ifndef PODPERF_SAMPLE_TIME_H
#define PODPERF_SAMPLE_TIME_H

#include "podperf.h"

/* If a CPU was busy for longer since the last sample, there was no sampler: no agent, or others had the counter. */
#define SAMPLE_TIME_MOST_NS 1000000000ULL
#define SAMPLE_TIME_MOST_SAMPLES 4

/*
 * By cycles the kernel takes as many samples each second of a CPU with little to do as of a busy one. So each stands for the time
 * since the last one in which the CPU was not idle. `sample_ns` is the time between two samples of a busy CPU.
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
		/* Idle time that was charged late: the sample before this one had too much. */
		cpu->sampled_idle_ns -= idle - passed;
		return 0;
	}
	if (most < SAMPLE_TIME_MOST_NS)
		most = SAMPLE_TIME_MOST_NS;
	return passed - idle > most ? sample_ns : passed - idle;
}

#endif
