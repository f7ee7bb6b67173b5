// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * The waker sensor: who ends a wait. A wake-up runs in the context of who makes it. In an interrupt that is whoever was
 * interrupted, who has nothing to do with it: the frames of the kernel's stack tell.
 */
#include "cgroup.bpf.h"
#include "cpu.bpf.h"
#include "kernel.h"
#include "podperf.h"
#include "tasks.bpf.h"
#include "walk.bpf.h"

/* Waits at least this long get their waker. */
const volatile __u64 waker_after_ns = 0;
/* Where the kernel's entries of interrupts are; 0: not known. */
const volatile __u64 irq_text_begin = 0;
const volatile __u64 irq_text_end = 0;

/* An interrupt is entered below what it does: deeper stacks are taken for no interrupt's. */
#define WAKER_FRAMES 48

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

/* The id of who wakes, who is current; sent when it is new. */
static __noinline __u64 waker(void *ctx)
{
	struct task_struct *current = bpf_get_current_task_btf();
	struct podperf_waker record = {.record = PODPERF_RECORD_WAKER};
	__u32 zero = 0;
	struct podperf_stack *stack = bpf_map_lookup_elem(&walk_buffer, &zero);

	if (!stack)
		return 0;
	/* The idle task wakes nobody of its own accord. */
	if (current->pid && !in_interrupt(ctx, stack)) {
		record.tgid = current->tgid;
		record.cgroup = cgroup_id(current);
		bpf_get_current_comm(record.comm, sizeof(record.comm));
	}
	record.id = mix(mix(record.cgroup, record.tgid), *(__u64 *)record.comm);
	record.id = mix(record.id, *(__u64 *)(record.comm + 8)) | 1;
	send_once(record.id, &record, sizeof(record));
	return record.id;
}

SEC("tp_btf/sched_waking")
int BPF_PROG(sched_waking, struct task_struct *task)
{
	struct podperf_cpu *cpu = this_cpu();
	struct task *t;
	__u64 began;

	if (!cpu)
		return 0;
	began = begin_run(cpu, PODPERF_PROGRAM_WAKING);
	t = bpf_task_storage_get(&tasks, task, NULL, 0);
	if (t && t->left_ns && t->in_profile && bpf_ktime_get_ns() - t->left_ns >= waker_after_ns)
		t->waker = waker(ctx);
	end_run(cpu, PODPERF_PROGRAM_WAKING, began);
	return 0;
}
