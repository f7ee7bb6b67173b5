/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The agent's orders to the programs. */
#ifndef PODPERF_CONTROL_BPF_H
#define PODPERF_CONTROL_BPF_H

#include "kernel.h"
#include "podperf.h"

/*
 * The agent's orders. This is a variable instead of a map entry, so that programs read it without a lookup. The agent
 * writes it.
 */
volatile struct podperf_orders orders SEC(".data.orders") = {};

/* CPU -> the counters that are open there. The agent writes it. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1); /* set by the agent */
	__type(key, __u32);
	__type(value, struct podperf_control);
} controls SEC(".maps");

static __always_inline struct podperf_control *this_control(void)
{
	__u32 cpu = bpf_get_smp_processor_id();

	return bpf_map_lookup_elem(&controls, &cpu);
}

static __always_inline bool is_shed(__u32 feature)
{
	return orders.shed & feature;
}

#endif
