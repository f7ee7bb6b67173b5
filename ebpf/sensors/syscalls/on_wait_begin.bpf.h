/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Notes the system call in which a task falls asleep. */
#ifndef PODPERF_SYSCALLS_ON_WAIT_BEGIN_BPF_H
#define PODPERF_SYSCALLS_ON_WAIT_BEGIN_BPF_H

#include "syscalls/syscalls.bpf.h"

static __always_inline void syscalls_on_wait_begin(struct task_struct *task, struct task *t)
{
	if (t->activity < PODPERF_RUN_QUEUE)
		t->call = call_of(task);
}

#endif
