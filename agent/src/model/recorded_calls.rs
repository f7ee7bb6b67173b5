//! The system calls of a recording. Pure.

/// The calls of one number that began and ended in a recording.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallSum {
    /// The number of the system call; `None` for calls of 32-bit programs and numbers that no kernel uses yet.
    pub number: Option<u32>,
    /// Number of calls.
    pub calls: u64,
    /// Number of calls that returned an error.
    pub errors: u64,
    /// Time of all calls from their entry to their return, in nanoseconds.
    pub total_ns: u64,
    /// Time of the shortest call, in nanoseconds.
    pub min_ns: u64,
    /// Time of the longest call, in nanoseconds.
    pub max_ns: u64,
}

/// The system calls of a recording, and the number of those that are in no sum.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecordedCalls {
    /// The calls by number, the largest total time first.
    pub sums: Vec<CallSum>,
    /// Calls that had begun, and had not returned at the end of the recording.
    pub in_progress: u64,
    /// Calls that returned, and had begun before the recording or in another cgroup.
    pub began_before: u64,
    /// Calls that a seccomp filter or a debugger answered: the kernel never entered them.
    pub not_entered: u64,
    /// Calls that are lost: the kernel had no memory to note them, or their return was not seen.
    pub lost: u64,
}

impl RecordedCalls {
    /// Returns whether nothing at all was seen.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}
