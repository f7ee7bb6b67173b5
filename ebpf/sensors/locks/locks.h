/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#ifndef PODPERF_LOCKS_H
#define PODPERF_LOCKS_H

#include "podperf.h"

/* The kernel's locks, in the order of the fields of `struct podperf_locks`. */
enum podperf_lock {
	PODPERF_LOCK_MMAP_LOCK, /* of the thread's own memory */
	PODPERF_LOCK_SIGLOCK,   /* of the thread's own process */
	PODPERF_LOCK_SPINLOCK,
	PODPERF_LOCK_RWLOCK_READ,
	PODPERF_LOCK_RWLOCK_WRITE,
	PODPERF_LOCK_RWSEM_READ,
	PODPERF_LOCK_RWSEM_WRITE,
	PODPERF_LOCK_MUTEX,
	PODPERF_LOCK_RT_MUTEX,
	PODPERF_LOCK_PERCPU_RWSEM,
	PODPERF_LOCK_SEMAPHORE,
	PODPERF_LOCKS,
	PODPERF_LOCK_USER = PODPERF_LOCKS, /* a lock of user space */
};

/* The waits for one kind of lock. */
struct podperf_lock_waits {
	__u64 ns;
	__u64 count;
};

/* Value of `locks_rows` and `locks_rows_by_id`. */
struct podperf_locks {
	__u64 id; /* id of the cgroup; 0: the row is free */
	struct podperf_lock_waits
	    mmap_lock; /* from here to semaphore: written when the wait ends, by atomic additions */
	struct podperf_lock_waits siglock;
	struct podperf_lock_waits spinlock;
	struct podperf_lock_waits rwlock_read;
	struct podperf_lock_waits rwlock_write;
	struct podperf_lock_waits rwsem_read;
	struct podperf_lock_waits rwsem_write;
	struct podperf_lock_waits mutex;
	struct podperf_lock_waits rt_mutex;
	struct podperf_lock_waits percpu_rwsem;
	struct podperf_lock_waits semaphore;
	struct podperf_lock_waits user; /* from here on: written at the wake-up only */
	__u64 user_blocking_ns;         /* waits of others for locks of user space that this cgroup released */
	__u64 kernel_blocking_ns;
};

/* Value of `locks_waiting`: the wait of a thread for a lock of the kernel. The next generation goes on with it. */
struct podperf_lock_wait {
	__u64 lock; /* the address of the lock */
	__u64 since_ns;
	__u64 charged_ns; /* up to here the wait is charged to the cgroups that released the lock */
	__u32 kind;       /* enum podperf_lock */
	__u32 owner;      /* in `locks_spinning`: the thread id; in `locks_waiting`: the share of the thread's cgroup */
};

_Static_assert(__builtin_offsetof(struct podperf_locks, user) == __builtin_offsetof(struct podperf_locks, mmap_lock) +
								     PODPERF_LOCKS * sizeof(struct podperf_lock_waits),
	       "the order of enum podperf_lock");
_Static_assert(sizeof(struct podperf_lock_wait) == 32, "ABI");

#endif
