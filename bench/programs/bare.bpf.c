// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * The practical floor of the benchmark: time on the CPU per cgroup, and nothing else. No task is looked at, no wait is
 * timed, and the time of a cgroup that was joined since the last switch goes to the new one.
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#define MAX_CGROUPS 4096

/* 0 -> when the CPU last switched, written and read by the program. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} switched SEC(".maps");

/* cgroup id -> ns on each CPU, written by the program; nobody reads it here. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_HASH);
	__uint(max_entries, MAX_CGROUPS);
	__type(key, __u64);
	__type(value, __u64);
} on_cpu SEC(".maps");

SEC("raw_tp/sched_switch")
int podperf_bare(void *ctx)
{
	/* The task that leaves is still the current one. */
	__u64 cgroup = bpf_get_current_cgroup_id();
	__u64 now = bpf_ktime_get_ns(), ran;
	__u64 *last, *sum;
	__u32 zero = 0;

	(void)ctx;
	last = bpf_map_lookup_elem(&switched, &zero);
	if (!last)
		return 0;
	ran = *last ? now - *last : 0;
	*last = now;
	sum = bpf_map_lookup_elem(&on_cpu, &cgroup);
	if (sum)
		*sum += ran;
	else
		bpf_map_update_elem(&on_cpu, &cgroup, &ran, BPF_NOEXIST);
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
