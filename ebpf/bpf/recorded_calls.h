/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The ABI of recordings of system calls, see recorded_calls.bpf.c. */
#ifndef PODPERF_RECORDED_CALLS_H
#define PODPERF_RECORDED_CALLS_H

#include <linux/types.h>

/* Calls with a larger number, and those of 32-bit programs, which have other numbers, share the entry after these. */
#define PODPERF_RECORDED_NUMBERS 512

/* The most cgroups of a recording. */
#define PODPERF_RECORDED_CGROUPS 1024

/* Value of `recorded_calls`, by number: the calls that began and ended while the recording went on. */
struct podperf_recorded_call {
	__u64 calls;
	__u64 errors;
	__u64 ns; /* of all calls, from the entry to the return */
	__u64 max_ns;
	__u64 max_not_ns; /* the shortest call, with all bits inverted: the map begins with zeros */
};

/* Value of `recorded_totals`. */
struct podperf_recorded_totals {
	__u64 begun;
	__u64 ended;        /* of those that began */
	__u64 unseen_end;   /* of those that began: the thread began its next call, and no return was seen */
	__u64 began_before; /* returns of calls that began before the recording, or in another cgroup */
	__u64 not_entered;  /* returns without an entry: a seccomp filter or a debugger answered the call */
	__u64 unnoted;      /* calls for which the kernel had no memory */
	__u64 runs;         /* of both programs */
	__u64 run_ns;       /* an estimate from the runs that are timed */
};

#endif
