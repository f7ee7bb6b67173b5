//! The states of a configured event: the same words appear in the metric, at `/status` and in `podperf check`.

use serde::Serialize;

/// The way an event is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
#[serde(rename_all = "lowercase")]
pub enum EventState {
    /// The event counts all the time.
    Placed,
    /// The event takes turns with other users of the PMU: its counts are scaled.
    Shared,
    /// The event does not count now, to make room for other users or to reduce the cost.
    Yielded,
    /// The event never counts: this machine lacks it or denies it.
    Unsupported,
    /// The event shows impossible counts, which are withheld.
    Implausible,
}

impl EventState {
    /// All states, from the best to the worst.
    pub const ALL: [Self; 5] = [Self::Placed, Self::Shared, Self::Yielded, Self::Unsupported, Self::Implausible];

    /// Returns the state's name in metrics and messages.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.into()
    }

    /// Returns whether the counts are exported. An event that is not counted has no series: a counter that stands still
    /// would look like an event that does not happen.
    #[must_use]
    pub const fn is_counted(self) -> bool {
        matches!(self, Self::Placed | Self::Shared)
    }
}
