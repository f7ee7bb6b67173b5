/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The rows of the sensor, and the calls that go on. The programs are in functions.bpf.c. */
#ifndef PODPERF_FUNCTIONS_BPF_H
#define PODPERF_FUNCTIONS_BPF_H

#include "functions.h"
#include "sensor.bpf.h"
#include "shares.bpf.h"

SENSOR(functions)

/* The reasons for drops of the sensor's own, in the order of sensor.rs. */
enum functions_drop {
	FUNCTIONS_DROP_MISSED_END = FUNCTIONS_FIRST_DROP, /* a call found an earlier one that should have ended */
	FUNCTIONS_DROPS,
};

/* A thread and a function (`key_of_call`) -> its outermost call. Preallocated: nothing is allocated at a call. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1); /* set by the agent */
	__type(key, __u64);
	__type(value, struct podperf_call);
} functions_calls SEC(".maps");

/* A share -> the number of its calls in `functions_calls`, see shares.bpf.h. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1); /* set by the agent: the number of slots of each sensor */
	__type(key, __u32);
	__type(value, __u32);
} functions_shares SEC(".maps");

/*
 * As `functions_calls`, for the functions of recordings. When a recording ends, nothing sees the ends of its calls, and
 * the agent removes them. It could not give back their shares, so they have none.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1); /* set by the agent */
	__type(key, __u64);
	__type(value, struct podperf_call);
} functions_lent SEC(".maps");

/*
 * A place -> the begins of calls of functions of recordings there, also of calls that do not count. They are what a
 * recording costs. It is written by atomic additions, and the agent reads it.
 */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1); /* set by the agent */
	__type(key, __u32);
	__type(value, __u64);
} functions_begun SEC(".maps");

static __always_inline __u64 key_of_call(__u32 pid, __u32 function)
{
	return (__u64)pid << 32 | function;
}

/* Removes the call of a thread. */
static __always_inline void forget_call(__u64 key, struct podperf_call *call)
{
	__u32 share = call->share;

	if (!bpf_map_delete_elem(&functions_calls, &key))
		give_share(&functions_shares, share);
}

#endif
