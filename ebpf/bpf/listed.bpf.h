/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The list of the cgroups that have rows, and the cgroups to which the work of all others is charged.
 *
 * Containers and users may make cgroups in their own part of the tree, as many as they like. The top of such a part is
 * the outer cgroup of all cgroups in it. They are in the list only while less than half of it is in use. Later ones are
 * charged to their outer cgroup, which may use the other half. The agent counts a container's cgroups in one row, so
 * nobody misses the rows of the inner ones.
 *
 * The outer cgroup is found on the way from the root down: it is the first cgroup below which no cgroup has a name of
 * its own (`named_levels`), or which another user than root owns. A cgroup above all of these is its own outer cgroup:
 * only root makes it.
 */
#ifndef PODPERF_LISTED_BPF_H
#define PODPERF_LISTED_BPF_H

#include "drops.bpf.h"
#include "kernel.h"
#include "podperf.h"

/*
 * The size of `cgroups`; the number of entries up to which it takes cgroups with an outer cgroup; and the same for
 * cgroups without one. The rest is for cgroups at level 1, which take work that finds no room. The agent sets all three.
 */
const volatile __u32 max_cgroups = 4096;
const volatile __u32 max_inner_cgroups = 2048;
const volatile __u32 max_outer_cgroups = 3840;

/*
 * Id of a cgroup that has rows -> its outer cgroup; 0: not known yet. The programs add cgroups, the agent deletes
 * removed ones. It writes 0 when the levels of names have changed.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096); /* set by the agent */
	__type(key, __u64);
	__type(value, __u64);
} cgroups SEC(".maps");

/*
 * enum podperf_used -> a number of entries. The programs count what they add, and the agent counts again after it has
 * deleted some.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, PODPERF_USED);
	__type(key, __u32);
	__type(value, __u64);
} cgroups_used SEC(".maps");

/*
 * Id of a cgroup that found no room in `cgroups` -> the cgroup to which its work is charged, with LOST if that is not
 * its outer cgroup. The programs write it, so that they search once. The agent deletes removed cgroups, and all when
 * `cgroups` has room again.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096); /* set by the agent */
	__type(key, __u64);
	__type(value, __u64);
} charged SEC(".maps");

/* Cgroup id -> the number of levels below it in which cgroups have names of their own. The agent writes it. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 2 * PODPERF_NAMED_PARTS);
	__type(key, __u64);
	__type(value, __u64);
} named_levels SEC(".maps");

/* The id of the root of the cgroup2 tree. */
#define ROOT_ID 1ULL
/* See `charged`. No id of a cgroup is as large. */
#define LOST (1ULL << 63)

/* The place of a cgroup in the tree. */
struct place {
	__u64 outer; /* its outer cgroup, perhaps itself; 0: unknown */
	__u64 first; /* the cgroup at level 1 above it, perhaps itself; 0: unknown, or it is the root */
	__u64 named; /* the deepest level at which the cgroups on the path seen so far have names of their own */
};

/* Returns the ancestor of `cgroup` at a level, which is not below that of `cgroup`. */
static __always_inline struct cgroup *ancestor_of(struct cgroup *cgroup, __u32 level)
{
	__u64 offset = bpf_core_field_offset(struct cgroup, ancestors);
	struct cgroup *ancestor = NULL;

	/* See LOW_BYTE_OF. */
	asm volatile("" : "+r"(offset));
	bpf_probe_read_kernel(&ancestor, sizeof(ancestor), (void *)cgroup + offset + level * sizeof(ancestor));
	return ancestor;
}

/* Returns true if another user than root owns `cgroup`, and may make cgroups in it. */
static __always_inline bool is_given_away(struct cgroup *cgroup)
{
	struct kernfs_iattrs *attributes;

	if (!bpf_core_field_exists(struct kernfs_node, iattr) || !bpf_core_field_exists(struct kernfs_iattrs, ia_uid))
		return false;
	attributes = BPF_CORE_READ(cgroup, kn, iattr);
	return attributes && BPF_CORE_READ(attributes, ia_uid.val);
}

/*
 * Looks at the cgroup at a level of the path to `its`. Returns true if it is the outer cgroup. Not inlined: clang would
 * place the parts of the loop so that it falls through to its own begin, which kernels up to 6.1 refuse.
 */
static __noinline bool is_outer(struct cgroup *its, __u32 level, struct place *place)
{
	struct cgroup *at = ancestor_of(its, level);
	__u64 id = BPF_CORE_READ(at, kn, id), *levels;

	place->outer = id;
	if (level == 1)
		place->first = id;
	if (at == its)
		return true;
	levels = bpf_map_lookup_elem(&named_levels, &id);
	if (levels)
		place->named = level + *levels;
	return level >= place->named || is_given_away(at);
}

