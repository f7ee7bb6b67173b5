/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Call sites: where a program calls the kernel, and on which stack. The hash of the user registers at the kernel's
 * entry identifies a call site.
 */
#ifndef PODPERF_CALL_SITE_BPF_H
#define PODPERF_CALL_SITE_BPF_H

#include "copies.bpf.h"
#include "hash.h"
#include "kernel.h"
#include "podperf.h"
#include "walk.bpf.h"

/*
 * The system calls of epoll, and their fourth argument, the timeout. A wait without a timeout takes another path in the
 * kernel, which the other registers do not show: a runtime's poller uses one call site for both.
 */
#if defined(__TARGET_ARCH_x86)
#define IS_EPOLL(regs) ((regs)->orig_ax == 232 || (regs)->orig_ax == 281)
#define EPOLL_TIMEOUT(regs) ((__s32)(regs)->r10)
#elif defined(__TARGET_ARCH_arm64)
#define IS_EPOLL(regs) ((regs)->syscallno == 22)
#define EPOLL_TIMEOUT(regs) ((__s32)(regs)->regs[3])
#endif

/*
 * Registers that tell call sites apart. A function of arm64 that makes a system call may have its caller in x30 alone;
 * a walk by frame pointers does not look there.
 */
#if defined(__TARGET_ARCH_x86)
#define PC_OF(regs) (regs)->ip
#define FP_OF(regs) (regs)->bp
#define LINK_OF(regs) 0
#define CALL_OF(regs) (regs)->orig_ax
#elif defined(__TARGET_ARCH_arm64)
#define PC_OF(regs) (regs)->pc
#define FP_OF(regs) (regs)->regs[29]
#define LINK_OF(regs) (WITHOUT_SIGNATURE((regs)->regs[30]) << 16)
#define CALL_OF(regs) (regs)->syscallno
#endif

static __always_inline __u64 id_of_site(struct task_struct *task, struct pt_regs *regs, __u64 sp, __u64 fp, __u32 state)
{
	__u64 link = copies_enabled ? LINK_OF(regs) : 0;
	/*
	 * The id of a thread or process is used again later, and stays the same in exec: the first two words distinguish
	 * such tasks.
	 */
	__u64 words[PODPERF_SITE_WORDS] = {
	    task->start_time, task->self_exec_id, PC_OF(regs), sp, fp ^ link, CALL_OF(regs), state,
	};

	if (IS_EPOLL(regs))
		words[PODPERF_SITE_WORDS - 1] += (EPOLL_TIMEOUT(regs) < 0 ? 2 : 1) * PODPERF_ACTIVITIES;
	return hash_site(words, hash_key.sites);
}

/* Returns the id of the call site where `task`, which is current, sleeps. The id is even. */
static __always_inline __u64 site_of(struct task_struct *task, __u32 state)
{
	struct pt_regs *regs = (struct pt_regs *)bpf_task_pt_regs(task);

	return id_of_site(task, regs, regs->sp, FP_OF(regs), state);
}

/*
 * Returns the id of the path to the call site where `task`, which is current, sleeps. Threads of a process that came
 * the same way have the same path: their stack pointers differ by whole pages, and the distance to the frame pointer is
 * the same, if it points to the stack. Other ways may have the same path as well. The id is even. It is a function of
 * its own since the stack of all nested calls may have 512 bytes.
 */
static __noinline __u64 path_of(struct task_struct *task, __u32 state)
{
	struct pt_regs *regs = (struct pt_regs *)bpf_task_pt_regs(task);
	__u64 sp = regs->sp, fp = FP_OF(regs) - sp;

	return id_of_site(task->group_leader, regs, sp & (PODPERF_PAGE - 1), fp < STACK_SPAN ? fp : STACK_SPAN, state);
}

/* The same as `site_of`, as a function of its own: see `path_of`. */
static __noinline __u64 site_of_copied(struct task_struct *task, __u32 state)
{
	return site_of(task, state);
}

#endif
