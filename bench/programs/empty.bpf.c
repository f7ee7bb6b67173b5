// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * The least that a program can cost: the floor below every figure of the
 * benchmark. The first one is for any tracepoint.
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

SEC("raw_tp/sched_switch")
int podperf_empty(void *ctx)
{
	(void)ctx;
	return 0;
}

SEC("kprobe")
int podperf_empty_probe(void *ctx)
{
	(void)ctx;
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
