// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Counts the items of the kernel's work queues by function, and measures how long each waits for a worker and runs.
 *
 * The kernel reports an activation while it holds the lock of a pool of workers, with interrupts off. So that program
 * only writes to a preallocated table. It reports a start and an end without a lock. Items of queues that run in soft
 * interrupts may start within the run of another item, on the same CPU.
 */
#include "control.bpf.h"
#include "drops.bpf.h"
#include "handover.bpf.h"
#include "histograms/observe.bpf.h"
#include "kernel.h"
#include "workqueues.bpf.h"

/* The programs in the order of sensor.rs. */
enum workqueues_program {
	WORKQUEUES_END,
	WORKQUEUES_START,
	WORKQUEUES_ACTIVATE,
	WORKQUEUES_PROGRAMS,
};

SENSOR_PROGRAMS(workqueues, WORKQUEUES_PROGRAMS)

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct work_struct {
	void *func;
};

#pragma clang attribute pop

/* A run: an item may be freed in its run, and another worker may run a new item at the same address. */
struct work_key {
	__u64 work;
	__u64 pid; /* the worker, or the thread that a soft interrupt interrupts */
};

/*
 * Item -> the time of its activation. Nothing reports items that are cancelled, and their entries stay. So this is an
 * LRU table: the oldest entries go when it is full.
 */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1); /* set by the agent */
	__type(key, __u64);
	__type(value, __u64);
} workqueues_waiting SEC(".maps");

/*
 * Run -> its begin. The kernel skips a program that would interrupt itself. So an end may be missed, and its entry
 * stays until it is the oldest.
 */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1); /* set by the agent */
	__type(key, struct work_key);
	__type(value, struct podperf_work_run);
} workqueues_running SEC(".maps");

/* Address of a function, or PODPERF_OTHER_FUNCTIONS -> its items. The programs write it, and the agent reads it. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1); /* set by the agent */
	__type(key, __u64);
	__type(value, struct podperf_work);
} workqueues_functions SEC(".maps");

static __always_inline struct work_key key_of_run(__u64 work)
{
	struct work_key key = {work, bpf_get_current_task_btf()->pid};

	return key;
}

/*
 * Returns the row of the node on this CPU. A sensor without metrics of cgroups has no other row. The first item of a
 * CPU adds the idle task to the list, since the agent reads the rows of what is in the list.
 */
static __noinline struct podperf_workqueues *row_of_node(void)
{
	__u32 first = 0;
	struct podperf_workqueues *row = bpf_map_lookup_elem(&workqueues_rows, &first);

	if (row && !row->id) {
		charged_now(PODPERF_IDLE);
		row->id = PODPERF_IDLE;
	}
	return row;
}

/*
 * Ends the wait of an item for a worker, and returns its length plus 1. Returns 0 if its begin was not seen. An entry from
 * before sensors were shed may be that of an item that was cancelled since.
 */
static __always_inline __u64 end_wait(__u64 work)
{
	__u64 *since = bpf_map_lookup_elem(&workqueues_waiting, &work), ns;
	struct podperf_workqueues *row;
	bool is_seen;

	if (!since)
		return 0;
	ns = bpf_ktime_get_ns() - *since;
	is_seen = !is_shed(PODPERF_SHED_SENSORS) && *since >= orders.sensors_since_ns;
	bpf_map_delete_elem(&workqueues_waiting, &work);
	if (!is_seen)
		return 0;
	row = row_of_node();
	if (row)
		observe(row->latency, 0, 1, PODPERF_HISTOGRAM_BUCKETS, ns, false);
	return ns + 1;
}

/* Returns a new entry of a function, or that of all further functions, which gets its place before any function. */
static __noinline struct podperf_work *new_function(__u64 function)
{
	__u64 others = PODPERF_OTHER_FUNCTIONS;
	struct podperf_work *sum, none = {.since_ns = bpf_ktime_get_ns()};

	bpf_map_update_elem(&workqueues_functions, &others, &none, BPF_NOEXIST);
	bpf_map_update_elem(&workqueues_functions, &function, &none, BPF_NOEXIST);
	sum = bpf_map_lookup_elem(&workqueues_functions, &function);
	return sum ? sum : bpf_map_lookup_elem(&workqueues_functions, &others);
}

/* Ends a run. A run whose begin was not seen is not counted. */
static __always_inline void end_run_of(__u64 work)
{
	struct work_key key = key_of_run(work);
	struct podperf_work_run *run = bpf_map_lookup_elem(&workqueues_running, &key);
	struct podperf_work *sum;
	__u64 function, waited_ns, ns;

	if (!run)
		return;
	ns = bpf_ktime_get_ns() - run->since_ns;
	function = run->function;
	waited_ns = run->waited_ns;
	bpf_map_delete_elem(&workqueues_running, &key);
	sum = bpf_map_lookup_elem(&workqueues_functions, &function);
	if (!sum)
		sum = new_function(function);
	if (!sum) {
		drop(PODPERF_DROP_SENSOR_TABLE);
		return;
	}
	__sync_fetch_and_add(&sum->runs, 1);
	__sync_fetch_and_add(&sum->ns, ns);
	if (waited_ns) {
		__sync_fetch_and_add(&sum->waits, 1);
		__sync_fetch_and_add(&sum->waited_ns, waited_ns - 1);
	}
}

SEC("tp_btf/workqueue_activate_work")
int BPF_PROG(workqueues_activate, struct work_struct *work)
{
	struct podperf_runs *account = workqueues_account(WORKQUEUES_ACTIVATE);
	__u64 key = (__u64)work, began, now;

	/* While sensors are shed, no wait begins, and none is counted. */
	if (!account || is_shed(PODPERF_SHED_SENSORS))
		return 0;
	began = begin_own_run(account);
	now = bpf_ktime_get_ns();
	if (bpf_map_update_elem(&workqueues_waiting, &key, &now, BPF_ANY))
		drop(PODPERF_DROP_SENSOR_TABLE);
	end_own_run(account, began);
	return 0;
}

SEC("tp_btf/workqueue_execute_start")
int BPF_PROG(workqueues_start, struct work_struct *work)
{
	struct podperf_runs *account = workqueues_account(WORKQUEUES_START);
	struct podperf_work_run run = {};
	struct work_key key;
	__u64 began;

	if (!account)
		return 0;
	began = begin_own_run(account);
	run.waited_ns = end_wait((__u64)work);
	if (!is_shed(PODPERF_SHED_SENSORS)) {
		key = key_of_run((__u64)work);
		run.function = (__u64)work->func;
		run.since_ns = bpf_ktime_get_ns();
		if (bpf_map_update_elem(&workqueues_running, &key, &run, BPF_ANY))
			drop(PODPERF_DROP_SENSOR_TABLE);
	}
	end_own_run(account, began);
	return 0;
}

/* The second argument of this tracepoint, the function, is a pointer that the verifier lets no program read. */
SEC("tp_btf/workqueue_execute_end")
int BPF_PROG(workqueues_end, struct work_struct *work)
{
	struct podperf_runs *account = workqueues_account(WORKQUEUES_END);
	__u64 began;

	if (!account)
		return 0;
	began = begin_own_run(account);
	end_run_of((__u64)work);
	end_own_run(account, began);
	return 0;
}
