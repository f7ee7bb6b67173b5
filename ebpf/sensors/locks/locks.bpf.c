// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * Charges waits for locks: of the kernel at `contention_end`, and of user space at the wake-up. The wake-up also charges
 * the cgroup that released the lock.
 *
 * The contention programs run wherever the kernel waits for a lock. It may be the lock of a BPF map, which this CPU
 * holds when `contention_end` runs for it. So they write to a hash table only for sleeping locks: no program or
 * interrupt that holds a lock of a map waits for one of these. They allocate nothing, and they make no record of a task.
 */
#include "cgroup.bpf.h"
#include "drops.bpf.h"
#include "kernel.h"
#include "locks.bpf.h"
#include "locks/futex.bpf.h"
#include "tasks.bpf.h"
#include "waits.bpf.h"

/* The programs in the order of sensor.rs. */
enum locks_program {
	LOCKS_CONTENTION_END,
	LOCKS_CONTENTION_BEGIN,
	LOCKS_WAKING,
	LOCKS_PROGRAMS,
};

SENSOR_PROGRAMS(locks, LOCKS_PROGRAMS)

/* Flags of contention_begin, from include/trace/events/lock.h. A read-write semaphore has only READ or WRITE. */
#define LCB_F_SPIN 1
#define LCB_F_READ 2
#define LCB_F_WRITE 4
#define LCB_F_RT 8
#define LCB_F_PERCPU 16
#define LCB_F_MUTEX 32

/* A CPU that spins for longer than this, in nanoseconds, has missed the end of the wait. */
#define LONGEST_SPIN_NS 1000000000ULL
/* The same for a thread that waits for a lock while it waits for another one. */
#define LONGEST_OUTER_WAIT_NS 10000000000ULL

/* From include/linux/sched.h: the state of a task that does not sleep; and SIGKILL ends this sleep. */
#define TASK_RUNNING 0
#define TASK_WAKEKILL 0x0100
#define SIGKILL_BIT (1ULL << 8)

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct rw_semaphore {
	int reserved;
};

struct spinlock {
	int reserved;
};

struct mm_struct___locks {
	struct rw_semaphore mmap_lock;
};

struct sighand_struct {
	struct spinlock siglock;
};

typedef struct {
	unsigned long sig[1];
} sigset_t;

struct sigpending {
	sigset_t signal;
};

struct task_struct___locks {
	struct mm_struct___locks *mm;
	struct sighand_struct *sighand;
	struct sigpending pending;
};

#pragma clang attribute pop

/* The keys of `locks_spinning`. */
enum spin {
	SPIN_NOW, /* the wait of this CPU for a spinning lock; `lock` is 0 when it does not wait */
	SPIN_LATE, /* a wait that has ended in `since_ns`, and whose cgroup `lock` has no row yet; `lock` is 0 without one */
	SPINS,
};

/* enum spin -> a wait. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, SPINS);
	__type(key, __u32);
	__type(value, struct podperf_lock_wait);
} locks_spinning SEC(".maps");

/* Returns true if `lock` is at this offset of a struct. */
static __always_inline bool is_at(__u64 lock, void *begin, __u64 offset)
{
	__u64 at = (__u64)begin;

	/* Keeps the compiler from a subtraction of addresses, which the verifier rejects. */
	asm volatile("" : "+r"(at));
	at += offset;
	asm volatile("" : "+r"(at));
	return at == lock;
}

/* Returns the kind of a lock that the current task waits for. */
static __always_inline __u32 kind_of(__u64 lock, __u32 flags)
{
	struct task_struct___locks *current = (void *)bpf_get_current_task_btf();

	if (flags & LCB_F_MUTEX)
		return PODPERF_LOCK_MUTEX;
	if (flags & LCB_F_PERCPU)
		return PODPERF_LOCK_PERCPU_RWSEM;
	if (flags & LCB_F_SPIN) {
		if (flags & LCB_F_READ)
			return PODPERF_LOCK_RWLOCK_READ;
		if (flags & LCB_F_WRITE)
			return PODPERF_LOCK_RWLOCK_WRITE;
		if (is_at(lock, current->sighand, bpf_core_field_offset(struct sighand_struct, siglock)))
			return PODPERF_LOCK_SIGLOCK;
		return PODPERF_LOCK_SPINLOCK;
	}
	if (is_at(lock, current->mm, bpf_core_field_offset(struct mm_struct___locks, mmap_lock)))
		return PODPERF_LOCK_MMAP_LOCK;
	if (flags & LCB_F_RT)
		return PODPERF_LOCK_RT_MUTEX;
	if (flags & LCB_F_READ)
		return PODPERF_LOCK_RWSEM_READ;
	if (flags & LCB_F_WRITE)
		return PODPERF_LOCK_RWSEM_WRITE;
	return PODPERF_LOCK_SEMAPHORE;
}

