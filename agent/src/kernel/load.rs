//! What the sensors are to do, and why they did not start.

use super::{counters::PmuSettings, sampler::SampleEvent};

/// What the sensors are to do.
#[derive(Clone, Debug)]
pub struct SensorSettings {
    /// Which form of the scheduling tracepoint is wanted.
    pub tracepoint: Tracepoint,
    /// Whether times, waits, switches and faults are kept.
    pub facts: bool,
    /// Whether waits get stacks.
    pub stacks: bool,
    /// Waits at least this long are reported one by one; 0 reports none.
    pub long_wait_ns: u64,
    /// Waits at least this long get their waker; 0: none does.
    pub waker_after_ns: u64,
    /// Whether wakers have their stack, too.
    pub waker_stacks: bool,
    /// Stacks that a CPU walks in a second at most; 0: as many as there are.
    pub max_walks: u32,
    /// Samples on each CPU in a second; 0: none.
    pub oncpu_hertz: u32,
    /// What makes them.
    pub oncpu_event: SampleEvent,
    /// Whether remembered stacks are walked all the same, to count how often they are wrong.
    pub shadow: bool,
    /// Rows of the cgroup table.
    pub max_cgroups: u32,
    /// Remembered stacks.
    pub max_stacks: u32,
    /// Distinct (stack, cgroup, process, activity, waker) between two readings.
    pub max_samples: u32,
    /// How the PMU is shared.
    pub pmu: PmuSettings,
}

/// The forms of the scheduling tracepoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Tracepoint {
    /// BTF-typed where the kernel takes it, else raw.
    Auto,
    /// `tp_btf/sched_switch`.
    Btf,
    /// `raw_tp/sched_switch`: sees only the leaving task; coming-on times are told by run times.
    Raw,
}
