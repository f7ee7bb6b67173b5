/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Counts of losses: every path that gives up counts the reason. */
#ifndef PODPERF_DROPS_BPF_H
#define PODPERF_DROPS_BPF_H

#include "kernel.h"
#include "podperf.h"
#include "sensor_drops.h"

/* enum podperf_drop, or a sensor's enum NAME_drop -> number of drops. All programs write it, the agent reads it. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, PODPERF_ALL_DROPS);
	__type(key, __u32);
	__type(value, __u64);
} drops SEC(".maps");

static __always_inline void drop(__u32 reason)
{
	__u64 *count = bpf_map_lookup_elem(&drops, &reason);

	/* The addition is atomic, since the sampler may interrupt another program here. */
	if (count)
		__sync_fetch_and_add(count, 1);
}

#endif
