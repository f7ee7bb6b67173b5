//! The families that need no PMU: one row each, for `/metrics` and for OpenTelemetry, with the series that a usage has in
//! it. Pure.
//!
//! OpenTelemetry's names are dotted and without units, units are UCUM with annotations in braces, as its conventions have
//! it. They become the names of `/metrics` again where a receiver translates them for Prometheus, times excepted.

use serde::{Deserialize, Serialize};

use crate::model::{
    usage::Usage,
    wait::{Unwind, WaitReason, WaitState},
};

/// The families that need no PMU, as the configuration names them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "each is described in its row of `FACTS`")]
pub enum FactFamily {
    #[serde(rename = "oncpu")]
    OnCpu,
    #[serde(rename = "offcpu")]
    OffCpu,
    WaitReasons,
    WaitCounts,
    IncompleteStacks,
    ContextSwitches,
    CpuMigrations,
    PageFaults,
    ProfileSamples,
}

impl FactFamily {
    /// The families that are exported unless the configuration lists others.
    pub const DEFAULT: [Self; 5] =
        [Self::OnCpu, Self::OffCpu, Self::WaitReasons, Self::IncompleteStacks, Self::ContextSwitches];

    /// As in the configuration.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::OnCpu => "oncpu",
            Self::OffCpu => "offcpu",
            Self::WaitReasons => "wait_reasons",
            Self::WaitCounts => "wait_counts",
            Self::IncompleteStacks => "incomplete_stacks",
            Self::ContextSwitches => "context_switches",
            Self::CpuMigrations => "cpu_migrations",
            Self::PageFaults => "page_faults",
            Self::ProfileSamples => "profile_samples",
        }
    }
}

/// One of these families.
#[derive(Debug)]
pub(super) struct Fact {
    pub(super) family: FactFamily,
    /// In `/metrics`, after the prefix and before the unit.
    pub(super) name: &'static str,
    /// In OpenTelemetry, after the prefix.
    pub(super) instrument: &'static str,
    pub(super) help: &'static str,
    pub(super) unit: Unit,
    /// What tells its series apart; without it there is one.
    pub(super) label: Option<Label>,
    pub(super) series: &'static [Series],
    /// Series of nothing are left out: most rows never have most of them.
    pub(super) sparse: bool,
}

/// What a family counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unit {
    /// Kept in nanoseconds.
    Seconds,
    /// Things, as OpenTelemetry annotates them.
    Things(&'static str),
}

/// A label's name here and there.
#[derive(Clone, Copy, Debug)]
pub(super) struct Label {
    /// In `/metrics`.
    pub(super) name: &'static str,
    /// In OpenTelemetry; where profiles have the same, theirs.
    pub(super) attribute: &'static str,
}

