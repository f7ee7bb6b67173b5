/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The stacks of waits if user stacks are copied for the agent. The stack cache works as it does with walks, but a check
 * proves the user frames by a recipe and walks the kernel's part. At a call site that has had several stacks, a recipe
 * proves the user frames at each use, and the kernel's part is remembered for each of them: these call sites, too, walk
 * it in checks only. Without a recipe, the stack is copied.
 *
 * The functions are not inlined, since the stack of all nested calls may have 512 bytes.
 */
#ifndef PODPERF_COPIED_WAITS_BPF_H
#define PODPERF_COPIED_WAITS_BPF_H

#include "cgroup.bpf.h"
#include "stack_cache.bpf.h"

/* A wait that begins. It is in a map, because the stack of all nested calls may have 512 bytes. */
struct copied_wait {
	__u64 site;
	__u64 entry; /* key of its entry in the stack cache: the call site, or see trust_frames */
	__u64 path;
	__u64 expected; /* the remembered stack; 0: unknown */
	__u64 stack;    /* the one that was found */
	__u64 kernel;   /* the kernel's part, if it was walked */
	__u64 proved;   /* see struct podperf_copy */
	__u32 paid;     /* number of waits that a walk or copy stands for; 0: the budget has none */
	bool own_share; /* the share of the cgroup paid it */
	bool trusted;
	bool believed;   /* without a walk, the remembered stack is used */
	bool several;    /* see struct cached_stack */
	bool named;      /* see struct cached_stack */
	bool due;        /* this is a check of a trusted entry */
	bool by_words;   /* some stack agreed by its words */
	bool same_words; /* the remembered one did */
};

/* The wait that begins on this CPU. Only the program at the context switch uses it, with interrupts off. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct copied_wait);
} copied_wait SEC(".maps");

/* Remembers that the current task waits on `stack`, which a recipe has just proved, with its kernel part or without. */
static __noinline int learn_proved(struct copied_wait *wait, __u64 stack, bool by_kernel)
{
	struct cached_stack fresh = {.stack = stack}, *cached;
	__u64 entry;

	if (!wait)
		return 0;
	if (wait->named)
		send_site(wait->site, stack);
	entry = wait->entry;
	cached = bpf_map_lookup_elem(&stack_cache, &entry);
	if (!cached) {
		if (bpf_map_update_elem(&stack_cache, &entry, &fresh, BPF_ANY))
			drop(PODPERF_DROP_STACK_CACHE);
		return 0;
	}
	if (wait->due)
		cached->uses = 0;
	if (cached->stack == stack) {
		cached->shed = 0;
		cached->agreed += by_kernel;
		return 0;
	}
	if (cached->stack && !cached->shed) {
		cached->wrong += wait->same_words;
		cached->several |= !wait->same_words;
	}
	cached->shed = 0;
	cached->stack = stack;
	cached->agreed = 0;
	return 0;
}

/*
 * No recipe proves the stack of the wait with its kernel part. The entry is not trusted any more, and if what it
 * remembers is `wrong`, it must agree more often than before. The verifier checks this function separately.
 */
__noinline int unlearn(struct copied_wait *wait, bool wrong)
{
	struct cached_stack *cached;
	__u64 entry;

	if (!wait)
		return 0;
	entry = wait->entry;
	cached = bpf_map_lookup_elem(&stack_cache, &entry);
	if (!cached)
		return 0;
	if (wait->due)
		cached->uses = 0;
	cached->agreed = 0;
	if (!wrong)
		return 0;
	cached->several |= !wait->same_words;
	cached->wrong += wait->same_words;
	cached->stack = 0;
	return 0;
}

/*
 * Chooses the entry of the call site and of the user frames that a recipe has just proved there (ANY_STACK). It works as
 * the entry of a call site does: the same words of the stack are the same user frames, so only the kernel's part of its
 * stack can be wrong. Without a proof of whole user frames, nothing is remembered. Returns 1 if a check of the entry is
 * due. The verifier checks this function separately.
 */
__noinline int trust_frames(struct copied_wait *wait)
{
	__u32 cpu = bpf_get_smp_processor_id();
	struct recipe_words *words = bpf_map_lookup_elem(&recipe_words, &cpu);
	struct remembered known;

	if (!wait || !words)
		return 0;
	wait->expected = 0;
	if (!words->name)
		return 0;
	wait->entry = wait->site ^ (words->name & ~1ULL);
	known = look_up(wait->entry, 0);
	wait->expected = known.stack;
	wait->believed = known.believed;
	wait->same_words = true;
	/* The next wait of a call site that samples have named is walked. */
	if (!known.cached || !known.trusted || wait->named)
		return 0;
	wait->trusted = true;
	known.cached->uses++;
	return known.cached->uses >= known.check_every;
}

/* Counts a check of a trusted entry, if this is one. */
static __always_inline void count_check(struct copied_wait *wait, bool is_wrong)
{
	struct podperf_cpu *cpu = this_cpu();

	if (!cpu || !wait->due)
		return;
	cpu->checks++;
	cpu->checks_wrong += is_wrong;
}

