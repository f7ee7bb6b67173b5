/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Removes the calls of a thread that ends. */
#ifndef PODPERF_FUNCTIONS_ON_EXIT_BPF_H
#define PODPERF_FUNCTIONS_ON_EXIT_BPF_H

#include "functions/functions.bpf.h"

/* A thread that ends in a function does not return from it. */
static __noinline int functions_on_exit(__u32 pid)
{
	struct podperf_call *call;
	__u64 key;

	for (__u32 function = 0; function < PODPERF_FUNCTIONS; function++) {
		key = key_of_call(pid, function);
		call = bpf_map_lookup_elem(&functions_calls, &key);
		if (call)
			forget_call(key, call);
		if (bpf_map_lookup_elem(&functions_lent, &key))
			bpf_map_delete_elem(&functions_lent, &key);
	}
	return 0;
}

#endif
