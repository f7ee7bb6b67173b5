/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#ifndef PODPERF_FUNCTIONS_H
#define PODPERF_FUNCTIONS_H

#include "podperf.h"
#include "histograms/histograms.h"

/* The most functions that the configuration may name: the number of histograms in a row. */
#define PODPERF_FUNCTIONS 8

/* A bit of the cookie of a probe whose function is the kernel's. The bits below are the place of the function. */
#define PODPERF_FUNCTION_OF_KERNEL 0x100
/* From this bit on, the cookie has the number of the recording that borrows the place; 0 for the configuration. */
#define PODPERF_RECORDING_SHIFT 16
/* The largest number of a recording. */
#define PODPERF_LAST_RECORDING 0xffff

/* Value of `functions_rows` and `functions_rows_by_id`: one histogram for each function, in the order of the list. */
struct podperf_functions {
	__u64 id;                             /* id of the cgroup; 0: the row is free */
	__u64 first[PODPERF_HISTOGRAM_WORDS]; /* written when a call ends, by atomic additions */
	__u64 second[PODPERF_HISTOGRAM_WORDS];
	__u64 third[PODPERF_HISTOGRAM_WORDS];
	__u64 fourth[PODPERF_HISTOGRAM_WORDS];
	__u64 fifth[PODPERF_HISTOGRAM_WORDS];
	__u64 sixth[PODPERF_HISTOGRAM_WORDS];
	__u64 seventh[PODPERF_HISTOGRAM_WORDS];
	__u64 eighth[PODPERF_HISTOGRAM_WORDS];
};

/* Value of `functions_calls` and `functions_lent`: the outermost call of a function in a thread. */
struct podperf_call {
	__u64 since_ns;
	__u64 stack;   /* the stack pointer at the begin */
	__u32 share;   /* the share of the thread's cgroup; 0 in `functions_lent` */
	__u32 program; /* the program that the thread runs, see `program_of_lent`: the low half of `self_exec_id` */
};

_Static_assert(__builtin_offsetof(struct podperf_functions, eighth) ==
		   __builtin_offsetof(struct podperf_functions, first) +
		       (PODPERF_FUNCTIONS - 1) * PODPERF_HISTOGRAM_WORDS * sizeof(__u64),
	       "a histogram for each function");
_Static_assert(sizeof(struct podperf_call) == 24, "ABI");

#endif