static __always_inline void charge_lock(struct podperf_locks *row, __u32 kind, __u64 ns)
{
	struct podperf_lock_waits *waits = &row->mmap_lock;
	__u64 at = kind;

	/* The mask is in assembly, because the compiler would remove it. It bounds the index for the verifier. */
	asm volatile("%0 &= 15" : "+r"(at));
	if (at >= PODPERF_LOCKS)
		return;
	/* The additions are atomic, since `charge_late` may interrupt `end_spin` here. */
	__sync_fetch_and_add(&waits[at].ns, ns);
	__sync_fetch_and_add(&waits[at].count, 1);
}

/* Returns a wait of this CPU. */
static __always_inline struct podperf_lock_wait *spin_of(__u32 spin)
{
	return bpf_map_lookup_elem(&locks_spinning, &spin);
}

/* Keeps a wait of `cgroup`, which has no row, for `charge_late`. */
static __always_inline void keep_late(__u64 cgroup, __u32 kind, __u64 ns)
{
	struct podperf_lock_wait *late = spin_of(SPIN_LATE);

	if (!late || late->lock) {
		drop(LOCKS_DROP_LATE_ROW);
		return;
	}
	late->since_ns = ns;
	late->kind = kind;
	late->lock = cgroup;
}

/* Charges the wait that `keep_late` kept, where a row may be made. A removed cgroup gets no row: nothing would free it. */
static __always_inline void charge_late(void)
{
	struct podperf_lock_wait *late = spin_of(SPIN_LATE);
	struct podperf_locks *row;

	if (!late || !late->lock)
		return;
	if (!charged_of(late->lock)) {
		drop(LOCKS_DROP_LATE_ROW);
	} else {
		row = locks_row(late->lock);
		if (row)
			charge_lock(row, late->kind, late->since_ns);
	}
	late->lock = 0;
}

/*
 * Begins to spin. If an interrupt spins while the interrupted task does, only the task's wait counts. The end of a wait
 * is missed if a program interrupts itself: then the next wait for the same lock or of another task replaces it, or any
 * wait after a second.
 */
static __always_inline void begin_spin(__u64 lock, __u32 flags, __u32 pid)
{
	struct podperf_lock_wait *wait = spin_of(SPIN_NOW);
	__u64 now = bpf_ktime_get_ns();

	if (!wait)
		return;
	if (wait->lock && wait->lock != lock && wait->owner == pid && now - wait->since_ns < LONGEST_SPIN_NS)
		return;
	wait->lock = 0;
	wait->since_ns = now;
	wait->kind = kind_of(lock, flags);
	wait->owner = pid;
	wait->lock = lock;
}

/*
 * Returns true if a begin is in the midst of a wait for a mutex. `__mutex_lock_common` reports MUTEX|SPIN, and MUTEX
 * before it sleeps. It reports both again if another task takes the mutex before the woken one: the state of the task is
 * that of its sleep by then.
 */
static __always_inline bool is_amid_wait(__u32 flags)
{
	return flags & LCB_F_MUTEX && (!(flags & LCB_F_SPIN) || bpf_get_current_task_btf()->__state != TASK_RUNNING);
}

/*
 * Begins to wait for a sleeping lock. A mutex begins more than once if the task spins and sleeps; all are one wait. A
 * wait for another sleeping lock within this wait is part of it. A wait whose first begin was not seen is not counted.
 */
