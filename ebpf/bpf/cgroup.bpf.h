/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The cgroup of a task, and its row of facts and counts.
 *
 * A row is found without a hash table. Each CPU has a fixed number of rows (slots), a cgroup's id determines its slot,
 * and the row holds the id of its cgroup. Where two cgroups that run on one CPU have the same slot, the second one
 * takes the slow path there. So a cgroup's facts are the sum of both tables over all CPUs.
 */
#ifndef PODPERF_CGROUP_BPF_H
#define PODPERF_CGROUP_BPF_H

#include "drops.bpf.h"
#include "kernel.h"
#include "podperf.h"

/* 32 minus the binary logarithm of the size of `rows`. */
const volatile __u32 slot_shift = 20;

/* Cgroup id -> 1 when the cgroup has rows. The programs add ids, the agent deletes the ids of removed cgroups. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096); /* set by the agent */
	__type(key, __u64);
	__type(value, __u64);
} cgroups SEC(".maps");

/*
 * Slot -> facts and counts of the cgroup that came first on that CPU. Each CPU adds to its own copy. The agent reads
 * the copies, and runs `forget` to free the copies of removed cgroups.
 */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 4096); /* set by the agent */
	__type(key, __u32);
	__type(value, struct podperf_cgroup);
} rows SEC(".maps");

/*
 * Cgroup id -> facts and counts of a cgroup whose slot another one has; used like `rows`. Preallocated: nothing is
 * allocated while the run queue is locked.
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

/* Returns this CPU's copy of the slot of `id`. Another cgroup may have the slot. */
static __always_inline struct podperf_cgroup *slot_of(__u64 id)
{
	__u32 slot = (__u32)id * PODPERF_SLOT_SPREAD;

	slot ^= slot >> PODPERF_SLOT_FOLD;
	slot = (slot * PODPERF_SLOT_SPREAD) >> slot_shift;
	return bpf_map_lookup_elem(&rows, &slot);
}

/* Adds `id` to `cgroups`: the agent reads the rows of these cgroups only. Returns false when there is no room. */
static __always_inline bool make_known(__u64 id)
{
	__u64 known = 1;

	if (bpf_map_lookup_elem(&cgroups, &id))
		return true;
	/* Another CPU may add the id first: then this update fails, and the second lookup finds the id. */
	bpf_map_update_elem(&cgroups, &id, &known, BPF_NOEXIST);
	return bpf_map_lookup_elem(&cgroups, &id);
}

/*
 * Returns the row of `id` on a CPU where it does not have its slot: takes the slot, or finds or makes a row by id.
 * Returns NULL when there is no room.
 */
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

/* Returns the row of `id` on this CPU, and makes it when it is new. Returns NULL when there is no room. */
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
