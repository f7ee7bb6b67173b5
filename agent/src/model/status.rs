//! The parts of the agent and their states: the same words at start, at `/status` and in a metric.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

use serde::Serialize;
use tracing::{info, warn};

/// How a part is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// All that was asked for works.
    Healthy,
    /// Some of it works.
    Degraded,
    /// The machine does not have what it needs.
    Unsupported,
    /// It should work, and does not.
    Failed,
}

impl State {
    /// In the order in which they get worse.
    pub const ALL: [Self; 4] = [Self::Healthy, Self::Degraded, Self::Unsupported, Self::Failed];

    /// The word for it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Healthy => "healthy",
            Self::Degraded => "degraded",
            Self::Unsupported => "unsupported",
            Self::Failed => "failed",
        }
    }
}

/// One part's state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Part {
    /// Its name.
    pub part: &'static str,
    /// How it is.
    pub state: State,
    /// What it does, or why not and what would mend it.
    pub detail: String,
}

/// The states of all parts, shared by those who set and those who show them.
#[derive(Clone, Debug, Default)]
pub struct Status(Arc<Mutex<BTreeMap<&'static str, Part>>>);

impl Status {
    /// Sets a part's state; a change of it is logged.
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

    /// All parts, by name.
    #[must_use]
    pub fn parts(&self) -> Vec<Part> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }
}
