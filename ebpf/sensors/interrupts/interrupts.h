/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#ifndef PODPERF_INTERRUPTS_H
#define PODPERF_INTERRUPTS_H

#include "podperf.h"

/* The number of handlers that are told apart, and the room for a name with its end. */
#define PODPERF_INTERRUPT_HANDLERS 256
#define PODPERF_INTERRUPT_NAME 32

/* A number of each kind of interrupts. Soft interrupts are in the order of the kernel's vectors. */
struct podperf_interrupt_kinds {
	__u64 hardirq; /* written by `interrupts_irq_exit`, without the soft interrupts after it */
	__u64 hi;      /* from here on: written by `interrupts_softirq_exit`, without the hard interrupts within */
	__u64 timer;
	__u64 net_tx;
	__u64 net_rx;
	__u64 block;
	__u64 irq_poll;
	__u64 tasklet;
	__u64 sched;
	__u64 hrtimer;
	__u64 rcu;
};

/* Value of `interrupts_rows` and `interrupts_rows_by_id`. */
struct podperf_interrupts {
	__u64 id;                             /* id of the cgroup; 0: the row is free */
	struct podperf_interrupt_kinds taken; /* nanoseconds, from the threads of the cgroup, or from idle */
	/* In the row of the idle task: all interrupts of this CPU; else 0. */
	struct podperf_interrupt_kinds node;    /* nanoseconds */
	struct podperf_interrupt_kinds counted; /* number */
};

/* Key of `interrupts_named`: the handler of a hard interrupt. */
struct podperf_interrupt_handler {
	__u64 name; /* address of its name */
	__u64 irq;  /* number of the interrupt */
};

/* Value of `interrupts_named`, and of `interrupts_unnamed` for all handlers without an entry there. */
struct podperf_hard_interrupts {
	__u8 name[PODPERF_INTERRUPT_NAME]; /* on the CPU that made the entry; else empty */
	__u64 count;                       /* number of interrupts; as above: written by `interrupts_irq_exit` */
	__u64 ns;                          /* time in them */
};

#endif
