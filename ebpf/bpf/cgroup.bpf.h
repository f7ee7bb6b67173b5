/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The cgroup of a task, and its row of facts and counts.
 *
 * A row is found without a hash table. Each CPU has a fixed number of rows (slots), a cgroup's id determines its slot,
 * and the row holds the id of its cgroup. Where two cgroups that run on one CPU have the same slot, the second one
 * takes the slow path there. So a cgroup's facts are the sum of both tables over all CPUs. A cgroup that has no row
 * (listed.bpf.h) is charged to the row of one above it: all that is charged then has the id of that row.
 */
#ifndef PODPERF_CGROUP_BPF_H
#define PODPERF_CGROUP_BPF_H

#include "drops.bpf.h"
#include "kernel.h"
#include "listed.bpf.h"
#include "podperf.h"

/* 32 minus the binary logarithm of the size of `rows`. */
const volatile __u32 slot_shift = 20;
/* The number of rows in `rows_by_id` that cgroups with an outer cgroup may have. */
const volatile __u32 max_inner_rows = 512;

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

/*
 * Adds the cgroup of `task` to the list, and finds its outer cgroup if it is not known. Its stack is not part of its
 * caller's.
 */
static __noinline int list_cgroup_of(struct task_struct *task)
{
	charged_to(cgroup_id(task), (__u64)BPF_CORE_READ(task, cgroups, dfl_cgrp));
	return 0;
}

/*
 * Finds the outer cgroup of the cgroup of `task` again, if that is in the list and the levels of names have changed.
 * A cgroup that has all of its slots needs its outer cgroup only for shares, so no other program finds it.
 */
static __always_inline void find_outer_again(struct task_struct *task)
{
	__u64 id = cgroup_id(task), *outer = bpf_map_lookup_elem(&cgroups, &id);

	if (outer && !*outer)
		charged_to(id, (__u64)BPF_CORE_READ(task, cgroups, dfl_cgrp));
}

/* Returns this CPU's copy of the slot of `id`. Another cgroup may have the slot. */
static __always_inline struct podperf_cgroup *slot_of(__u64 id)
{
	__u32 slot = (__u32)id * PODPERF_SLOT_SPREAD;

	slot ^= slot >> PODPERF_SLOT_FOLD;
	slot = (slot * PODPERF_SLOT_SPREAD) >> slot_shift;
	return bpf_map_lookup_elem(&rows, &slot);
}

/*
 * Returns the row of `id` on this CPU: its slot, which it takes if the slot is free, or a row by id, which is made if
 * there is none. Returns NULL if `id` is not in `cgroups`, or when there is no room. All cgroups with an outer cgroup
 * together have a part of `rows_by_id`: no number of them fills it.
 */
static __always_inline struct podperf_cgroup *find_row(__u64 id)
{
	struct podperf_cgroup *slot = slot_of(id), *row;
	__u32 key = PODPERF_USED_INNER_ROWS;
	volatile __u64 *inner_rows = NULL;
	__u64 *outer;

	if (!slot || slot->id == id)
		return slot;
	if (slot->id) {
		row = bpf_map_lookup_elem(&rows_by_id, &id);
		if (row)
			goto found;
	}
	outer = bpf_map_lookup_elem(&cgroups, &id);
	if (!outer)
		return NULL;
	if (!slot->id) {
		slot->id = id;
		return slot;
	}
	if (*outer != id) {
		inner_rows = bpf_map_lookup_elem(&cgroups_used, &key);
		if (!inner_rows || *inner_rows >= max_inner_rows)
			return NULL;
	}
	if (!bpf_map_update_elem(&rows_by_id, &id, &no_facts, BPF_NOEXIST) && inner_rows)
		__sync_fetch_and_add(inner_rows, 1);
	row = bpf_map_lookup_elem(&rows_by_id, &id);
	if (!row)
		return NULL;
found:
	row->id = id;
	return row;
}

/* The same as a function of its own. */
static __noinline struct podperf_cgroup *known_row(__u64 id)
{
	return find_row(id);
}

/*
 * Returns the id of the cgroup to whose row on this CPU work in `id` is charged, where `id` has no row yet, and makes
 * the row. Returns 0 when there is no room. `address`: see find_place. If the task has left `id`, and nobody knows
 * where `id` belongs, the work is charged where the task is now. The verifier checks this function separately.
 */
__noinline __u64 charged_here(__u64 id, __u64 address)
{
	__u64 to = charged_to(id, address), now;
	struct cgroup *at = (struct cgroup *)address;

	if (to == id) {
		if (known_row(id))
			return id;
		to = outer_of(id);
	}
	if (!to && at) {
		now = BPF_CORE_READ(at, kn, id);
		if (now != id)
			to = charged_to(now, address);
	}
	if (to && to != id && known_row(to))
		return to;
	drop(PODPERF_DROP_CGROUP_TABLE);
	to = ROOT_ID;
	return known_row(to) ? to : 0;
}

/*
 * Returns the row to which work of `task` in `id` is charged, on a CPU where `id` does not have its slot. Returns NULL
 * when there is no room.
 */
static __noinline struct podperf_cgroup *claim_row(__u64 id, struct task_struct *task)
{
	struct podperf_cgroup *row = known_row(id);

	if (row)
		return row;
	id = charged_here(id, (__u64)BPF_CORE_READ(task, cgroups, dfl_cgrp));
	return id ? known_row(id) : NULL;
}

/*
 * Returns the row on this CPU to which work of `task` in the cgroup `id` is charged, and makes it when it is new.
 * Writes to `id` whose row it is. Returns NULL when there is no room.
 */
static __always_inline struct podperf_cgroup *charged_row(struct task_struct *task, __u64 *id)
{
	struct podperf_cgroup *row = slot_of(*id);

	if (row && row->id == *id)
		return row;
	row = claim_row(*id, task);
	if (row)
		*id = row->id;
	return row;
}

/* Returns the row on this CPU to which work of the current task in the cgroup `id` is charged, or NULL. */
static __always_inline struct podperf_cgroup *cgroup_row(__u64 id)
{
	struct podperf_cgroup *row = slot_of(id);

	if (row && row->id == id)
		return row;
	return claim_row(id, bpf_get_current_task_btf());
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
