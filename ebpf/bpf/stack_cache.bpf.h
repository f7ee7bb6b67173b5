/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The stack cache: stacks of waits are remembered instead of walked. A thread that blocks again at the same call site
 * has the same stack. The cache is checked: a call site must give the same stack several times in a row before it is
 * trusted. A trusted call site is checked from time to time. A check walks the stack, and a call site whose stack was
 * wrong must agree twice as often as before to be trusted again.
 *
 * While user frames are shed, walks find only the kernel's part of a stack. They do not confirm or replace a whole
 * stack. A stack that they find is remembered as shed: once user frames are taken again, it is not trusted, and the next
 * walk replaces it. Where user frames are never taken, the kernel's part is the whole stack.
 */
#ifndef PODPERF_STACK_CACHE_BPF_H
#define PODPERF_STACK_CACHE_BPF_H

#include "budget.bpf.h"
#include "call_site.bpf.h"
#include "tasks.bpf.h"
#include "walk.bpf.h"

/*
 * Shadow mode: walks each cached stack as well, and counts how often the two differ. Stacks that a recipe proves are
 * copied as well. It changes nothing else.
 */
const volatile bool shadow = false;

/*
 * Number of walks in a row that must agree before a call site is trusted; doubled for each time that its stack was
 * wrong.
 */
#define TRUSTED_AFTER 8U
#define MAX_DOUBLINGS 16
/*
 * One in CHECK_EVERY uses of a trusted call site is walked as well. A newly trusted one is walked more often, and half
 * as often after each check that agrees. The reason: with a runtime such as Go's, many tasks wait on one stack in turn,
 * each for a while.
 */
#define CHECK_EVERY 64
#define CHECK_DOUBLINGS 3
/* Number of uses without a lookup in the cache; a divisor of CHECK_EVERY. */
#define MEMORY_USES 16

struct cached_stack {
	__u64 stack;  /* 0: unknown */
	__u32 agreed; /* walks in a row that found this stack */
	__u32 uses;   /* uses since it is trusted, or since the last check */
	__u32 wrong;  /* walks that found another stack; with copies: another kernel part of it */
	__u8 shed;    /* 1: the user frames of this stack were shed */
	__u8 named;   /* 1: samples have named the call site, and wait for its stack */
	__u8 several; /* 1: a recipe has found other user frames */
	__u8 reserved;
};

/*
 * Id of a call site -> its stack. With copies, a call site with several stacks also has an entry for each of its user
 * stacks, see trust_frames. The sensors of scheduling and of moves write and read it, but not the sampler.
 */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 32768); /* set by the agent */
	__type(key, __u64);
	__type(value, struct cached_stack);
} stack_cache SEC(".maps");

/* The result of a walk in shadow mode for a cached stack. */
enum shadow {
	SHADOW_NONE,
	SHADOW_RIGHT,
	SHADOW_WRONG,
};

/* What is remembered of a call site when a wait begins there. */
struct remembered {
	__u64 site;
	struct cached_stack *cached; /* its entry; NULL: it has none, or the task's record has its stack */
	__u64 stack;                 /* 0: unknown */
	__u32 check_every;           /* one in so many uses is checked */
	bool trusted;
	bool believed; /* over the budget, a stack is used that is trusted or was never another one */
};

/* Sends the stack of a call site that samples have named to the agent. */
static __always_inline void send_site(__u64 site, __u64 stack)
{
	struct podperf_site record = {.record = PODPERF_RECORD_SITE, .site = site, .stack = stack};

	if (bpf_ringbuf_output(&stack_ring, &record, sizeof(record), BPF_RB_NO_WAKEUP))
		drop(PODPERF_DROP_STACK_RING);
}

/* Adds `site`, whose stack is not known, to the cache: from now on samples name it. */
static __always_inline void name_site(__u64 site)
{
	struct cached_stack fresh = {.named = 1}, *cached = bpf_map_lookup_elem(&stack_cache, &site);

	if (cached)
		cached->named = 1;
	else if (bpf_map_update_elem(&stack_cache, &site, &fresh, BPF_NOEXIST) &&
		 !bpf_map_lookup_elem(&stack_cache, &site))
		drop(PODPERF_DROP_STACK_CACHE);
}

static __always_inline __u8 compare(struct podperf_cpu *cpu, bool right)
{
	cpu->shadow_waits++;
	cpu->shadow_wrong += !right;
	return right ? SHADOW_RIGHT : SHADOW_WRONG;
}