/* Notes that the call site, which samples have named, is looked at. */
static __always_inline void forget_name(struct copied_wait *wait)
{
	__u64 site = wait->site;
	struct cached_stack *cached = bpf_map_lookup_elem(&stack_cache, &site);

	if (cached)
		cached->named = 0;
}

/* Returns the stack of `task` by its recipes, see `stack_by_recipe`. */
static __always_inline __u64 prove(struct task_struct *task, struct copied_wait *wait)
{
	__u64 sp = ((struct pt_regs *)bpf_task_pt_regs(task))->sp;

	return stack_by_recipe(wait->path, sp, wait->expected, wait->kernel);
}

static __noinline __u64 kernel_part_of_wait(void *ctx)
{
	__u32 zero = 0;
	struct podperf_stack *stack = bpf_map_lookup_elem(&walk_buffer, &zero);

	return stack ? kernel_part(ctx, stack, true) : 0;
}

static __always_inline void pay_for(struct copied_wait *wait, __u64 cgroup, __u64 now)
{
	__u32 paid = pay_walk(cgroup, now);

	wait->paid = paid & ~OWN_SHARE;
	wait->own_share = paid & OWN_SHARE;
}

/* Sends a copy of the stack of `task`, which goes to sleep. Returns the id of the copy, or 0 if it could not be sent. */
static __noinline __u64 copy_wait(struct task_struct *task, struct copied_wait *wait)
{
	__u32 cpu = bpf_get_smp_processor_id();
	struct podperf_copy *copy = bpf_map_lookup_elem(&copy_buffer, &cpu);
	struct podperf_copy_pages *wanted;

	if (!copy || !wait)
		return 0;
	copy->at_ns = bpf_ktime_get_ns();
	copy->key.stack = copy_id(copy->at_ns);
	copy->key.cgroup = cgroup_id(task);
	copy->key.tgid = task->tgid;
	copy->site = wait->site;
	copy->path = wait->path;
	copy->is_named = wait->named;
	copy->kernel = wait->kernel;
	copy->proved = wait->proved;
	wanted = bpf_map_lookup_elem(&copy_pages, &copy->path);
	if (!send_copy(task, copy, wanted, wait->own_share ? RING_FOR_SHARES : RING_BEYOND_SHARES))
		return 0;
	return copy->key.stack;
}

/*
 * Sends a copy of a stack that a recipe has proved, for shadow mode: the agent unwinds it and compares. Half of the ring
 * is left to the other copies. Without the kernel's part, the agent could not compare.
 */
static __always_inline void confirm(struct task_struct *task, struct copied_wait *wait, __u64 stack)
{
	if (!(stack & 1) || wait->kernel >= UNKNOWN_PART ||
	    bpf_ringbuf_query(&copy_ring, BPF_RB_AVAIL_DATA) > PODPERF_COPY_RING / 2)
		return;
	wait->proved = stack;
	copy_wait(task, wait);
	wait->proved = 0;
}

/* Compares a remembered stack with the one that a recipe proves, for shadow mode. Without a recipe there is no answer. */
static __always_inline int compare_by_recipe(void *ctx, struct task_struct *task, struct task *t,
					     struct copied_wait *wait, struct podperf_cpu *cpu)
{
	__u64 stack;

	wait->expected = t->stack;
	wait->path = path_of(task, t->activity);
	wait->kernel = schedule_begin ? kernel_part_of_wait(ctx) : ANY_PART;
	stack = prove(task, wait);
	confirm(task, wait, stack);
	return stack ? compare(cpu, stack == t->stack) : SHADOW_NONE;
}

/*
 * Begins the record of a wait, and finds what is remembered of its call site. Returns 1 if the remembered stack is used
 * without a look at the words of the stack.
 */
static __noinline int find_copied(struct task_struct *task, struct task *t, struct copied_wait *wait, __u64 now)
{
	struct podperf_cpu *cpu = this_cpu();
	struct remembered known;
	struct cached_stack *cached;
	bool is_due;

	if (!t || !wait || !cpu)
		return 0;
	known = find(t, site_of_copied(task, t->activity), 0);
	cached = known.cached;
	wait->site = known.site;
	wait->entry = known.site;
	wait->named = cached && cached->named;
	wait->several = schedule_begin && cached && cached->several;
	is_due = cached && known.trusted && !wait->several && cached->uses >= known.check_every;
	wait->paid = wait->named;
	wait->own_share = false;
	if (is_due && !wait->named)
		pay_for(wait, cpu->cgroup, now);
	wait->due = is_due && wait->paid;
	wait->trusted = known.trusted && !wait->several;
	wait->believed = known.believed;
	if (wait->trusted && !wait->due) {
		wait->stack = known.stack;
		keep_at_hand(t, &known);
		return 1;
	}
	wait->expected = wait->several ? ANY_STACK : cached && cached->shed ? 0 : known.stack;
	t->memory_site = 0;
	t->memory_uses = 0;
	return 0;
}

