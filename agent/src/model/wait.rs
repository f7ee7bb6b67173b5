//! States and reasons of waits, and the ends of stack walks.

use strum::VariantArray;

/// State of a waiting task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WaitState {
    /// `TASK_INTERRUPTIBLE`: a wait that a signal may end (sockets, pipes, futexes, timers).
    Interruptible,
    /// `TASK_UNINTERRUPTIBLE`: disk, NFS, kernel locks.
    Uninterruptible,
    /// Runnable, but another task had the CPU.
    RunQueue,
    /// Runnable, but the quota of its cgroup was used up.
    Throttled,
}

impl WaitState {
    /// All states, in the order of the kernel side's `enum podperf_activity`.
    pub const ALL: [Self; 4] = [Self::Interruptible, Self::Uninterruptible, Self::RunQueue, Self::Throttled];

    /// Returns the label value in metrics and profiles.
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

/// End of a stack walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Unwind {
    /// The walk reached a function that starts threads, or there is no user stack.
    #[default]
    Whole,
    /// The walk reached the kernel's limit on the depth.
    Truncated,
    /// The walk reached an address without code.
    Broken,
    /// The walk ended early at code without frame pointers. With unwind tables: at code without one, and neither its
    /// instructions nor a frame pointer gave a caller.
    NoFramePointers,
    /// The stack or its user frames were not taken: podperf was over its limit of CPU time or memory.
    Shed,
    /// The walk reached the outermost function, but guessed callers in code without unwind tables: frames may be missing
    /// or wrong.
    Guessed,
    /// The copy of the stack ended before the stack did, or it could not be unwound in time.
    Cut,
}

impl Unwind {
    /// All ends, in the order of the metric's labels.
    pub const ALL: [Self; 7] =
        [Self::Whole, Self::Truncated, Self::Broken, Self::NoFramePointers, Self::Shed, Self::Guessed, Self::Cut];

    /// Returns the label value in metrics and profiles.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Whole => "whole",
            Self::Truncated => "truncated",
            Self::Broken => "broken",
            Self::NoFramePointers => "no_frame_pointers",
            Self::Shed => "shed",
            Self::Guessed => "guessed",
            Self::Cut => "cut",
        }
    }
}

/// The reason of a wait: the thing that a task waits for. The innermost kernel function in a row of the table decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, VariantArray)]
pub enum WaitReason {
    /// Another thread of the program: locks, condition variables, joins, idle workers.
    Futex,
    /// One of several files or events: epoll, poll, select, io_uring, eventfd.
    Poll,
    /// Storage: reads, writes, fsync, the file system's journal, and servers of FUSE, 9P, SMB and Ceph.
    Disk,
    /// A socket's peer.
    Network,
    /// A page of memory that had to be read or made, no matter which code touched it.
    PageFault,
    /// The other end of a pipe.
    Pipe,
    /// A time: the task sleeps until then.
    Sleep,
    /// Another thread in the kernel.
    KernelLock,
    /// A child process to end or to start its program.
    Child,
    /// A signal to continue, or a thaw: a signal or a debugger has stopped the task, or its cgroup is frozen.
    Stopped,
    /// The memory of its cgroup to fall below `memory.high`.
    MemoryLimit,
    /// A CPU: the task was runnable, but other tasks had the CPUs.
    RunQueue,
    /// The next period of its cgroup's CPU quota.
    Throttled,
    /// Another reason.
    Other,
    /// The stack was lost, or the kernel hides the addresses of its functions (`kernel.kptr_restrict`).
    Unknown,
}

impl WaitReason {
    /// All reasons, in the order of the type.
    pub const ALL: &[Self] = Self::VARIANTS;

    /// Returns the label value in metrics and profiles.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_are_in_the_order_of_the_kernel_side() {
        assert_eq!(WaitState::ALL.map(WaitState::name), podperf_ebpf::WAITS);
        assert_eq!(WaitState::ALL.map(|state| state as usize), [0, 1, 2, 3]);
    }
}
