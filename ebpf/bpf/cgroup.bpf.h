/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The cgroup of a task, and its row of facts and counts.
 *
 * A row is found without a hash table. Each CPU has a fixed number of rows (slots), a cgroup's id determines its slot,
 * and the row holds the id of its cgroup. Where two cgroups that run on one CPU have the same slot, the second one
 * takes the slow path there. So a cgroup's facts are the sum of both tables over all CPUs.
 *
 * The agent reads the rows of the cgroups in `cgroups`. Whoever may make cgroups could fill that table, so each owner
 * has a share of it. The owner of a cgroup is its pod, or else its ancestor at OWNER_LEVEL, below which cgroups have no
 * series of their own by default. If a cgroup finds no room, its work is charged to the nearest one above that has it.
 */
#ifndef PODPERF_CGROUP_BPF_H
#define PODPERF_CGROUP_BPF_H

#include "budget.bpf.h"
#include "drops.bpf.h"
#include "kernel.h"
#include "podperf.h"

/* 32 minus the binary logarithm of the size of `rows`. */
const volatile __u32 slot_shift = 20;

/* The size of `cgroups`. */
const volatile __u32 max_cgroups = 4096;

/*
 * Cgroup id -> 1 + the share that the cgroup is counted in. The programs add the ids of cgroups that have rows, the
 * agent deletes the ids of removed cgroups.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096); /* set by the agent */
	__type(key, __u64);
	__type(value, __u64);
} cgroups SEC(".maps");

/* The number of ids in `cgroups`, and by share. After each deletion of ids the agent counts them again. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct podperf_samples_used);
} cgroups_used SEC(".maps");

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

/* The id of the root of the cgroup2 tree. */
#define ROOT_ID 1ULL
/* The levels of the cgroups that own a share, and of pods below `kubepods`. The root has level 0. */
#define OWNER_LEVEL 2
#define POD_LEVEL 3
/* The largest number of levels that are searched upwards. The owner of a deeper cgroup is not known. */
#define MOST_LEVELS 16
/* The first letters of the names `kubepods` and `kubepods.slice`, as a word. */
#define KUBEPODS 0x73646f706562756bULL

/* The room of `cgroups` that a cgroup may take. */
enum room {
	ROOM_ALL,       /* all: up to OWNER_LEVEL there is one cgroup for each owner */
	ROOM_OF_PODS,   /* for all cgroups of the owner, as much as they leave free */
	ROOM_OF_OTHERS, /* the same, without the last eighth */
};

/*
 * Adds `id` to `cgroups`. Returns false when there is no room for one cgroup more of its owner. The verifier checks
 * this function separately.
 */
__noinline int make_known(__u64 id, __u64 owner, __u32 room)
{
	__u32 zero = 0, all = max_cgroups, share;
	struct podperf_samples_used *used = bpf_map_lookup_elem(&cgroups_used, &zero);
	__u64 value, taken;

	if (bpf_map_lookup_elem(&cgroups, &id))
		return true;
	if (!used)
		return false;
	share = share_of(owner, PODPERF_SAMPLE_SHARES) % PODPERF_SAMPLE_SHARES;
	taken = used->keys;
	if (room != ROOM_ALL)
		taken += used->by_cgroup[share];
	if (room == ROOM_OF_OTHERS)
		all -= all / 8;
	if (taken >= all)
		return false;
	value = share + 1;
	/* Another CPU may add the id first: then this update fails, and the second lookup finds the id. */
	if (bpf_map_update_elem(&cgroups, &id, &value, BPF_NOEXIST))
		return bpf_map_lookup_elem(&cgroups, &id) != NULL;
	__sync_fetch_and_add(&used->keys, 1);
	__sync_fetch_and_add(&used->by_cgroup[share], 1);
	return true;
}

/*
 * Returns the id of the cgroup to which work in `id` is charged: `id` itself if it is in `cgroups` or is added, else
 * the nearest cgroup above it that is. Returns 0 if there is none. `address` is the address of a task's cgroup. If the
 * task has left `id`, the cgroups above are not known, and all such cgroups together have one owner. The verifier
 * checks this function separately.
 */
