//! The description of the sensor `interrupts`.

use std::mem::offset_of;

use crate::{
    abi::{PODPERF_INTERRUPT_HANDLERS, podperf_hard_interrupts, podperf_interrupt_kinds, podperf_interrupts},
    sensor::{Entries, Family, Hook, Label, Map, Program, Sensor, Series, Unit, Words, names},
};

/// Returns a series for each field of the kinds at this offset, whose label is the name of the field.
macro_rules! kinds {
    ($kinds:expr, $($field:ident),* $(,)?) => {
        [$(Series {
            labels: [stringify!($field), ""],
            words: Words::Total(($kinds + offset_of!(podperf_interrupt_kinds, $field)) / size_of::<u64>()),
        }),*]
    };
}

/// The number of kinds of interrupts.
const KINDS: usize = size_of::<podperf_interrupt_kinds>() / size_of::<u64>();

const fn kinds(offset: usize) -> [Series; KINDS] {
    kinds![offset, hardirq, hi, timer, net_tx, net_rx, block, irq_poll, tasklet, sched, hrtimer, rcu]
}

const TAKEN: [Series; KINDS] = kinds(offset_of!(podperf_interrupts, taken));
const NODE: [Series; KINDS] = kinds(offset_of!(podperf_interrupts, node));
const COUNTED: [Series; KINDS] = kinds(offset_of!(podperf_interrupts, counted));

const KIND: &[Label] = &[Label { name: "kind", attribute: "podperf.interrupt.kind" }];
const SINCE: &str = "Linux 2.6.31";
const HARD: &str = "interrupt, interrupts off; NMI on arm64 with pseudo-NMIs";
const SOFT: &str = "softirq, interrupts on";

/// See README.md.
pub(super) static SENSOR: Sensor = Sensor {
    names: names!("interrupts"),
    about: "counts interrupts, and the time that they take from threads and from idle CPUs",
    is_default: false,
    settings: &[],
    words: size_of::<podperf_interrupts>() / size_of::<u64>(),
    families: &[Family {
        name: "interrupted",
        instrument: "interrupted.time",
        help: "Time that interrupts took from threads on the CPU",
        unit: Unit::Seconds,
        labels: KIND,
        series: &TAKEN,
    }],
    node: &[
        Family {
            name: "interrupted",
            instrument: "interrupted.time",
            help: "Time in interrupts, all CPUs together",
            unit: Unit::Seconds,
            labels: KIND,
            series: &NODE,
        },
        Family {
            name: "interrupts",
            instrument: "interrupts",
            help: "Interrupts that ended, all CPUs together",
            unit: Unit::Things("{interrupt}"),
            labels: KIND,
            series: &COUNTED,
        },
        Family {
            name: "idle_interrupted",
            instrument: "idle.interrupted.time",
            help: "Time in interrupts of idle CPUs, all CPUs together",
            unit: Unit::Seconds,
            labels: KIND,
            series: &TAKEN,
        },
    ],
    // The program at the end of an interrupt comes first: no interrupt begins that it does not see.
    programs: &[
        Program {
            name: "interrupts_irq_exit",
            hook: Hook::Tracepoint { name: "irq_handler_exit", since: SINCE },
            context: HARD,
        },
        Program {
            name: "interrupts_irq_entry",
            hook: Hook::Tracepoint { name: "irq_handler_entry", since: SINCE },
            context: HARD,
        },
        Program {
            name: "interrupts_softirq_exit",
            hook: Hook::Tracepoint { name: "softirq_exit", since: SINCE },
            context: SOFT,
        },
        Program {
            name: "interrupts_softirq_entry",
            hook: Hook::Tracepoint { name: "softirq_entry", since: SINCE },
            context: SOFT,
        },
    ],
    maps: &[Map {
        name: "interrupts_named",
        entries: Entries::Fixed(PODPERF_INTERRUPT_HANDLERS),
        value_bytes: size_of::<podperf_hard_interrupts>(),
        is_per_cpu: true,
        // The agent adds the counts of previous programs to those of its own.
        is_inherited: false,
    }],
    drops: &[],
};

/// Each word from `taken` on has a series.
const _: () = assert!(
    TAKEN.len() + NODE.len() + COUNTED.len() == SENSOR.words - offset_of!(podperf_interrupts, taken) / size_of::<u64>()
);
