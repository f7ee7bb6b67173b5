/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The parts that all sensors share. A sensor has rows of its own: one per cgroup, found like the rows of cgroup.bpf.h,
 * with the cgroup's id in the first word. A sensor has a quarter as many slots as `rows`, because its row may be large.
 * A sensor may also have programs of its own, each with an account of its cost.
 */
#ifndef PODPERF_SENSOR_BPF_H
#define PODPERF_SENSOR_BPF_H

#include "cpu.bpf.h"
#include "drops.bpf.h"
#include "handover.bpf.h"
#include "kernel.h"
#include "listed.bpf.h"
#include "podperf.h"

/* 32 minus the binary logarithm of the number of slots of each sensor; set by the agent. */
const volatile __u32 sensor_slot_shift = 22;

/* Returns the slot of a cgroup. It is the same for all sensors, so the points of riders find it once. */
static __always_inline __u32 sensor_slot(__u64 id)
{
	__u32 slot = (__u32)id * PODPERF_SLOT_SPREAD;

	slot ^= slot >> PODPERF_SLOT_FOLD;
	return (slot * PODPERF_SLOT_SPREAD) >> sensor_slot_shift;
}

/*
 * Returns the id of the cgroup to which work in `id` is charged, and adds `id` to the list if it is new. Returns 0 when
 * there is no room.
 */
static __always_inline __u64 charged_now(__u64 id)
{
	struct task_struct *current = bpf_get_current_task_btf();

	return charged_to(id, (__u64)BPF_CORE_READ(current, cgroups, dfl_cgrp));
}

/*
 * Defines `NAME_enabled`, the maps of the sensor, and three functions. `NAME_row` returns the row on this CPU to which
 * work in a cgroup is charged, and makes it when it is new; it returns NULL when there is no room. It is the row of the
 * cgroup to which all work is charged (listed.bpf.h), or of its outer cgroup if another one has the slot: only cgroups
 * without an outer cgroup have rows by id. `NAME_row_without_lock` is for programs that may run while this CPU holds
 * the lock of a map: it makes no row by id, adds no cgroup to the list, and counts no drop. `NAME_free` frees the slot
 * of a cgroup on this CPU. It clears the id last, since from then on another cgroup may claim the slot. The value of the
 * maps is `struct podperf_NAME`. The agent gives the maps their sizes: one entry while the sensor is off.
 */
