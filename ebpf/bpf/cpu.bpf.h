/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The state of a CPU, and the cost of the programs there, which they measure themselves. */
#ifndef PODPERF_CPU_BPF_H
#define PODPERF_CPU_BPF_H

#include "kernel.h"
#include "podperf.h"

/*
 * CPU -> its state. The programs write it, each on its own CPU. The agent reads the times, the totals and the programs'
 * costs.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1); /* set by the agent */
	__type(key, __u32);
	__type(value, struct podperf_cpu);
} cpus SEC(".maps");

static __always_inline struct podperf_cpu *this_cpu(void)
{
	__u32 cpu = bpf_get_smp_processor_id();

	return bpf_map_lookup_elem(&cpus, &cpu);
}

/* Returns the state of the CPU that `task` is on or was last on. */
static __always_inline struct podperf_cpu *cpu_of(struct task_struct *task)
{
	__u32 cpu = task_cpu(task);

	return bpf_map_lookup_elem(&cpus, &cpu);
}

static __always_inline bool is_hot(__u32 program)
{
	return program == PODPERF_PROGRAM_SCHED_SWITCH || program == PODPERF_PROGRAM_SCHED_WAKING;
}

/*
 * Returns true if a hot program times its run of this number: one in PODPERF_TIMED_EVERY. The choice uses multiples of
 * a fraction near the golden ratio: they are spread evenly, and in step with no workload.
 */
static __always_inline bool is_timed(__u64 run)
{
	return (__u32)run * 2654435769U <= ~0U / PODPERF_TIMED_EVERY;
}

/*
 * Begins a run of `program`. Returns the start of the run in nanoseconds, or 0 if the run is not timed. All runs of the
 * rare programs are timed, and some runs of the hot programs.
 */
static __always_inline __u64 begin_run(struct podperf_cpu *cpu, __u32 program)
{
	__u64 run = cpu->programs[program].runs++;

	if (is_hot(program) && !is_timed(run))
		return 0;
	return bpf_ktime_get_ns();
}

static __always_inline void end_run(struct podperf_cpu *cpu, __u32 program, __u64 began)
{
	__u64 stands_for = is_hot(program) ? PODPERF_TIMED_EVERY : 1;

	if (began)
		cpu->programs[program].ns += (bpf_ktime_get_ns() - began) * stands_for;
}

#endif
