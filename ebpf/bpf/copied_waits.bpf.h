/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The stacks of waits if user stacks are copied for the agent. The stack cache works as it does with walks, but a check
 * proves the user frames by a recipe and walks the kernel's part. At a call site that has had several stacks, a recipe
 * proves the user frames at each use. Without a recipe, the stack is copied.
 *
 * The functions are not inlined, since the stack of all nested calls may have 512 bytes.
 */
#ifndef PODPERF_COPIED_WAITS_BPF_H
#define PODPERF_COPIED_WAITS_BPF_H

#include "memo.bpf.h"

/*
 * Remembers that the current task waits at `site` on `stack`, which a recipe has just proved. `by_kernel` is set if the
 * kernel's part was compared, and `same_words` if the words of the remembered stack agree.
 */
static __noinline int learn_proved(__u64 site, __u64 stack, bool by_kernel, bool same_words)
{
	struct memo fresh = {.stack = stack}, *memo = bpf_map_lookup_elem(&stack_memo, &site);

	if (!memo) {
		if (bpf_map_update_elem(&stack_memo, &site, &fresh, BPF_ANY))
			drop(PODPERF_DROP_STACK_MEMO);
		return 0;
	}
	if (memo->named)
		send_site(site, stack);
	memo->named = 0;
	if (memo->stack == stack) {
		memo->shed = 0;
		memo->agreed += by_kernel;
		return 0;
	}
	if (memo->stack && !memo->shed) {
		memo->wrong += same_words;
		memo->several |= !same_words;
	}
	memo->shed = 0;
	memo->stack = stack;
	memo->agreed = 0;
	return 0;
}

static __noinline __u64 kernel_part_of_wait(void *ctx, bool cut)
{
	__u32 zero = 0;
	struct podperf_stack *stack = bpf_map_lookup_elem(&walk_buffer, &zero);

	return stack ? kernel_part(ctx, stack, true, cut) : 0;
}

/*
 * Sends a copy of the stack of `task`, which goes to sleep at `site`. Returns the id of the copy, or 0 if it could not
 * be sent.
 */
static __noinline __u64 copy_wait(struct task_struct *task, __u64 site, __u64 path, __u64 kernel, bool is_named)
{
	__u32 cpu = bpf_get_smp_processor_id();
	struct podperf_copy *copy = bpf_map_lookup_elem(&copy_buffer, &cpu);
	struct podperf_copy_pages *wanted = bpf_map_lookup_elem(&copy_pages, &path);

	if (!copy)
		return 0;
	copy->at_ns = bpf_ktime_get_ns();
	copy->key.stack = copy_id(copy->at_ns);
	copy->key.tgid = task->tgid;
	copy->site = site;
	copy->path = path;
	copy->is_named = is_named;
	copy->kernel = kernel;
	return send_copy(task, copy, wanted) ? copy->key.stack : 0;
}

/* Compares a remembered stack with the one that a recipe proves, for shadow mode. Without a recipe there is no answer. */
static __noinline int compare_by_recipe(void *ctx, struct task_struct *task, struct task *t, struct podperf_cpu *cpu)
{
	__u64 sp = ((struct pt_regs *)bpf_task_pt_regs(task))->sp, path = path_of(task, t->activity);
	__u64 kernel = schedule_begin ? kernel_part_of_wait(ctx, false) : ANY_PART, stack;

	stack = stack_by_recipe(path, sp, t->stack, kernel);
	return stack ? compare(cpu, stack == t->stack) : SHADOW_NONE;
}

/*
 * Finds the stack of `task`, which is current and goes to sleep, by recipes or by a copy. Fills the fields of `t` for
 * it. Until a remembered stack is trusted, and then at some uses, the kernel's part is walked and compared, if the
 * budget allows it. If a call site has had other user frames, these are compared at each use.
 */
static __noinline int stack_of_copied_wait(void *ctx, struct task_struct *task, struct task *t, __u64 now)
{
	__u64 path, sp = ((struct pt_regs *)bpf_task_pt_regs(task))->sp, stack;
	struct podperf_cpu *cpu = this_cpu();
	struct remembered known;
	bool is_due = false, several, same_words, other_kernel = false, is_named;
	struct memo *memo;

	if (!t || !cpu)
		return 0;
	known = find(t, site_of_copied(task, t->activity), 0);
	memo = known.memo;
	if (memo && memo->shed)
		known.stack = 0;
	cpu->waits++;
	t->walked = false;
	t->weight = 1;
	t->shadow = SHADOW_NONE;
	several = memo && memo->several;
	if (memo && known.trusted)
		is_due = memo->uses >= known.check_every;
	if (known.trusted && !is_due && !several) {
		t->stack = known.stack;
		keep_at_hand(t, &known);
		if (shadow)
			t->shadow = compare_by_recipe(ctx, task, t, cpu);
		return 0;
	}
	t->memory_site = 0;
	t->memory_uses = 0;
	path = path_of(task, t->activity);
	stack = stack_by_recipe(path, sp, known.stack, ANY_PART);
	same_words = stack == known.stack;
	/*
	 * Where the scheduler is not known, the kernel's part depends on the program that walks. Over the budget, the
	 * kernel's part is believed, and this use does not count as an agreement.
	 */
	if ((stack & 1) && (!known.trusted || is_due || !same_words) && schedule_begin &&
	    ((memo && memo->named) || may_walk(cpu->cgroup, now))) {
		t->walked = true;
		stack = stack_by_recipe(path, sp, known.stack, kernel_part_of_wait(ctx, false));
		other_kernel = !(stack & 1);
	}
	if (memo && is_due && (t->walked || !(stack & 1) || !schedule_begin)) {
		memo->uses = 0;
		if (!several) {
			cpu->checks++;
			cpu->checks_wrong += other_kernel || (stack && stack != known.stack);
		}
	}
	if (stack & 1) {
		t->stack = stack;
		learn_proved(known.site, stack, t->walked, same_words);
		return 0;
	}
	/* What was remembered is wrong, also if the budget has no copy left. */
	if (memo && (stack || other_kernel)) {
		memo->several |= !same_words;
		memo->wrong += same_words;
		memo->stack = 0;
		memo->agreed = 0;
	}
	is_named = memo && memo->named;
	if (!is_named)
		t->weight = may_walk(cpu->cgroup, now);
	if (!t->weight) {
		t->stack = known.site;
		t->walked = false;
		return 0;
	}
	cpu->walks++;
	t->walked = true;
	t->stack = copy_wait(task, known.site, path, kernel_part_of_wait(ctx, false), is_named);
	if (!t->stack) {
		/* Without its user frames, the stack still has the reason of the wait. */
		t->stack = kernel_part_of_wait(ctx, true);
		if (is_named && t->stack)
			send_site(known.site, t->stack);
	}
	if (memo) {
		memo->named = 0;
		memo->agreed = 0;
	}
	return 0;
}

#endif
