//! The connections that are open, and which one has to go when there are too many.
//!
//! Whoever keeps the agent waiting for a request loses his place to whoever comes: connections that are held open, or
//! whose requests arrive byte by byte, cannot keep a scrape out. One whose request is being answered stays.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use tokio::sync::Notify;

use super::counts::{Refusal, ServerCounts};

/// All of them; clones are the same.
#[derive(Clone, Debug)]
pub(super) struct Connections {
    most: usize,
    counts: Arc<ServerCounts>,
    open: Arc<Mutex<Open>>,
}

#[derive(Debug, Default)]
struct Open {
    next: u64,
    connections: BTreeMap<u64, Connection>,
}

#[derive(Debug)]
struct Connection {
    /// Since when it keeps the agent waiting; `None` while it is answered.
    waiting: Option<Instant>,
    close: Arc<Notify>,
}

/// A connection's place; given back on drop.
#[derive(Debug)]
pub(super) struct Slot {
    number: u64,
    close: Arc<Notify>,
    open: Arc<Mutex<Open>>,
}

/// A request that is being answered, until it is dropped.
#[derive(Debug)]
pub(super) struct Busy<'a>(&'a Slot);

impl Connections {
    pub(super) fn new(most: usize, counts: Arc<ServerCounts>) -> Self {
        Self { most, counts, open: Arc::default() }
    }

    /// A place for one more; `None` where all are being answered.
    pub(super) fn enter(&self) -> Option<Slot> {
        let mut open = lock(&self.open);
        if open.connections.len() >= self.most {
            self.counts.refused(Refusal::Connections);
            let waiting = open.connections.iter().filter_map(|(number, one)| Some((one.waiting?, *number)));
            let (_, longest) = waiting.min()?;
            open.connections.remove(&longest)?.close.notify_one();
        }
        let (number, close) = (open.next, Arc::new(Notify::new()));
        open.next += 1;
        open.connections.insert(number, Connection { waiting: Some(Instant::now()), close: Arc::clone(&close) });
        Some(Slot { number, close, open: Arc::clone(&self.open) })
    }
}

impl Slot {
    /// Resolves when somebody else gets the place.
    pub(super) async fn closed(&self) {
        self.close.notified().await;
    }

    /// A request of it is being answered.
    pub(super) fn busy(&self) -> Busy<'_> {
        self.set(None);
        Busy(self)
    }

    fn set(&self, waiting: Option<Instant>) {
        if let Some(connection) = lock(&self.open).connections.get_mut(&self.number) {
            connection.waiting = waiting;
        }
    }
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.set(Some(Instant::now()));
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        lock(&self.open).connections.remove(&self.number);
    }
}

fn lock(open: &Mutex<Open>) -> MutexGuard<'_, Open> {
    open.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_one_that_waits_longest_gives_way_and_one_that_is_answered_stays() {
        let counts = Arc::<ServerCounts>::default();
        let connections = Connections::new(2, Arc::clone(&counts));
        let (first, second) = (connections.enter().unwrap(), connections.enter().unwrap());
        let busy = first.busy();
        let third = connections.enter().unwrap();
        second.closed().await;
        let _third_busy = third.busy();
        assert!(connections.enter().is_none(), "both are answered");
        drop(busy);
        let fourth = connections.enter().unwrap();
        first.closed().await;
        assert_eq!(counts.stats().refusals[Refusal::Connections as usize].1, 3);
        drop((first, second, third.busy(), fourth));
    }

    #[test]
    fn a_place_is_given_back() {
        let connections = Connections::new(1, Arc::default());
        for _ in 0..3 {
            let slot = connections.enter().unwrap();
            let _busy = slot.busy();
        }
    }
}
