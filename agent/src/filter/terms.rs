//! The terms of a filter: each tests one of the [`FIELDS`] of a sample.

use std::time::Duration;

use podperf_ebpf::abi;

use crate::{
    attribution::Subject,
    kernel::records::{RawActivity, SampleKey},
    model::wait::{WaitReason, WaitState},
    pods::{self, ContainerInfo},
};

/// The longest name of a thread, in bytes: the kernel cuts longer names.
const COMM_BYTES: usize = abi::PODPERF_COMM_MAX as usize - 1;

/// A text to compare with; a `*` at its end matches any rest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Text {
    text: String,
    beginning: bool,
}

impl Text {
    /// Reads the text of an expression, with or without `*` at its end.
    #[must_use]
    pub fn new(text: &str) -> Self {
        match text.strip_suffix('*') {
            Some(text) => Self { text: text.to_owned(), beginning: true },
            None => Self { text: text.to_owned(), beginning: false },
        }
    }

    fn fits(&self, text: &str) -> bool {
        if self.beginning { text.starts_with(&self.text) } else { text == self.text }
    }
}

/// One term of an expression; the operators `!=` and `<` negate it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Term {
    Kernel(KernelTerm),
    Known(KnownTerm),
}

/// A term that only the kernel can test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum KernelTerm {
    AtLeast(Duration),
    Thread(u32),
    Comm(Text),
}

/// A term that the agent tests when the sample has arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KnownTerm {
    /// The state in which the task left the CPU, or that it was on the CPU.
    State(StateTerm),
    /// The process id.
    Process(u32),
    /// The path of its cgroup.
    Cgroup(Text),
    /// The namespace of its pod.
    Namespace(Text),
    /// The name of its pod.
    Pod(Text),
    /// The name of its container.
    Container(Text),
    /// The name of its pod's workload.
    Workload(Text),
    /// A label of its pod, by the label's name in Prometheus.
    Label(String, Text),
    /// The reason of the wait.
    Reason(WaitReason),
}

/// The states of `ps` that are sampled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateTerm {
    /// `S`
    Interruptible,
    /// `D`
    Uninterruptible,
    /// `R`: on the CPU, or waiting for a CPU.
    Runnable,
}

/// The fields of a sample that the agent knows.
#[derive(Clone, Copy, Debug)]
pub struct Known<'a> {
    /// The state in which the task left the CPU, or that it was on the CPU.
    pub state: StateTerm,
    /// The process id.
    pub process: u32,
    /// The path of its cgroup; empty while the path is unknown.
    pub path: &'a str,
    /// The owner of the sample.
    pub subject: &'a Subject,
    /// The reason of the wait; `None` on the CPU.
    pub reason: Option<WaitReason>,
}

impl<'a> Known<'a> {
    /// Collects the fields from the kernel's sample, the cgroup tree and the pods.
    #[must_use]
    pub fn new(key: &SampleKey, path: &'a str, subject: &'a Subject, reason: WaitReason) -> Self {
        let state = match key.activity {
            RawActivity::Wait(WaitState::Interruptible) => StateTerm::Interruptible,
            RawActivity::Wait(WaitState::Uninterruptible) => StateTerm::Uninterruptible,
            RawActivity::Wait(WaitState::RunQueue | WaitState::Throttled) | RawActivity::OnCpu => StateTerm::Runnable,
        };
        let reason = (key.activity != RawActivity::OnCpu).then_some(reason);
        Self { state, process: key.process.0, path, subject, reason }
    }
}

impl KernelTerm {
    pub(super) fn entry(&self, bit: u32, holds: bool) -> abi::podperf_filter_term {
        let mut entry: abi::podperf_filter_term = bytemuck::Zeroable::zeroed();
        (entry.bit, entry.negated) = (bit, u32::from(!holds));
        match self {
            Self::AtLeast(duration) => {
                entry.field = abi::PODPERF_FILTER_AT_LEAST;
                entry.value = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
            }
            Self::Thread(tid) => {
                entry.field = abi::PODPERF_FILTER_THREAD;
                entry.value = u64::from(*tid);
            }
            Self::Comm(name) => {
                entry.field = abi::PODPERF_FILTER_COMM;
                let bytes = name.text.as_bytes();
                let bytes = &bytes[..bytes.len().min(COMM_BYTES)];
                bytemuck::cast_slice_mut(&mut entry.comm)[..bytes.len()].copy_from_slice(bytes);
                // The final NUL is compared too, unless the text is only the beginning of a name.
                entry.value = (bytes.len() + usize::from(!name.beginning)) as u64;
            }
        }
        entry
    }
}

