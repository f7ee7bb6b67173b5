/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Time by stack, cgroup, process and activity, for profiles. */
#ifndef PODPERF_SAMPLES_BPF_H
#define PODPERF_SAMPLES_BPF_H

#include "budget.bpf.h"
#include "control.bpf.h"
#include "drops.bpf.h"
#include "kernel.h"
#include "podperf.h"
#include "walk.bpf.h"

/* Waits at least this long are sent one by one, with their time; 0 sends none. */
const volatile __u64 long_wait_ns = 0;
/* What samples may have keys, the same as of their tables. */
const volatile __u32 max_samples = 16384;

/* Two tables in turn. */
struct sample_table {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384); /* set by the agent */
	__type(key, struct podperf_sample_key);
	__type(value, struct podperf_sample_sum);
};
struct sample_table samples0 SEC(".maps");
struct sample_table samples1 SEC(".maps");

/* Table -> how much of it is used; the agent zeroes it with the table. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, struct podperf_samples_used);
} samples_used SEC(".maps");

/* Makes the key's sum; false when there is no room for it. */
static __noinline int insert(void *samples, struct podperf_sample_key *key, struct podperf_sample_sum *fresh, __u32 odd)
{
	__u32 share;
	struct podperf_samples_used *used;

	if (!key || !fresh)
		return false;
	share = share_of(key->cgroup) % PODPERF_CGROUP_SHARES;
	odd &= 1;
	used = bpf_map_lookup_elem(&samples_used, &odd);
	if (!used)
		return false;
	/* The last eighth is for time without stacks; of more than half of the table nobody has more than an eighth. */
	if (key->stack && (used->keys >= max_samples - max_samples / 8 ||
			   (used->keys >= max_samples / 2 && used->by_cgroup[share] >= max_samples / 8)))
		return false;
	if (bpf_map_update_elem(samples, key, fresh, BPF_NOEXIST))
		return false;
	__sync_fetch_and_add(&used->keys, 1);
	__sync_fetch_and_add(&used->by_cgroup[share], 1);
	return true;
}

/* Adds to the key's sum, or makes it; false when there is no room for it. */
static __always_inline bool add_to(void *samples, struct podperf_sample_key *key, struct podperf_sample_sum *fresh,
				   __u32 odd)
{
	struct podperf_sample_sum *sum = bpf_map_lookup_elem(samples, key);

	if (!sum) {
		if (insert(samples, key, fresh, odd))
			return true;
		sum = bpf_map_lookup_elem(samples, key); /* another CPU was first, or there is no room */
		if (!sum)
			return false;
	}
	__sync_fetch_and_add(&sum->ns, fresh->ns);
	__sync_fetch_and_add(&sum->count, fresh->count);
	sum->last_ns = fresh->last_ns;
	return true;
}

/* Puts time into one of the two tables; without its stack if there is no room, false if there is none even so. */
static __always_inline bool add_sample(struct podperf_sample_key *key, struct podperf_sample_sum *fresh, __u32 odd)
{
	void *samples = odd ? (void *)&samples1 : (void *)&samples0;

	if (add_to(samples, key, fresh, odd))
		return true;
	if (key->stack) {
		key->stack = 0;
		key->waker = 0;
		if (add_to(samples, key, fresh, odd)) {
			drop(PODPERF_DROP_SAMPLE_STACK);
			return true;
		}
	}
	drop(PODPERF_DROP_SAMPLE_TABLE);
	return false;
}

/* Puts one long wait into the profile by itself; false when there is no room. */
static __noinline int send_long_wait(struct podperf_sample_key *key, __u32 tid, __u64 end_ns, __u64 ns)
{
	struct podperf_long_wait wait = {
	    .record = PODPERF_RECORD_LONG_WAIT,
	    .tid = tid,
	    .key = *key,
	    .end_ns = end_ns,
	    .ns = ns,
	};

	if (!bpf_ringbuf_output(&stack_ring, &wait, sizeof(wait), BPF_RB_NO_WAKEUP))
		return true;
	drop(PODPERF_DROP_LONG_WAIT);
	return false;
}

#endif
