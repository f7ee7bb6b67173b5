/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#ifndef PODPERF_CALLS_H
#define PODPERF_CALLS_H

#include "podperf.h"
#include "syscalls/syscalls.h"

/*
 * The system calls that have a count of their own, besides those of syscalls.h: they seldom sleep, but programs make
 * many of them. A call, an errno or a pair may be added at any place: fields of the row are found by their names.
 */
#define PODPERF_MORE_CALLS_OF_BOTH(F)  \
	F(bind, 49, 200)               \
	F(bpf, 321, 280)               \
	F(clock_gettime, 228, 113)     \
	F(dup, 32, 23)                 \
	F(dup3, 292, 24)               \
	F(epoll_ctl, 233, 21)          \
	F(eventfd2, 290, 19)           \
	F(faccessat2, 439, 439)        \
	F(fadvise64, 221, 223)         \
	F(getcwd, 79, 17)              \
	F(getpid, 39, 172)             \
	F(getppid, 110, 173)           \
	F(getrandom, 318, 278)         \
	F(getsockname, 51, 204)        \
	F(getsockopt, 55, 209)         \
	F(gettid, 186, 178)            \
	F(getxattr, 191, 8)            \
	F(inotify_add_watch, 254, 27)  \
	F(kill, 62, 129)               \
	F(lseek, 8, 62)                \
	F(memfd_create, 319, 279)      \
	F(perf_event_open, 298, 241)   \
	F(pipe2, 293, 59)              \
	F(prctl, 157, 167)             \
	F(rt_sigaction, 13, 134)       \
	F(rt_sigprocmask, 14, 135)     \
	F(rt_sigreturn, 15, 139)       \
	F(sched_getaffinity, 204, 123) \
	F(sched_yield, 24, 124)        \
	F(set_robust_list, 273, 99)    \
	F(setsockopt, 54, 208)         \
	F(sigaltstack, 131, 132)       \
	F(socket, 41, 198)             \
	F(statfs, 137, 43)             \
	F(tgkill, 234, 131)            \
	F(timerfd_settime, 286, 86)

#define PODPERF_MORE_CALLS_OF_X86(F) \
	F(dup2, 33, 0)               \
	F(pipe, 22, 0)

#define PODPERF_COUNTED_OF_BOTH(F) PODPERF_CALLS_OF_BOTH(F) PODPERF_MORE_CALLS_OF_BOTH(F)
#define PODPERF_COUNTED_OF_X86(F) PODPERF_CALLS_OF_X86(F) PODPERF_MORE_CALLS_OF_X86(F)

/* The errnos that have a count, with their numbers, which are the same on x86-64 and arm64. */
#define PODPERF_ERRNOS(F)    \
	F(EPERM, 1)          \
	F(ENOENT, 2)         \
	F(ESRCH, 3)          \
	F(EINTR, 4)          \
	F(EIO, 5)            \
	F(ENXIO, 6)          \
	F(EBADF, 9)          \
	F(ECHILD, 10)        \
	F(EAGAIN, 11)        \
	F(ENOMEM, 12)        \
	F(EACCES, 13)        \
	F(EFAULT, 14)        \
	F(EBUSY, 16)         \
	F(EEXIST, 17)        \
	F(ENODEV, 19)        \
	F(ENOTDIR, 20)       \
	F(EISDIR, 21)        \
	F(EINVAL, 22)        \
	F(ENFILE, 23)        \
	F(EMFILE, 24)        \
	F(ENOTTY, 25)        \
	F(ENOSPC, 28)        \
	F(ESPIPE, 29)        \
	F(EROFS, 30)         \
	F(EPIPE, 32)         \
	F(ENAMETOOLONG, 36)  \
	F(ENOSYS, 38)        \
	F(ENOTEMPTY, 39)     \
	F(ELOOP, 40)         \
	F(ENODATA, 61)       \
	F(EOPNOTSUPP, 95)    \
	F(EAFNOSUPPORT, 97)  \
	F(EADDRINUSE, 98)    \
	F(EADDRNOTAVAIL, 99) \
	F(ENETUNREACH, 101)  \
	F(ECONNRESET, 104)   \
	F(ENOBUFS, 105)      \
	F(ENOTCONN, 107)     \
	F(ETIMEDOUT, 110)    \
	F(ECONNREFUSED, 111) \
	F(EHOSTUNREACH, 113) \
	F(EINPROGRESS, 115)  \
	F(ESTALE, 116)       \
	F(EDQUOT, 122)       \
	F(ECANCELED, 125)

