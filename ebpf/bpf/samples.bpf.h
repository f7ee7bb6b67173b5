/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Sums of time by stack, cgroup, process and activity, for profiles. */
#ifndef PODPERF_SAMPLES_BPF_H
#define PODPERF_SAMPLES_BPF_H

#include "budget.bpf.h"
#include "cgroup.bpf.h"
#include "control.bpf.h"
#include "copies.bpf.h"
#include "drops.bpf.h"
#include "kernel.h"
#include "podperf.h"
#include "walk.bpf.h"

/* The length from which waits are sent one by one, with their time, in nanoseconds; 0: none is sent. */
const volatile __u64 long_wait_ns = 0;
/* Number of keys that each of the tables has room for. */
const volatile __u32 max_samples = 16384;
const volatile __u32 max_oncpu_samples = 16384;

/*
 * Two tables for waits, and two for time on the CPU; the two are written in turn. The sampler has tables of its own,
 * since it may be an NMI that interrupts a program with a table's lock.
 */
struct sample_table {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384); /* set by the agent */
	__type(key, struct podperf_sample_key);
	__type(value, struct podperf_sample_sum);
};
struct sample_table waits_even SEC(".maps");
struct sample_table waits_odd SEC(".maps");
struct sample_table oncpu_even SEC(".maps");
struct sample_table oncpu_odd SEC(".maps");

/* enum podperf_sample_table -> number of keys in the table. The agent zeroes it with the table. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, PODPERF_SAMPLE_TABLES);
	__type(key, __u32);
	__type(value, struct podperf_samples_used);
} samples_used SEC(".maps");

/*
 * Error numbers of the kernel (errno-base.h). Any other error, such as EBUSY, means that the kernel had locked the
 * table.
 */
#define EEXIST 17
#define E2BIG 7

/*
 * Inserts the key's sum into `samples`. Returns 0, -EEXIST if another CPU was first, or another error. `place` is the
 * number of the table times PODPERF_SAMPLE_SHARES, plus the share: a call has no more arguments. The table has room for
 * `room` keys, and a share may have as many keys as are still free: so there is always room for one more. If `room` is
 * 0, only the size of the table is a limit.
 */
static __noinline long insert(void *samples, struct podperf_sample_key *key, struct podperf_sample_sum *fresh,
			      __u32 place, __u32 room)
{
	__u32 table = place / PODPERF_SAMPLE_SHARES, share = place % PODPERF_SAMPLE_SHARES;
	struct podperf_samples_used *used;
	long error;

	if (!key || !fresh)
		return -E2BIG;
	used = bpf_map_lookup_elem(&samples_used, &table);
	if (!used)
		return -E2BIG;
	if (room && (__u64)used->keys + used->by_cgroup[share] >= room)
		return -E2BIG;
	error = bpf_map_update_elem(samples, key, fresh, BPF_NOEXIST);
	if (!error) {
		__sync_fetch_and_add(&used->keys, 1);
		__sync_fetch_and_add(&used->by_cgroup[share], 1);
	}
	return error;
}

/*
 * Adds to the key's sum, or inserts the sum. Returns an error when the table has no room or is locked. The shares of
 * waits are those of outer cgroups. The sampler cannot find these, so it has a share for each cgroup.
 */
static __always_inline long add_to(void *samples, struct podperf_sample_key *key, struct podperf_sample_sum *fresh,
				   __u32 table, __u32 room, bool is_wait)
{
	struct podperf_sample_sum *sum = bpf_map_lookup_elem(samples, key);

	if (!sum) {
		__u32 share = is_wait ? outer_share(key->cgroup, PODPERF_SAMPLE_SHARES)
				      : share_of(key->cgroup, PODPERF_SAMPLE_SHARES);
		long error = insert(samples, key, fresh, table * PODPERF_SAMPLE_SHARES + share, room);

		if (error != -EEXIST)
			return error;
		sum = bpf_map_lookup_elem(samples, key);
		if (!sum)
			return -E2BIG;
	}
	__sync_fetch_and_add(&sum->ns, fresh->ns);
	if (fresh->queued_ns)
		__sync_fetch_and_add(&sum->queued_ns, fresh->queued_ns);
	__sync_fetch_and_add(&sum->count, fresh->count);
	sum->last_ns = fresh->last_ns;
	return 0;
}

/*
 * Returns the id by which a table names a stack. A copy that the agent has not unwound yet is the key of one wait. Such
 * keys take half of the room that a cgroup has: beyond it, `part`, the kernel's, stands for the copy.
 */
