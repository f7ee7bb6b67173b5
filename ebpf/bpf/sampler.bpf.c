// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * The sampler: records the running task of each CPU, several times a second. A perf event calls it: cycles, or else a
 * clock. On x86 the cycles event interrupts as an NMI at any point of the kernel, even in other programs and their
 * maps. So the sampler writes only to arrays, a ring buffer, and hash tables that no other program reaches:
 * ebpf/tests/programs/contexts.rs checks the object.
 */
#include "cgroup.bpf.h"
#include "control.bpf.h"
#include "copies.bpf.h"
#include "cpu.bpf.h"
#include "filters.bpf.h"
#include "kernel.h"
#include "podperf.h"
#include "sample_time.h"
#include "samples.bpf.h"
#include "walk.bpf.h"

/* The time between two samples of a busy CPU, in nanoseconds. */
const volatile __u64 sample_ns = 0;

/* Sends a copy of the stack of `task`, which is current, with the sample. Returns false if that failed. */
static __always_inline bool copy_sample(void *ctx, struct task_struct *task, struct podperf_stack *stack,
					struct podperf_sample_key *key, struct podperf_sample_sum *sum)
{
	__u32 cpu = bpf_get_smp_processor_id();
	struct podperf_copy *copy = bpf_map_lookup_elem(&sampler_copy, &cpu);

	if (!copy)
		return false;
	copy->key = *key;
	copy->ns = sum->ns;
	copy->at_ns = sum->last_ns;
	copy->kernel = kernel_part(ctx, stack, false);
	return send_copy(task, copy, NULL, RING_FOR_ALL);
}

SEC("perf_event")
int sample(void *ctx)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct podperf_cpu *cpu = this_cpu();
	struct podperf_sample_key key = {.activity = PODPERF_ON_CPU};
	struct podperf_sample_sum fresh = {.count = 1};
	struct podperf_stack *stack;
	__u32 zero = 0;
	__u64 began;

	if (!cpu || !task->pid)
		return 0;
	/*
	 * This call comes first even while samples are shed: the first sample after that must not stand for the shed
	 * ones.
	 */
	fresh.ns = sample_time(cpu, bpf_ktime_get_ns(), sample_ns);
	if (!orders.sample_busy)
		fresh.ns = sample_ns;
	if (is_shed(PODPERF_SHED_STACKS))
		return 0;
	stack = bpf_map_lookup_elem(&sampler_buffer, &zero);
	if (!stack)
		return 0;
	began = begin_run(cpu, PODPERF_PROGRAM_SAMPLE);
	key.cgroup = cgroup_id(task);
	key.tgid = task->tgid;
	key.filters = filters_of(task, 0);
	fresh.last_ns = began;
	/* While user frames are shed, nothing is copied: the time to unwind copies may be the cost. */
	if (user_frames_are_shed() || !has_copy(task) || !copy_sample(ctx, task, stack, &key, &fresh)) {
		key.stack = walk_to(ctx, stack, false);
		add_oncpu_sample(&key, &fresh, orders.epoch & 1);
	}
	end_run(cpu, PODPERF_PROGRAM_SAMPLE, began);
	return 0;
}
