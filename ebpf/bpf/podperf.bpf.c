// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/* The single object with all programs, which share maps. */
#include "cgroups.bpf.c"
#include "moves.bpf.c"
#include "sampler.bpf.c"
#include "scheduling.bpf.c"
#include "wakers.bpf.c"

/* The sensors' own programs. The build writes this list. */
#include "programs.bpf.h"

/* The kernel offers its GPL-only helpers to programs with a GPL licence only. */
char LICENSE[] SEC("license") = "Dual BSD/GPL";
