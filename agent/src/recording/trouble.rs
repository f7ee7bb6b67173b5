//! Judges each wait: the pod lost time in it, or it had nothing to do. Pure.
//!
//! The state and the reason of a wait decide where they can. `poll`, `epoll`, `select` and `futex` are not idle by
//! name: the thread that ended the wait decides. A wait that another pod's thread ended is a wait for that pod.
//!
//! Wakers tell this much. Packets between pods of a node are delivered by their sender, in its system call, so the
//! sender is the waker; if the kernel delivers packets of several senders at once, one of them stands for all. A packet
//! from another node arrives in an interrupt, as timers do, so its sender is unknown. A client that waits for an answer
//! and a server or a log that waits for the next message look the same; [`Peers`] has what tells them apart. If no
//! wake-up in the other direction is seen, that tells nothing: short waits have no waker.

use std::{
    borrow::Cow,
    collections::{HashMap, HashSet},
    sync::Arc,
};

use crate::{
    attribution::UNRESOLVED,
    model::{
        lock::Lock,
        wait::{WaitReason, WaitState},
    },
    stacks::profile::{Activity, Profile, Sample, Stack, Waker},
};

/// Beginnings of functions of the kernel that wait for a new connection.
const ACCEPTS: &[&str] = &["inet_csk_accept", "inet_csk_wait_for_connect", "__sys_accept4", "do_accept"];
/// Functions of the kernel that open a connection.
const CONNECTS: &str = "__sys_connect";
/// Beginnings of functions that wait for a lock, without leading underscores and brackets.
const LOCKS: &[&str] = &[
    "lll_lock_wait",
    "pthread_mutex_lock",
    "pthread_mutex_timedlock",
    "pthread_mutex_clocklock",
    "pthread_rwlock_",
    "std::sys::sync::mutex::",
    "std::sys::sync::rwlock::",
    // Their callers: a walk by frame pointers skips the function that calls `syscall` of the C library.
    "std::sync::poison::mutex::",
    "std::sync::poison::rwlock::",
    "parking_lot::raw_mutex::",
    "parking_lot::raw_rwlock::",
    "runtime.lock2",
    "ObjectMonitor::enter",
    // Python's global lock.
    "take_gil",
];
/// Beginnings of functions that wait for work or for the end of a thread, without leading underscores and brackets.
const QUEUES: &[&str] = &[
    "pthread_cond_",
    "pthread_join",
    "pthread_clockjoin",
    "std::condition_variable",
    "std::sys::sync::condvar::",
    "std::sync::poison::condvar::",
    "std::sys::sync::thread_parking::",
    "parking_lot::condvar::",
    "runtime.notesleep",
    "runtime.notetsleep",
    "runtime.mPark",
];
/// The number of the program's functions, from the leaf on, that are compared with [`LOCKS`] and [`QUEUES`].
const LOOKED_AT: usize = 16;
/// The cgroup of the kernel's threads, which deliver packets, run timers and end requests of disks.
const ROOT: &str = "/";

/// The largest number of pairs of pods and cgroups that are known. Names of cgroups may come without an end. Waits of
/// further pairs stay unclear.
const MOST_PAIRS: usize = 20_000;

/// The pods that one sum of small waits stands for.
const OTHERS: &str = "other pods";

/// The meaning of a wait.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Judgement {
    /// The pod lost this time.
    Trouble(Cause),
    /// The pod lost this time, or had nothing to do: the data does not tell.
    Unclear(Cause),
    /// The thread had nothing to do, and then something came.
    Idle,
    /// The wait goes on, and nothing shows trouble: an idle thread. A deadlock, and a peer that never answers, look the
    /// same.
    Parked,
}

/// The thing that a thread waited for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Cause {
    /// The thing that the reason names.
    Reason(WaitReason),
    /// A CPU, or the end of its CPU limit, which a BPF scheduler may enforce without the kernel's knowledge.
    CpuOrLimit,
    /// A lock of the program.
    Lock,
    /// The kernel, for an unknown reason, in a wait that no signal ends.
    Kernel,
    /// Another pod, another container of the same pod, or a cgroup, by its name.
    Peer(String),
    /// A packet from another node, or a timer.
    Elsewhere,
}

