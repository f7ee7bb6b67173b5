//! The description of the sensor `syscalls`.

use std::mem::offset_of;

use crate::{
    abi::podperf_syscalls,
    sensor::{Family, Label, Sensor, Series, Unit, Words, names},
};

/// Returns a series for each field of the row, whose label is the name of the system call.
macro_rules! calls {
    ($($field:ident),* $(,)?) => {
        &[
            series("(other)", offset_of!(podperf_syscalls, other)),
            series("(none)", offset_of!(podperf_syscalls, none)),
            $(series(stringify!($field), offset_of!(podperf_syscalls, $field)),)*
        ]
    };
}

const fn series(label: &'static str, offset: usize) -> Series {
    Series { labels: [label, ""], words: Words::Total(offset / size_of::<u64>()) }
}

/// See README.md.
pub(super) static SENSOR: Sensor = Sensor {
    names: names!("syscalls"),
    about: "tells in which system calls threads wait",
    is_default: false,
    settings: &[],
    words: size_of::<podperf_syscalls>() / size_of::<u64>(),
    families: &[Family {
        name: "syscall_wait",
        instrument: "syscall.wait",
        help: "Time that threads slept in a system call, in waits that ended",
        unit: Unit::Seconds,
        labels: &[Label { name: "syscall", attribute: "podperf.syscall" }],
        series: calls![
            accept, accept4, brk, clock_nanosleep, clone, clone3, close, connect, copy_file_range, epoll_pwait,
            epoll_pwait2, execve, execveat, exit, exit_group, faccessat, fallocate, fcntl, fdatasync, flock, fstat,
            fsync, ftruncate, futex, futex_waitv, getdents64, io_getevents, io_submit, io_uring_enter, ioctl,
            madvise, membarrier, mkdirat, mlock, mmap, mount, mprotect, mq_timedreceive, mq_timedsend, mremap,
            msgrcv, msgsnd, msync, munmap, nanosleep, newfstatat, openat, openat2, ppoll, pread64, preadv, preadv2,
            pselect6, ptrace, pwrite64, pwritev, pwritev2, read, readlinkat, readv, recvfrom, recvmmsg, recvmsg,
            renameat2, restart_syscall, rt_sigsuspend, rt_sigtimedwait, semop, semtimedop, sendfile, sendmmsg,
            sendmsg, sendto, shutdown, splice, statx, sync, syncfs, truncate, umount2, unlinkat, unshare, wait4,
            waitid, write, writev, access, creat, epoll_wait, fork, getdents, lstat, mkdir, open, pause, poll,
            readlink, rename, renameat, rmdir, select, stat, sync_file_range, unlink, vfork,
        ],
    }],
    node: &[],
    programs: &[],
    maps: &[],
    drops: &[],
};

/// Each word from `other` on has a series.
const _: () =
    assert!(SENSOR.families[0].series.len() == SENSOR.words - offset_of!(podperf_syscalls, other) / size_of::<u64>());
