// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Charges the time of interrupts to the cgroup of the thread that they interrupt, and counts them for the node. Hard
 * interrupts come within soft ones. The handler of a hard interrupt may call those of further ones, whose time is a part
 * of its own. So each kind has one writer on each CPU, and needs no atomic addition.
 *
 * A hard interrupt may come while another program runs, but not while that program holds the lock of a map: the kernel
 * takes these locks with interrupts off. On arm64 with pseudo-NMIs the interrupt of the PMU may come even then. There
 * the kernel does not run a program that it has interrupted, and returns an error instead of waiting for a lock that
 * this CPU holds. Tables with preallocated entries allow this.
 */
#include "cgroup.bpf.h"
#include "control.bpf.h"
#include "interrupts.bpf.h"
#include "kernel.h"

/* The programs in the order of sensor.rs. */
enum interrupts_program {
	INTERRUPTS_IRQ_EXIT,
	INTERRUPTS_IRQ_ENTRY,
	INTERRUPTS_SOFTIRQ_EXIT,
	INTERRUPTS_SOFTIRQ_ENTRY,
	INTERRUPTS_PROGRAMS,
};

SENSOR_PROGRAMS(interrupts, INTERRUPTS_PROGRAMS)

/* The words of `struct podperf_interrupt_kinds`. */
#define INTERRUPT_KINDS (sizeof(struct podperf_interrupt_kinds) / sizeof(__u64))
#define HARD_INTERRUPT 0
/* The word of the soft interrupt with vector 0. */
#define FIRST_SOFT_INTERRUPT 1

_Static_assert(INTERRUPT_KINDS <= 16, "the mask");

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

/* Only kernels with PREEMPT_RT have this field. There, threads run soft interrupts, and may lose the CPU in them. */
struct task_struct___rt {
	int softirq_disable_cnt;
};

struct irqaction {
	const char *name;
};

#pragma clang attribute pop

/* A hard interrupt that began longer ago has ended, and its end was not seen. */
#define LONGEST_HARD_NS 1000000000ULL

/* The interrupts of a CPU. */
struct interrupts_now {
	__u64 hard;          /* the number of the hard interrupt plus 1; 0: there is none, or its begin was not seen */
	__u64 hard_since_ns; /* the begin of the hard interrupt */
	__u64 hard_ns;       /* the time of all hard interrupts that ended */
	__u64 soft_since_ns; /* the begin of the soft interrupt, by `outside_hard_ns`; 0: as above */
};

/* 0 -> the interrupts of this CPU. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct interrupts_now);
} interrupts_now SEC(".maps");

/* A handler -> its interrupts on this CPU. An entry stays, so that its counts never fall. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_HASH);
	__uint(max_entries, 1);
	__type(key, struct podperf_interrupt_handler);
	__type(value, struct podperf_hard_interrupts);
} interrupts_named SEC(".maps");

/* 0 -> the interrupts on this CPU of handlers without an entry. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct podperf_hard_interrupts);
} interrupts_unnamed SEC(".maps");

static __always_inline volatile struct interrupts_now *interrupts_of_cpu(void)
{
	__u32 key = 0;

	return bpf_map_lookup_elem(&interrupts_now, &key);
}

/*
 * Returns the time by a clock that stands still in hard interrupts, which are no part of the soft interrupt that they
 * interrupt. If one comes between the two reads, they are repeated.
 */
static __always_inline __u64 outside_hard_ns(volatile struct interrupts_now *now)
{
	__u64 hard_ns = now->hard_ns, at = bpf_ktime_get_ns();

	if (now->hard_ns != hard_ns) {
		hard_ns = now->hard_ns;
		at = bpf_ktime_get_ns();
	}
	return at - hard_ns;
}

static __always_inline void add_to_kind(struct podperf_interrupt_kinds *kinds, __u32 kind, __u64 more)
{
	__u64 at = kind;

	/* The mask is in assembly, because the compiler would remove it. It bounds the index for the verifier. */
	asm volatile("%0 &= 15" : "+r"(at));
	if (at < INTERRUPT_KINDS)
		(&kinds->hardirq)[at] += more;
}

/*
 * Charges an interrupt to the cgroup of the current task, also if that is `ksoftirqd`, and to the node. Its stack is not
 * part of its caller's.
 */
static __noinline int charge_interrupt(__u32 kind, __u64 ns)
{
	struct task_struct *current = bpf_get_current_task_btf();
	struct podperf_interrupts *row;

	row = interrupts_row(current->pid ? cgroup_id(current) : PODPERF_IDLE);
	if (row)
		add_to_kind(&row->taken, kind, ns);
	row = interrupts_row(PODPERF_IDLE);
	if (row) {
		add_to_kind(&row->node, kind, ns);
		add_to_kind(&row->counted, kind, 1);
	}
	return 0;
}

