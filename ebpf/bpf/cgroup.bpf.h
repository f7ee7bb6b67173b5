/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The cgroup of a task, and its row of facts and counts.
 *
 * A row is found without a hash table: each CPU has a fixed number of them, a cgroup's id tells which one is its own,
 * and the row says whose it is. Where two cgroups that run on one CPU have the same, the second one takes the slow path
 * there. So a cgroup's facts are the sum of both tables over all CPUs.
 */
#ifndef PODPERF_CGROUP_BPF_H
#define PODPERF_CGROUP_BPF_H

#include "drops.bpf.h"
#include "kernel.h"
#include "podperf.h"

/* 32 less the binary logarithm of the size of `rows`. */
const volatile __u32 slot_shift = 20;

/* Cgroup id -> 1 when it has rows. The programs add to it, the agent deletes those that are gone. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096); /* set by the agent */
	__type(key, __u64);
	__type(value, __u64);
} cgroups SEC(".maps");

/*
 * Slot -> facts and counts of the cgroup that came first on that CPU. The programs add to it, each CPU to its own copy;
 * the agent reads it and has `forget` free the copies of cgroups that are gone.
 */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 4096); /* set by the agent */
	__type(key, __u32);
	__type(value, struct podperf_cgroup);
} rows SEC(".maps");

/*
 * Cgroup id -> facts and counts, where another one has the slot; used like `rows`. Preallocated: nothing is allocated
 * while the run queue is locked.
 */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_HASH);
	__uint(max_entries, 2048); /* set by the agent */
	__type(key, __u64);
	__type(value, struct podperf_cgroup);
} rows_by_id SEC(".maps");

static const struct podperf_cgroup no_facts;

static __always_inline __u64 cgroup_id(struct task_struct *task)
{
	return task->cgroups->dfl_cgrp->kn->id;
}

/* This CPU's copy of the slot of `id`, whosever it is. */
static __always_inline struct podperf_cgroup *slot_of(__u64 id)
{
	__u32 slot = (__u32)id * PODPERF_SLOT_SPREAD;

	slot ^= slot >> PODPERF_SLOT_FOLD;
	slot = (slot * PODPERF_SLOT_SPREAD) >> slot_shift;
	return bpf_map_lookup_elem(&rows, &slot);
}

/* Makes `id` known to the agent, which reads the rows of those only; false when there is no room. */
static __always_inline bool make_known(__u64 id)
{
	__u64 known = 1;

	if (bpf_map_lookup_elem(&cgroups, &id))
		return true;
	/* Another CPU may have been first: then this fails, and the second look finds it. */
	bpf_map_update_elem(&cgroups, &id, &known, BPF_NOEXIST);
	return bpf_map_lookup_elem(&cgroups, &id);
}

/* The row of `id` on a CPU where it has not got its slot: takes the slot, or finds or makes a row by id. */
static __noinline struct podperf_cgroup *claim_row(__u64 id)
{
	struct podperf_cgroup *slot = slot_of(id), *row;

	if (!slot)
		return NULL;
	if (slot->id) {
		row = bpf_map_lookup_elem(&rows_by_id, &id);
		if (row)
			goto found;
	}
	if (!make_known(id))
		goto full;
	if (!slot->id) {
		slot->id = id;
		return slot;
	}
	bpf_map_update_elem(&rows_by_id, &id, &no_facts, BPF_NOEXIST);
	row = bpf_map_lookup_elem(&rows_by_id, &id);
	if (!row)
		goto full;
found:
	row->id = id;
	return row;
full:
	drop(PODPERF_DROP_CGROUP_TABLE);
	return NULL;
}

/* The row of `id` on this CPU, made when it is new; NULL when there is no room. */
static __always_inline struct podperf_cgroup *cgroup_row(__u64 id)
{
	struct podperf_cgroup *row = slot_of(id);

	if (row && row->id == id)
		return row;
	return claim_row(id);
}

/* Frees the slot of `id` on this CPU. */
static __noinline int free_slot(__u64 id)
{
	struct podperf_cgroup *row = slot_of(id);

	if (id && row && row->id == id)
		__builtin_memset(row, 0, sizeof(*row));
	return 0;
}

#endif
