//! Reviews in progress, so that requests with the same token and path wait for one of them.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError, Weak},
};

use tokio::sync;

use super::cache::{Hash, Key};

/// A lock for each request that is being reviewed.
#[derive(Debug, Default)]
pub(super) struct Flights(Mutex<HashMap<Hash, Weak<sync::Mutex<()>>>>);

impl Flights {
    /// Returns the lock of a request. Equal requests have the same lock.
    pub(super) fn of(&self, key: &Key) -> Arc<sync::Mutex<()>> {
        let mut flights = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(flight) = flights.get(&key.request()).and_then(Weak::upgrade) {
            return flight;
        }
        flights.retain(|_, flight| flight.strong_count() > 0);
        let flight = Arc::default();
        flights.insert(key.request(), Arc::downgrade(&flight));
        flight
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_same_request_has_one_lock_and_what_has_ended_is_forgotten() {
        let flights = Flights::default();
        let (key, other) = (Key::new("t", "get", "/metrics"), Key::new("u", "get", "/metrics"));
        let first = flights.of(&key);
        let held = first.lock().await;
        assert!(flights.of(&key).try_lock().is_err() && flights.of(&other).try_lock().is_ok());
        drop(held);
        drop(first);
        assert!(flights.of(&other).try_lock().is_ok());
        assert_eq!(flights.0.lock().unwrap().len(), 1);
    }
}
