//! The features that the agent gives up to stay within its limits.

/// What can be given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Feature {
    /// What is remembered of symbols and windows.
    Caches,
    /// Recordings and flame graphs.
    Recordings,
    /// Stacks of waits and of what runs.
    Stacks,
    /// A group of counters; from the last to the first.
    Counters,
}

impl Feature {
    /// What is given up for CPU time, in that order; for memory that is [`crate::limits::memory::ORDER`].
    pub const FOR_CPU: [Self; 2] = [Self::Stacks, Self::Counters];

    /// The value of the label `feature`.
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
