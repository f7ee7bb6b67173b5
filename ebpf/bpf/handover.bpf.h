/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Who counts. Programs of one generation may run beside those of the next, with maps of their own but for this one and what
 * is remembered of each task. The agent changes the word once, between two events of each CPU: what was counted up to there
 * is in the maps of the one, and what comes after in those of the other. Births and deaths of cgroups may be told by both.
 */
#ifndef PODPERF_HANDOVER_BPF_H
#define PODPERF_HANDOVER_BPF_H

#include "kernel.h"
#include "podperf.h"

/* Which generation these programs are of. */
const volatile __u64 generation = 0;

/* A variable and not a map's entry: programs read it without a lookup. Written by the agent. */
volatile struct podperf_handover handover SEC(".data.handover") = {};

static __always_inline bool counts(void)
{
	return handover.generation == generation;
}

#endif
