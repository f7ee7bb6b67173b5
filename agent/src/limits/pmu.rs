//! The state of the part that counts events: which events are counted, and why others are not. Pure.

use crate::{events::state::EventState, model::status::State};

/// Returns the state of counting and one line about all events, including those that are not counted. Each event is
/// given by its name, its state and the reason for the state.
#[must_use]
pub(super) fn summary(events: &[(&str, EventState, &str)]) -> (State, String) {
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
