//! What the sensors are to do, and why they did not start.

use std::{io, path::PathBuf};

use aya::programs::ProgramError;
use thiserror::Error;

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

/// Why the sensors did not start.
#[derive(Debug, Error)]
pub enum LoadError {
    /// The kernel's BTF, the object, a map or a relocation.
    // aya's own messages hold their sources, or hide them: `{err:#}` prints each once.
    #[error(
        "failed to load the BPF object (a kernel without a helper that it needs, or too little memory for its maps)"
    )]
    Object(#[source] Box<aya::EbpfError>),
    /// The kernel's BTF could not be read.
    #[error("failed to read the kernel's BTF")]
    Btf(#[from] aya_obj::btf::BtfError),
    /// The verifier, or the tracepoint, refused a program.
    #[error("failed to start BPF program `{program}`")]
    Program {
        /// Its name in the object.
        program: &'static str,
        /// aya's reason; the verifier's log is in it.
        #[source]
        source: Box<ProgramError>,
    },
    /// A map or program is not in the object: agent and object are not of one build.
    #[error("no `{0}` in the BPF object (rebuild podperf)")]
    Missing(&'static str),
    /// A directory of pins could not be filled, or what is in it is not what it is to be.
    #[error("failed to pin in `{path}` (remove it: `podperf agent --unpin`, or set `restart.pin: false`)")]
    Pins {
        /// The directory.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A perf counter could not be put where the programs read it.
    #[error("failed to hand over a perf counter")]
    Counter(#[source] io::Error),
}
