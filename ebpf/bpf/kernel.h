/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The kernel's types, reduced to the fields that the programs read. CO-RE relocates each access to the running kernel,
 * so the order and size of fields have no meaning here. The types are those of Linux 5.15 and later.
 */
#ifndef PODPERF_KERNEL_H
#define PODPERF_KERNEL_H

#include <linux/bpf.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

typedef _Bool bool;
#define true 1
#define false 0

/* From include/linux/sched.h; the same on every kernel since 5.15. */
#define TASK_INTERRUPTIBLE 0x0001
#define TASK_UNINTERRUPTIBLE 0x0002
#define TASK_DEAD 0x0080
#define TASK_WAKING 0x0200
#define TASK_NOLOAD 0x0400
#define TASK_NEW 0x0800
#define TASK_RTLOCK_WAIT 0x1000
#define PF_IO_WORKER 0x00000010
#define PF_USER_WORKER 0x00004000
#define PF_KTHREAD 0x00200000
/* Threads of the kernel. A kernel thread inside a process (io_uring, vhost) has the registers of its creator. */
#define PF_OF_KERNEL (PF_KTHREAD | PF_IO_WORKER | PF_USER_WORKER)

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

typedef struct {
	__u32 val;
} kuid_t;

struct kernfs_iattrs {
	kuid_t ia_uid;
};

struct kernfs_node {
	__u64 id;
	struct kernfs_iattrs *iattr; /* NULL: nobody changed the owner, which is root */
};

struct cgroup_root {
	int hierarchy_id; /* 0: the cgroup2 tree */
};

struct cgroup {
	struct kernfs_node *kn;
	struct cgroup_root *root;
	/* Since 6.1 (commit 7f203bc89eb6): from the root to the cgroup itself, one for each level. */
	struct cgroup *ancestors[1];
};

struct css_set {
	struct cgroup *dfl_cgrp;
};

struct cfs_rq {
	int throttle_count;
};

struct sched_entity {
	__u64 sum_exec_runtime;
	__u64 nr_migrations;
	struct cfs_rq *cfs_rq;
};

struct sched_info {
	unsigned long long run_delay;
};

struct bpf_iter__task {
	struct task_struct *task;
};

struct thread_info {
	__u32 cpu;
};

struct mm_struct {
	unsigned long start_code;
	unsigned long end_code;
	unsigned long start_stack;
};

#if defined(__TARGET_ARCH_x86)
struct thread_struct {
	unsigned long fsbase;
};
#elif defined(__TARGET_ARCH_arm64)
struct thread_words {
	unsigned long tp_value;
};
struct thread_struct {
	struct thread_words uw;
};
#endif

struct task_struct {
	struct thread_info thread_info;
	unsigned int __state;
	void *stack;
	unsigned int flags;
	int on_cpu; /* this and the next field: see LOW_BYTE */
	int on_rq;
	struct sched_entity se;
	struct sched_info sched_info;
	__s32 pid;
	__s32 tgid;
	__u64 start_time;
	unsigned long nvcsw;
	unsigned long nivcsw;
	unsigned long min_flt;
	unsigned long maj_flt;
	struct css_set *cgroups;
	__u64 self_exec_id;
	struct task_struct *group_leader;
	char comm[16];
	struct mm_struct *mm;
	struct thread_struct thread;
};

#if defined(__TARGET_ARCH_x86)
struct pt_regs {
	unsigned long r15, r14, r13, r12, bp, bx, r11, r10, r9, r8, ax, cx, dx, si, di;
	unsigned long orig_ax;
	unsigned long ip;
	unsigned long cs;
	unsigned long sp;
};
#elif defined(__TARGET_ARCH_arm64)
struct pt_regs {
	__u64 regs[31];
	__u64 sp;
	__u64 pc;
	__u64 pstate;
	__s32 syscallno;
};
#else
#error "podperf runs on x86-64 and arm64"
#endif

/* The task of kernels up to 5.15, where `cpu` is in the task itself. */
struct task_struct___old {
	__u32 cpu;
};

/* Since 6.18 tasks are throttled one by one. Older kernels throttle a whole run queue. */
struct task_struct___throttled {
	bool throttled;
};

/* Kernels with proxy execution mark a task that is blocked, also if it stays in the run queue: see `is_asleep`. */
struct task_struct___blocked {
	__u8 is_blocked;
};

/*
 * Fields of kernels that allocate memory for task storage without the allocator's locks: `bpf_ma` since 6.4 (commit
 * 6ae9d5e99e1d), `use_kmalloc_nolock` since 7.0.
 */
struct bpf_local_storage_map___lists {
	bool bpf_ma;
};
struct bpf_local_storage_map___nolock {
	bool use_kmalloc_nolock;
};

#pragma clang attribute pop

