/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Counts each wait in the histogram of its activity when the wait ends. */
#ifndef PODPERF_HISTOGRAMS_ON_WAIT_END_BPF_H
#define PODPERF_HISTOGRAMS_ON_WAIT_END_BPF_H

#include "histograms/histograms.bpf.h"
#include "histograms/observe.bpf.h"

/* Waits end at context switches, where nothing preempts. */
static __always_inline void observe_wait(struct podperf_histograms *row, __u32 activity, __u64 ns)
{
	observe(row->interruptible, activity, PODPERF_WAITS, PODPERF_HISTOGRAM_BUCKETS, ns, false);
}

/* This function is global: the verifier checks it once, instead of at each call. */
__noinline int histograms_add(__u32 slot, __u64 cgroup, __u32 activity, __u64 ns, __u64 queued_ns)
{
	struct podperf_histograms *row = histograms_row_at(slot, cgroup);

	if (!row || activity >= PODPERF_WAITS)
		return 0;
	/* A task that slept was in the run queue after it was woken, if only for a moment. */
	if (activity < PODPERF_RUN_QUEUE)
		observe_wait(row, PODPERF_RUN_QUEUE, queued_ns);
	observe_wait(row, activity, ns);
	return 0;
}

static __always_inline void histograms_on_wait_end(__u32 slot, __u64 cgroup, __u8 call, __u32 activity, __u64 ns,
						   __u64 queued_ns)
{
	histograms_add(slot, cgroup, activity, ns, queued_ns);
}

#endif
