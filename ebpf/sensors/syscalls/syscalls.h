/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#ifndef PODPERF_SYSCALLS_H
#define PODPERF_SYSCALLS_H

#include "podperf.h"

/*
 * The system calls in which threads sleep, with their numbers on x86-64 and arm64. All others count as "other". A call
 * may be added at any place: fields of the row are found by their names.
 */
#define PODPERF_CALLS_OF_BOTH(F)     \
	F(accept, 43, 202)           \
	F(accept4, 288, 242)         \
	F(brk, 12, 214)              \
	F(clock_nanosleep, 230, 115) \
	F(clone, 56, 220)            \
	F(clone3, 435, 435)          \
	F(close, 3, 57)              \
	F(connect, 42, 203)          \
	F(copy_file_range, 326, 285) \
	F(epoll_pwait, 281, 22)      \
	F(epoll_pwait2, 441, 441)    \
	F(execve, 59, 221)           \
	F(execveat, 322, 281)        \
	F(exit, 60, 93)              \
	F(exit_group, 231, 94)       \
	F(faccessat, 269, 48)        \
	F(fallocate, 285, 47)        \
	F(fcntl, 72, 25)             \
	F(fdatasync, 75, 83)         \
	F(flock, 73, 32)             \
	F(fstat, 5, 80)              \
	F(fsync, 74, 82)             \
	F(ftruncate, 77, 46)         \
	F(futex, 202, 98)            \
	F(futex_waitv, 449, 449)     \
	F(getdents64, 217, 61)       \
	F(io_getevents, 208, 4)      \
	F(io_submit, 209, 2)         \
	F(io_uring_enter, 426, 426)  \
	F(ioctl, 16, 29)             \
	F(madvise, 28, 233)          \
	F(membarrier, 324, 283)      \
	F(mkdirat, 258, 34)          \
	F(mlock, 149, 228)           \
	F(mmap, 9, 222)              \
	F(mount, 165, 40)            \
	F(mprotect, 10, 226)         \
	F(mq_timedreceive, 243, 183) \
	F(mq_timedsend, 242, 182)    \
	F(mremap, 25, 216)           \
	F(msgrcv, 70, 188)           \
	F(msgsnd, 69, 189)           \
	F(msync, 26, 227)            \
	F(munmap, 11, 215)           \
	F(nanosleep, 35, 101)        \
	F(newfstatat, 262, 79)       \
	F(openat, 257, 56)           \
	F(openat2, 437, 437)         \
	F(ppoll, 271, 73)            \
	F(pread64, 17, 67)           \
	F(preadv, 295, 69)           \
	F(preadv2, 327, 286)         \
	F(pselect6, 270, 72)         \
	F(ptrace, 101, 117)          \
	F(pwrite64, 18, 68)          \
	F(pwritev, 296, 70)          \
	F(pwritev2, 328, 287)        \
	F(read, 0, 63)               \
	F(readlinkat, 267, 78)       \
	F(readv, 19, 65)             \
	F(recvfrom, 45, 207)         \
	F(recvmmsg, 299, 243)        \
	F(recvmsg, 47, 212)          \
	F(renameat, 264, 38)         \
	F(renameat2, 316, 276)       \
	F(restart_syscall, 219, 128) \
	F(rt_sigsuspend, 130, 133)   \
	F(rt_sigtimedwait, 128, 137) \
	F(semop, 65, 193)            \
	F(semtimedop, 220, 192)      \
	F(sendfile, 40, 71)          \
	F(sendmmsg, 307, 269)        \
	F(sendmsg, 46, 211)          \
	F(sendto, 44, 206)           \
	F(shutdown, 48, 210)         \
	F(splice, 275, 76)           \
	F(statx, 332, 291)           \
	F(sync, 162, 81)             \
	F(sync_file_range, 277, 84)  \
	F(syncfs, 306, 267)          \
	F(truncate, 76, 45)          \
	F(umount2, 166, 39)          \
	F(unlinkat, 263, 35)         \
	F(unshare, 272, 97)          \
	F(wait4, 61, 260)            \
	F(waitid, 247, 95)           \
	F(write, 1, 64)              \
	F(writev, 20, 66)

/* arm64 does not have these calls; programs use newer ones there. */
#define PODPERF_CALLS_OF_X86(F) \
	F(access, 21, 0)        \
	F(creat, 85, 0)         \
	F(epoll_wait, 232, 0)   \
	F(fork, 57, 0)          \
	F(getdents, 78, 0)      \
	F(lstat, 6, 0)          \
	F(mkdir, 83, 0)         \
	F(open, 2, 0)           \
	F(pause, 34, 0)         \
	F(poll, 7, 0)           \
	F(readlink, 89, 0)      \
	F(rename, 82, 0)        \
	F(rmdir, 84, 0)         \
	F(select, 23, 0)        \
	F(stat, 4, 0)           \
	F(unlink, 87, 0)        \
	F(vfork, 58, 0)

#define PODPERF_CALL_FIELD(name, x86, arm64) __u64 name;

/* Value of `syscalls_rows` and `syscalls_rows_by_id`: waiting time in nanoseconds. */
struct podperf_syscalls {
	__u64 id;    /* id of the cgroup; 0: the row is free */
	__u64 other; /* in any other system call, or in one of a 32-bit program; from here on: see enum call */
	__u64 none;  /* in no system call: page faults, and threads of the kernel */
	PODPERF_CALLS_OF_BOTH(PODPERF_CALL_FIELD)
	PODPERF_CALLS_OF_X86(PODPERF_CALL_FIELD)
};

#endif
