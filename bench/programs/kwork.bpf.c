// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * The shape of the programs of perf kwork: the begin of an interrupt or of a work item is in a hash table, and so are
 * the sums, by class, CPU and number. perf also keeps names in a third table, which is left out here.
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#define MAX_WORKS 10240

enum work_class {
	HARD_INTERRUPT,
	SOFT_INTERRUPT,
	WORK_ITEM,
};

struct work {
	__u32 class;
	__u32 cpu;
	__u64 number;
};

struct work_times {
	__u64 count;
	__u64 total_ns;
	__u64 most_ns;
};

/* An interrupt or a work item that goes on -> its begin. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_WORKS);
	__type(key, struct work);
	__type(value, __u64);
} since SEC(".maps");

/* All interrupts and work items that ended. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_WORKS);
	__type(key, struct work);
	__type(value, struct work_times);
} times SEC(".maps");

static __always_inline int begin_work(__u32 class, __u64 number)
{
	struct work work = {class, bpf_get_smp_processor_id(), number};
	__u64 now = bpf_ktime_get_ns();

	bpf_map_update_elem(&since, &work, &now, BPF_ANY);
	return 0;
}

static __always_inline int end_work(__u32 class, __u64 number)
{
	struct work work = {class, bpf_get_smp_processor_id(), number};
	__u64 *began = bpf_map_lookup_elem(&since, &work), ns;
	struct work_times *sum, first = {};

	if (!began)
		return 0;
	ns = bpf_ktime_get_ns() - *began;
	bpf_map_delete_elem(&since, &work);
	sum = bpf_map_lookup_elem(&times, &work);
	if (!sum) {
		bpf_map_update_elem(&times, &work, &first, BPF_NOEXIST);
		sum = bpf_map_lookup_elem(&times, &work);
	}
	if (!sum)
		return 0;
	sum->count++;
	sum->total_ns += ns;
	if (ns > sum->most_ns)
		sum->most_ns = ns;
	return 0;
}

SEC("raw_tp/irq_handler_entry")
int kwork_irq_entry(struct bpf_raw_tracepoint_args *ctx)
{
	return begin_work(HARD_INTERRUPT, (__u32)ctx->args[0]);
}

SEC("raw_tp/irq_handler_exit")
int kwork_irq_exit(struct bpf_raw_tracepoint_args *ctx)
{
	return end_work(HARD_INTERRUPT, (__u32)ctx->args[0]);
}

SEC("raw_tp/softirq_entry")
int kwork_softirq_entry(struct bpf_raw_tracepoint_args *ctx)
{
	return begin_work(SOFT_INTERRUPT, (__u32)ctx->args[0]);
}

SEC("raw_tp/softirq_exit")
int kwork_softirq_exit(struct bpf_raw_tracepoint_args *ctx)
{
	return end_work(SOFT_INTERRUPT, (__u32)ctx->args[0]);
}

SEC("raw_tp/workqueue_execute_start")
int kwork_work_start(struct bpf_raw_tracepoint_args *ctx)
{
	return begin_work(WORK_ITEM, ctx->args[0]);
}

SEC("raw_tp/workqueue_execute_end")
int kwork_work_end(struct bpf_raw_tracepoint_args *ctx)
{
	return end_work(WORK_ITEM, ctx->args[0]);
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
