//! The description of the sensor `latencies`.

use std::mem::offset_of;

use crate::{
    abi::{PODPERF_LATENCY_BUCKETS, podperf_latencies, podperf_measured_call},
    sensor::{
        DropReason, Entries, Family, Hook, Label, Map, Program, Sensor, Series, Setting, SettingKind, Unit, Words, key, names,
    },
};

/// Returns the histogram whose first word is at this offset.
const fn histogram(label: &'static str, offset: usize) -> Series {
    Series { labels: [label, ""], words: Words::histogram(offset, PODPERF_LATENCY_BUCKETS) }
}

/// Defines the names and the series of calls, which are also the fields of the row.
macro_rules! calls {
    ($($field:ident),* $(,)?) => {
        const NAMES: &[&str] = &[$(stringify!($field)),*];
        const SERIES: &[Series] = &[$(histogram(stringify!($field), offset_of!(podperf_latencies, $field))),*];
    };
}

// In the order of `PODPERF_MEASURED_CALLS`, which is that of the bits of `latencies_chosen`.
calls! {
    read, write, pread64, pwrite64, openat, fsync, fdatasync, connect, sendto, recvfrom, sendmsg, recvmsg,
}

/// See README.md.
pub(super) static SENSOR: Sensor = Sensor {
    names: names!("latencies"),
    about: "measures some system calls from their entry to their return",
    is_default: false,
    settings: &[Setting {
        key: key!("latencies", "calls"),
        about: "The system calls that are measured; an empty list measures all that have a histogram",
        kind: SettingKind::Names { names: NAMES },
        constant: Some("latencies_chosen"),
    }],
    words: size_of::<podperf_latencies>() / size_of::<u64>(),
    families: &[Family {
        name: "syscall_latency",
        instrument: "syscall.latency",
        help: "Length of system calls, from the entry to the return, with the time asleep in them",
        unit: Unit::Seconds,
        labels: &[Label { name: "syscall", attribute: "podperf.syscall" }],
        series: SERIES,
    }],
    node: &[],
    programs: &[
        Program {
            name: "latencies_sys_exit",
            hook: Hook::Tracepoint { name: "sys_exit", since: "Linux 5.15" },
            context: "task",
        },
        Program {
            name: "latencies_sys_enter",
            hook: Hook::Tracepoint { name: "sys_enter", since: "Linux 5.15" },
            context: "task",
        },
    ],
    // The kernel keeps an entry with each thread, and asks for no number of them.
    maps: &[Map {
        name: "latencies_of_tasks",
        entries: Entries::Fixed(0),
        value_bytes: size_of::<podperf_measured_call>(),
        is_per_cpu: false,
        is_inherited: true,
    }],
    drops: &[DropReason {
        name: "latencies_missed_end",
        lost: "the end of a system call was not seen, and the call is not counted",
    }],
};

/// The histograms are in the order of the fields, without a gap.
const _: () = {
    let (first, words) = (offset_of!(podperf_latencies, read) / size_of::<u64>(), 1 + PODPERF_LATENCY_BUCKETS as usize);
    let mut at = 0;
    while at < SERIES.len() {
        assert!(matches!(SERIES[at].words, Words::Histogram { sum, .. } if sum == first + at * words));
        at += 1;
    }
    assert!(SENSOR.words == first + SERIES.len() * words);
};
