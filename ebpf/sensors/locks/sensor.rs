//! The description of the sensor `locks`.

use std::mem::offset_of;

use crate::{
    LOCKS,
    abi::{PODPERF_LOCKS, podperf_lock_wait, podperf_lock_waits, podperf_locks},
    sensor::{DropReason, Entries, Family, Hook, Label, Map, Program, Sensor, Series, Unit, Words, names},
};

/// Returns the word at this offset.
const fn total(label: &'static str, offset: usize) -> Series {
    Series { labels: [label, ""], words: Words::Total(offset / size_of::<u64>()) }
}

/// The number of kinds of locks of the kernel, which come before the lock of user space.
const KINDS: usize = PODPERF_LOCKS as usize;

/// Returns a series for each kind of lock of the kernel: the word at this offset of its waits.
const fn kinds(word: usize) -> [Series; KINDS] {
    let mut series = [const { total("", 0) }; KINDS];
    let mut kind = 0;
    while kind < KINDS {
        let waits = offset_of!(podperf_locks, mmap_lock) + kind * size_of::<podperf_lock_waits>();
        series[kind] = total(LOCKS[kind], waits + word);
        kind += 1;
    }
    series
}

const LOCK: Label = Label { name: "lock", attribute: "podperf.lock" };
const TRACEPOINTS: &str = "Linux 5.19";
const WHEREVER_LOCKS_ARE: &str = "task, interrupt or NMI, wherever the kernel waits for a lock";

/// See README.md.
pub(super) static SENSOR: Sensor = Sensor {
    names: names!("locks"),
    about: "counts waits for locks of the kernel and of programs, and who held these locks",
    is_default: false,
    settings: &[],
    words: size_of::<podperf_locks>() / size_of::<u64>(),
    families: &[
        Family {
            name: "kernel_lock_wait",
            instrument: "kernel_lock.wait",
            help: "Time that threads waited for locks of the kernel, also while they spun",
            unit: Unit::Seconds,
            labels: &[LOCK],
            series: &kinds(offset_of!(podperf_lock_waits, ns)),
        },
        Family {
            name: "kernel_lock_contentions",
            instrument: "kernel_lock.contentions",
            help: "Waits for locks of the kernel that ended",
            unit: Unit::Things("{wait}"),
            labels: &[LOCK],
            series: &kinds(offset_of!(podperf_lock_waits, count)),
        },
        Family {
            name: "user_lock_wait",
            instrument: "user_lock.wait",
            help: "Time that threads were blocked in waits for locks of user space that ended",
            unit: Unit::Seconds,
            labels: &[],
            series: &[total("", offset_of!(podperf_locks, user) + offset_of!(podperf_lock_waits, ns))],
        },
        Family {
            name: "user_lock_waits",
            instrument: "user_lock.waits",
            help: "Waits for locks of user space that ended",
            unit: Unit::Things("{wait}"),
            labels: &[],
            series: &[total("", offset_of!(podperf_locks, user) + offset_of!(podperf_lock_waits, count))],
        },
        Family {
            name: "lock_blocking",
            instrument: "lock.blocking",
            help: "Time that threads, of any container, waited for locks that this one then released",
            unit: Unit::Seconds,
            labels: &[Label { name: "kind", attribute: "podperf.lock.kind" }],
            series: &[
                total("user", offset_of!(podperf_locks, user_blocking_ns)),
                total("kernel", offset_of!(podperf_locks, kernel_blocking_ns)),
            ],
        },
    ],
    node: &[],
    // The program at the end of a wait comes first: no wait begins that it does not see.
    programs: &[
        Program {
            name: "locks_contention_end",
            hook: Hook::Tracepoint { name: "contention_end", since: TRACEPOINTS },
            context: WHEREVER_LOCKS_ARE,
        },
        Program {
            name: "locks_contention_begin",
            hook: Hook::Tracepoint { name: "contention_begin", since: TRACEPOINTS },
            context: WHEREVER_LOCKS_ARE,
        },
        Program {
            name: "locks_waking",
            hook: Hook::Tracepoint { name: "sched_waking", since: TRACEPOINTS },
            context: "task, softirq or interrupt; the woken task locked, interrupts off",
        },
    ],
    maps: &[
        Map {
            name: "locks_waiting",
            entries: Entries::PerSlot(4),
            value_bytes: size_of::<podperf_lock_wait>(),
            is_per_cpu: false,
            is_inherited: true,
        },
        Map {
            name: "locks_shares",
            entries: Entries::PerSlot(1),
            value_bytes: size_of::<u32>(),
            is_per_cpu: false,
            is_inherited: true,
        },
    ],
    drops: &[
        DropReason {
            name: "locks_missed_end",
            lost: "the end of a wait for a lock of the kernel was not seen, and the wait is not counted",
        },
        DropReason {
            name: "locks_late_row",
            lost: "a cgroup got its row of the sensor too late, and a wait for a spinning lock is not counted",
        },
    ],
};