/*
 * Finds the place of the cgroup `id`. `address` is the address of a task's cgroup, or 0. If that is another cgroup, the
 * task has left `id`, and the place is not known. Kernels before 6.1 have another array of ancestors: there each cgroup
 * is its own outer cgroup.
 */
static __always_inline void find_place(__u64 id, __u64 address, struct place *place)
{
	struct cgroup *its = (struct cgroup *)address;

	if (id == PODPERF_IDLE) {
		place->outer = id;
		return;
	}
	if (!its || BPF_CORE_READ(its, kn, id) != id)
		return;
	if (!bpf_core_field_exists(struct cgroup, ancestors)) {
		place->outer = id;
		return;
	}
	place->named = PODPERF_TREE_LEVELS;
	for (__u32 level = 0; level < PODPERF_TREE_LEVELS; level++)
		if (is_outer(its, level, place))
			break;
}

/* Adds `id` to `cgroups` while less than `most` cgroups are there. Returns true if it is there. */
static __noinline bool list_cgroup(__u64 id, __u64 outer, __u64 most)
{
	__u32 key = PODPERF_USED_CGROUPS;
	volatile __u64 *used = bpf_map_lookup_elem(&cgroups_used, &key);
	__u64 *entry = bpf_map_lookup_elem(&cgroups, &id);

	if (entry) {
		if (!*entry)
			*entry = outer;
		return true;
	}
	if (!used || *used >= most)
		return false;
	/* Another CPU may add the id first: then this update fails, and the second lookup finds the id. */
	if (bpf_map_update_elem(&cgroups, &id, &outer, BPF_NOEXIST))
		return bpf_map_lookup_elem(&cgroups, &id);
	__sync_fetch_and_add(used, 1);
	return true;
}

/*
 * Returns the id of the cgroup to which work in `id` is charged: `id` itself if it is in `cgroups` or finds room there,
 * else its outer cgroup, else the cgroup at level 1 above it, else the root. Returns 0 if none of these finds room, or
 * if `id` finds none and its place is not known. `address`: see find_place. The verifier checks this function
 * separately.
 */
__noinline __u64 charged_to(__u64 id, __u64 address)
{
	__u64 to = ROOT_ID | LOST, *entry, *known;
	struct place place = {};
	bool has_outer = false;

	entry = bpf_map_lookup_elem(&cgroups, &id);
	if (entry && *entry)
		return id;
	if (!entry) {
		known = bpf_map_lookup_elem(&charged, &id);
		if (known) {
			/* A loss is counted as long as it goes on. */
			if (*known & LOST)
				drop(PODPERF_DROP_CGROUP_TABLE);
			return *known & ~LOST;
		}
	}
	find_place(id, address, &place);
	/* The outer cgroup comes first: it also gets the work in `id` on CPUs where another cgroup has the slot. */
	if (place.outer && place.outer != id)
		has_outer = list_cgroup(place.outer, place.outer, max_outer_cgroups);
	if (entry) {
		*entry = place.outer;
		return id;
	}
	if (list_cgroup(id, place.outer, place.outer == id ? max_outer_cgroups : max_inner_cgroups))
		return id;
	if (!place.outer)
		return 0;
	if (has_outer)
		to = place.outer;
	else if (place.first && place.first != id && list_cgroup(place.first, place.first, max_cgroups))
		to = place.first | LOST;
	else if (!list_cgroup(ROOT_ID, ROOT_ID, max_cgroups))
		return 0;
	/* A cgroup in a container is no loss, and is counted once. If `charged` is full, it is searched for each time. */
	if (!bpf_map_update_elem(&charged, &id, &to, BPF_NOEXIST) && !(to & LOST))
		drop(PODPERF_DROP_CGROUP_SHARE);
	if (to & LOST)
		drop(PODPERF_DROP_CGROUP_TABLE);
	return to & ~LOST;
}

/* Returns the id of the cgroup to which the work in `id` is charged; 0 if none was charged yet. */
static __always_inline __u64 charged_of(__u64 id)
{
	__u64 *to;

	if (bpf_map_lookup_elem(&cgroups, &id))
		return id;
	to = bpf_map_lookup_elem(&charged, &id);
	return to ? *to & ~LOST : 0;
}

/* Returns the outer cgroup of `id`, or the one to which its work is charged; 0 if it is not known. */
static __always_inline __u64 outer_of(__u64 id)
{
	__u64 *outer = bpf_map_lookup_elem(&cgroups, &id);

	if (outer)
		return *outer;
	outer = bpf_map_lookup_elem(&charged, &id);
	return outer ? *outer & ~LOST : 0;
}

#endif
