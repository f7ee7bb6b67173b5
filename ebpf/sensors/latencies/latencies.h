/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#ifndef PODPERF_LATENCIES_H
#define PODPERF_LATENCIES_H

#include "podperf.h"

/* Number of buckets of a histogram. Their borders are those of bucket.h; the last one begins at 16 seconds. */
#define PODPERF_LATENCY_BUCKETS 24
/* Number of words of a histogram: the sum of all calls in nanoseconds, then the number of calls in each bucket. */
#define PODPERF_LATENCY_WORDS (1 + PODPERF_LATENCY_BUCKETS)

/*
 * The system calls that have a histogram, with their numbers on x86-64 and arm64. A call may be added at the end, up to
 * 16: fields of the row are found by their names, and the constant `latencies_chosen` has a bit for each.
 */
#define PODPERF_MEASURED_CALLS(F) \
	F(read, 0, 63)            \
	F(write, 1, 64)           \
	F(pread64, 17, 67)        \
	F(pwrite64, 18, 68)       \
	F(openat, 257, 56)        \
	F(fsync, 74, 82)          \
	F(fdatasync, 75, 83)      \
	F(connect, 42, 203)       \
	F(sendto, 44, 206)        \
	F(recvfrom, 45, 207)      \
	F(sendmsg, 46, 211)       \
	F(recvmsg, 47, 212)

#define MEASURED_FIELD(name, x86, arm64) __u64 name[PODPERF_LATENCY_WORDS];

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
