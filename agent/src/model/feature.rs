//! The features that the agent gives up to stay within its limits.

/// A feature that the agent can give up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Feature {
    /// Caches of symbols and windows.
    Caches,
    /// Recordings and flame graphs.
    Recordings,
    /// Stacks of waits and of running threads.
    Stacks,
    /// A group of counters; groups are given up from the last to the first.
    Counters,
}

impl Feature {
    /// Features given up for CPU time, in that order; [`crate::limits::memory::ORDER`] is the order for memory.
    pub const FOR_CPU: [Self; 2] = [Self::Stacks, Self::Counters];

    /// Returns the value of the label `feature`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Caches => "caches",
            Self::Recordings => "recordings",
            Self::Stacks => "stacks",
            Self::Counters => "counters",
        }
    }
}
