//! The table of facts: all numbers of a cgroup that need no PMU. Pure.
//!
//! A [`Fact`] has its place, its word of `struct podperf_cgroup` and its name in the checkpoint here. A row of [`FACTS`]
//! is a family, and lists the facts that are its series. Sums, deltas, the checkpoint, both exporters and the reference
//! of metrics are loops over the facts or over the families.
//!
//! OpenTelemetry's names are dotted and have no units; units are UCUM with annotations in braces. Where a receiver
//! translates them for Prometheus, they become the names of `/metrics` again, except for times.

use std::{
    mem::offset_of,
    ops::{Index, IndexMut},
};

use podperf_ebpf::abi;
pub use podperf_ebpf::sensor::{Label, Unit};
use serde::{Deserialize, Serialize};
use strum::{IntoStaticStr, VariantArray};

use super::wait::{Unwind, WaitReason, WaitState};

/// The families that need no PMU, as the configuration names them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case")]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "each is described in its row of `FACTS`")]
pub enum FactFamily {
    #[serde(rename = "oncpu")]
    #[strum(serialize = "oncpu")]
    OnCpu,
    #[serde(rename = "offcpu")]
    #[strum(serialize = "offcpu")]
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

    /// Returns the name in the configuration.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.into()
    }
}

/// One of the families.
#[derive(Debug)]
pub struct FamilyRow {
    /// The name in the configuration.
    pub family: FactFamily,
    /// The name in `/metrics`, after the prefix and before the unit.
    pub name: &'static str,
    /// The name in OpenTelemetry, after the prefix.
    pub instrument: &'static str,
    /// One sentence without its full stop.
    pub help: &'static str,
    /// The unit of all its series.
    pub unit: Unit,
    /// The label that distinguishes the series; `None` for a family of one series.
    pub label: Option<Label>,
    /// The exported series.
    pub series: &'static [Series],
    /// True if series of 0 are left out: most cgroups never have most of them.
    pub sparse: bool,
}

impl FamilyRow {
    /// Returns true if all its series are counted from stacks.
    #[must_use]
    pub fn needs_stacks(&self) -> bool {
        self.series.iter().all(|(_, fact)| fact.word().is_none())
    }
}

