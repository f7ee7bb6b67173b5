/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Adds a duration to a histogram of a row. The sensors with histograms share this. */
#ifndef PODPERF_HISTOGRAM_OBSERVE_BPF_H
#define PODPERF_HISTOGRAM_OBSERVE_BPF_H

#include "histograms/bucket.h"

/*
 * `first` is the first word of the row's first histogram, of `histograms` (at most 16) with `buckets` (at most 32)
 * each: the sum in nanoseconds, then the number in each bucket. `shared` says that another program may preempt this one
 * and add to the same words; then the additions are atomic.
 */
static __always_inline void observe(__u64 *first, __u64 at, __u64 histograms, __u64 buckets, __u64 ns, bool shared)
{
	__u64 bucket = bucket_of(ns, buckets);

	/* The masks are in assembly, because the compiler would remove them. They bound both indices for the verifier. */
	asm volatile("%0 &= 15" : "+r"(at));
	asm volatile("%0 &= 31" : "+r"(bucket));
	if (at >= histograms || bucket >= buckets)
		return;
	first += at * (1 + buckets);
	if (shared) {
		__sync_fetch_and_add(&first[0], ns);
		__sync_fetch_and_add(&first[1 + bucket], 1);
	} else {
		first[0] += ns;
		first[1 + bucket]++;
	}
}

#endif