#define SENSOR(name)                                                                              \
	const volatile bool name##_enabled = false;                                               \
                                                                                                  \
	struct {                                                                                  \
		__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);                                          \
		__uint(max_entries, 1);                                                           \
		__type(key, __u32);                                                               \
		__type(value, struct podperf_##name);                                             \
	} name##_rows SEC(".maps");                                                               \
                                                                                                  \
	struct {                                                                                  \
		__uint(type, BPF_MAP_TYPE_PERCPU_HASH);                                           \
		__uint(max_entries, 1);                                                           \
		__type(key, __u64);                                                               \
		__type(value, struct podperf_##name);                                             \
	} name##_rows_by_id SEC(".maps");                                                         \
                                                                                                  \
	static const struct podperf_##name no_##name;                                             \
                                                                                                  \
	static __noinline struct podperf_##name *name##_claim(__u64 id)                           \
	{                                                                                         \
		__u32 at = sensor_slot(id);                                                       \
		struct podperf_##name *slot = bpf_map_lookup_elem(&name##_rows, &at);             \
                                                                                                  \
		if (!id || !slot)                                                                 \
			return NULL;                                                              \
		/* Programs of a sensor may interrupt one another here. */                        \
		if (slot->id == id || !__sync_val_compare_and_swap(&slot->id, 0, id))             \
			return slot;                                                              \
		return bpf_map_lookup_elem(&name##_rows_by_id, &id);                              \
	}                                                                                         \
                                                                                                  \
	static __noinline struct podperf_##name *name##_insert(__u64 id)                          \
	{                                                                                         \
		__u64 of = charged_now(id), outer = outer_of(of);                                 \
		struct podperf_##name *row = name##_claim(of);                                    \
                                                                                                  \
		/* After the levels of names have changed, it is not known for a while. */        \
		if (!outer)                                                                       \
			outer = of;                                                               \
		if (!row && outer != of)                                                          \
			row = name##_claim(outer);                                                \
		if (row)                                                                          \
			return row;                                                               \
		if (outer) {                                                                      \
			bpf_map_update_elem(&name##_rows_by_id, &outer, &no_##name, BPF_NOEXIST); \
			row = bpf_map_lookup_elem(&name##_rows_by_id, &outer);                    \
		}                                                                                 \
		if (!row)                                                                         \
			drop(PODPERF_DROP_SENSOR_TABLE);                                          \
		return row;                                                                       \
	}                                                                                         \
                                                                                                  \
	static __always_inline struct podperf_##name *name##_row_at(__u32 at, __u64 id)           \
	{                                                                                         \
		struct podperf_##name *row = bpf_map_lookup_elem(&name##_rows, &at);              \
                                                                                                  \
		if (row && row->id == id)                                                         \
			return row;                                                               \
		return name##_insert(id);                                                         \
	}                                                                                         \
                                                                                                  \
	static __always_inline struct podperf_##name *name##_row(__u64 id)                        \
	{                                                                                         \
		return name##_row_at(sensor_slot(id), id);                                        \
	}                                                                                         \
                                                                                                  \
	static __always_inline struct podperf_##name *name##_row_without_lock(__u64 id)           \
	{                                                                                         \
		__u32 at = sensor_slot(id);                                                       \
		struct podperf_##name *row = bpf_map_lookup_elem(&name##_rows, &at);              \
                                                                                                  \
		if (row && row->id == id)                                                         \
			return row;                                                               \
		id = charged_of(id);                                                              \
		row = name##_claim(id);                                                           \
		return row ? row : name##_claim(outer_of(id));                                    \
	}                                                                                         \
                                                                                                  \
	static __noinline int name##_free(__u64 id)                                               \
	{                                                                                         \
		__u32 at = sensor_slot(id);                                                       \
		struct podperf_##name *row = bpf_map_lookup_elem(&name##_rows, &at);              \
                                                                                                  \
		if (!id || !row || row->id != id)                                                 \
			return 0;                                                                 \
		/* Not memset: clang has none for large rows. */                                  \
		for (__u32 word = 1; word < sizeof(*row) / sizeof(row->id); word++)               \
			((volatile __u64 *)row)[word] = 0;                                        \
		*(volatile __u64 *)&row->id = 0;                                                  \
		return 0;                                                                         \
	}

/*
 * Defines the choice of a sensor that has a setting of namespaces: `NAME_chooses`, the table `NAME_chosen` (id of a
 * cgroup whose pod is chosen -> 1) and `NAME_chose`, which returns true if the sensor counts what a cgroup does. The
 * agent sets the constant if namespaces are chosen, and writes the table as it learns the pods of cgroups.
 */
#define SENSOR_CHOICE(name)                                                         \
	const volatile bool name##_chooses = false;                                 \
                                                                                    \
	struct {                                                                    \
		__uint(type, BPF_MAP_TYPE_HASH);                                    \
		__uint(max_entries, 1);                                             \
		__type(key, __u64);                                                 \
		__type(value, __u64);                                               \
	} name##_chosen SEC(".maps");                                               \
                                                                                    \
	static __always_inline bool name##_chose(__u64 id)                          \
	{                                                                           \
		return !name##_chooses || bpf_map_lookup_elem(&name##_chosen, &id); \
	}

/*
 * Defines the accounts of a sensor's own programs: `NAME_runs`, by the place of the program in the sensor's
 * description. `NAME_account` returns the account of a program, or NULL if another generation counts. A program begins
 * with it, then calls `begin_own_run`, and ends with `end_own_run`.
 */
#define SENSOR_PROGRAMS(name, count)                                                  \
	struct {                                                                      \
		__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);                              \
		__uint(max_entries, count);                                           \
		__type(key, __u32);                                                   \
		__type(value, struct podperf_runs);                                   \
	} name##_runs SEC(".maps");                                                   \
                                                                                      \
	static __always_inline struct podperf_runs *name##_account(__u32 program)     \
	{                                                                             \
		return counts() ? bpf_map_lookup_elem(&name##_runs, &program) : NULL; \
	}

/* Begins a run of a sensor's own program, see `begin_run`. All these programs count as hot. */
static __always_inline __u64 begin_own_run(struct podperf_runs *account)
{
	return is_timed(account->runs++) ? bpf_ktime_get_ns() : 0;
}

static __always_inline void end_own_run(struct podperf_runs *account, __u64 began)
{
	if (began)
		account->ns += (bpf_ktime_get_ns() - began) * PODPERF_TIMED_EVERY;
}

#endif
