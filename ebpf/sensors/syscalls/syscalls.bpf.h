/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Adds each wait to the system call in which the thread waited. There is no hook at system calls: the kernel keeps the
 * number of the call in the registers that it saved at the entry.
 */
#ifndef PODPERF_SYSCALLS_BPF_H
#define PODPERF_SYSCALLS_BPF_H

#include "kernel.h"
#include "sensor.bpf.h"
#include "syscalls.h"
#include "tasks.bpf.h"

SENSOR(syscalls)

#define CALL_VALUE(name, x86, arm64) CALL_##name,

/* The words of a row, in their order. */
enum call {
	CALL_OTHER,
	CALL_NONE,
	PODPERF_CALLS_OF_BOTH(CALL_VALUE) PODPERF_CALLS_OF_X86(CALL_VALUE) CALLS,
};
_Static_assert(CALLS <= 128, "the mask");
_Static_assert(sizeof(struct podperf_syscalls) ==
		   __builtin_offsetof(struct podperf_syscalls, other) + CALLS * sizeof(__u64),
	       "the order of enum call");

/* Numbers from here on are "other". */
#define CALL_NUMBERS 512

#if defined(__TARGET_ARCH_x86)
#define CALL_PLACE(name, x86, arm64) [x86] = CALL_##name,
#define CALL_HERE(name, x86, arm64) CALL_NUMBER_##name = x86,
#define CALLS_HERE PODPERF_CALLS_OF_BOTH(CALL_PLACE) PODPERF_CALLS_OF_X86(CALL_PLACE)
#define CALL_NUMBER(regs) ((__s64)(regs)->orig_ax)
#elif defined(__TARGET_ARCH_arm64)
#define CALL_PLACE(name, x86, arm64) [arm64] = CALL_##name,
#define CALL_HERE(name, x86, arm64) CALL_NUMBER_##name = arm64,
#define CALLS_HERE PODPERF_CALLS_OF_BOTH(CALL_PLACE)
#define CALL_NUMBER(regs) ((__s64)(regs)->syscallno)
#endif

/* The numbers of system calls that both architectures have. */
enum call_number { PODPERF_CALLS_OF_BOTH(CALL_HERE) };

/* The number of a system call -> enum call. */
const volatile __u8 call_places[CALL_NUMBERS] = {CALLS_HERE};

/* Returns the system call, enum call, in which `task` sleeps. */
static __always_inline __u8 call_of(struct task_struct *task)
{
	struct pt_regs *regs = (struct pt_regs *)bpf_task_pt_regs(task);
	__s64 number = CALL_NUMBER(regs);

	if ((task->flags & PF_OF_KERNEL) || number < 0)
		return CALL_NONE;
	if (number >= CALL_NUMBERS || !is_64(regs))
		return CALL_OTHER;
	return call_places[number];
}

#endif
