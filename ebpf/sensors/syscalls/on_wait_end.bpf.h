/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Charges a sleep to the system call. */
#ifndef PODPERF_SYSCALLS_ON_WAIT_END_BPF_H
#define PODPERF_SYSCALLS_ON_WAIT_END_BPF_H

#include "syscalls/syscalls.bpf.h"

/* This function is global: the verifier checks it once, and Linux 6.1 keeps the bounds of few values at a time. */
__noinline int syscalls_add(__u32 slot, __u64 cgroup, __u32 call, __u64 ns)
{
	struct podperf_syscalls *row = syscalls_row_at(slot, cgroup);
	__u64 at = call;

	/* The mask is in assembly, because the compiler would remove it. It bounds the index for the verifier. */
	asm volatile("%0 &= 127" : "+r"(at));
	if (row && at < CALLS)
		(&row->other)[at] += ns;
	return 0;
}

static __always_inline void syscalls_on_wait_end(__u32 slot, __u64 cgroup, __u8 call, __u32 activity, __u64 ns,
						 __u64 queued_ns)
{
	if (activity < PODPERF_RUN_QUEUE)
		syscalls_add(slot, cgroup, call, ns);
}

#endif
