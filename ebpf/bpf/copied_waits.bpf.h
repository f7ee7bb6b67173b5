/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The stacks of waits if user stacks are copied for the agent. The stack cache works as it does with walks, but a check
 * proves the user frames by a recipe and walks the kernel's part. At a call site that has had several stacks, a recipe
 * then proves the user frames at each use. A stack that no recipe proves is copied.
 */
#ifndef PODPERF_COPIED_WAITS_BPF_H
#define PODPERF_COPIED_WAITS_BPF_H

#include "copies.bpf.h"
#include "memo.bpf.h"

/*
 * Notes that the current task waits at `place` on `stack`, which a recipe has just proved. `by_kernel` is set if the
 * kernel's part was compared, and `same_words` if the words of the remembered stack agree. Like `place_of`, it is a function
 * of its own since the stack of all nested calls may have 512 bytes.
 */
static __noinline int remember(__u64 place, __u64 stack, bool by_kernel, bool same_words)
{
	struct memo fresh = {.stack = stack}, *memo = bpf_map_lookup_elem(&stack_memo, &place);

	if (!memo) {
		if (bpf_map_update_elem(&stack_memo, &place, &fresh, BPF_ANY))
			drop(PODPERF_DROP_STACK_MEMO);
		return 0;
	}
	if (memo->named)
		send_place(place, stack);
	memo->named = 0;
	if (memo->stack == stack) {
		memo->cut = 0;
		memo->agreed += by_kernel;
		return 0;
	}
	if (memo->stack && !memo->cut) {
		memo->wrong += same_words;
		memo->several |= !same_words;
	}
	memo->cut = 0;
	memo->stack = stack;
	memo->agreed = 0;
	return 0;
}

/* Sends a copy of the stack of `task`, which goes to sleep at `place`. Returns the id of the copy or of a stack. */
static __noinline __u64 copy_wait(void *ctx, struct task_struct *task, __u64 place, __u64 path, bool is_named)
{
	__u32 zero = 0, cpu = bpf_get_smp_processor_id();
	struct podperf_copy *copy = bpf_map_lookup_elem(&copy_buffer, &cpu);
	struct podperf_copy_pages *wanted = bpf_map_lookup_elem(&copy_pages, &path);
	struct podperf_stack *stack;
	__s64 bytes;
	__u64 id;

	if (!copy)
		return 0;
	copy->at_ns = bpf_ktime_get_ns();
	copy->key.stack = copy_id(copy->at_ns);
	copy->key.tgid = task->tgid;
	copy->place = place;
	copy->path = path;
	copy->is_named = is_named;
	copy->kernel = kernel_part(ctx);
	if (send_copy(task, copy, wanted))
		return copy->key.stack;
	/* Without its user frames, the stack still has the reason of the wait. */
	stack = bpf_map_lookup_elem(&walk_buffer, &zero);
	bytes = stack ? walk_kernel(ctx, stack, 0, true) : 0;
	id = bytes > 0 ? take_stack(stack, 0, bytes, task->tgid, true) : 0;
	if (is_named && id)
		send_place(place, id);
	return id;
}

/* Compares a remembered stack with the one that a recipe proves, for shadow mode. Without a recipe there is no answer. */
static __noinline int compare_by_recipe(void *ctx, struct task_struct *task, struct task *t, struct podperf_cpu *cpu)
{
	__u64 sp = ((struct pt_regs *)bpf_task_pt_regs(task))->sp, path = path_of(task, t->activity);
	__u64 kernel = schedule_begin ? kernel_part(ctx) : ANY_PART, stack;

	stack = stack_by_recipe(path, sp, t->stack, kernel);
	return stack ? compare(cpu, stack == t->stack) : SHADOW_NONE;
}

/*
 * Finds the stack of `task`, which is current and goes to sleep, by recipes or by a copy. Fills the fields of `t` for
 * it. Until a remembered stack is trusted, and then at some uses, the kernel's part is walked and compared. If a call site
 * has had other user frames, these are compared at each use.
 */
static __noinline int stack_of_copied_wait(void *ctx, struct task_struct *task, struct task *t, __u64 now)
{
	__u64 place, path, sp = ((struct pt_regs *)bpf_task_pt_regs(task))->sp, stack, remembered = 0;
	struct podperf_cpu *cpu = this_cpu();
	__u32 check_every = CHECK_EVERY, needed, trusted_for;
	bool trusted = false, is_due = false, several = false, same_words, other_kernel = false, is_named;
	struct memo *memo;

	if (!t || !cpu)
		return 0;
	place = place_of(task, t->activity);
	cpu->waits++;
	t->walked = false;
	t->weight = 1;
	t->shadow = SHADOW_NONE;
	if (t->memory_place == place && t->memory_uses) {
		t->memory_uses--;
		t->stack = t->memory_stack;
		if (shadow)
			t->shadow = compare_by_recipe(ctx, task, t, cpu);
		return 0;
	}
	memo = bpf_map_lookup_elem(&stack_memo, &place);
	if (memo && memo->stack && !memo->cut) {
		remembered = memo->stack;
		several = memo->several;
		needed = TRUSTED_AFTER << (memo->wrong < MAX_DOUBLINGS ? memo->wrong : MAX_DOUBLINGS);
		trusted = memo->agreed >= needed;
		trusted_for = memo->agreed - needed;
	}
	if (trusted) {
		if (trusted_for < CHECK_DOUBLINGS)
			check_every >>= CHECK_DOUBLINGS - trusted_for;
		memo->uses += t->memory_place == place ? MEMORY_USES : 1;
		is_due = memo->uses >= check_every;
		if (is_due)
			memo->uses = 0;
	}
	if (trusted && !is_due && !several) {
		t->stack = remembered;
		if (check_every == CHECK_EVERY) {
			t->memory_place = place;
			t->memory_stack = remembered;
			t->memory_uses = MEMORY_USES - 1;
		}
		if (shadow)
			t->shadow = compare_by_recipe(ctx, task, t, cpu);
		return 0;
	}
	t->memory_place = 0;
	t->memory_uses = 0;
	path = path_of(task, t->activity);
	stack = stack_by_recipe(path, sp, remembered, ANY_PART);
	same_words = stack == remembered;
	/* Where the scheduler is not known, the kernel's part depends on the program that walks. */
	if ((stack & 1) && (!trusted || is_due || !same_words) && schedule_begin) {
		t->walked = true;
		stack = stack_by_recipe(path, sp, remembered, kernel_part(ctx));
		other_kernel = !(stack & 1);
	}
	if (is_due && !several) {
		cpu->checks++;
		cpu->checks_wrong += other_kernel || (stack && stack != remembered);
	}
	if (stack & 1) {
		t->stack = stack;
		remember(place, stack, t->walked, same_words);
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
		t->stack = place;
		t->walked = false;
		return 0;
	}
	cpu->walks++;
	t->walked = true;
	t->stack = copy_wait(ctx, task, place, path, is_named);
	if (memo) {
		memo->named = 0;
		memo->agreed = 0;
	}
	return 0;
}

#endif
