//! The description of the sensor `workqueues`. The counts by function are in a table of its own: the agent finds their
//! labels when it reads it.

use std::mem::offset_of;

use crate::{
    abi::{PODPERF_HISTOGRAM_BUCKETS, podperf_work, podperf_work_run, podperf_workqueues},
    sensor::{Entries, Family, Hook, Map, Program, Sensor, Series, Setting, SettingKind, Unit, Words, key, names},
};

const SINCE: &str = "Linux 2.6.37";
const OF_A_RUN: &str = "worker, or softirq";

/// See README.md.
pub(super) static SENSOR: Sensor = Sensor {
    names: names!("workqueues"),
    about: "counts the items of the kernel's work queues by function, and how long they wait and run",
    is_default: false,
    settings: &[Setting {
        key: key!("workqueues", "maxFunctions"),
        about: "Functions that have series of their own, the first ones; all others are in one series, `(other)`",
        kind: SettingKind::Number { default: 64, least: 1, most: 1000, unit: "functions" },
        constant: None,
    }],
    words: size_of::<podperf_workqueues>() / size_of::<u64>(),
    families: &[],
    node: &[Family {
        name: "workqueue_latency",
        instrument: "workqueue.latency",
        help: "Time of items of work queues from their activation to their start",
        unit: Unit::Seconds,
        labels: &[],
        series: &[Series {
            labels: ["", ""],
            words: Words::histogram(offset_of!(podperf_workqueues, latency), PODPERF_HISTOGRAM_BUCKETS),
        }],
    }],
    // The program at the end comes first: no run and no wait begins whose end it does not see.
    programs: &[
        Program {
            name: "workqueues_end",
            hook: Hook::Tracepoint { name: "workqueue_execute_end", since: SINCE },
            context: OF_A_RUN,
        },
        Program {
            name: "workqueues_start",
            hook: Hook::Tracepoint { name: "workqueue_execute_start", since: SINCE },
            context: OF_A_RUN,
        },
        Program {
            name: "workqueues_activate",
            hook: Hook::Tracepoint { name: "workqueue_activate_work", since: SINCE },
            context: "task, softirq or interrupt; a pool of workers locked, interrupts off",
        },
    ],
    maps: &[
        Map {
            name: "workqueues_waiting",
            entries: Entries::Lru(4),
            value_bytes: size_of::<u64>(),
            is_per_cpu: false,
            is_inherited: true,
        },
        Map {
            name: "workqueues_running",
            entries: Entries::Lru(1),
            value_bytes: size_of::<podperf_work_run>(),
            is_per_cpu: false,
            is_inherited: true,
        },
        Map {
            name: "workqueues_functions",
            entries: Entries::PerSlot(1),
            value_bytes: size_of::<podperf_work>(),
            is_per_cpu: false,
            is_inherited: true,
        },
    ],
    drops: &[],
};