impl Judgement {
    /// Returns the label value in profiles.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Trouble(_) => "trouble",
            Self::Unclear(_) => "unclear",
            Self::Idle => "idle",
            Self::Parked => "parked",
        }
    }

    /// Returns the thing that the thread waited for, if it had something to do.
    #[must_use]
    pub const fn cause(&self) -> Option<&Cause> {
        match self {
            Self::Trouble(cause) | Self::Unclear(cause) => Some(cause),
            Self::Idle | Self::Parked => None,
        }
    }

    /// Returns the judgement without the name of a pod, so that there are few different ones.
    pub(super) fn without_name(self) -> Self {
        match self {
            Self::Trouble(Cause::Peer(_)) => Self::Trouble(Cause::Peer(OTHERS.into())),
            Self::Unclear(Cause::Peer(_)) => Self::Unclear(Cause::Peer(OTHERS.into())),
            other => other,
        }
    }
}

impl Cause {
    /// Returns the thing that threads in the run queue wait for; `scheduler` is the name of a BPF scheduler.
    #[must_use]
    pub const fn of_run_queue(scheduler: Option<&str>) -> Self {
        match scheduler {
            None => Self::Reason(WaitReason::RunQueue),
            Some(_) => Self::CpuOrLimit,
        }
    }

    /// Returns the words after "waits for". `sure` is false for a wait that may be idleness.
    #[must_use]
    pub fn words(&self, sure: bool) -> Cow<'_, str> {
        Cow::Borrowed(match self {
            Self::Peer(name) if sure => name.as_str(),
            Self::Peer(name) => return Cow::Owned(format!("{name}, or for its next request")),
            Self::Lock if sure => "a lock of its own",
            Self::Lock => "a lock or a queue of its own",
            Self::CpuOrLimit => "a CPU or its CPU limit, which is not known",
            Self::Kernel => "the kernel",
            Self::Elsewhere => "another node, or a timer",
            Self::Reason(reason) => match reason {
                WaitReason::RunQueue => "a CPU",
                WaitReason::Throttled => "its CPU limit",
                WaitReason::Disk => "storage",
                WaitReason::PageFault => "pages of memory",
                WaitReason::MemoryLimit => "its memory limit",
                WaitReason::KernelLock => "a lock of the kernel",
                WaitReason::Stopped => "a signal to continue",
                WaitReason::Futex => "another thread",
                WaitReason::Poll => "files or events",
                WaitReason::Network => "a socket",
                WaitReason::Pipe => "a pipe",
                WaitReason::Sleep => "time to pass",
                WaitReason::Child => "a child process",
                WaitReason::Other => "the kernel, for another reason",
                WaitReason::Unknown => "an unknown reason",
            },
        })
    }

    /// Returns the reason whose colour the cause has.
    #[must_use]
    pub const fn colour(&self) -> WaitReason {
        match self {
            Self::Reason(reason) => *reason,
            Self::CpuOrLimit => WaitReason::RunQueue,
            Self::Lock => WaitReason::Futex,
            Self::Peer(_) => WaitReason::Network,
            Self::Kernel | Self::Elsewhere => WaitReason::Unknown,
        }
    }
}

/// A wait, as far as it is judged.
#[derive(Clone, Copy, Debug)]
pub struct Wait<'a> {
    /// The owner of the thread: `namespace/pod/container`, or the path of a cgroup.
    pub owner: &'a str,
    /// The state in which the thread waited.
    pub state: WaitState,
    /// The reason of the wait.
    pub reason: WaitReason,
    /// False for a part of a wait that goes on.
    pub ended: bool,
    /// The lock that the sensor `locks` saw.
    pub lock: Option<Lock>,
    /// The thread that ended the wait, if it is known.
    pub waker: Option<&'a Waker>,
    /// The stack of the wait.
    pub stack: &'a Stack,
}

/// The waker, as the waiting thread sees it.
enum By<'a> {
    /// A thread of the same container or cgroup.
    Own,
    /// An interrupt, a thread of the kernel, or one whose cgroup has no name.
    Kernel,
    /// A thread of this container or cgroup.
    Other(&'a str),
}