static __always_inline void begin_sleep(__u64 lock, __u32 flags, __u32 pid)
{
	struct podperf_lock_wait *outer = bpf_map_lookup_elem(&locks_waiting, &pid), wait = {};
	__u64 now = bpf_ktime_get_ns();

	if (outer) {
		if (outer->lock == lock ? flags & LCB_F_MUTEX : now - outer->since_ns < LONGEST_OUTER_WAIT_NS)
			return;
		/* The end of the outer wait was missed. */
		drop(LOCKS_DROP_MISSED_END);
		forget_wait(pid, outer);
	}
	if (is_amid_wait(flags))
		return;
	wait.lock = lock;
	wait.since_ns = now;
	wait.charged_ns = now;
	wait.kind = kind_of(lock, flags);
	wait.owner = sensor_share(cgroup_id(bpf_get_current_task_btf()));
	if (!take_share(&locks_shares, &locks_waiting, wait.owner) ||
	    bpf_map_update_elem(&locks_waiting, &pid, &wait, BPF_NOEXIST)) {
		drop(PODPERF_DROP_SENSOR_TABLE);
		give_share(&locks_shares, wait.owner);
	}
}

SEC("tp_btf/contention_begin")
int BPF_PROG(locks_contention_begin, void *lock, unsigned int flags)
{
	struct podperf_runs *account = locks_account(LOCKS_CONTENTION_BEGIN);
	__u32 pid = bpf_get_current_task_btf()->pid;
	__u64 began;

	/* While sensors are shed, no wait begins; those that have begun end as always. */
	if (!account || is_shed(PODPERF_SHED_SENSORS))
		return 0;
	began = begin_own_run(account);
	/* An interrupt of the idle task spins for nobody. */
	if ((flags & (LCB_F_SPIN | LCB_F_MUTEX)) != LCB_F_SPIN)
		begin_sleep((__u64)lock, flags, pid);
	else if (pid)
		begin_spin((__u64)lock, flags, pid);
	end_own_run(account, began);
	return 0;
}

/* Ends the wait of this CPU for a spinning lock. Returns false if it does not wait for `lock`. */
static __always_inline bool end_spin(__u64 lock, struct task_struct *task)
{
	struct podperf_lock_wait *wait = spin_of(SPIN_NOW);
	__u64 cgroup = cgroup_id(task), ns;
	struct podperf_locks *row;
	__u32 kind;
	__s32 pid;

	if (!wait || wait->lock != lock)
		return false;
	/* An interrupt may begin a wait here once `lock` is 0. */
	ns = bpf_ktime_get_ns() - wait->since_ns;
	kind = wait->kind;
	pid = wait->owner;
	wait->lock = 0;
	/* The wait of another task, or an earlier wait, has missed its end. */
	if (pid != task->pid || ns >= LONGEST_SPIN_NS) {
		drop(LOCKS_DROP_MISSED_END);
		return true;
	}
	row = locks_row_without_lock(cgroup);
	if (row)
		charge_lock(row, kind, ns);
	else
		keep_late(cgroup, kind, ns);
	return true;
}

static __always_inline void end_sleep(__u64 lock, struct task_struct *task)
{
	struct podperf_lock_wait *wait;
	struct podperf_locks *row;
	__u32 pid = task->pid;

	wait = bpf_map_lookup_elem(&locks_waiting, &pid);
	if (!wait || wait->lock != lock)
		return;
	row = locks_row(cgroup_id(task));
	if (row)
		charge_lock(row, wait->kind, bpf_ktime_get_ns() - wait->since_ns);
	forget_wait(pid, wait);
}

SEC("tp_btf/contention_end")
int BPF_PROG(locks_contention_end, void *lock)
{
	struct podperf_runs *account = locks_account(LOCKS_CONTENTION_END);
	struct task_struct *current = bpf_get_current_task_btf();
	__u64 began;

	if (!account)
		return 0;
	began = begin_own_run(account);
	if (!end_spin((__u64)lock, current))
		end_sleep((__u64)lock, current);
	end_own_run(account, began);
	return 0;
}

/* Returns true if SIGKILL ends the wait of this task, and not the release of the lock. */
static __always_inline bool is_killed(struct task_struct *task)
{
	struct task_struct___locks *its = (void *)task;

	return task->__state & TASK_WAKEKILL && its->pending.signal.sig[0] & SIGKILL_BIT;
}

