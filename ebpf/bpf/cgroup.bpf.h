/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The cgroup of a task, and its row of facts and counts. */
#ifndef PODPERF_CGROUP_BPF_H
#define PODPERF_CGROUP_BPF_H

#include "drops.bpf.h"
#include "kernel.h"
#include "podperf.h"

/*
 * cgroup id -> facts and counts. The programs add to it, each CPU to its own copy; the agent reads it and deletes the
 * rows of cgroups that are gone. Preallocated: nothing is allocated while the run queue is locked.
 */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_HASH);
	__uint(max_entries, 4096); /* set by the agent */
	__type(key, __u64);
	__type(value, struct podperf_cgroup);
} cgroups SEC(".maps");

static const struct podperf_cgroup no_facts;

static __always_inline __u64 cgroup_id(struct task_struct *task)
{
	return task->cgroups->dfl_cgrp->kn->id;
}

/* The row of `id` on this CPU, made when it is new; NULL when the table is full. */
static __always_inline struct podperf_cgroup *cgroup_row(__u64 id)
{
	struct podperf_cgroup *row = bpf_map_lookup_elem(&cgroups, &id);

	if (row)
		return row;
	/* Another CPU may have been first: then this fails, and the second look finds its row. */
	bpf_map_update_elem(&cgroups, &id, &no_facts, BPF_NOEXIST);
	row = bpf_map_lookup_elem(&cgroups, &id);
	if (!row)
		drop(PODPERF_DROP_CGROUP_TABLE);
	return row;
}

#endif