impl<'a> Wait<'a> {
    /// Returns the wait of a sample of this owner; `None` for time on the CPU. Parts of waits that go on count 0 waits.
    #[must_use]
    pub fn of(owner: &'a str, sample: &'a Sample) -> Option<Self> {
        let Activity::OffCpu { state, reason, waker, lock } = &sample.activity else { return None };
        let (state, reason, lock, waker) = (*state, *reason, *lock, waker.as_deref());
        Some(Self { owner, state, reason, ended: sample.count > 0, lock, waker, stack: &sample.stack })
    }

    fn by(&self) -> Option<By<'a>> {
        Some(match self.waker?.subject.as_str() {
            Waker::INTERRUPT | ROOT | UNRESOLVED => By::Kernel,
            subject if subject == self.owner => By::Own,
            subject => By::Other(subject),
        })
    }

    /// Returns true if another process may be asked, or may ask.
    const fn is_exchange(&self) -> bool {
        matches!(self.state, WaitState::Interruptible)
            && matches!(self.reason, WaitReason::Poll | WaitReason::Network | WaitReason::Pipe)
    }

    fn is_accept(&self) -> bool {
        let begins = |name: &str| ACCEPTS.iter().any(|accept| name.starts_with(accept));
        names(self.stack, true).any(begins)
    }

    /// Returns whether the functions of the program wait for a lock; `None` if they do not tell.
    fn is_for_lock(&self) -> Option<bool> {
        let begins = |names: &[&str], name: &str| names.iter().any(|beginning| name.starts_with(beginning));
        let mut tells = None;
        for name in names(self.stack, false).take(LOOKED_AT) {
            // `__GI___lll_lock_wait` of glibc, and `<std::sys::sync::mutex::futex::Mutex>::lock_contended` of Rust
            let name = name.trim_start_matches(['_', '<']);
            let name = name.strip_prefix("GI_").unwrap_or(name).trim_start_matches('_');
            if begins(LOCKS, name) {
                return Some(true);
            }
            if begins(QUEUES, name) {
                tells = Some(false);
            }
        }
        tells
    }
}

/// Returns the functions of the kernel or of the program on a stack, from the leaf on.
fn names(stack: &Stack, kernel: bool) -> impl Iterator<Item = &str> {
    let frames = stack.frames.iter().filter(move |frame| frame.kind.is_kernel() == kernel);
    frames.flat_map(|frame| frame.functions.iter().map(|function| &*function.name))
}

/// Returns the name of an owner's pod; a cgroup is its own pod.
#[must_use]
pub fn pod_of(owner: &str) -> &str {
    if owner.starts_with(['/', '(']) { owner } else { owner.rsplit_once('/').map_or(owner, |(pod, _)| pod) }
}

/// Returns the names of two owners, as far as they differ: their pods, or two containers of one pod.
fn parties<'a>(own: &'a str, other: &'a str) -> (&'a str, &'a str) {
    let pods = (pod_of(own), pod_of(other));
    if pods.0 == pods.1 { (own, other) } else { pods }
}

/// The sides on which the pods of a node opened connections to each other, as far as windows show them.
#[derive(Clone, Debug, Default)]
pub struct Peers {
    /// The pods whose connections a pod accepts.
    callers: HashMap<String, HashSet<String>>,
    /// The number of pairs in `callers`.
    pairs: usize,
}

impl Peers {
    /// Looks for peers in these windows.
    #[must_use]
    pub fn of(windows: &[Arc<Profile>]) -> Self {
        let mut peers = Self::default();
        windows.iter().for_each(|window| peers.add(window));
        peers
    }

    /// Looks for peers in one more window.
    pub(super) fn add(&mut self, window: &Profile) {
        for subject in &window.subjects {
            let owner = subject.subject.to_string();
            for wait in subject.samples.iter().filter_map(|sample| Wait::of(&owner, sample)) {
                let connects = |waker: &Waker| waker.stack.as_ref().is_some_and(|stack| stack.contains(CONNECTS));
                if let (true, Some(By::Other(other))) = (wait.is_exchange(), wait.by())
                    && (wait.is_accept() || wait.waker.is_some_and(connects))
                {
                    let (own, other) = parties(&owner, other);
                    self.note(own, other);
                }
            }
        }
    }

