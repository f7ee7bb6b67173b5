//! The parts of the agent and their states. The log at the start, `/status` and a metric use the same words.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

use serde::Serialize;
use tracing::{info, warn};

/// State of a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// Everything that was configured works.
    Healthy,
    /// Only a part of it works.
    Degraded,
    /// The machine lacks something that the part needs.
    Unsupported,
    /// The part should work, and does not.
    Failed,
}

impl State {
    /// All states, from the best to the worst.
    pub const ALL: [Self; 4] = [Self::Healthy, Self::Degraded, Self::Unsupported, Self::Failed];

    /// Returns the name of the state.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.into()
    }
}

/// Name and state of one part.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Part {
    /// The part's name.
    pub part: &'static str,
    /// The part's state.
    pub state: State,
    /// The part's activity, or the reason of its failure with the remedy.
    pub detail: String,
}

/// The states of all parts, shared by all their writers and readers.
#[derive(Clone, Debug, Default)]
pub struct Status(Arc<Mutex<BTreeMap<&'static str, Part>>>);

impl Status {
    /// Sets a part's state. Logs a changed state.
    pub fn set(&self, part: &'static str, state: State, detail: impl Into<String>) {
        let detail = detail.into();
        let new = Part { part, state, detail: detail.clone() };
        let old = self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(part, new);
        if old.is_none_or(|old| old.state != state) {
            match state {
                State::Healthy => info!(part, state = state.name(), detail, "part"),
                _ => warn!(part, state = state.name(), detail, "part"),
            }
        }
    }

    /// Returns all parts, by name.
    #[must_use]
    pub fn parts(&self) -> Vec<Part> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }
}