impl KnownTerm {
    pub(super) fn label(&self) -> Option<&str> {
        match self {
            Self::Label(name, _) => Some(name),
            _ => None,
        }
    }

    pub(super) fn holds(&self, known: &Known<'_>) -> bool {
        let container = match known.subject {
            Subject::Container(info) => Some(info),
            Subject::Cgroup(_) => None,
        };
        let of_pod =
            |text: &Text, what: fn(&ContainerInfo) -> &str| container.is_some_and(|info| text.fits(what(info)));
        match self {
            Self::State(state) => *state == known.state,
            Self::Process(pid) => *pid == known.process,
            Self::Cgroup(path) => path.fits(known.path),
            Self::Namespace(name) => of_pod(name, |info| &info.pod.namespace),
            Self::Pod(name) => of_pod(name, |info| &info.pod.name),
            Self::Container(name) => of_pod(name, |info| &info.name),
            Self::Workload(name) => of_pod(name, |info| &info.pod.workload.name),
            Self::Label(label, value) => container
                .is_some_and(|info| info.pod.labels.iter().any(|(name, found)| **name == **label && value.fits(found))),
            Self::Reason(reason) => known.reason == Some(*reason),
        }
    }
}

/// The names of all fields, for error messages.
pub(super) const FIELDS: &[&str] = &[
    "state",
    "duration",
    "reason",
    "tid",
    "pid",
    "comm",
    "cgroup",
    "namespace",
    "pod",
    "container",
    "workload",
    "label.NAME",
];

/// Returns the term `field` with this value; `None` if there is no such field, and an error if the value is wrong.
/// `duration` is the only field with an order, and the parser handles it.
pub(super) fn term(field: &str, value: &str) -> Option<Result<Term, String>> {
    let text = || Text::new(value);
    let number = |what: &str| value.parse::<u32>().map_err(|_not| format!("`{value}` is no {what} (a number)"));
    let known = |term| Some(Ok(Term::Known(term)));
    match field {
        "state" => Some(state(value).map(|state| Term::Known(KnownTerm::State(state)))),
        "reason" => Some(reason(value).map(|reason| Term::Known(KnownTerm::Reason(reason)))),
        "tid" => Some(number("thread id").map(|tid| Term::Kernel(KernelTerm::Thread(tid)))),
        "pid" => Some(number("process id").map(|pid| Term::Known(KnownTerm::Process(pid)))),
        "comm" => Some(Ok(Term::Kernel(KernelTerm::Comm(text())))),
        "cgroup" => known(KnownTerm::Cgroup(text())),
        "namespace" => known(KnownTerm::Namespace(text())),
        "pod" => known(KnownTerm::Pod(text())),
        "container" => known(KnownTerm::Container(text())),
        "workload" => known(KnownTerm::Workload(text())),
        _ => {
            let label = field.strip_prefix("label.").filter(|name| !name.is_empty())?;
            known(KnownTerm::Label(pods::label_name(label), text()))
        }
    }
}

/// `duration >= value`.
pub(super) fn at_least(value: &str) -> Result<Term, String> {
    let parsed = humantime_serde::re::humantime::parse_duration(value);
    let duration = parsed.map_err(|error| format!("`{value}` is no duration: {error} (such as 500us, 1ms, 2s)"))?;
    Ok(Term::Kernel(KernelTerm::AtLeast(duration)))
}

fn state(value: &str) -> Result<StateTerm, String> {
    match value {
        "S" | "interruptible" => Ok(StateTerm::Interruptible),
        "D" | "uninterruptible" => Ok(StateTerm::Uninterruptible),
        "R" | "running" => Ok(StateTerm::Runnable),
        _ => Err(format!(
            "`{value}` is no state (S: interruptible, D: uninterruptible, R: in the run queue, throttled or running)"
        )),
    }
}

fn reason(value: &str) -> Result<WaitReason, String> {
    let found = WaitReason::ALL.iter().copied().find(|reason| reason.name() == value);
    found.ok_or_else(|| {
        let names: Vec<_> = WaitReason::ALL.iter().map(|reason| reason.name()).collect();
        format!("`{value}` is no reason (one of {})", names.join(", "))
    })
}
