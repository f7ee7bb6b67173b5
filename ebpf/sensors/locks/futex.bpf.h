/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Recognizes waits for locks of user space by the registers that the kernel saved at the entry of futex(2). README.md
 * lists the locks that are found. 32-bit programs are not found: their numbers of system calls are other ones.
 */
#ifndef PODPERF_LOCKS_FUTEX_BPF_H
#define PODPERF_LOCKS_FUTEX_BPF_H

#include "kernel.h"

#if defined(__TARGET_ARCH_x86)
#define IS_FUTEX(regs) ((regs)->orig_ax == 202)
#define FUTEX_WORD(regs) ((regs)->di)
#define FUTEX_OPERATION(regs) ((regs)->si)
#define FUTEX_VALUE(regs) ((__u32)(regs)->dx)
#elif defined(__TARGET_ARCH_arm64)
#define IS_FUTEX(regs) ((regs)->syscallno == 98)
#define FUTEX_WORD(regs) ((regs)->regs[0])
#define FUTEX_OPERATION(regs) ((regs)->regs[1])
#define FUTEX_VALUE(regs) ((__u32)(regs)->regs[2])
#endif

/* From include/uapi/linux/futex.h. */
#define FUTEX_WAIT 0
#define FUTEX_WAKE 1
#define FUTEX_LOCK_PI 6
#define FUTEX_UNLOCK_PI 7
#define FUTEX_WAIT_BITSET 9
#define FUTEX_WAKE_BITSET 10
#define FUTEX_LOCK_PI2 13
#define FUTEX_COMMAND(regs) (FUTEX_OPERATION(regs) & 127)

/* The largest value of a lock's word: "locked, and others wait". 1 is "locked", 0 is "free". */
#define LOCKED_WITH_WAITERS 2
/*
 * A word that is less than this above the stack pointer of the thread that waits is no lock. Condition variables of musl
 * wait with the value 2 at a word in the frame of the function that waits.
 */
#define OWN_FRAME_BYTES 1024

/* Returns true if a thread with these registers, which sleeps, waits for a lock, or for a word that looks like one. */
static __always_inline bool may_wait_for_lock(struct pt_regs *regs)
{
	__u32 command;

	if (!IS_FUTEX(regs))
		return false;
	command = FUTEX_COMMAND(regs);
	if (command == FUTEX_LOCK_PI || command == FUTEX_LOCK_PI2)
		return true;
	if (command != FUTEX_WAIT && command != FUTEX_WAIT_BITSET)
		return false;
	return FUTEX_VALUE(regs) == LOCKED_WITH_WAITERS && FUTEX_WORD(regs) - regs->sp >= OWN_FRAME_BYTES;
}

/*
 * Returns true if the current task, which has these registers, wakes a thread because it released a lock. The word of a
 * lock is then 0, or another thread has locked it. The counter of a condition variable or a barrier is larger than the
 * value with which the woken thread waited.
 */
static __always_inline bool releases_lock(struct pt_regs *regs)
{
	__u32 command, word;

	if (!IS_FUTEX(regs))
		return false;
	command = FUTEX_COMMAND(regs);
	if (command == FUTEX_UNLOCK_PI)
		return true;
	if (command != FUTEX_WAKE && command != FUTEX_WAKE_BITSET)
		return false;
	/* The address is of the waker's memory, which is the memory that is mapped now. */
	if (bpf_probe_read_user(&word, sizeof(word), (void *)FUTEX_WORD(regs)))
		return true;
	return word <= LOCKED_WITH_WAITERS;
}

#endif