/// The value of the label, and the fact.
pub type Series = (&'static str, Fact);

/// A number of a cgroup: its place in [`Facts`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Fact(usize);

/// The first facts of the groups with one fact for each state, reason or end of a walk.
const OFF_CPU: usize = 6;
const WAIT: usize = OFF_CPU + WaitState::ALL.len();
const SAMPLES: usize = WAIT + WaitReason::ALL.len();
const WAITS_FOR: usize = SAMPLES + 2;
const UNWOUND: usize = WAITS_FOR + WaitReason::ALL.len();

impl Fact {
    /// Time on a CPU, in nanoseconds.
    pub const ON_CPU: Self = Self(0);
    /// Context switches because a task blocked.
    pub const VOLUNTARY_SWITCHES: Self = Self(1);
    /// Context switches because another task was to run.
    pub const INVOLUNTARY_SWITCHES: Self = Self(2);
    /// Moves to another CPU.
    pub const MIGRATIONS: Self = Self(3);
    /// Page faults that were served from memory.
    pub const MINOR_FAULTS: Self = Self(4);
    /// Page faults that had to read.
    pub const MAJOR_FAULTS: Self = Self(5);
    /// Waits that ended, long ones included.
    pub const WAITS: Self = Self(SAMPLES);
    /// Samples on the CPU.
    pub const ON_CPU_SAMPLES: Self = Self(SAMPLES + 1);

    /// Number of facts.
    pub const COUNT: usize = UNWOUND + Unwind::ALL.len();

    /// Time off the CPU in this state, in nanoseconds.
    #[must_use]
    pub const fn off_cpu(state: WaitState) -> Self {
        Self(OFF_CPU + state as usize)
    }

    /// Time of waits for this reason, in nanoseconds.
    #[must_use]
    pub const fn wait(reason: WaitReason) -> Self {
        Self(WAIT + reason as usize)
    }

    /// Waits that ended, by reason.
    #[must_use]
    pub const fn waits_for(reason: WaitReason) -> Self {
        Self(WAITS_FOR + reason as usize)
    }

    /// Time on and off the CPU whose stack was walked this far, in nanoseconds; one window late.
    #[must_use]
    pub const fn unwound(unwind: Unwind) -> Self {
        Self(UNWOUND + unwind as usize)
    }

    /// Returns all facts, in their order.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..Self::COUNT).map(Self)
    }

    /// Returns the word of `struct podperf_cgroup` that counts the fact; `None` for one that is counted from stacks.
    #[must_use]
    pub fn word(self) -> Option<usize> {
        const FIELDS: [usize; OFF_CPU] = [
            offset_of!(abi::podperf_cgroup, run_ns),
            offset_of!(abi::podperf_cgroup, voluntary),
            offset_of!(abi::podperf_cgroup, involuntary),
            offset_of!(abi::podperf_cgroup, migrations),
            offset_of!(abi::podperf_cgroup, minor_faults),
            offset_of!(abi::podperf_cgroup, major_faults),
        ];
        let first = offset_of!(abi::podperf_cgroup, offcpu_ns) / size_of::<u64>();
        match self.0 {
            plain @ 0..OFF_CPU => FIELDS.get(plain).map(|offset| offset / size_of::<u64>()),
            state @ OFF_CPU..WAIT => Some(first + state - OFF_CPU),
            _ => None,
        }
    }

    /// Returns the name of the fact in the checkpoint. A name never changes: a number whose name is not found is lost.
    #[must_use]
    pub fn saved_as(self) -> String {
        const PLAIN: [&str; OFF_CPU] =
            ["oncpu", "voluntary_switches", "involuntary_switches", "migrations", "minor_faults", "major_faults"];
        let of = |first: usize| self.0.checked_sub(first).unwrap_or(usize::MAX);
        match self.0 {
            0..OFF_CPU => PLAIN.get(self.0).copied().unwrap_or_default().to_owned(),
            OFF_CPU..WAIT => format!("offcpu {}", STATES.get(of(OFF_CPU)).copied().unwrap_or_default()),
            WAIT..SAMPLES => format!("wait {}", REASONS.get(of(WAIT)).copied().unwrap_or_default()),
            SAMPLES..WAITS_FOR => if self == Self::WAITS { "waits" } else { "oncpu_samples" }.to_owned(),
            WAITS_FOR..UNWOUND => format!("waits {}", REASONS.get(of(WAITS_FOR)).copied().unwrap_or_default()),
            _ => format!("unwound {}", UNWINDS.get(of(UNWOUND)).copied().unwrap_or_default()),
        }
    }
}

/// The names in the checkpoint, see [`Fact::saved_as`].
const STATES: [&str; WaitState::ALL.len()] = ["Interruptible", "Uninterruptible", "RunQueue", "Throttled"];
const REASONS: [&str; WaitReason::ALL.len()] = [
    "Futex",
    "Poll",
    "Disk",
    "Network",
    "PageFault",
    "Pipe",
    "Sleep",
    "KernelLock",
    "Child",
    "Stopped",
    "MemoryLimit",
    "RunQueue",
    "Throttled",
    "Other",
    "Unknown",
];
const UNWINDS: [&str; Unwind::ALL.len()] =
    ["Whole", "Truncated", "Broken", "NoFramePointers", "Shed", "Guessed", "Cut"];

/// One number for each [`Fact`]. 64 bits are too few for nanoseconds: 10,000 threads that sleep fill them in 21 days.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts([u128; Fact::COUNT]);

impl Default for Facts {
    fn default() -> Self {
        Self([0; Fact::COUNT])
    }
}

impl Index<Fact> for Facts {
    type Output = u128;

    fn index(&self, fact: Fact) -> &u128 {
        &self.0[fact.0]
    }
}

impl IndexMut<Fact> for Facts {
    fn index_mut(&mut self, fact: Fact) -> &mut u128 {
        &mut self.0[fact.0]
    }
}

