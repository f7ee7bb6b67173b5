//! The description of the sensor `calls`.

use std::mem::offset_of;

use crate::{
    abi::podperf_calls,
    sensor::{
        Entries, Family, Hook, Label, Map, Program, Sensor, Series, Setting, SettingKind, Unit, Words, key, names,
    },
};

/// The name in labels of what has no word of its own.
const OTHER: &str = "(other)";

/// Returns a series for each field of the row, whose label is the name of the system call.
macro_rules! calls {
    ($($field:ident),* $(,)?) => {
        &[
            series([OTHER, ""], offset_of!(podperf_calls, other)),
            $(series([stringify!($field), ""], offset_of!(podperf_calls, $field)),)*
        ]
    };
}

/// Returns a series for each field of the row, whose labels are the call and the errno in the name of the field.
macro_rules! errors {
    ($($field:ident),* $(,)?) => {
        &[
            series([OTHER, OTHER], offset_of!(podperf_calls, other_other)),
            $(series(call_and_errno(stringify!($field)), offset_of!(podperf_calls, $field)),)*
        ]
    };
}

const fn series(labels: [&'static str; 2], offset: usize) -> Series {
    Series { labels, words: Words::Total(offset / size_of::<u64>()) }
}

/// Splits the name of a field at its last `_`.
const fn call_and_errno(field: &'static str) -> [&'static str; 2] {
    let mut at = field.len() - 1;
    while field.as_bytes()[at] != b'_' {
        at -= 1;
    }
    let (call, errno) = (field.split_at(at).0, field.split_at(at + 1).1);
    // No name of a call begins like this.
    let is_other = matches!(call.as_bytes(), b"other");
    [if is_other { OTHER } else { call }, errno]
}

/// The map of the cgroups that are counted, if namespaces are chosen.
const CHOSEN: &str = "calls_chosen";

const SYSCALL: Label = Label { name: "syscall", attribute: "podperf.syscall" };
const ERRNO: Label = Label { name: "errno", attribute: "podperf.errno" };

/// See README.md.
pub(super) static SENSOR: Sensor = Sensor {
    names: names!("calls"),
    about: "counts system calls, and those that fail",
    is_default: false,
    settings: &[
        Setting {
            key: key!("calls", "errorsOnly"),
            about: "Counts only system calls that fail, so there are no series of calls, but only those of errors",
            kind: SettingKind::Flag { default: false },
            constant: Some("calls_errors_only"),
        },
        Setting {
            key: key!("calls", "namespaces"),
            about: "Patterns of the namespaces whose pods are counted, from when their names are known; an empty list \
                    counts everything",
            kind: SettingKind::Namespaces { most: 64, map: CHOSEN },
            constant: Some("calls_chooses"),
        },
    ],
    words: size_of::<podperf_calls>() / size_of::<u64>(),
    families: &[
        Family {
            name: "syscalls",
            instrument: "syscall.calls",
            help: "System calls that returned, also with an error",
            unit: Unit::Things("{call}"),
            labels: &[SYSCALL],
            series: calls! {
                accept, accept4, brk, clock_nanosleep, clone, clone3, close, connect, copy_file_range, epoll_pwait,
                epoll_pwait2, execve, execveat, exit, exit_group, faccessat, fallocate, fcntl, fdatasync, flock, fstat,
                fsync, ftruncate, futex, futex_waitv, getdents64, io_getevents, io_submit, io_uring_enter, ioctl,
                madvise, membarrier, mkdirat, mlock, mmap, mount, mprotect, mq_timedreceive, mq_timedsend, mremap,
                msgrcv, msgsnd, msync, munmap, nanosleep, newfstatat, openat, openat2, ppoll, pread64, preadv, preadv2,
                pselect6, ptrace, pwrite64, pwritev, pwritev2, read, readlinkat, readv, recvfrom, recvmmsg, recvmsg,
                renameat, renameat2, restart_syscall, rt_sigsuspend, rt_sigtimedwait, semop, semtimedop, sendfile,
                sendmmsg, sendmsg, sendto, shutdown, splice, statx, sync, sync_file_range, syncfs, truncate, umount2,
                unlinkat, unshare, wait4, waitid, write, writev, bind, bpf, clock_gettime, dup, dup3, epoll_ctl,
                eventfd2, faccessat2, fadvise64, getcwd, getpid, getppid, getrandom, getsockname, getsockopt, gettid,
                getxattr, inotify_add_watch, kill, lseek, memfd_create, perf_event_open, pipe2, prctl, rt_sigaction,
                rt_sigprocmask, rt_sigreturn, sched_getaffinity, sched_yield, set_robust_list, setsockopt, sigaltstack,
                socket, statfs, tgkill, timerfd_settime, access, creat, epoll_wait, fork, getdents, lstat, mkdir, open,
                pause, poll, readlink, rename, rmdir, select, stat, unlink, vfork, dup2, pipe,
            },
        },
        Family {
            name: "syscall_errors",
            instrument: "syscall.errors",
            help: "System calls that returned an error",
            unit: Unit::Things("{error}"),
            labels: &[SYSCALL, ERRNO],
            series: errors! {
                other_EPERM, other_ENOENT, other_ESRCH, other_EINTR, other_EIO, other_ENXIO, other_EBADF, other_ECHILD,
                other_EAGAIN, other_ENOMEM, other_EACCES, other_EFAULT, other_EBUSY, other_EEXIST, other_ENODEV,
                other_ENOTDIR, other_EISDIR, other_EINVAL, other_ENFILE, other_EMFILE, other_ENOTTY, other_ENOSPC,
                other_ESPIPE, other_EROFS, other_EPIPE, other_ENAMETOOLONG, other_ENOSYS, other_ENOTEMPTY, other_ELOOP,
                other_ENODATA, other_EOPNOTSUPP, other_EAFNOSUPPORT, other_EADDRINUSE, other_EADDRNOTAVAIL,
                other_ENETUNREACH, other_ECONNRESET, other_ENOBUFS, other_ENOTCONN, other_ETIMEDOUT, other_ECONNREFUSED,
                other_EHOSTUNREACH, other_EINPROGRESS, other_ESTALE, other_EDQUOT, other_ECANCELED, accept_EAGAIN,
                accept4_EAGAIN, accept4_EMFILE, access_ENOENT, bind_EADDRINUSE, clone_EAGAIN, clone3_ENOSYS,
                close_EBADF, connect_EINPROGRESS, connect_ECONNREFUSED, connect_ENOENT, connect_ETIMEDOUT,
                connect_EADDRNOTAVAIL, epoll_ctl_EEXIST, epoll_ctl_ENOENT, epoll_pwait_EINTR, epoll_wait_EINTR,
                execve_ENOENT, faccessat_ENOENT, faccessat2_ENOENT, fdatasync_EIO, flock_EAGAIN, fsync_EIO,
                futex_EAGAIN, futex_EINTR, futex_ETIMEDOUT, getxattr_ENODATA, ioctl_ENOTTY, ioctl_EINVAL, kill_ESRCH,
                lseek_ESPIPE, lstat_ENOENT, mkdir_EEXIST, mkdirat_EEXIST, mmap_ENOMEM, newfstatat_ENOENT, open_ENOENT,
                open_EACCES, openat_ENOENT, openat_EACCES, openat_EEXIST, openat_EMFILE, poll_EINTR, ppoll_EINTR,
                pwrite64_ENOSPC, read_EAGAIN, read_EINTR, read_EBADF, read_EIO, read_ECONNRESET, readlink_ENOENT,
                readlink_EINVAL, readlinkat_ENOENT, readlinkat_EINVAL, recvfrom_EAGAIN, recvfrom_EINTR,
                recvfrom_ECONNRESET, recvmmsg_EAGAIN, recvmsg_EAGAIN, recvmsg_EINTR, sendfile_EAGAIN, sendmmsg_EAGAIN,
                sendmsg_EAGAIN, sendmsg_EPIPE, sendto_EAGAIN, sendto_EPIPE, splice_EAGAIN, stat_ENOENT, statx_ENOENT,
                unlink_ENOENT, unlinkat_ENOENT, wait4_ECHILD, wait4_EINTR, waitid_ECHILD, write_EAGAIN, write_EPIPE,
                write_ENOSPC, write_EIO, writev_EAGAIN, writev_EPIPE,
            },
        },
    ],
    node: &[],
    programs: &[Program {
        name: "calls_sys_exit",
        hook: Hook::Tracepoint { name: "sys_exit", since: "Linux 5.15" },
        context: "task",
    }],
    maps: &[Map {
        name: CHOSEN,
        entries: Entries::PerSlot(4),
        value_bytes: size_of::<u64>(),
        is_per_cpu: false,
        is_inherited: true,
    }],
    drops: &[],
};

/// Each word from `other` on has a series.
const _: () = assert!(
    SENSOR.families[0].series.len() + SENSOR.families[1].series.len()
        == SENSOR.words - offset_of!(podperf_calls, other) / size_of::<u64>()
);
