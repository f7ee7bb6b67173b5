//! How and for what a thread waits, and how far the walk of its stack came.

/// How a task waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WaitState {
    /// `TASK_INTERRUPTIBLE`: a wait that a signal may end (sockets, pipes, futexes, timers).
    Interruptible,
    /// `TASK_UNINTERRUPTIBLE`: disk, NFS, kernel locks.
    Uninterruptible,
    /// Runnable, but another task had the CPU.
    RunQueue,
    /// The same, since the quota of its cgroup was used up.
    Throttled,
}

impl WaitState {
    /// In the order of the kernel side's `enum podperf_activity`.
    pub const ALL: [Self; 4] = [Self::Interruptible, Self::Uninterruptible, Self::RunQueue, Self::Throttled];

    /// The label value in metrics and profiles.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Interruptible => "interruptible",
            Self::Uninterruptible => "uninterruptible",
            Self::RunQueue => "run_queue",
            Self::Throttled => "throttled",
        }
    }
}

/// How far the walk of a stack came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Unwind {
    /// To a function that starts threads, or there is no user stack.
    #[default]
    Whole,
    /// To the kernel's limit on the depth.
    Truncated,
    /// To an address at which there is no code.
    Broken,
    /// It ended early at code: the file was built without frame pointers.
    NoFramePointers,
}

impl Unwind {
    /// In the order of the metric's labels.
    pub const ALL: [Self; 4] = [Self::Whole, Self::Truncated, Self::Broken, Self::NoFramePointers];

    /// The label value in metrics and profiles.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Whole => "whole",
            Self::Truncated => "truncated",
            Self::Broken => "broken",
            Self::NoFramePointers => "no_frame_pointers",
        }
    }
}

/// What a wait was for. The innermost kernel function that a row of the table names decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WaitReason {
    /// Another thread of the program: locks, condition variables, joins, idle workers.
    Futex,
    /// Any of several files or events: epoll, poll, select, io_uring, eventfd.
    Poll,
    /// Storage: reads, writes, fsync, the file system's journal, and servers of FUSE, 9P, SMB and Ceph.
    Disk,
    /// A socket's peer.
    Network,
    /// A page of memory that had to be read or made, whoever touched it.
    PageFault,
    /// The other end of a pipe.
    Pipe,
    /// Time to pass.
    Sleep,
    /// Another thread in the kernel.
    KernelLock,
    /// A child process to end or to start its program.
    Child,
    /// To be let go on: it is stopped by a signal or a debugger, or its cgroup is frozen.
    Stopped,
    /// Its cgroup to be below `memory.high` again.
    MemoryLimit,
    /// A CPU: it was runnable, but others had them.
    RunQueue,
    /// The next period of its cgroup's CPU quota.
    Throttled,
    /// Something else, or the kernel hides where its functions are (`kernel.kptr_restrict`).
    Other,
    /// Its stack was lost.
    Unknown,
}

impl WaitReason {
    /// In the order of the type.
    pub const ALL: [Self; 15] = [
        Self::Futex,
        Self::Poll,
        Self::Disk,
        Self::Network,
        Self::PageFault,
        Self::Pipe,
        Self::Sleep,
        Self::KernelLock,
        Self::Child,
        Self::Stopped,
        Self::MemoryLimit,
        Self::RunQueue,
        Self::Throttled,
        Self::Other,
        Self::Unknown,
    ];

    /// The label value in metrics and profiles.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Futex => "futex",
            Self::Poll => "poll",
            Self::Disk => "disk",
            Self::Network => "network",
            Self::PageFault => "page_fault",
            Self::Pipe => "pipe",
            Self::Sleep => "sleep",
            Self::KernelLock => "kernel_lock",
            Self::Child => "child",
            Self::Stopped => "stopped",
            Self::MemoryLimit => "memory_limit",
            Self::RunQueue => "run_queue",
            Self::Throttled => "throttled",
            Self::Other => "other",
            Self::Unknown => "unknown",
        }
    }
}
