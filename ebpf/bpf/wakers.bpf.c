// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * The waker sensor: finds the waker that ends a wait, and checks the cached stack of the sleeper. A wake-up runs in the
 * context of its waker. In an interrupt that context is the interrupted task, which is not the waker: the frames of the
 * kernel's stack show the interrupt.
 */
#include "budget.bpf.h"
#include "cgroup.bpf.h"
#include "cpu.bpf.h"
#include "handover.bpf.h"
#include "kernel.h"
#include "podperf.h"
#include "tasks.bpf.h"
#include "waits.bpf.h"
#include "walk.bpf.h"

/* The length from which waits get their waker, in nanoseconds. */
const volatile __u64 waker_after_ns = 0;
/* True if wakers get their stack, too. */
const volatile bool waker_stacks = false;
/* The address range of the kernel's entries of interrupts; 0: unknown. */
const volatile __u64 irq_text_begin = 0;
const volatile __u64 irq_text_end = 0;

/* The largest number of frames that are searched for the entry of an interrupt. An entry below them is not found. */
#define WAKER_FRAMES 48

/*
 * Returns true if `task`, which is current, certainly runs for itself: on its own kernel stack, where `ctx` lies, and
 * in a system call or as a kernel thread. Interrupts of the kernel have a stack of their own, and interrupts of user
 * space leave no number of a system call.
 */
static __always_inline bool in_system_call(void *ctx, struct task_struct *task)
{
	struct pt_regs *regs = (struct pt_regs *)bpf_task_pt_regs(task);

	if (!is_on_stack_of(task, ctx))
		return false;
	if (task->flags & PF_KTHREAD)
		return true;
#if defined(__TARGET_ARCH_x86)
	return (__s64)regs->orig_ax >= 0;
#elif defined(__TARGET_ARCH_arm64)
	return (__s32)regs->syscallno >= 0;
#endif
}

static __always_inline bool in_interrupt(void *ctx, struct podperf_stack *stack)
{
	__s64 bytes = bpf_get_stack(ctx, stack->frames, WAKER_FRAMES * sizeof(__u64), 0);

	for (__u32 i = 0; i < WAKER_FRAMES; i++) {
		if ((__s64)(i * sizeof(__u64)) >= bytes)
			break;
		if (stack->frames[i] >= irq_text_begin && stack->frames[i] < irq_text_end)
			return true;
	}
	return false;
}

/*
 * Returns the id of the waker: the current task or an interrupt. Sends the waker if it is new. Returns 0 if the budget
 * of walks does not allow to find the waker.
 */
static __noinline __u64 waker(void *ctx, __u64 now)
{
	struct task_struct *current = bpf_get_current_task_btf();
	struct podperf_waker record = {.record = PODPERF_RECORD_WAKER};
	__u32 zero = 0;
	struct podperf_stack *stack = bpf_map_lookup_elem(&walk_buffer, &zero);
	__u32 *comm;

	if (!stack)
		return 0;
	/* The idle task wakes no task itself: an interrupt does. */
	if (current->pid) {
		record.cgroup = cgroup_id(current);
		if (!in_system_call(ctx, current)) {
			if (!may_walk(record.cgroup, now))
				return 0;
			if (in_interrupt(ctx, stack))
				record.cgroup = 0;
		}
	}
	if (record.cgroup) {
		record.tgid = current->tgid;
		bpf_get_current_comm(record.comm, sizeof(record.comm));
		if (waker_stacks && may_walk(record.cgroup, now))
			record.stack = walk_stack(ctx, false);
	}
	/* The name is hashed in 32-bit words, since any bytes may be in it: see hash_word. */
	comm = (__u32 *)record.comm;
	record.id = hash_word(1, record.cgroup, hash_key.point);
	record.id = hash_word(record.id, record.stack, hash_key.point);
	record.id = hash_word(record.id, record.tgid, hash_key.point);
#pragma unroll
	for (int i = 0; i < PODPERF_COMM_MAX / 4; i++)
		record.id = hash_word(record.id, comm[i], hash_key.point);
	record.id = hash_id(record.id);
	send_once(record.id, &record, sizeof(record));
	return record.id;
}

SEC("tp_btf/sched_waking")
int BPF_PROG(sched_waking, struct task_struct *task)
{
	struct podperf_cpu *cpu = this_cpu();
	struct podperf_stack *stack;
	struct task *t;
	__u64 began, now, since_ns;
	__u32 zero = 0;

	if (!cpu || !counts())
		return 0;
	began = begin_run(cpu, PODPERF_PROGRAM_SCHED_WAKING);
	t = bpf_task_storage_get(&tasks, task, NULL, 0);
	if (t && t->left_ns && t->in_profile) {
		now = bpf_ktime_get_ns();
		since_ns = began_of(t, t->left_ns);
		if (now - since_ns >= waker_after_ns) {
			if (!is_shed(PODPERF_SHED_WAIT_STACKS))
				t->waker = waker(ctx, now);
			/* The task sleeps until this is done. */
			stack = bpf_map_lookup_elem(&walk_buffer, &zero);
			if (stack && needs_a_look(t, since_ns) && may_walk(t->cgroup, now)) {
				t->seen_stack = look_at(task, stack);
				t->seen_of = t->seen_stack ? since_ns : 0;
			}
		}
	}
	end_run(cpu, PODPERF_PROGRAM_SCHED_WAKING, began);
	return 0;
}