/*
 * Reads the low byte of a field, for fields whose size is not the same on all kernels. `on_cpu` and `on_rq` are small
 * numbers in an int, and in a byte since Linux 7.2. The loader relocates no load whose field has another size than
 * here. So the offset is relocated alone: the assembly keeps the compiler from moving it into the load. Both
 * architectures are little-endian.
 */
#define LOW_BYTE_OF(type, record, field)                            \
	({                                                          \
		__u64 offset_ = bpf_core_field_offset(type, field); \
		asm volatile("" : "+r"(offset_));                   \
		*(volatile __u8 *)((void *)(record) + offset_);     \
	})
#define LOW_BYTE(task, field) LOW_BYTE_OF(struct task_struct, task, field)

/*
 * The hook of sched_switch since 5.18 (commit 9c2136be0878). It has the state of the task that leaves as an argument.
 */
typedef void (*btf_trace_sched_switch)(void *, bool, struct task_struct *, struct task_struct *, unsigned int);

/*
 * Returns true if task storage may be allocated with a run queue locked. Older kernels may wake kswapd for the
 * allocation, which locks a run queue.
 */
static __always_inline bool allocates_anywhere(void)
{
	struct bpf_local_storage_map___lists *lists = (void *)0;
	struct bpf_local_storage_map___nolock *nolock = (void *)0;

	return bpf_core_field_exists(lists->bpf_ma) || bpf_core_field_exists(nolock->use_kmalloc_nolock);
}

static __always_inline __u32 task_cpu(struct task_struct *task)
{
	struct task_struct___old *old = (void *)task;

	if (bpf_core_field_exists(task->thread_info.cpu))
		return task->thread_info.cpu;
	return old->cpu;
}

/*
 * The user registers of a task, in the numbers of DWARF; whether its program has 64 bits; and its thread pointer. A
 * thread rarely changes the pointer, so the value of its last switch is good.
 */
#if defined(__TARGET_ARCH_x86)
#define USER_CS 0x33 /* the low byte of the code segment of programs of 64 bits; newer kernels have a shorter field */

static __always_inline void copy_registers(__u64 *to, struct pt_regs *regs)
{
	to[0] = regs->ax;
	to[1] = regs->dx;
	to[2] = regs->cx;
	to[3] = regs->bx;
	to[4] = regs->si;
	to[5] = regs->di;
	to[6] = regs->bp;
	to[7] = regs->sp;
	to[8] = regs->r8;
	to[9] = regs->r9;
	to[10] = regs->r10;
	to[11] = regs->r11;
	to[12] = regs->r12;
	to[13] = regs->r13;
	to[14] = regs->r14;
	to[15] = regs->r15;
	to[16] = regs->ip;
}

static __always_inline bool is_64(struct pt_regs *regs)
{
	return LOW_BYTE_OF(struct pt_regs, regs, cs) == USER_CS;
}

static __always_inline __u64 thread_pointer(struct task_struct *task)
{
	return task->thread.fsbase;
}
#elif defined(__TARGET_ARCH_arm64)
#define MODE_32 0x10 /* PSR_MODE32_BIT in arch/arm64/include/uapi/asm/ptrace.h */

static __always_inline void copy_registers(__u64 *to, struct pt_regs *regs)
{
#pragma unroll
	for (int i = 0; i < 31; i++)
		to[i] = regs->regs[i];
	to[31] = regs->sp;
	to[32] = regs->pc;
}

static __always_inline bool is_64(struct pt_regs *regs)
{
	return !(LOW_BYTE_OF(struct pt_regs, regs, pstate) & MODE_32);
}

static __always_inline __u64 thread_pointer(struct task_struct *task)
{
	return task->thread.uw.tp_value;
}
#endif

/*
 * Returns true if `task` is blocked. With proxy execution (the kernel enables it from 7.4 on), a task that waits for a
 * mutex stays in the run queue, so that the owner of the mutex runs in its place.
 */
static __always_inline bool is_asleep(struct task_struct *task)
{
	struct task_struct___blocked *proxied = (void *)task;

	if (!LOW_BYTE(task, on_rq))
		return true;
	return bpf_core_field_exists(proxied->is_blocked) &&
	       LOW_BYTE_OF(struct task_struct___blocked, task, is_blocked);
}

/* Returns true if `task`, which is leaving its CPU, leaves because the quota of its cgroup is used up. */
static __always_inline bool is_throttled(struct task_struct *task)
{
	struct task_struct___throttled *alone = (void *)task;

	if (bpf_core_field_exists(alone->throttled))
		return alone->throttled;
	if (bpf_core_field_exists(task->se.cfs_rq) && bpf_core_field_exists(task->se.cfs_rq->throttle_count))
		return task->se.cfs_rq->throttle_count;
	return false;
}

#endif
