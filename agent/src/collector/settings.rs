//! The settings of the collector, which the agent makes before it starts the thread.

use std::{path::PathBuf, sync::mpsc, time::Duration};

use super::{SamplingStates, UnwinderChannels};
use crate::{
    attribution::RowRules,
    cgroups::Choice,
    filter::Filter,
    kernel::AnsweringTime,
    limits::{MemorySettings, cpu::Overhead},
    model::{
        ids::Pid,
        mode::Mode,
        status::{State, Status},
    },
    stacks::{Blocked, RawProfile},
    telemetry::heartbeat::Heartbeat,
};

/// The settings of the collector.
#[derive(Debug)]
pub struct CollectorSettings {
    /// The cgroup2 mount.
    pub cgroup_root: PathBuf,
    /// The rules that decide which rows there are.
    pub rules: RowRules,
    /// The tables of the sensors that count only some namespaces, each with these namespaces.
    pub choices: Vec<(&'static str, Choice)>,
    /// The longest wait for a pod's name; `None` if no source of pods is connected.
    pub patience: Option<Duration>,
    /// The status to which the collector reports: pod names, losses, checkpoints and limits.
    pub status: Status,
    /// The cap on the CPU time that podperf may take.
    pub overhead: Overhead,
    /// The shortest time between two readings: a request within this time gets the last reading.
    pub coalesce: Duration,
    /// The account of readers; it is charged with the readings that they request.
    pub answering: AnsweringTime,
    /// The cap on the memory that podperf may take.
    pub memory: MemorySettings,
    /// The heartbeat, which beats once per turn of the thread.
    pub heartbeat: Heartbeat,
    /// The interval of profiles and their receiver; `None` makes no profiles.
    pub profiles: Option<(Duration, mpsc::SyncSender<RawProfile>)>,
    /// The part of stacks that is taken.
    pub mode: Mode,
    /// The states of the part `stacks` while the kernel shows its functions, and while it hides them.
    pub stacks: Option<[(State, String); 2]>,
    /// They tell whether files are read: for names, and for unwind tables.
    pub blocked: [Blocked; 2],
    /// The filter of the agent's own profiles.
    pub filter: Filter,
    /// The channel to the symbolizer for processes with new stacks, which it reads before they end.
    pub new_processes: mpsc::SyncSender<Pid>,
    /// The channels from and to the thread that unwinds copied stacks; `None` if stacks are not copied.
    pub unwinder: Option<UnwinderChannels>,
    /// The largest number of cached stacks.
    pub max_stacks: usize,
    /// The largest number of samples that wait for the name of their pod.
    pub max_samples: usize,
    /// The time that one sample on the CPU stands for; `None` if such samples are not taken.
    pub sample_period: Option<Duration>,
    /// The states of these samples; `None` if the agent cannot tell from the time of threads that they do not come.
    pub samples: Option<SamplingStates>,
}
