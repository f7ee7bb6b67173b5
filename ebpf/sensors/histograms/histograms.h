/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#ifndef PODPERF_HISTOGRAMS_H
#define PODPERF_HISTOGRAMS_H

#include "podperf.h"

/* Number of buckets of a histogram. Their borders are those of bucket.h. */
#define PODPERF_HISTOGRAM_BUCKETS 28
/* Number of words of a histogram: the sum of all waits in nanoseconds, then the number of waits in each bucket. */
#define PODPERF_HISTOGRAM_WORDS (1 + PODPERF_HISTOGRAM_BUCKETS)

/* Value of `histograms_rows` and `histograms_rows_by_id`: one histogram for each activity, in their order. */
struct podperf_histograms {
	__u64 id; /* id of the cgroup; 0: the row is free */
	__u64 interruptible[PODPERF_HISTOGRAM_WORDS];
	__u64 uninterruptible[PODPERF_HISTOGRAM_WORDS];
	__u64 run_queue[PODPERF_HISTOGRAM_WORDS];
	__u64 throttled[PODPERF_HISTOGRAM_WORDS];
};

#endif
