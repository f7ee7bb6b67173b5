/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#ifndef PODPERF_LATENCIES_H
#define PODPERF_LATENCIES_H

#include "podperf.h"

/* Number of buckets of a histogram. Their borders are those of bucket.h; the last one begins at 16 seconds. */
#define PODPERF_LATENCY_BUCKETS 24
/* Number of words of a histogram: the sum of all calls in nanoseconds, then the number of calls in each bucket. */
#define PODPERF_LATENCY_WORDS (1 + PODPERF_LATENCY_BUCKETS)

/*
 * The system calls that have a histogram; syscalls.h has their numbers. A call may be added at the end, up to 16: fields
 * of the row are found by their names, and the constant `latencies_chosen` has a bit for each.
 */
#define PODPERF_MEASURED_CALLS(F) \
	F(read)                   \
	F(write)                  \
	F(pread64)                \
	F(pwrite64)               \
	F(openat)                 \
	F(fsync)                  \
	F(fdatasync)              \
	F(connect)                \
	F(sendto)                 \
	F(recvfrom)               \
	F(sendmsg)                \
	F(recvmsg)

#define MEASURED_FIELD(name) __u64 name[PODPERF_LATENCY_WORDS];

/* Value of `latencies_rows` and `latencies_rows_by_id`: a histogram for each call, in the order of the list above. */
struct podperf_latencies {
	__u64 id; /* id of the cgroup; 0: the row is free */
	PODPERF_MEASURED_CALLS(MEASURED_FIELD)
};

/* Value of `latencies_of_tasks`: the measured call in which a thread is. */
struct podperf_measured_call {
	__u64 since_ns; /* 0: it is in none */
	__u32 call;     /* enum measured_call */
	__u32 generation;
};

#endif
