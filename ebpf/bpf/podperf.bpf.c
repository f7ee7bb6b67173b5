// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* The one object: all sensors, which share maps. */
#include "cgroups.bpf.c"
#include "moves.bpf.c"
#include "sampler.bpf.c"
#include "scheduling.bpf.c"
#include "wakers.bpf.c"

/* The kernel lends its GPL-only helpers to programs that say GPL. */
char LICENSE[] SEC("license") = "Dual BSD/GPL";
