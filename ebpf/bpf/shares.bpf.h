/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Shares of a table of a sensor. A cgroup may have as many entries as are still free, so no cgroup takes the room of
 * all others.
 *
 * `shares` is an array of a sensor's own with an entry for each slot of the sensor: a share -> the number of its
 * entries in `table`.
 */
#ifndef PODPERF_SHARES_BPF_H
#define PODPERF_SHARES_BPF_H

#include "sensor.bpf.h"

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct bpf_map {
	__u32 max_entries;
};

#pragma clang attribute pop

/* The key of the number of all entries in `shares`. */
#define ALL_SHARES 0

/* Returns the share of a cgroup. All cgroups with one outer cgroup have the same. */
static __always_inline __u32 sensor_share(__u64 cgroup)
{
	__u64 outer = outer_of(cgroup);
	__u32 share = sensor_slot(outer ? outer : cgroup);

	return share == ALL_SHARES ? ALL_SHARES + 1 : share;
}

static __always_inline void add_to_share(void *shares, __u32 share, __u32 number)
{
	__u32 all = ALL_SHARES, *of_all = bpf_map_lookup_elem(shares, &all);
	__u32 *of_share = bpf_map_lookup_elem(shares, &share);

	if (of_all && of_share) {
		__sync_fetch_and_add(of_all, number);
		__sync_fetch_and_add(of_share, number);
	}
}

/* Gives back what `take_share` took, also if that returned false. */
static __always_inline void give_share(void *shares, __u32 share)
{
	add_to_share(shares, share, -1);
}

/* Counts one entry more of this share. Returns false if the share has no room. */
static __always_inline bool take_share(void *shares, void *table, __u32 share)
{
	__u32 all = ALL_SHARES, *of_all = bpf_map_lookup_elem(shares, &all);
	__u32 *of_share = bpf_map_lookup_elem(shares, &share);

	add_to_share(shares, share, 1);
	return of_all && of_share && *of_share + *of_all <= ((struct bpf_map *)table)->max_entries + 1;
}

#endif