__noinline __u64 charged_to(__u64 id, __u64 address)
{
	struct cgroup *at = (struct cgroup *)address;
	__u64 of = 0, owner = 0, pod = 0, outer = 0, above = 0, name = 0;
	__u32 room = ROOM_OF_OTHERS;
	int level, its, found = 0;

	if (bpf_map_lookup_elem(&cgroups, &id))
		return id;
	if (id == PODPERF_IDLE) {
		room = ROOM_ALL;
	} else if (BPF_CORE_READ(at, kn, id) == id) {
		its = BPF_CORE_READ(at, level);
		level = its;
		for (__u32 i = 0; i < MOST_LEVELS; i++) {
			of = BPF_CORE_READ(at, kn, id);
			if (level == POD_LEVEL)
				pod = of;
			if (level == OWNER_LEVEL)
				owner = of;
			if (level == 1)
				bpf_probe_read_kernel(&name, sizeof(name), BPF_CORE_READ(at, kn, name));
			if (i && !above && bpf_map_lookup_elem(&cgroups, &of)) {
				above = of;
				found = level;
			}
			if (level <= 0)
				break;
			level--;
			at = BPF_CORE_READ(at, self.parent, cgroup);
		}
		if (its <= OWNER_LEVEL) {
			room = ROOM_ALL;
			owner = id;
		} else {
			outer = owner;
			if (name == KUBEPODS) {
				room = ROOM_OF_PODS;
				owner = pod;
			}
		}
	}
	if (make_known(id, owner, room))
		return id;
	drop(PODPERF_DROP_CGROUP_TABLE);
	/* The agent shows the work in the row of the ancestor at OWNER_LEVEL. */
	if (outer && (!above || found < OWNER_LEVEL) && make_known(outer, outer, ROOM_ALL))
		return outer;
	if (above)
		return above;
	of = ROOT_ID;
	return bpf_map_lookup_elem(&cgroups, &of) ? of : 0;
}

/*
 * Returns the row of `id` on this CPU: its slot, which it takes if the slot is free, or a row by id, which is made if
 * there is none. Returns NULL if `id` is not in `cgroups`, or when there is no room.
 */
static __noinline struct podperf_cgroup *known_row(__u64 id)
{
	struct podperf_cgroup *slot = slot_of(id), *row;

	if (!slot || slot->id == id)
		return slot;
	if (slot->id) {
		row = bpf_map_lookup_elem(&rows_by_id, &id);
		if (row)
			goto found;
	}
	if (!bpf_map_lookup_elem(&cgroups, &id))
		return NULL;
	if (!slot->id) {
		slot->id = id;
		return slot;
	}
	bpf_map_update_elem(&rows_by_id, &id, &no_facts, BPF_NOEXIST);
	row = bpf_map_lookup_elem(&rows_by_id, &id);
	if (!row)
		return NULL;
found:
	row->id = id;
	return row;
}

/*
 * Returns the row of `id` on a CPU where it does not have its slot, and adds `id` to `cgroups` when it is new. If there
 * is no room for `id`, returns the row of a cgroup above it, or NULL.
 */
static __noinline struct podperf_cgroup *claim_row(__u64 id)
{
	struct podperf_cgroup *row = known_row(id);
	struct task_struct *current;

	if (row)
		return row;
	current = bpf_get_current_task_btf();
	id = charged_to(id, (__u64)BPF_CORE_READ(current, cgroups, dfl_cgrp));
	if (!id)
		return NULL;
	row = known_row(id);
	if (!row)
		drop(PODPERF_DROP_CGROUP_TABLE);
	return row;
}

/*
 * Returns the row on this CPU to which work in `id` is charged, and makes it when it is new. It is the row of another
 * cgroup if there is no room for `id`. Returns NULL when there is no room at all.
 */
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
