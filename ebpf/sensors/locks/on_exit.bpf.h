/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Removes the wait of a thread that ends. */
#ifndef PODPERF_LOCKS_ON_EXIT_BPF_H
#define PODPERF_LOCKS_ON_EXIT_BPF_H

#include "locks/locks.bpf.h"

/* Such a thread waits for no lock. On kernels that preempt programs, the end of its last wait may be missed. */
static __noinline int locks_on_exit(__u32 pid)
{
	struct podperf_lock_wait *wait = bpf_map_lookup_elem(&locks_waiting, &pid);

	if (wait)
		forget_wait(pid, wait);
	return 0;
}

#endif