/* Looks up what is remembered of `site`. `shed` is 1 while user frames are shed. */
static __always_inline struct remembered look_up(__u64 site, __u32 shed)
{
	struct remembered found = {.site = site, .check_every = CHECK_EVERY};
	struct cached_stack *cached = bpf_map_lookup_elem(&stack_cache, &site);
	__u32 needed;

	found.cached = cached;
	if (!cached || !cached->stack)
		return found;
	found.stack = cached->stack;
	needed = TRUSTED_AFTER << (cached->wrong < MAX_DOUBLINGS ? cached->wrong : MAX_DOUBLINGS);
	found.trusted = cached->agreed >= needed && cached->shed <= shed;
	found.believed = found.trusted || !(cached->wrong | cached->several);
	if (cached->agreed - needed < CHECK_DOUBLINGS)
		found.check_every >>= CHECK_DOUBLINGS - (cached->agreed - needed);
	return found;
}

/* Finds what is remembered of `site`, where the current task waits. */
static __always_inline struct remembered find(struct task *t, __u64 site, __u32 shed)
{
	struct remembered found = {.site = site, .check_every = CHECK_EVERY};

	if (t->memory_site == site && t->memory_uses) {
		t->memory_uses--;
		found.stack = t->memory_stack;
		found.trusted = found.believed = true;
		return found;
	}
	found = look_up(site, shed);
	if (found.cached && found.trusted)
		found.cached->uses += t->memory_site == site ? MEMORY_USES : 1;
	return found;
}

/*
 * Decides whether the stack is walked. Returns the number of waits that it then stands for; 0: the remembered stack is
 * used, if there is one.
 */
static __always_inline __u32 decide(struct remembered *known, __u64 cgroup, __u64 now, __u32 shed)
{
	struct cached_stack *cached = known->cached;
	__u32 weight;

	if (cached && !known->stack && cached->named)
		return 1;
	if (known->trusted && (!cached || cached->uses < known->check_every || cached->shed < shed))
		return 0;
	weight = may_walk(cgroup, now);
	if (cached && known->trusted && weight)
		cached->uses = 0;
	return weight;
}

/* Gives the task's record the remembered stack of its call site, for the next waits. */
static __always_inline void keep_at_hand(struct task *t, struct remembered *known)
{
	if (!known->cached || !known->trusted || known->check_every != CHECK_EVERY)
		return;
	t->memory_site = known->site;
	t->memory_stack = known->stack;
	t->memory_uses = MEMORY_USES - 1;
}

/* Remembers the stack that a walk has found. Returns true if it stands for this wait alone. */
static __always_inline bool learn(struct remembered *known, __u64 walked, __u32 shed, struct podperf_cpu *cpu)
{
	struct cached_stack fresh = {.stack = walked, .shed = shed}, *cached = known->cached;

	if (!cached || !known->stack) {
		if (cached && cached->named && walked)
			send_site(known->site, walked);
		fresh.named = !walked && cached && cached->named;
		if (bpf_map_update_elem(&stack_cache, &known->site, &fresh, BPF_ANY))
			drop(PODPERF_DROP_STACK_CACHE);
		return false;
	}
	cpu->checks += known->trusted;
	if (cached->shed < shed)
		return known->believed;
	if (walked == cached->stack) {
		cached->agreed++;
		return known->believed;
	}
	cpu->checks_wrong += known->trusted;
	cached->stack = walked;
	cached->agreed = 0;
	cached->wrong += cached->shed <= shed;
	cached->shed = shed;
	return known->believed;
}

/*
 * Finds the stack of `task`, which is current and goes to sleep. Fills the fields of `t` for it. Only one line calls
 * the walk: the return address of the walk is one of the kernel's frames. It is a function of its own since the stack
 * of all nested calls may have 512 bytes.
 */
static __noinline int stack_of_wait(void *ctx, struct task_struct *task, struct task *t, __u64 now)
{
	__u32 walk, weight, shed = user_frames_are_shed();
	struct podperf_cpu *cpu = this_cpu();
	bool shadows = shadow && !shed;
	struct remembered known;
	__u64 walked = 0;

	if (!t || !cpu)
		return 0;
	known = find(t, site_of(task, t->activity), shed);
	cpu->waits++;
	weight = decide(&known, cpu->cgroup, now, shed);
	walk = weight || shadows;
	/* Hides these values from the compiler: if it knew them, it would make a path, and a call, for each case. */
	asm volatile("" : "+r"(walk));
	if (walk)
		walked = walk_stack(ctx, true);
	asm volatile("" : "+r"(weight));
	t->shadow = SHADOW_NONE;
	t->walked = weight > 0;
	if (weight) {
		cpu->walks++;
		t->stack = walked;
		t->weight = learn(&known, walked, shed, cpu) ? 1 : weight;
		return 0;
	}
	t->stack = known.stack ? known.stack : known.site;
	t->weight = known.believed;
	if (known.cached && !known.cached->shed)
		keep_at_hand(t, &known);
	if (shadows && known.believed)
		t->shadow = compare(cpu, walked == known.stack);
	return 0;
}

#endif
