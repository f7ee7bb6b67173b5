/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Which filters a sample passes, as far as only the kernel knows. */
#ifndef PODPERF_FILTERS_BPF_H
#define PODPERF_FILTERS_BPF_H

#include "control.bpf.h"
#include "kernel.h"
#include "podperf.h"

/* The terms of all filters, as many as the orders say; written by the agent. */
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

static __noinline __u32 look(struct task_struct *task, __u64 ns, __u32 terms)
{
	__u32 asked = 0, failed = 0;
	char comm[PODPERF_COMM_MAX] = {};

	bpf_probe_read_kernel(comm, sizeof(comm), task->comm);
	for (__u32 i = 0; i < PODPERF_FILTER_TERMS; i++) {
		struct podperf_filter_term *term;
		__u32 key = i;
		bool holds;

		if (i >= terms)
			break;
		term = bpf_map_lookup_elem(&filter_terms, &key);
		if (!term)
			break;
		switch (term->field) {
		case PODPERF_FILTER_AT_LEAST:
			holds = ns >= term->value;
			break;
		case PODPERF_FILTER_THREAD:
			holds = (__u32)task->pid == term->value;
			break;
		default:
			holds = begins_with(comm, term->comm, term->value);
		}
		asked |= 1U << (term->bit % PODPERF_FILTERS);
		if (holds == !!term->negated)
			failed |= 1U << (term->bit % PODPERF_FILTERS);
	}
	return asked & ~failed;
}

/* The bits of the alternatives whose terms hold for `ns` of `task`'s time; 0 ns: it runs. */
static __always_inline __u16 filters_of(struct task_struct *task, __u64 ns)
{
	__u32 terms = orders.terms;

	return terms ? look(task, ns, terms) : 0;
}

#endif