/* The source of the stack of a wait. */
enum source {
	FROM_MEMORY,   /* the remembered stack */
	FROM_ESTIMATE, /* over the budget: a stack that agrees by its words, if there is one */
	FROM_RECIPE,   /* the stack that a recipe has proved; the kernel's part cannot be walked */
	FROM_WALK,     /* a recipe or a copy, with a walk of the kernel's part */
};

/*
 * Compares the words of the stack with the recipes, and decides where its stack comes from. A walk or copy is paid once
 * for each wait.
 */
static __noinline enum source decide_copied(struct task_struct *task, struct task *t, struct copied_wait *wait,
					    __u64 now)
{
	struct podperf_cpu *cpu = this_cpu();

	if (!t || !wait || !cpu)
		return FROM_ESTIMATE;
	wait->path = path_of(task, t->activity);
	/* Where the scheduler is not known, the kernel's part depends on the program that walks. */
	wait->kernel = schedule_begin ? UNKNOWN_PART : ANY_PART;
	wait->stack = prove(task, wait);
	wait->same_words = wait->stack == wait->expected;
	wait->by_words = false;
	if (wait->several) {
		wait->due = trust_frames(wait);
		if (wait->due)
			pay_for(wait, cpu->cgroup, now);
		wait->due = wait->due && wait->paid;
		if (wait->expected)
			wait->stack = wait->expected;
		if (wait->trusted && !wait->due)
			return FROM_MEMORY;
	}
	if ((wait->stack & 1) && !schedule_begin)
		return FROM_RECIPE;
	wait->by_words = (wait->stack & 1) || wait->stack == AMBIGUOUS;
	/* Waits that are believed stand for themselves, walked or not. */
	if (!wait->paid)
		pay_for(wait, cpu->cgroup, now);
	if (!wait->believed || !(wait->trusted || ((wait->stack & 1) && wait->same_words)))
		t->weight = wait->paid;
	return wait->paid ? FROM_WALK : FROM_ESTIMATE;
}

/* Counts a check, and remembers what a recipe has proved. Returns 1 if no recipe has: then the stack is copied. */
static __noinline int learn_copied(struct task_struct *task, struct task *t, struct copied_wait *wait)
{
	bool is_wrong;

	if (!t || !wait)
		return 0;
	is_wrong = wait->stack != wait->expected && (wait->stack || wait->by_words);
	count_check(wait, is_wrong);
	if (wait->named)
		forget_name(wait);
	if (!(wait->stack & 1)) {
		unlearn(wait, wait->expected && is_wrong);
		return 1;
	}
	t->stack = wait->stack;
	if (t->walked || !schedule_begin)
		learn_proved(wait, wait->stack, t->walked);
	if (shadow)
		confirm(task, wait, wait->stack);
	return 0;
}

/*
 * Finds the stack of `task`, which is current and goes to sleep, by recipes or by a copy. Fills the fields of `t` for
 * it. Until a remembered stack is trusted, and then at some uses, the kernel's part is walked and compared. If a call
 * site has had other user frames, these are compared at each use, and choose what is remembered. Over the budget, a
 * stack is used that agrees by its words, and other waits stand for the wait unless that stack was never wrong.
 */
static __noinline int stack_of_copied_wait(void *ctx, struct task_struct *task, struct task *t, __u64 now)
{
	__u32 zero = 0;
	struct copied_wait *wait = bpf_map_lookup_elem(&copied_wait, &zero);
	struct podperf_cpu *cpu = this_cpu();
	enum source source = FROM_MEMORY;

	if (!t || !wait || !cpu)
		return 0;
	cpu->waits++;
	t->walked = false;
	t->weight = 1;
	t->shadow = SHADOW_NONE;
	if (!find_copied(task, t, wait, now))
		source = decide_copied(task, t, wait, now);
	if (source == FROM_MEMORY) {
		t->stack = wait->stack;
		if (shadow)
			t->shadow = compare_by_recipe(ctx, task, t, wait, cpu);
		return 0;
	}
	if (source == FROM_ESTIMATE) {
		t->stack = wait->stack & 1 ? wait->stack : wait->site;
		return 0;
	}
	if (source == FROM_WALK) {
		t->walked = true;
		cpu->kernel_walks += wait->by_words;
		wait->kernel = kernel_part_of_wait(ctx);
		if (wait->by_words)
			wait->stack = prove(task, wait);
	}
	if (!learn_copied(task, t, wait))
		return 0;
	cpu->walks++;
	t->stack = copy_wait(task, wait);
	if (t->stack) {
		t->kernel_part = wait->kernel < UNKNOWN_PART ? wait->kernel : 0;
		return 0;
	}
	/* A walk by frame pointers finds less, but it finds the reason of the wait. */
	t->stack = walk_stack(ctx, true);
	if (wait->named && t->stack)
		send_site(wait->site, t->stack);
	return 0;
}

#endif
