//! The settings of the sensors.

use std::collections::BTreeMap;

use super::{counters::PmuSettings, sampler::SampleEvent};
use crate::model::{ids::CgroupId, sensors::Sensor, settings::SettingValues};

/// The settings of the sensors.
#[derive(Clone, Debug)]
pub struct SensorSettings {
    /// The wanted form of the scheduling tracepoint.
    pub tracepoint: Tracepoint,
    /// Set if the programs count times, waits, switches and faults.
    pub facts: bool,
    /// Set if waits get stacks.
    pub stacks: bool,
    /// The shortest wait that is reported on its own, in nanoseconds; 0: none is reported.
    pub long_wait_ns: u64,
    /// The shortest wait that gets its waker, in nanoseconds; 0: none does.
    pub waker_after_ns: u64,
    /// Set if wakers get a stack, too.
    pub waker_stacks: bool,
    /// The largest number of stacks that a CPU walks per second; 0: no limit.
    pub max_walks: u32,
    /// Set if user stacks are copied, and unwound by the tables of the files; otherwise the kernel walks them by frame
    /// pointers.
    pub copies: bool,
    /// Set if a test wants the kernel to refuse the program that copies the stacks of samples.
    pub refuse_copies: bool,
    /// Set if stacks have user frames; otherwise no walk reads from user space.
    pub user_frames: bool,
    /// Number of samples per second on each CPU; 0: none.
    pub oncpu_hertz: u32,
    /// The event that takes the samples.
    pub oncpu_event: SampleEvent,
    /// Set if some CPUs may run without a tick: an event with a frequency would bring it back on all of them.
    pub tickless: bool,
    /// The CPUs that are not sampled, and not interrupted for a reading.
    pub quiet_cpus: Vec<u32>,
    /// Set if stacks of the stack cache are still walked, to count how often the cached stack is wrong.
    pub shadow: bool,
    /// Number of rows of the cgroup table.
    pub max_cgroups: u32,
    /// The levels of the tree in which cgroups have names, see [`super::Sensors::name_levels`].
    pub levels: BTreeMap<CgroupId, u64>,
    /// Number of stacks in the stack cache.
    pub max_stacks: u32,
    /// The largest number of distinct (stack, cgroup, process, activity, waker) between two readings.
    pub max_samples: u32,
    /// The sensors of [`crate::model::sensors`] that are on.
    pub sensors: Vec<&'static Sensor>,
    /// The values of their settings.
    pub values: SettingValues,
    /// The settings for sharing the PMU with other users.
    pub pmu: PmuSettings,
}

/// The forms of the scheduling tracepoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Tracepoint {
    /// BTF-typed where the kernel accepts it, else raw.
    Auto,
    /// `tp_btf/sched_switch`.
    Btf,
    /// `raw_tp/sched_switch`: the program gets the next task as a plain address without a type.
    Raw,
}
