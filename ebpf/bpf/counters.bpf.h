/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The perf counters per cgroup. Reading one takes 60 to 120 ns, so the programs read them only when the cgroup on the
 * CPU changes. The growth of a counter is charged to the cgroup that was recorded when it came on the CPU.
 */
#ifndef PODPERF_COUNTERS_BPF_H
#define PODPERF_COUNTERS_BPF_H

#include "cgroup.bpf.h"
#include "control.bpf.h"
#include "drops.bpf.h"
#include "kernel.h"
#include "podperf.h"

/* Number of open events, which are in the order of the configuration. */
const volatile __u32 nr_events = 0;
/* Event -> 1 + its group for the leader of a hardware group; 0 for the group's members and for software events. */
const volatile __u8 leader_of[PODPERF_MAX_EVENTS] = {};

/*
 * CPU -> counter of event n. The agent fills it. There is one map per event: the loader clamps each to the number of
 * CPUs.
 */
#define EVENT(n)                                             \
	struct {                                             \
		__uint(type, BPF_MAP_TYPE_PERF_EVENT_ARRAY); \
		__uint(key_size, sizeof(__u32));             \
		__uint(value_size, sizeof(__u32));           \
		__uint(max_entries, 0);                      \
		__uint(map_flags, BPF_F_PRESERVE_ELEMS);     \
	} event##n SEC(".maps");

#define FOR_EACH_EVENT(F) F(0) F(1) F(2) F(3) F(4) F(5) F(6) F(7) F(8) F(9) F(10) F(11) F(12) F(13) F(14) F(15)

FOR_EACH_EVENT(EVENT)

/*
 * Adds the growth of event n since the last call to `row`, or discards it without a row. The first reading of a counter
 * is charged to no cgroup: the cgroups on the CPU since the counter was opened are not known.
 */
static __always_inline void count_event(void *event, __u32 n, struct podperf_cpu *cpu, struct podperf_cgroup *row)
{
	__u32 group = leader_of[n];
	bool known = cpu->known & (1U << n);
	__u64 count;

	if (group && group <= PODPERF_MAX_GROUPS) {
		struct bpf_perf_event_value value = {};

		if (bpf_perf_event_read_value(event, BPF_F_CURRENT_CPU, &value, sizeof(value))) {
			drop(PODPERF_DROP_EVENT_READ);
			return;
		}
		group--;
		if (row && known) {
			row->enabled_ns[group] += value.enabled - cpu->enabled_ns[group];
			row->running_ns[group] += value.running - cpu->running_ns[group];
		}
		cpu->enabled_ns[group] = value.enabled;
		cpu->running_ns[group] = value.running;
		count = value.counter;
	} else {
		/*
		 * This call reads no times and takes half as long. Its errors are small negative numbers, which no
		 * counter reaches.
		 */
		count = bpf_perf_event_read(event, BPF_F_CURRENT_CPU);
		if ((__s64)count < 0 && (__s64)count >= -4095) {
			drop(PODPERF_DROP_EVENT_READ);
			return;
		}
	}
	if (!known) {
		cpu->known |= 1U << n;
		cpu->uncounted[n] += count - cpu->counts[n];
	} else if (row) {
		row->counts[n] += count - cpu->counts[n];
	}
	cpu->counts[n] = count;
}

#define COUNT(n)                                     \
	if (nr_events > (n) && (open & (1U << (n)))) \
		count_event(&event##n, n, cpu, row);

/*
 * Charges the counters to the cgroup on the CPU. `row` is the row to which work in this cgroup is charged, or NULL if it
 * is not known.
 */
static __always_inline void charge_counters(struct podperf_cpu *cpu, struct podperf_cgroup *row)
{
	struct podperf_control *control = this_control();
	__u32 open;

	if (!nr_events || !control)
		return;
	open = control->events;
	if (control->boot == cpu->boot) {
		cpu->known &= open;
	} else {
		cpu->known = 0;
		cpu->boot = control->boot;
	}
	if (!open || cpu->cgroup == PODPERF_NOBODY)
		row = NULL;
	else if (!row)
		row = cgroup_row(cpu->cgroup);
	FOR_EACH_EVENT(COUNT)
}

#endif