    /// Notes that `server` accepts connections of `client`, if there is room.
    fn note(&mut self, server: &str, client: &str) {
        if self.pairs < MOST_PAIRS && !self.calls(client, server) {
            self.callers.entry(server.to_owned()).or_default().insert(client.to_owned());
            self.pairs += 1;
        }
    }

    /// Returns true if `server` accepts connections of `client`.
    fn calls(&self, client: &str, server: &str) -> bool {
        self.callers.get(server).is_some_and(|clients| clients.contains(client))
    }

    /// Returns the meaning of a wait.
    #[must_use]
    pub fn judge(&self, wait: &Wait<'_>) -> Judgement {
        let (reason, trouble) = (wait.reason, |reason| Judgement::Trouble(Cause::Reason(reason)));
        match wait.state {
            WaitState::RunQueue => return trouble(WaitReason::RunQueue),
            WaitState::Throttled => return trouble(WaitReason::Throttled),
            WaitState::Uninterruptible if reason == WaitReason::Unknown => return Judgement::Trouble(Cause::Kernel),
            WaitState::Uninterruptible => return trouble(reason),
            WaitState::Interruptible => {}
        }
        let otherwise = if wait.ended { Judgement::Idle } else { Judgement::Parked };
        match reason {
            WaitReason::Futex => Self::judge_futex(wait, otherwise),
            WaitReason::Poll | WaitReason::Network | WaitReason::Pipe => self.judge_exchange(wait, otherwise),
            WaitReason::Sleep | WaitReason::Child | WaitReason::Other => otherwise,
            WaitReason::Unknown => Judgement::Unclear(Cause::Reason(reason)),
            WaitReason::Disk
            | WaitReason::PageFault
            | WaitReason::KernelLock
            | WaitReason::MemoryLimit
            | WaitReason::Stopped
            | WaitReason::RunQueue
            | WaitReason::Throttled => trouble(reason),
        }
    }

    /// Judges a wait for another thread of the program. A wait that an interrupt ends is one whose time was over.
    fn judge_futex(wait: &Wait<'_>, otherwise: Judgement) -> Judgement {
        let is_for_lock = if wait.lock.is_some() { Some(true) } else { wait.is_for_lock() };
        match (is_for_lock, wait.by()) {
            (Some(true), _) => Judgement::Trouble(Cause::Lock),
            (Some(false), _) | (_, Some(By::Kernel)) => otherwise,
            _ if !wait.ended => otherwise,
            // Two pods can share memory, and a queue in it.
            (None, Some(By::Other(other))) => Judgement::Unclear(Cause::Peer(parties(wait.owner, other).1.into())),
            (None, Some(By::Own) | None) => Judgement::Unclear(Cause::Lock),
        }
    }

    /// Judges a wait that the other end of a connection or a pipe may have ended. The time of a thread of the same
    /// container that ended it is in the same row, so that wait is none for others.
    fn judge_exchange(&self, wait: &Wait<'_>, otherwise: Judgement) -> Judgement {
        if !wait.ended || wait.is_accept() {
            return otherwise;
        }
        match wait.by() {
            None => Judgement::Unclear(Cause::Reason(wait.reason)),
            Some(By::Own) => otherwise,
            Some(By::Kernel) => Judgement::Unclear(Cause::Elsewhere),
            Some(By::Other(other)) => {
                let (own, other) = parties(wait.owner, other);
                let cause = Cause::Peer(other.to_owned());
                match (self.calls(own, other), self.calls(other, own)) {
                    (true, false) => Judgement::Trouble(cause),
                    (false, true) => otherwise,
                    // The connections are older than the windows, or each of the two opened one.
                    _ => Judgement::Unclear(cause),
                }
            }
        }
    }
}

#[cfg(test)]
#[path = "trouble_tests.rs"]
mod tests;