impl<const N: usize> From<[(Fact, u128); N]> for Facts {
    fn from(numbers: [(Fact, u128); N]) -> Self {
        let mut facts = Self::default();
        numbers.into_iter().for_each(|(fact, number)| facts[fact] = number);
        facts
    }
}

impl Facts {
    /// Returns the times of waits that are in no sample, in nanoseconds by [`WaitState`], by their reasons: those that
    /// the state alone tells, and `unknown`.
    #[must_use]
    pub fn of_waits_without_samples(by_state: &[u64; WaitState::ALL.len()]) -> Self {
        let mut facts = Self::default();
        for (state, ns) in WaitState::ALL.into_iter().zip(by_state) {
            facts[Fact::wait(match state {
                WaitState::RunQueue => WaitReason::RunQueue,
                WaitState::Throttled => WaitReason::Throttled,
                WaitState::Interruptible | WaitState::Uninterruptible => WaitReason::Unknown,
            })] += u128::from(*ns);
        }
        facts
    }

    /// Adds other facts.
    pub fn add(&mut self, other: &Self) {
        self.numbers_mut().zip(other.0).for_each(|(sum, by)| *sum += by);
    }

    /// Returns the numbers in the order of the facts.
    pub fn numbers_mut(&mut self) -> impl Iterator<Item = &mut u128> {
        self.0.iter_mut()
    }
}

const fn label(name: &'static str, attribute: &'static str) -> Option<Label> {
    Some(Label { name, attribute })
}

/// Returns a series for each reason, named by it.
const fn by_reason(first: usize) -> [Series; WaitReason::ALL.len()] {
    let mut series = [("", Fact(0)); WaitReason::ALL.len()];
    let mut at = 0;
    while at < series.len() {
        series[at] = (WaitReason::ALL[at].name(), Fact(first + at));
        at += 1;
    }
    series
}

const fn off_cpu(state: WaitState) -> Series {
    (state.name(), Fact::off_cpu(state))
}

const fn unwound(unwind: Unwind) -> Series {
    (unwind.name(), Fact::unwound(unwind))
}

const WAIT_TIMES: [Series; WaitReason::ALL.len()] = by_reason(WAIT);
const WAIT_COUNTS: [Series; WaitReason::ALL.len()] = by_reason(WAITS_FOR);

