/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The filters that a sample passes, as far as only the kernel knows the answer. */
#ifndef PODPERF_FILTERS_BPF_H
#define PODPERF_FILTERS_BPF_H

#include "control.bpf.h"
#include "kernel.h"
#include "podperf.h"

/* The terms of all filters; their number is in the orders. The agent writes them. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, PODPERF_FILTER_TERMS);
	__type(key, __u32);
	__type(value, struct podperf_filter_term);
} filter_terms SEC(".maps");

static __always_inline bool begins_with(const char *name, const char *with, __u64 bytes)
{
	for (__u32 i = 0; i < PODPERF_COMM_MAX; i++) {
		if (i >= bytes)
			break;
		if (name[i] != with[i])
			return false;
	}
	return true;
}

/* The name of a thread. */
struct comm {
	char name[PODPERF_COMM_MAX];
};

/*
 * Returns the bits of the filters whose terms all hold. The verifier checks this function separately, instead of once
 * on each path that leads to it.
 */
__noinline __u32 look(struct comm *comm, __u32 pid, __u64 ns, __u32 terms)
{
	__u32 asked = 0, failed = 0;

	if (!comm)
		return 0;
	for (__u32 i = 0; i < PODPERF_FILTER_TERMS; i++) {
		struct podperf_filter_term *term;
		__u32 key = i;
		__u32 bit;
		bool holds;

		if (i >= terms)
			break;
		term = bpf_map_lookup_elem(&filter_terms, &key);
		if (!term)
			break;
		bit = 1U << (term->bit % PODPERF_FILTERS);
		if (failed & bit)
			continue;
		switch (term->field) {
		case PODPERF_FILTER_AT_LEAST:
			holds = ns >= term->value;
			break;
		case PODPERF_FILTER_THREAD:
			holds = pid == term->value;
			break;
		default:
			holds = begins_with(comm->name, term->comm, term->value);
		}
		asked |= bit;
		if (holds == !!term->negated)
			failed |= bit;
	}
	return asked & ~failed;
}

/* Returns the bits of the alternatives whose terms hold for `ns` of the time of `task`. If `ns` is 0, the task runs. */
static __always_inline __u16 filters_of(struct task_struct *task, __u64 ns)
{
	__u32 terms = orders.terms;
	struct comm comm = {};

	if (!terms)
		return 0;
	bpf_probe_read_kernel(comm.name, sizeof(comm.name), task->comm);
	return look(&comm, task->pid, ns, terms);
}

#endif