static __always_inline __u64 name_in_table(__u64 stack, __u64 part, __u64 cgroup, __u32 odd)
{
	__u32 table = odd ? PODPERF_WAITS_ODD : PODPERF_WAITS_EVEN, share;
	struct podperf_samples_used *used;

	if (!copies_enabled || (stack & 1) || !part)
		return stack;
	used = bpf_map_lookup_elem(&samples_used, &table);
	if (!used)
		return stack;
	share = outer_share(cgroup, PODPERF_SAMPLE_SHARES) % PODPERF_SAMPLE_SHARES;
	return used->keys + 3ULL * used->by_cgroup[share] < max_samples ? stack : part;
}

/* Adds time off the CPU to one of the two tables. */
static __always_inline long add_wait_sum(struct podperf_sample_key *key, struct podperf_sample_sum *fresh, __u32 odd)
{
	if (odd)
		return add_to(&waits_odd, key, fresh, PODPERF_WAITS_ODD, max_samples, true);
	return add_to(&waits_even, key, fresh, PODPERF_WAITS_EVEN, max_samples, true);
}

/*
 * Adds time on the CPU to one of the two tables. A cgroup over its share has one more key, without stack and process.
 * An eighth of the table is reserved for such keys.
 */
static __always_inline void add_oncpu_sample(struct podperf_sample_key *key, struct podperf_sample_sum *fresh,
					     __u32 odd)
{
	__u32 room = max_oncpu_samples - max_oncpu_samples / 8, table = odd ? PODPERF_ONCPU_ODD : PODPERF_ONCPU_EVEN;
	long error;

	error = odd ? add_to(&oncpu_odd, key, fresh, table, room, false)
		    : add_to(&oncpu_even, key, fresh, table, room, false);
	if (!error)
		return;
	key->stack = 0;
	key->tgid = 0;
	if (odd ? add_to(&oncpu_odd, key, fresh, table, 0, false) : add_to(&oncpu_even, key, fresh, table, 0, false))
		drop(PODPERF_DROP_SAMPLE_TABLE);
	else
		drop(error == -E2BIG ? PODPERF_DROP_SAMPLE_STACK : PODPERF_DROP_SAMPLE_BUSY);
}

/*
 * Adds `ns` of time off the CPU that are in no table to the row of a cgroup to which work was charged. Returns true if
 * there is a row. Programs that may be preempted must not call this: a row has one writer at a time. No other row is
 * searched for, and no function is called: this is where the longest chain of calls ends, and the stacks of all calls
 * together are limited. The verifier checks this function separately.
 */
__noinline int keep_unprofiled(__u64 cgroup, __u32 activity, __u64 ns)
{
	struct podperf_cpu *cpu = this_cpu();
	struct podperf_cgroup *row;

	if (cpu)
		cpu->unprofiled_ns += ns;
	row = find_row(cgroup);
	if (!row || activity >= PODPERF_WAITS)
		return false;
	row->unprofiled_ns[activity] += ns;
	return true;
}

/* Adds a sum that found no room in a table to the cgroup's row, and counts the drop that `error` stands for. */
static __always_inline void add_unprofiled(struct podperf_sample_key *key, struct podperf_sample_sum *sum, long error)
{
	if (sum->queued_ns)
		keep_unprofiled(key->cgroup, PODPERF_RUN_QUEUE, sum->queued_ns);
	if (!keep_unprofiled(key->cgroup, key->activity, sum->ns))
		drop(PODPERF_DROP_SAMPLE_TABLE);
	else
		drop(error == -E2BIG ? PODPERF_DROP_SAMPLE_STACK : PODPERF_DROP_SAMPLE_BUSY);
}

/* Sends one long wait to the profile by itself. Returns false when there is no room. */
static __noinline int send_long_wait(struct podperf_sample_key *key, __u32 tid, struct podperf_sample_sum *sum,
				     __u64 so_far_ns)
{
	struct podperf_long_wait wait = {
	    .record = PODPERF_RECORD_LONG_WAIT,
	    .tid = tid,
	    .key = *key,
	    .end_ns = sum->last_ns,
	    .ns = sum->ns,
	    .queued_ns = sum->queued_ns,
	    .so_far_ns = so_far_ns,
	};

	if (!bpf_ringbuf_output(&stack_ring, &wait, sizeof(wait), BPF_RB_NO_WAKEUP))
		return true;
	drop(PODPERF_DROP_LONG_WAIT);
	return false;
}

#endif
