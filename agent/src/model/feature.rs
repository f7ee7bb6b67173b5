//! The features that the agent gives up to stay within its limits.

/// A feature that the agent can give up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum Feature {
    /// Caches of symbols and windows.
    Caches,
    /// Recordings and flame graphs.
    Recordings,
    /// Half of the budget of walks; given up several times.
    Walks,
    /// Most of the time for reading symbols of a window.
    Symbols,
    /// The events that sensors with programs of their own count.
    Sensors,
    /// User frames of waits whose stack is not known yet.
    UserFrames,
    /// Stacks of waits; for memory also those of samples on the CPU.
    Stacks,
    /// A group of counters; groups are given up from the last to the first.
    Counters,
    /// Samples on the CPU, and with them all profiles.
    Profiles,
}

impl Feature {
    /// Returns the value of the label `feature`.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.into()
    }
}
