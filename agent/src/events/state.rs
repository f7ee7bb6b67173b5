//! What became of a configured event: the same words in the metric, at `/status` and in `podperf check`.

use serde::Serialize;

/// How an event is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum EventState {
    /// All the time.
    Placed,
    /// By turns with others on the same PMU: its counts are scaled.
    Shared,
    /// Not now, so that others can count, or to cost less.
    Yielded,
    /// Never: this machine does not have it, or does not let podperf have it.
    Unsupported,
    /// It counts what cannot be: its counts are withheld.
    Implausible,
}

impl EventState {
    /// In the order in which they get worse.
    pub const ALL: [Self; 5] = [Self::Placed, Self::Shared, Self::Yielded, Self::Unsupported, Self::Implausible];

    /// The word for it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Placed => "placed",
            Self::Shared => "shared",
            Self::Yielded => "yielded",
            Self::Unsupported => "unsupported",
            Self::Implausible => "implausible",
        }
    }

    /// Whether its counts are exported. What is not counted has no series: a counter that stands still would say that
    /// nothing happened.
    #[must_use]
    pub const fn is_counted(self) -> bool {
        matches!(self, Self::Placed | Self::Shared)
    }
}
