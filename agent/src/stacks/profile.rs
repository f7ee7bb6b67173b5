//! The symbolized profile of one window: what [`crate::stacks`] hands to the exporters.

use crate::model::wait::{Unwind, WaitState};
use std::{
    borrow::Cow,
    sync::Arc,
    time::{Duration, SystemTime},
};

use crate::model::slot::Slot;
use crate::model::wait::WaitReason;

/// Where the time of one window went, on and off the CPU, grouped by whose it is. Immutable once built.
#[derive(Clone, Debug, Default)]
pub struct Profile {
    /// One entry per container and row of cgroups that waited.
    pub subjects: Vec<SubjectProfile>,
    /// When the window began.
    pub start: Option<SystemTime>,
    /// How long the window was.
    pub duration: Duration,
    /// What is missing from this window: reason (a `podperf_bpf_drops_total` label) and count, zeros left out.
    pub losses: Vec<(&'static str, u64)>,
    /// What one sample on the CPU stands for; `None` when none are taken.
    pub sample_period: Option<Duration>,
}

/// The time of one container or row of cgroups.
#[derive(Clone, Debug)]
pub struct SubjectProfile {
    /// Resource attributes: `service.name`, `k8s.pod.name`, `podperf.cgroup.path`, ...
    pub resource: Vec<(String, String)>,
    /// One entry per (stack, process, activity); in no order.
    pub samples: Vec<Sample>,
}

/// Time of one process that shared a stack and an activity.
#[derive(Clone, Debug)]
pub struct Sample {
    /// Leaf first: kernel frames, then user frames.
    pub stack: Arc<Stack>,
    /// What the threads did meanwhile.
    pub activity: Activity,
    /// Time, in nanoseconds, all waits or samples together.
    pub nanoseconds: u64,
    /// The part of a single wait, in nanoseconds, that samples before this one have; 0 for a sum of waits.
    pub so_far_ns: u64,
    /// How many waits, or samples on the CPU, that was.
    pub count: u64,
    /// When the last of them was.
    pub last: SystemTime,
    /// Which filters let it pass, see [`Slot::let_pass`].
    pub passed: u8,
}

impl Profile {
    /// What the filter of the agent's own profiles lets pass.
    #[must_use]
    pub fn own(mut self) -> Self {
        for subject in &mut self.subjects {
            subject.samples.retain(|sample| Slot::OWN.let_pass(sample.passed));
        }
        self.subjects.retain(|subject| !subject.samples.is_empty());
        self
    }
}

/// What a thread did while time passed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Activity {
    /// It ran; sampled.
    OnCpu,
    /// It waited.
    OffCpu {
        /// How it went to sleep.
        state: WaitState,
        /// What it waited for.
        reason: WaitReason,
        /// Who ended the wait; `None` when that is not known.
        waker: Option<Arc<Waker>>,
    },
}

/// Who ended a wait.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Waker {
    /// The name of the thread.
    pub thread: String,
    /// Whose it is: `namespace/pod/container`, or the path of a cgroup.
    pub subject: String,
    /// From where it woke, outermost function first, with semicolons between; `None` where that was not taken.
    pub stack: Option<String>,
}

/// A call stack with names, leaf first.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct Stack {
    /// Kernel frames, then user frames.
    pub frames: Vec<Arc<Frame>>,
    /// How far the walk came.
    pub unwind: Unwind,
}

impl Stack {
    /// The names of the functions, outermost first, with semicolons between.
    #[must_use]
    pub fn folded(&self) -> String {
        let names: Vec<_> = self.frames.iter().rev().map(|frame| frame.name()).collect();
        names.join(";")
    }
}

/// One frame of a stack. An address with inlined functions is one frame with several `functions`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Frame {
    /// Kernel frames: the absolute address. User frames: the address as the ELF file counts it (virtual offset), or
    /// the absolute address when the mapping is unknown.
    pub address: u64,
    /// The side of the system call boundary, and the language of user code.
    pub kind: FrameKind,
    /// The file that the address lies in; `None` when it is unknown.
    pub mapping: Option<Arc<Mapping>>,
    /// Innermost first (inlined functions before the function that holds them); empty when there is no name.
    pub functions: Vec<Function>,
}

impl Frame {
    /// The name of its innermost function, or else where its code is: `libc.so.6+0x891f4`.
    #[must_use]
    pub fn name(&self) -> Cow<'_, str> {
        if let Some(function) = self.functions.first() {
            return Cow::Borrowed(&function.name);
        }
        let path = self.mapping.as_ref().map_or("", |mapping| &mapping.path);
        let file = path.rsplit('/').next().unwrap_or(path);
        let plus = if file.is_empty() { "" } else { "+" };
        Cow::Owned(format!("{file}{plus}{:#x}", self.address))
    }
}

/// The side of the system call boundary that a frame is on, and the language of user code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FrameKind {
    /// Kernel code.
    Kernel,
    /// User code of C, C++ or another language than those below, or of one that is not known.
    Native,
    /// User code that Go's linker has in its table of functions.
    Go,
    /// User code whose symbol is mangled as rustc does.
    Rust,
}

impl FrameKind {
    /// Returns the value of the attribute `profile.frame.type`, by OpenTelemetry's semantic conventions.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Kernel => "kernel",
            Self::Native => "native",
            Self::Go => "go",
            Self::Rust => "rust",
        }
    }

    /// Returns whether this is code of the kernel.
    #[must_use]
    pub const fn is_kernel(self) -> bool {
        matches!(self, Self::Kernel)
    }
}

/// A function's name and, where debug information has it, its source line.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Function {
    /// Demangled.
    pub name: Arc<str>,
    /// Source file, empty when unknown.
    pub file: Arc<str>,
    /// Line of the call or of the leaf, 0 when unknown.
    pub line: u32,
}

/// A file that code was mapped from.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct Mapping {
    /// First address of the mapping in the process, 0 when unknown.
    pub start: u64,
    /// Address after the last.
    pub limit: u64,
    /// Offset of `start` in the file.
    pub offset: u64,
    /// The path as the process sees it; `[kernel]` for the kernel.
    pub path: String,
    /// GNU build id in lower-case hex, when the file has one.
    pub build_id: Option<String>,
    /// First 16 bytes, in hex, of SHA-256(first 4096 bytes ++ last 4096 bytes ++ u64 big-endian length).
    pub htlhash: Option<String>,
}
