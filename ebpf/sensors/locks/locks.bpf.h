/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The rows of the sensor, and the waits for sleeping locks of the kernel. The programs are in locks.bpf.c. */
#ifndef PODPERF_LOCKS_BPF_H
#define PODPERF_LOCKS_BPF_H

#include "locks.h"
#include "sensor.bpf.h"
#include "shares.bpf.h"

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

/* A share -> the number of its waits in `locks_waiting`, see shares.bpf.h. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1); /* set by the agent: the number of slots of each sensor */
	__type(key, __u32);
	__type(value, __u32);
} locks_shares SEC(".maps");

/* Removes the wait of a thread. */
static __always_inline void forget_wait(__u32 pid, struct podperf_lock_wait *wait)
{
	__u32 share = wait->owner;

	if (!bpf_map_delete_elem(&locks_waiting, &pid))
		give_share(&locks_shares, share);
}

#endif
