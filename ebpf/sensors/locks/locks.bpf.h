/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The rows of the sensor, and the waits for sleeping locks of the kernel. A rider removes the wait of a thread that ends.
 * The programs are in locks.bpf.c.
 */
#ifndef PODPERF_LOCKS_BPF_H
#define PODPERF_LOCKS_BPF_H

#include "locks.h"
#include "sensor.bpf.h"

SENSOR(locks)

/* The reasons for drops of the sensor's own, in the order of sensor.rs. */
enum locks_drop {
	LOCKS_DROP_MISSED_END = LOCKS_FIRST_DROP, /* the next wait found a wait that should have ended */
	LOCKS_DROP_LATE_ROW, /* a second wait before `charge_late`, or the cgroup was removed before it */
	LOCKS_DROPS,
};

/* Thread id -> its wait for a sleeping lock of the kernel. Preallocated: nothing is allocated in the lock's slow path. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1); /* set by the agent */
	__type(key, __u32);
	__type(value, struct podperf_lock_wait);
} locks_waiting SEC(".maps");

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct bpf_map {
	__u32 max_entries;
};

#pragma clang attribute pop

/* The key of the number of all waits in `locks_shares`. */
#define ALL_SHARES 0

/*
 * A share -> the number of its waits in `locks_waiting`. A cgroup may have as many waits there as are still free, so no
 * cgroup takes the room of all others.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1); /* set by the agent: the number of slots of each sensor */
	__type(key, __u32);
	__type(value, __u32);
} locks_shares SEC(".maps");

/* Returns the share of a cgroup. All cgroups with one outer cgroup have the same. */
static __always_inline __u32 lock_share(__u64 cgroup)
{
	__u64 outer = outer_of(cgroup);
	__u32 share = sensor_slot(outer ? outer : cgroup);

	return share == ALL_SHARES ? ALL_SHARES + 1 : share;
}

static __always_inline void add_to_share(__u32 share, __u32 number)
{
	__u32 all = ALL_SHARES, *of_all = bpf_map_lookup_elem(&locks_shares, &all);
	__u32 *of_share = bpf_map_lookup_elem(&locks_shares, &share);

	if (of_all && of_share) {
		__sync_fetch_and_add(of_all, number);
		__sync_fetch_and_add(of_share, number);
	}
}

/* Gives back what `take_share` took, also if that returned false. */
static __always_inline void give_share(__u32 share)
{
	add_to_share(share, -1);
}

/* Counts one wait more of this share. Returns false if the share has no room. */
static __always_inline bool take_share(__u32 share)
{
	struct bpf_map *waiting = (struct bpf_map *)&locks_waiting;
	__u32 all = ALL_SHARES, *of_all = bpf_map_lookup_elem(&locks_shares, &all);
	__u32 *of_share = bpf_map_lookup_elem(&locks_shares, &share);

	add_to_share(share, 1);
	return of_all && of_share && *of_share + *of_all <= waiting->max_entries + 1;
}

/* Removes the wait of a thread. */
static __always_inline void forget_wait(__u32 pid, struct podperf_lock_wait *wait)
{
	__u32 share = wait->owner;

	if (!bpf_map_delete_elem(&locks_waiting, &pid))
		give_share(share);
}

/* A thread that ends waits for no lock. On kernels that preempt programs, the end of its last wait may be missed. */
static __noinline int locks_on_exit(__u32 pid)
{
	struct podperf_lock_wait *wait = bpf_map_lookup_elem(&locks_waiting, &pid);

	if (wait)
		forget_wait(pid, wait);
	return 0;
}

#endif