/* The errors that have a count of their own: a call, and its errno. */
#define PODPERF_ERRORS(F)         \
	F(accept, EAGAIN)         \
	F(accept4, EAGAIN)        \
	F(accept4, EMFILE)        \
	F(access, ENOENT)         \
	F(bind, EADDRINUSE)       \
	F(clone, EAGAIN)          \
	F(clone3, ENOSYS)         \
	F(close, EBADF)           \
	F(connect, EINPROGRESS)   \
	F(connect, ECONNREFUSED)  \
	F(connect, ENOENT)        \
	F(connect, ETIMEDOUT)     \
	F(connect, EADDRNOTAVAIL) \
	F(epoll_ctl, EEXIST)      \
	F(epoll_ctl, ENOENT)      \
	F(epoll_pwait, EINTR)     \
	F(epoll_wait, EINTR)      \
	F(execve, ENOENT)         \
	F(faccessat, ENOENT)      \
	F(faccessat2, ENOENT)     \
	F(fdatasync, EIO)         \
	F(flock, EAGAIN)          \
	F(fsync, EIO)             \
	F(futex, EAGAIN)          \
	F(futex, EINTR)           \
	F(futex, ETIMEDOUT)       \
	F(getxattr, ENODATA)      \
	F(ioctl, ENOTTY)          \
	F(ioctl, EINVAL)          \
	F(kill, ESRCH)            \
	F(lseek, ESPIPE)          \
	F(lstat, ENOENT)          \
	F(mkdir, EEXIST)          \
	F(mkdirat, EEXIST)        \
	F(mmap, ENOMEM)           \
	F(newfstatat, ENOENT)     \
	F(open, ENOENT)           \
	F(open, EACCES)           \
	F(openat, ENOENT)         \
	F(openat, EACCES)         \
	F(openat, EEXIST)         \
	F(openat, EMFILE)         \
	F(poll, EINTR)            \
	F(ppoll, EINTR)           \
	F(pwrite64, ENOSPC)       \
	F(read, EAGAIN)           \
	F(read, EINTR)            \
	F(read, EBADF)            \
	F(read, EIO)              \
	F(read, ECONNRESET)       \
	F(readlink, ENOENT)       \
	F(readlink, EINVAL)       \
	F(readlinkat, ENOENT)     \
	F(readlinkat, EINVAL)     \
	F(recvfrom, EAGAIN)       \
	F(recvfrom, EINTR)        \
	F(recvfrom, ECONNRESET)   \
	F(recvmmsg, EAGAIN)       \
	F(recvmsg, EAGAIN)        \
	F(recvmsg, EINTR)         \
	F(sendfile, EAGAIN)       \
	F(sendmmsg, EAGAIN)       \
	F(sendmsg, EAGAIN)        \
	F(sendmsg, EPIPE)         \
	F(sendto, EAGAIN)         \
	F(sendto, EPIPE)          \
	F(splice, EAGAIN)         \
	F(stat, ENOENT)           \
	F(statx, ENOENT)          \
	F(unlink, ENOENT)         \
	F(unlinkat, ENOENT)       \
	F(wait4, ECHILD)          \
	F(wait4, EINTR)           \
	F(waitid, ECHILD)         \
	F(write, EAGAIN)          \
	F(write, EPIPE)           \
	F(write, ENOSPC)          \
	F(write, EIO)             \
	F(writev, EAGAIN)         \
	F(writev, EPIPE)

#define PODPERF_COUNT_FIELD(name, x86, arm64) __u64 name;
#define PODPERF_ERRNO_FIELD(name, number) __u64 other_##name;
#define PODPERF_ERROR_FIELD(call, name) __u64 call##_##name;

/* Value of `calls_rows` and `calls_rows_by_id`. All words but the id are written by atomic additions. */
struct podperf_calls {
	__u64 id;    /* id of the cgroup; 0: the row is free */
	__u64 other; /* any other system call, or one of a 32-bit program; from here on: see enum counted_call */
	PODPERF_COUNTED_OF_BOTH(PODPERF_COUNT_FIELD)
	PODPERF_COUNTED_OF_X86(PODPERF_COUNT_FIELD)
	__u64 other_other; /* any other error; from here on: see enum counted_error */
	PODPERF_ERRNOS(PODPERF_ERRNO_FIELD)
	PODPERF_ERRORS(PODPERF_ERROR_FIELD)
};

#endif