/* Makes the entry of a handler. Its stack is not part of its caller's. */
static __noinline int add_handler(__u64 name, __u64 irq)
{
	struct podperf_interrupt_handler handler = {.name = name, .irq = irq};
	struct podperf_hard_interrupts first = {};

	/* A name that cannot be read stays empty. */
	bpf_probe_read_kernel_str(first.name, sizeof(first.name), (const void *)name);
	bpf_map_update_elem(&interrupts_named, &handler, &first, BPF_NOEXIST);
	return 0;
}

/*
 * Counts a hard interrupt for its handler. The key is the address of the name, since to read the name each time would
 * cost more than all else here.
 */
static __noinline int count_by_handler(__u64 name, __u64 irq, __u64 ns)
{
	struct podperf_interrupt_handler handler = {.name = name, .irq = irq};
	struct podperf_hard_interrupts *sums = bpf_map_lookup_elem(&interrupts_named, &handler), *others;
	__u32 key = 0;

	if (!sums) {
		others = bpf_map_lookup_elem(&interrupts_unnamed, &key);
		/* Once there was no room, this CPU does not search for room again: entries stay. */
		if (others && !others->count) {
			add_handler(name, irq);
			sums = bpf_map_lookup_elem(&interrupts_named, &handler);
		}
		if (!sums)
			sums = others;
	}
	if (sums) {
		sums->count++;
		sums->ns += ns;
	}
	return 0;
}

SEC("tp_btf/irq_handler_entry")
int BPF_PROG(interrupts_irq_entry, int irq)
{
	struct podperf_runs *account = interrupts_account(INTERRUPTS_IRQ_ENTRY);
	volatile struct interrupts_now *now = interrupts_of_cpu();
	__u64 hard = (__u32)irq + 1ULL, began, at;

	/* While sensors are shed, no interrupt begins. */
	if (!account || !now || is_shed(PODPERF_SHED_SENSORS))
		return 0;
	began = begin_own_run(account);
	at = bpf_ktime_get_ns();
	/* Else this handler was called by that of another interrupt. No interrupt comes within one of the same number. */
	if (!now->hard || now->hard == hard || at - now->hard_since_ns > LONGEST_HARD_NS) {
		now->hard_since_ns = at;
		now->hard = hard;
	}
	end_own_run(account, began);
	return 0;
}

SEC("tp_btf/irq_handler_exit")
int BPF_PROG(interrupts_irq_exit, int irq, struct irqaction *action)
{
	struct podperf_runs *account = interrupts_account(INTERRUPTS_IRQ_EXIT);
	volatile struct interrupts_now *now = interrupts_of_cpu();
	__u64 hard = (__u32)irq + 1ULL, began, ns;

	if (!account || !now || now->hard != hard)
		return 0;
	began = begin_own_run(account);
	ns = bpf_ktime_get_ns() - now->hard_since_ns;
	now->hard = 0;
	now->hard_ns += ns;
	charge_interrupt(HARD_INTERRUPT, ns);
	count_by_handler((__u64)action->name, (__u32)irq, ns);
	end_own_run(account, began);
	return 0;
}

SEC("tp_btf/softirq_entry")
int interrupts_softirq_entry(void *ctx)
{
	struct podperf_runs *account = interrupts_account(INTERRUPTS_SOFTIRQ_ENTRY);
	volatile struct interrupts_now *now = interrupts_of_cpu();
	__u64 began;

	if (!account || !now || is_shed(PODPERF_SHED_SENSORS))
		return 0;
	if (bpf_core_field_exists(struct task_struct___rt, softirq_disable_cnt))
		return 0;
	began = begin_own_run(account);
	now->soft_since_ns = outside_hard_ns(now);
	end_own_run(account, began);
	return 0;
}

SEC("tp_btf/softirq_exit")
int BPF_PROG(interrupts_softirq_exit, unsigned int vector)
{
	struct podperf_runs *account = interrupts_account(INTERRUPTS_SOFTIRQ_EXIT);
	volatile struct interrupts_now *now = interrupts_of_cpu();
	__u64 began, since_ns;
	__s64 ns;

	if (!account || !now || !now->soft_since_ns)
		return 0;
	began = begin_own_run(account);
	since_ns = now->soft_since_ns;
	ns = outside_hard_ns(now) - since_ns;
	now->soft_since_ns = 0;
	/* Two hard interrupts at the wrong moments of one read of the clock may make the time negative. */
	charge_interrupt(FIRST_SOFT_INTERRUPT + vector, ns > 0 ? ns : 0);
	end_own_run(account, began);
	return 0;
}