/* Returns the row of the current task, which ends a wait; NULL if an interrupt ends it. */
static __always_inline struct podperf_locks *row_of_waker(void *ctx, struct task_struct *current)
{
	return current->pid && is_on_stack_of(current, ctx) ? locks_row(cgroup_id(current)) : NULL;
}

/* Charges the wait of `task` for a lock of the kernel, if it waits for one, to the cgroup that wakes it. */
static __noinline int end_kernel_wait(void *ctx, struct task_struct *task)
{
	struct podperf_lock_wait *wait;
	struct podperf_locks *row;
	__u32 pid = task->pid;
	__u64 since_ns;
	struct task *t;

	wait = bpf_map_lookup_elem(&locks_waiting, &pid);
	if (!wait)
		return 0;
	since_ns = wait->charged_ns;
	wait->charged_ns = bpf_ktime_get_ns();
	if (is_killed(task))
		return 0;
	/* The record of a task that has not left its CPU holds the wait before this one. */
	t = bpf_task_storage_get(&tasks, task, NULL, 0);
	if (t && !LOW_BYTE(task, on_cpu) && t->activity < PODPERF_RUN_QUEUE)
		t->lock = 1 + wait->kind;
	/* Readers of a percpu_rwsem wait for each other's grace periods, which an interrupt may end on a task's stack. */
	if (wait->kind == PODPERF_LOCK_PERCPU_RWSEM)
		return 0;
	row = row_of_waker(ctx, bpf_get_current_task_btf());
	if (row)
		row->kernel_blocking_ns += wait->charged_ns - since_ns;
	return 0;
}

/*
 * Charges the wait of `task` for a lock of user space, from when it left the CPU until now, to its own cgroup and to the
 * one that wakes it. A task that is still on a CPU has not waited.
 */
static __noinline int end_user_wait(void *ctx, struct task_struct *task)
{
	struct task_struct *current = bpf_get_current_task_btf();
	struct podperf_locks *row;
	struct task *t;
	__u64 left_ns, ns;

	if ((current->flags & PF_KTHREAD) || !releases_lock((struct pt_regs *)bpf_task_pt_regs(current)))
		return 0;
	t = bpf_task_storage_get(&tasks, task, NULL, 0);
	if (!t || LOW_BYTE(task, on_cpu))
		return 0;
	/* After a takeover the record of a task that sleeps is empty until `carry` or `see` fills it. */
	if (carries && !t->seen && try_lock(&t->busy)) {
		if (!t->seen)
			t->seen = carry_over(task, t);
		unlock(&t->busy);
	}
	if (t->activity >= PODPERF_RUN_QUEUE)
		return 0;
	left_ns = *(volatile __u64 *)&t->left_ns;
	if (!left_ns)
		return 0;
	ns = bpf_ktime_get_ns() - began_of(t, left_ns);
	t->lock = 1 + PODPERF_LOCK_USER;
	row = locks_row(cgroup_id(task));
	if (row) {
		row->user.ns += ns;
		row->user.count++;
	}
	row = row_of_waker(ctx, current);
	if (row)
		row->user_blocking_ns += ns;
	return 0;
}

SEC("tp_btf/sched_waking")
int BPF_PROG(locks_waking, struct task_struct *task)
{
	struct podperf_runs *account = locks_account(LOCKS_WAKING);
	__u64 began;

	if (!account)
		return 0;
	began = begin_own_run(account);
	charge_late();
	/* Idle kernel threads sleep uninterruptibly, but are marked. */
	if ((task->__state & (TASK_UNINTERRUPTIBLE | TASK_RTLOCK_WAIT)) && !(task->__state & TASK_NOLOAD))
		end_kernel_wait(ctx, task);
	else if (!is_shed(PODPERF_SHED_SENSORS) && !(task->flags & PF_KTHREAD) &&
		 may_wait_for_lock((struct pt_regs *)bpf_task_pt_regs(task)))
		end_user_wait(ctx, task);
	end_own_run(account, began);
	return 0;
}
