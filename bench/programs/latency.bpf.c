// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * The shape of the programs of perf ftrace latency -b: the begin of a call is in a hash table by thread, and the
 * histogram has a bucket for each power of two from 1 us on.
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#define MAX_CALLS 10240
#define BUCKETS 22
#define FIRST_BUCKET_NS 1000ULL

/* Process and thread -> the begin of the call that goes on. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_CALLS);
	__type(key, __u64);
	__type(value, __u64);
} since SEC(".maps");

/* A bucket -> the calls of this length on each CPU. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, BUCKETS);
	__type(key, __u32);
	__type(value, __u64);
} calls SEC(".maps");

SEC("kprobe")
int latency_begin(void *ctx)
{
	__u64 thread = bpf_get_current_pid_tgid(), now = bpf_ktime_get_ns();

	(void)ctx;
	bpf_map_update_elem(&since, &thread, &now, BPF_ANY);
	return 0;
}

SEC("kretprobe")
int latency_end(void *ctx)
{
	__u64 thread = bpf_get_current_pid_tgid(), ns;
	__u64 *began = bpf_map_lookup_elem(&since, &thread), *count;
	__u32 bucket = 0;

	(void)ctx;
	if (!began)
		return 0;
	ns = bpf_ktime_get_ns() - *began;
	bpf_map_delete_elem(&since, &thread);
	for (; ns >= FIRST_BUCKET_NS && bucket < BUCKETS - 1; ns /= 2)
		bucket++;
	count = bpf_map_lookup_elem(&calls, &bucket);
	if (count)
		*count += 1;
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
