// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * The shape of the programs of perf trace -s --bpf-summary --summary-mode=cgroup: the begin of a system call is in a
 * hash table by thread, and the sums are in one by cgroup and call. perf also sums squares, which are left out here.
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#define MAX_CALLS 16384

struct begun_call {
	__u64 cgroup;
	__u64 number;
	__u64 since_ns;
};

struct call {
	__u64 cgroup;
	__u64 number;
};

struct call_times {
	__u64 count;
	__u64 errors;
	__u64 total_ns;
	__u64 most_ns;
	__u64 least_ns;
};

/* Process and thread -> the call that goes on. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_CALLS);
	__type(key, __u64);
	__type(value, struct begun_call);
} begun SEC(".maps");

/* All calls that ended. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_CALLS);
	__type(key, struct call);
	__type(value, struct call_times);
} times SEC(".maps");

SEC("raw_tp/sys_enter")
int summary_enter(struct bpf_raw_tracepoint_args *ctx)
{
	struct begun_call call = {bpf_get_current_cgroup_id(), ctx->args[1], bpf_ktime_get_ns()};
	__u64 thread = bpf_get_current_pid_tgid();

	bpf_map_update_elem(&begun, &thread, &call, BPF_ANY);
	return 0;
}

SEC("raw_tp/sys_exit")
int summary_exit(struct bpf_raw_tracepoint_args *ctx)
{
	__u64 thread = bpf_get_current_pid_tgid(), ns;
	struct begun_call *began = bpf_map_lookup_elem(&begun, &thread);
	struct call_times *sum, first = {.least_ns = ~0ULL};
	struct call call;

	if (!began)
		return 0;
	ns = bpf_ktime_get_ns() - began->since_ns;
	call.cgroup = began->cgroup;
	call.number = began->number;
	bpf_map_delete_elem(&begun, &thread);
	sum = bpf_map_lookup_elem(&times, &call);
	if (!sum) {
		bpf_map_update_elem(&times, &call, &first, BPF_NOEXIST);
		sum = bpf_map_lookup_elem(&times, &call);
	}
	if (!sum)
		return 0;
	__sync_fetch_and_add(&sum->count, 1);
	__sync_fetch_and_add(&sum->total_ns, ns);
	if ((__s64)ctx->args[1] < 0)
		__sync_fetch_and_add(&sum->errors, 1);
	if (ns > sum->most_ns)
		sum->most_ns = ns;
	if (ns < sum->least_ns)
		sum->least_ns = ns;
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
