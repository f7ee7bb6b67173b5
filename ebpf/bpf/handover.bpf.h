/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The takeover: only one generation of programs counts at a time. Programs of two generations may run side by side.
 * They have separate maps, except for this one and, if the layout is the same, the task records. The agent changes the
 * active generation once, between two events of each CPU. The counts up to then are in the maps of the previous
 * generation, and later counts are in the maps of the next one. Both generations may report births and deaths of
 * cgroups.
 */
#ifndef PODPERF_HANDOVER_BPF_H
#define PODPERF_HANDOVER_BPF_H

#include "kernel.h"
#include "podperf.h"

/* The generation of these programs. */
const volatile __u64 generation = 0;

/*
 * The active generation. This is a variable instead of a map entry, so that programs read it without a lookup. The
 * agent writes it.
 */
volatile struct podperf_handover handover SEC(".data.handover") = {};

/*
 * A description of the contents of these maps, as a text in pieces. Agents write it. An agent whose own maps have other
 * contents reads it.
 */
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