/// One row for each family.
pub static FACTS: [FamilyRow; 10] = [
    FamilyRow {
        family: FactFamily::OnCpu,
        name: "oncpu",
        instrument: "oncpu.time",
        help: "Time on a CPU",
        unit: Unit::Seconds,
        label: None,
        series: &[("", Fact::ON_CPU)],
        sparse: false,
    },
    FamilyRow {
        family: FactFamily::OffCpu,
        name: "offcpu",
        instrument: "offcpu.time",
        help: "Time off the CPU: blocked, interruptible or not; runnable in a run queue; held back by a CPU quota",
        unit: Unit::Seconds,
        label: label("state", "podperf.offcpu.state"),
        series: &[
            off_cpu(WaitState::Interruptible),
            off_cpu(WaitState::Uninterruptible),
            off_cpu(WaitState::RunQueue),
            off_cpu(WaitState::Throttled),
        ],
        sparse: false,
    },
    FamilyRow {
        family: FactFamily::WaitReasons,
        name: "wait",
        instrument: "wait.time",
        help: "Time of `offcpu` by the reason that stacks tell",
        unit: Unit::Seconds,
        label: label("reason", "podperf.offcpu.reason"),
        series: &WAIT_TIMES,
        sparse: true,
    },
    FamilyRow {
        family: FactFamily::WaitCounts,
        name: "waits",
        instrument: "waits",
        help: "Waits that ended, by the reason that stacks tell; in `run_queue` those of threads that left the CPU and could run on",
        unit: Unit::Things("{wait}"),
        label: label("reason", "podperf.offcpu.reason"),
        series: &WAIT_COUNTS,
        sparse: true,
    },
    FamilyRow {
        family: FactFamily::IncompleteStacks,
        name: "incomplete_stack",
        instrument: "incomplete_stack.time",
        help: "Time on and off the CPU whose stacks do not reach the function that began the thread, by the cause",
        unit: Unit::Seconds,
        label: label("cause", "podperf.stack.unwind"),
        series: &[
            unwound(Unwind::Truncated),
            unwound(Unwind::Broken),
            unwound(Unwind::NoFramePointers),
            unwound(Unwind::Shed),
            unwound(Unwind::Cut),
        ],
        sparse: true,
    },
    FamilyRow {
        family: FactFamily::IncompleteStacks,
        name: "guessed_stack",
        instrument: "guessed_stack.time",
        help: "Time on and off the CPU whose stacks are whole, but with guessed callers in code without unwind tables",
        unit: Unit::Seconds,
        label: None,
        series: &[("", Fact::unwound(Unwind::Guessed))],
        sparse: true,
    },
    FamilyRow {
        family: FactFamily::ContextSwitches,
        name: "context_switches",
        instrument: "context_switches",
        help: "Context switches: voluntary because a task blocked, involuntary because another was to run",
        unit: Unit::Things("{switch}"),
        label: label("kind", "podperf.switch.kind"),
        series: &[("voluntary", Fact::VOLUNTARY_SWITCHES), ("involuntary", Fact::INVOLUNTARY_SWITCHES)],
        sparse: false,
    },
    FamilyRow {
        family: FactFamily::CpuMigrations,
        name: "cpu_migrations",
        instrument: "cpu.migrations",
        help: "Moves of tasks to another CPU",
        unit: Unit::Things("{migration}"),
        label: None,
        series: &[("", Fact::MIGRATIONS)],
        sparse: false,
    },
    FamilyRow {
        family: FactFamily::PageFaults,
        name: "page_faults",
        instrument: "page_faults",
        help: "Page faults: minor served from memory, major had to read",
        unit: Unit::Things("{fault}"),
        label: label("kind", "podperf.fault.kind"),
        series: &[("minor", Fact::MINOR_FAULTS), ("major", Fact::MAJOR_FAULTS)],
        sparse: false,
    },
    FamilyRow {
        family: FactFamily::ProfileSamples,
        name: "profile_samples",
        instrument: "profile.samples",
        help: "Samples in profiles: on the CPU, or waits off it",
        unit: Unit::Things("{sample}"),
        label: label("profile", "podperf.profile"),
        series: &[("cpu", Fact::ON_CPU_SAMPLES), ("offcpu", Fact::WAITS)],
        sparse: true,
    },
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn states_reasons_and_ends_of_walks_are_in_the_order_of_their_types() {
        assert!(WaitState::ALL.iter().enumerate().all(|(at, state)| *state as usize == at));
        assert!(WaitReason::ALL.iter().enumerate().all(|(at, reason)| *reason as usize == at));
        assert!(Unwind::ALL.iter().enumerate().all(|(at, unwind)| *unwind as usize == at));
        let saved = |name: &str| name.to_lowercase();
        assert!(
            WaitReason::ALL.iter().zip(REASONS).all(|(reason, name)| reason.name().replace('_', "") == saved(name))
        );
        assert!(WaitState::ALL.iter().zip(STATES).all(|(state, name)| state.name().replace('_', "") == saved(name)));
        assert!(Unwind::ALL.iter().zip(UNWINDS).all(|(unwind, name)| unwind.name().replace('_', "") == saved(name)));
    }

    #[test]
    fn each_fact_has_its_own_name_and_word_and_is_at_most_in_one_series() {
        let names: BTreeSet<_> = Fact::all().map(Fact::saved_as).collect();
        assert_eq!(names.len(), Fact::COUNT);
        let words: BTreeSet<_> = Fact::all().filter_map(Fact::word).collect();
        assert_eq!(words.len(), WAIT, "{words:?}");
        let series: Vec<_> = FACTS.iter().flat_map(|row| row.series).map(|(_, fact)| *fact).collect();
        let distinct: BTreeSet<_> = series.iter().copied().collect();
        assert_eq!(series.len(), distinct.len());
        // Time whose stacks are whole is in no series.
        let missing: Vec<_> = Fact::all().filter(|fact| !distinct.contains(fact)).collect();
        assert_eq!(missing, [Fact::unwound(Unwind::Whole)]);
    }
}
