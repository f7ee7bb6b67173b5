/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#ifndef PODPERF_WORKQUEUES_H
#define PODPERF_WORKQUEUES_H

#include "podperf.h"
#include "histograms/histograms.h"

/* Value of `workqueues_rows`: the only row is that of the node. */
struct podperf_workqueues {
	__u64 id;                               /* `PODPERF_IDLE`; 0: this CPU has started no item yet */
	__u64 latency[PODPERF_HISTOGRAM_WORDS]; /* of items, from their activation to their start */
};

/* The key of `workqueues_functions` that stands for all functions without an entry. No function is at this address. */
#define PODPERF_OTHER_FUNCTIONS 0

/* Value of `workqueues_functions`: the items of a function that ended. `workqueues_end` adds to it atomically. */
struct podperf_work {
	__u64 runs;
	__u64 ns;        /* from the starts to the ends */
	__u64 since_ns;  /* the end of the first one */
	__u64 waits;     /* the items among them whose activation was seen */
	__u64 waited_ns; /* of these, from the activations to the starts */
};

/* Value of `workqueues_running`: an item that runs. */
struct podperf_work_run {
	__u64 since_ns;
	__u64 function;  /* the address of its function */
	__u64 waited_ns; /* from its activation to its start, plus 1; 0: its activation was not seen */
};

_Static_assert(sizeof(struct podperf_work) == 40, "ABI");
_Static_assert(sizeof(struct podperf_work_run) == 24, "ABI");

#endif
