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
                match reader.read_for_itself(Purpose::Look).await {
                    Ok(observation) => kept.keep(observation),
                    Err(crate::collector::ReadError::Stopped) => return,
                    Err(_) => {}
                }
                tokio::time::sleep(EVERY).await;
            }
        });
        history
    }

    /// Returns the oldest observation: in the first minute, the one at the start. Returns `None` if that is `now`.
    pub(super) fn before(&self, now: &Arc<Observation>) -> Option<Arc<Observation>> {
        oldest(&self.0.lock().unwrap_or_else(PoisonError::into_inner), now)
    }

    fn keep(&self, observation: Arc<Observation>) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.push_back(observation);
        if kept.len() > KEPT {
            kept.pop_front();
        }
    }
}

fn oldest<T>(kept: &VecDeque<Arc<T>>, now: &Arc<T>) -> Option<Arc<T>> {
    kept.front().filter(|oldest| !Arc::ptr_eq(oldest, now)).map(Arc::clone)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_cover_the_time_since_the_first_observation_from_the_second_one_on() {
        let (first, second) = (Arc::new(1), Arc::new(1));
        let kept = VecDeque::from([Arc::clone(&first)]);
        assert!(oldest(&kept, &second).is_some_and(|before| Arc::ptr_eq(&before, &first)));
        assert!(oldest(&kept, &first).is_none() && oldest(&VecDeque::new(), &first).is_none());
    }
}
