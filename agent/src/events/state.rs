//! What became of a configured event: the same words in the metric, at `/status` and in `podperf check`.

use serde::Serialize;

use crate::status::State;

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

/// All events in a line: how counting them is, and which are not counted. An event is its name, its state, and why.
#[must_use]
pub fn summary(events: &[(&str, EventState, &str)]) -> (State, String) {
    let names = |state: EventState| -> Vec<&str> {
        events.iter().filter(|(_, of, _)| *of == state).map(|(name, ..)| *name).collect()
    };
    let all = |wanted: EventState| events.iter().all(|(_, state, _)| *state == wanted);
    let state = if all(EventState::Placed) {
        State::Healthy
    } else if all(EventState::Unsupported) {
        State::Unsupported
    } else {
        State::Degraded
    };
    let Some((_, first, why)) = events.first() else { return (state, "no events configured".into()) };
    if !first.is_counted() && all(*first) {
        return (state, format!("{}: {why}", names(*first).join(", ")));
    }
    let parts = EventState::ALL.into_iter().filter_map(|state| {
        let names = names(state).join(", ");
        let word = if state == EventState::Placed { "counting" } else { state.name() };
        (!names.is_empty()).then(|| format!("{word} {names}"))
    });
    (state, parts.collect::<Vec<_>>().join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_names_every_event_under_its_state() {
        use EventState::{Implausible, Placed, Shared, Unsupported, Yielded};
        for (events, expected) in [
            (&[][..], (State::Healthy, "no events configured")),
            (
                &[("cycles", Placed, ""), ("instructions", Placed, "")],
                (State::Healthy, "counting cycles, instructions"),
            ),
            (
                &[("cycles", Unsupported, "no PMU"), ("r1", Unsupported, "no PMU")],
                (State::Unsupported, "cycles, r1: no PMU"),
            ),
            (
                &[("cycles", Placed, ""), ("r1", Shared, ""), ("r2", Yielded, ""), ("r3", Implausible, "")],
                (State::Degraded, "counting cycles; shared r1; yielded r2; implausible r3"),
            ),
            (&[("cycles", Implausible, "zeros")], (State::Degraded, "cycles: zeros")),
        ] {
            assert_eq!(summary(events), (expected.0, expected.1.to_owned()));
        }
    }
}
