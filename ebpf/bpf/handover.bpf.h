/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Who counts. Programs of one generation may run beside those of the next, with maps of their own but for this one and what
 * is remembered of each task, if that is of the same layout. The agent changes the word once, between two events of each CPU: what was counted up to there
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

/* What these maps hold, as a text in pieces, for agents whose own hold something else; written and read by agents. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1); /* set by the agent */
	__type(key, __u32);
	__type(value, char[PODPERF_DESCRIPTION_PIECE]);
} description SEC(".maps");

static __always_inline bool counts(void)
{
	return handover.generation == generation;
}

#endif
