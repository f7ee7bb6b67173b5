/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The budget of walks. Each CPU may make a fixed number of walks a second, and saves up unused ones for about a second.
 * When half of the budget is spent, walks are made at random: the odds fall with the rest of the budget, and each walk
 * stands for as many waits as the odds say. So no total is biased. Besides, each outer cgroup (listed.bpf.h) has a
 * share of its own, so that a noisy one does not use up the share of a quiet one. The agent lowers the budget while
 * podperf costs too much.
 */
#ifndef PODPERF_BUDGET_BPF_H
#define PODPERF_BUDGET_BPF_H

#include "control.bpf.h"
#include "cpu.bpf.h"
#include "kernel.h"
#include "listed.bpf.h"
#include "podperf.h"

/* The most that a CPU saves up, in nanoseconds: 1.07 s, a power of two. */
#define BUDGET_SAVED_NS (1ULL << 30)
/* The shift from nanoseconds spent to the odds, which are at worst one in 1024. */
#define ODDS_SHIFT 19

/* Share of cgroups -> the time up to which it is spent, CLOCK_MONOTONIC. Each CPU has its own copy. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, PODPERF_WALK_SHARES);
	__type(key, __u32);
	__type(value, __u64);
} walk_shares SEC(".maps");

/* Returns the share of `cgroup`, a number below `shares`. `shares` is a power of two. */
static __always_inline __u32 share_of(__u64 cgroup, __u32 shares)
{
	return (__u64)((__u32)cgroup * PODPERF_SLOT_SPREAD) * shares >> 32;
}

/*
 * Returns the share of `cgroup`, where all cgroups with one outer cgroup have the same. So no number of cgroups that a
 * container makes takes the shares of others.
 */
static __noinline __u32 outer_share(__u64 cgroup, __u32 shares)
{
	__u64 outer = outer_of(cgroup);

	return share_of(outer ? outer : cgroup, shares);
}

/* Returns the spent part of the time that can be saved up, in nanoseconds. */
static __always_inline __u64 spent(__u64 paid_ns, __u64 now)
{
	return paid_ns + BUDGET_SAVED_NS > now ? paid_ns + BUDGET_SAVED_NS - now : 0;
}

static __always_inline void pay(__u64 *paid_ns, __u64 now, __u64 price)
{
	*paid_ns = now - BUDGET_SAVED_NS + spent(*paid_ns, now) + price;
}

/* The walk is paid by the share of its cgroup. */
#define OWN_SHARE (1U << 31)

/*
 * Returns the number of waits that a walk for `cgroup` stands for, or 0 if the budget allows no walk now; and OWN_SHARE.
 * The verifier checks this function separately.
 */
__noinline __u32 pay_walk(__u64 cgroup, __u64 now)
{
	__u64 walk_every_ns = orders.walk_every_ns, price = walk_every_ns * PODPERF_WALK_SHARES, used, *paid;
	struct podperf_cpu *cpu = this_cpu();
	__u32 share, odds = 1;

	if (!walk_every_ns || !cpu)
		return OWN_SHARE | 1;
	share = outer_share(cgroup, PODPERF_WALK_SHARES);
	paid = bpf_map_lookup_elem(&walk_shares, &share);
	/* With a small budget, a share allows one walk each time that it has been silent for long enough. */
	if (price > BUDGET_SAVED_NS)
		price = BUDGET_SAVED_NS;
	if (paid && spent(*paid, now) + price <= BUDGET_SAVED_NS) {
		pay(paid, now, price);
		return OWN_SHARE | 1;
	}
	used = spent(cpu->walks_paid_ns, now);
	if (used > BUDGET_SAVED_NS / 2)
		odds += (used - BUDGET_SAVED_NS / 2) >> ODDS_SHIFT;
	if (odds > 1024)
		odds = 1024;
	if (odds > 1 && bpf_get_prandom_u32() % odds)
		return 0;
	pay(&cpu->walks_paid_ns, now, walk_every_ns);
	return odds;
}

/* The same without OWN_SHARE. */
static __always_inline __u32 may_walk(__u64 cgroup, __u64 now)
{
	return pay_walk(cgroup, now) & ~OWN_SHARE;
}

#endif
