//! Earlier observations, so that pages can show rates.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use crate::collector::{Observation, Purpose, Reader};

/// Time between two stored observations. The collector reads more often by itself, so this costs no extra reading.
const EVERY: Duration = Duration::from_secs(30);
/// Number of stored observations: rates cover one to two of these steps.
const KEPT: usize = 2;

/// The last observations, the oldest first.
#[derive(Clone, Debug, Default)]
pub(super) struct History(Arc<Mutex<VecDeque<Arc<Observation>>>>);

impl History {
    /// Starts to store observations, until the collector ends. Must be called on a tokio runtime.
    pub(super) fn start(reader: Reader) -> Self {
        let history = Self::default();
        let kept = history.clone();
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(EVERY).await;
                match reader.read_for_itself(Purpose::Look).await {
                    Ok(observation) => kept.keep(observation),
                    Err(crate::collector::ReadError::Stopped) => return,
                    Err(_) => {}
                }
            }
        });
        history
    }

    /// Returns the oldest observation; `None` in the first minute, for which rates cover the time since the start.
    pub(super) fn before(&self, now: &Arc<Observation>) -> Option<Arc<Observation>> {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.front().filter(|oldest| kept.len() == KEPT && !Arc::ptr_eq(oldest, now)).map(Arc::clone)
    }

    fn keep(&self, observation: Arc<Observation>) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.push_back(observation);
        if kept.len() > KEPT {
            kept.pop_front();
        }
    }
}