/// The label's value, and that of the series: nanoseconds, or how many.
pub(super) type Series = (&'static str, fn(&Usage) -> u64);

const fn label(name: &'static str, attribute: &'static str) -> Option<Label> {
    Some(Label { name, attribute })
}

macro_rules! waits_for {
    ($reason:ident) => {
        (WaitReason::$reason.name(), |usage| usage.profiled.waits_ns[WaitReason::$reason as usize])
    };
}

macro_rules! count_of_waits_for {
    ($reason:ident) => {
        (WaitReason::$reason.name(), |usage| usage.profiled.waits_for[WaitReason::$reason as usize])
    };
}

macro_rules! unwound {
    ($unwind:ident) => {
        (Unwind::$unwind.name(), |usage| usage.profiled.unwound_ns[Unwind::$unwind as usize])
    };
}

/// One row per family.
pub(super) static FACTS: [Fact; 9] = [
    Fact {
        family: FactFamily::OnCpu,
        name: "oncpu",
        instrument: "oncpu.time",
        help: "Time on a CPU",
        unit: Unit::Seconds,
        label: None,
        series: &[("", |usage| usage.oncpu_ns)],
        sparse: false,
    },
    Fact {
        family: FactFamily::OffCpu,
        name: "offcpu",
        instrument: "offcpu.time",
        help: "Time off the CPU: blocked, interruptible or not; runnable in a run queue; held back by a CPU quota",
        unit: Unit::Seconds,
        label: label("state", "podperf.offcpu.state"),
        series: &[
            (WaitState::Interruptible.name(), |usage| usage.offcpu_ns[0]),
            (WaitState::Uninterruptible.name(), |usage| usage.offcpu_ns[1]),
            (WaitState::RunQueue.name(), |usage| usage.offcpu_ns[2]),
            (WaitState::Throttled.name(), |usage| usage.offcpu_ns[3]),
        ],
        sparse: false,
    },
    Fact {
        family: FactFamily::WaitReasons,
        name: "wait",
        instrument: "wait.time",
        help: "Time of `offcpu` by the reason that stacks tell",
        unit: Unit::Seconds,
        label: label("reason", "podperf.offcpu.reason"),
        series: &WAITS,
        sparse: true,
    },
    Fact {
        family: FactFamily::WaitCounts,
        name: "waits",
        instrument: "waits",
        help: "Waits that ended, by the reason that stacks tell; in `run_queue` those of threads that left the CPU and could run on",
        unit: Unit::Things("{wait}"),
        label: label("reason", "podperf.offcpu.reason"),
        series: &WAIT_COUNTS,
        sparse: true,
    },
    Fact {
        family: FactFamily::IncompleteStacks,
        name: "incomplete_stack",
        instrument: "incomplete_stack.time",
        help: "Time on and off the CPU whose stacks do not reach the function that began the thread, by the cause",
        unit: Unit::Seconds,
        label: label("cause", "podperf.stack.unwind"),
        series: &[unwound!(Truncated), unwound!(Broken), unwound!(NoFramePointers)],
        sparse: true,
    },
    Fact {
        family: FactFamily::ContextSwitches,
        name: "context_switches",
        instrument: "context_switches",
        help: "Context switches: voluntary because a task blocked, involuntary because another was to run",
        unit: Unit::Things("{switch}"),
        label: label("kind", "podperf.switch.kind"),
        series: &[("voluntary", |usage| usage.voluntary_switches), ("involuntary", |usage| usage.involuntary_switches)],
        sparse: false,
    },
    Fact {
        family: FactFamily::CpuMigrations,
        name: "cpu_migrations",
        instrument: "cpu.migrations",
        help: "Moves of tasks to another CPU",
        unit: Unit::Things("{migration}"),
        label: None,
        series: &[("", |usage| usage.migrations)],
        sparse: false,
    },
    Fact {
        family: FactFamily::PageFaults,
        name: "page_faults",
        instrument: "page_faults",
        help: "Page faults: minor served from memory, major had to read",
        unit: Unit::Things("{fault}"),
        label: label("kind", "podperf.fault.kind"),
        series: &[("minor", |usage| usage.minor_faults), ("major", |usage| usage.major_faults)],
        sparse: false,
    },
    Fact {
        family: FactFamily::ProfileSamples,
        name: "profile_samples",
        instrument: "profile.samples",
        help: "Samples in profiles: on the CPU, or waits off it",
        unit: Unit::Things("{sample}"),
        label: label("profile", "podperf.profile"),
        series: &[("cpu", |usage| usage.profiled.oncpu_samples), ("offcpu", |usage| usage.profiled.waits)],
        sparse: true,
    },
];

/// One series per reason.
const WAITS: [Series; WaitReason::ALL.len()] = [
    waits_for!(Futex),
    waits_for!(Poll),
    waits_for!(Disk),
    waits_for!(Network),
    waits_for!(PageFault),
    waits_for!(Pipe),
    waits_for!(Sleep),
    waits_for!(KernelLock),
    waits_for!(Child),
    waits_for!(Stopped),
    waits_for!(MemoryLimit),
    waits_for!(RunQueue),
    waits_for!(Throttled),
    waits_for!(Other),
    waits_for!(Unknown),
];

/// Series of how many waits there were, one per reason.
const WAIT_COUNTS: [Series; WaitReason::ALL.len()] = [
    count_of_waits_for!(Futex),
    count_of_waits_for!(Poll),
    count_of_waits_for!(Disk),
    count_of_waits_for!(Network),
    count_of_waits_for!(PageFault),
    count_of_waits_for!(Pipe),
    count_of_waits_for!(Sleep),
    count_of_waits_for!(KernelLock),
    count_of_waits_for!(Child),
    count_of_waits_for!(Stopped),
    count_of_waits_for!(MemoryLimit),
    count_of_waits_for!(RunQueue),
    count_of_waits_for!(Throttled),
    count_of_waits_for!(Other),
    count_of_waits_for!(Unknown),
];
