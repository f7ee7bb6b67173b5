//! The symbolized profile of one window, which [`crate::stacks`] sends to the exporters.

use std::{
    borrow::Cow,
    sync::Arc,
    time::{Duration, SystemTime},
};

use crate::{
    attribution::Subject,
    model::{
        lock::Lock,
        wait::{Unwind, WaitReason, WaitState},
    },
};

/// The time of one window, on and off the CPU, grouped by its owner. Immutable once built.
#[derive(Clone, Debug, Default)]
pub struct Profile {
    /// One entry per container and per row of cgroups with samples.
    pub subjects: Vec<SubjectProfile>,
    /// The start of the window.
    pub start: Option<SystemTime>,
    /// The length of the window.
    pub duration: Duration,
    /// Samples that are missing from this window: reason (a `podperf_bpf_drops_total` label) and count, without zeros.
    pub losses: Vec<(&'static str, u64)>,
    /// The time that one sample on the CPU stands for; `None` if such samples are not taken.
    pub sample_period: Option<Duration>,
}

/// The time of one container or row of cgroups.
#[derive(Clone, Debug)]
pub struct SubjectProfile {
    /// The container or row of cgroups.
    pub subject: Subject,
    /// One entry per (stack, process, activity); in no order.
    pub samples: Vec<Sample>,
}

/// Time of one process with the same stack and activity.
#[derive(Clone, Debug)]
pub struct Sample {
    /// Leaf first: kernel frames, then user frames.
    pub stack: Arc<Stack>,
    /// The activity of the threads in this time.
    pub activity: Activity,
    /// The time of all these waits or samples, in nanoseconds.
    pub nanoseconds: u64,
    /// The part of these waits that earlier samples contain, in nanoseconds. It is known for waits that have a sample of
    /// their own in the kernel: long ones, and waits for locks.
    pub so_far_ns: u64,
    /// The number of waits that ended, or of samples on the CPU. It is 0 for parts of waits that go on, for time in the
    /// run queue after waits, and for time that is in no sample of the kernel's.
    pub count: u64,
    /// The time of the last wait or sample.
    pub last: SystemTime,
    /// The filters that the samples passed, see [`crate::model::slot::Slot::let_pass`].
    pub passed: u8,
}

/// The activity of a thread while time passed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Activity {
    /// The thread ran; sampled.
    OnCpu,
    /// The thread waited.
    OffCpu {
        /// The state in which it went to sleep.
        state: WaitState,
        /// The reason of the wait.
        reason: WaitReason,
        /// The thread that ended the wait; `None` if it is unknown.
        waker: Option<Arc<Waker>>,
        /// The lock that it waited for; `None` for other waits, and while the sensor `locks` is off.
        lock: Option<Lock>,
    },
}

/// The thread that ended a wait.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Waker {
    /// The name of the thread.
    pub thread: String,
    /// The owner of the thread: `namespace/pod/container`, or the path of a cgroup.
    pub subject: String,
    /// The stack from which it woke the other thread, outermost function first, with semicolons in between; `None` if
    /// the stack was not taken.
    pub stack: Option<String>,
}

impl Waker {
    /// The owner of a waker that is no thread: a timer, a disk, or a network packet that arrives in an interrupt.
    pub const INTERRUPT: &str = "(interrupt)";
}

/// A call stack with names, leaf first.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct Stack {
    /// Kernel frames, then user frames.
    pub frames: Vec<Arc<Frame>>,
    /// The completeness of the walk.
    pub unwind: Unwind,
}

impl Stack {
    /// Returns the names of the functions, outermost first, with semicolons in between.
    #[must_use]
    pub fn folded(&self) -> String {
        let names: Vec<_> = self.frames.iter().rev().map(|frame| frame.name()).collect();
        names.join(";")
    }
}

/// One frame of a stack. An address with inlined functions is one frame with several `functions`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Frame {
    /// The address within what contains it, so that readers learn nothing of the layout or content of memory: as the ELF
    /// file counts it (virtual offset), from the start of the kernel or of its module, or from the start of memory
    /// without a file. 0 if nothing known contains it.
    pub address: u64,
    /// The side of the system call boundary, and the language of user code.
    pub kind: FrameKind,
    /// The file that contains the address; `None` if it is unknown.
    pub mapping: Option<Arc<Mapping>>,
    /// The functions, innermost first (inlined functions before the function that contains them); empty if there is no
    /// name.
    pub functions: Vec<Function>,
}

impl Frame {
    /// Returns the name of the innermost function; without a name, the file and the address, such as
    /// `libc.so.6+0x891f4` or `[memory]+0x6f4`.
    #[must_use]
    pub fn name(&self) -> Cow<'_, str> {
        if let Some(function) = self.functions.first() {
            return Cow::Borrowed(&function.name);
        }
        let path = self.mapping.as_ref().map_or("[memory]", |mapping| &mapping.path);
        let file = path.rsplit('/').next().unwrap_or(path);
        Cow::Owned(format!("{file}+{:#x}", self.address))
    }
}

/// The side of the system call boundary on which a frame lies, and the language of user code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum FrameKind {
    /// Kernel code.
    Kernel,
    /// User code in C, C++, an unknown language, or any language that has no kind of its own here.
    Native,
    /// User code in the function table of Go's linker.
    Go,
    /// User code whose symbol is mangled by rustc.
    Rust,
}

impl FrameKind {
    /// Returns the value of the attribute `profile.frame.type`, by OpenTelemetry's semantic conventions.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.into()
    }

    /// Returns whether this is code of the kernel.
    #[must_use]
    pub const fn is_kernel(self) -> bool {
        matches!(self, Self::Kernel)
    }
}

/// A function's name and, if debug information contains it, its source line.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Function {
    /// The demangled name.
    pub name: Arc<str>,
    /// The source file; empty if unknown.
    pub file: Arc<str>,
    /// The line of the call or of the leaf; 0 if unknown.
    pub line: u32,
}

/// A file from which code was mapped. Its place in memory is the process' own business.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct Mapping {
    /// The path as the process sees it; `[kernel]` for the kernel.
    pub path: String,
    /// The GNU build id in lower-case hex, if the file has one.
    pub build_id: Option<String>,
    /// The first 16 bytes of SHA-256(first 4096 bytes ++ last 4096 bytes ++ u64 big-endian length), in hex.
    pub htlhash: Option<String>,
}
