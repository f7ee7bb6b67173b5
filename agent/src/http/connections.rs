//! The open connections, and the choice of the one that the server closes when there are too many.
//!
//! A connection on which the agent waits for a request gives its place to a new one. So connections that are held open,
//! or whose requests arrive byte by byte, cannot block a scrape. The order is:
//!
//! * Connections of peers that have fewer than the new connection's peer stay open.
//! * Among the others, connections without an admitted token are closed before connections with one. If each of these
//!   without a token is new or is being answered, the new connection waits.
//! * Then connections of the peer with the most connections are closed.
//! * Then the connection that has waited longest is closed.
//!
//! A connection stays open while its request is answered.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use tokio::sync::Notify;

use super::peers::Peer;
use crate::telemetry::http::{Refusal, ServerCounts};

/// The time that a connection has for its first request before a new one takes its place. It has no such time if its
/// peer has more connections than that of the new one. Until then some new connections wait (`queue`), and others are
/// closed.
const GRACE: Duration = Duration::from_millis(500);
/// The pause between two attempts to find places for connections that wait.
pub(super) const AGAIN: Duration = Duration::from_millis(50);

/// All open connections. Clones share them.
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
    peer: Peer,
    began: Instant,
    /// The time since when the agent waits for a request; `None` while a request is being answered.
    waiting: Option<Instant>,
    /// True once a request on this connection had an admitted token.
    admitted: bool,
    close: Arc<Notify>,
}

/// The place of a connection. Dropping it frees the place.
#[derive(Debug)]
pub(super) struct Slot {
    number: u64,
    close: Arc<Notify>,
    open: Arc<Mutex<Open>>,
}

/// A request that is being answered, until this value is dropped.
#[derive(Debug)]
pub(super) struct Busy<'a>(&'a Slot);

impl Connections {
    pub(super) fn new(most: usize, counts: Arc<ServerCounts>) -> Self {
        Self { most, counts, open: Arc::default() }
    }

    /// Returns a place for one more connection; `None` while no connection can be closed.
    pub(super) fn enter(&self, peer: Peer) -> Option<Slot> {
        self.enter_at(peer, Instant::now())
    }

    fn enter_at(&self, peer: Peer, now: Instant) -> Option<Slot> {
        let mut open = lock(&self.open);
        if open.connections.len() >= self.most {
            let number = open.victim(peer, now)?;
            self.counts.refused(Refusal::Connections);
            open.connections.remove(&number)?.close.notify_one();
        }
        let (number, close) = (open.next, Arc::new(Notify::new()));
        open.next += 1;
        let new = Connection { peer, began: now, waiting: Some(now), admitted: false, close: Arc::clone(&close) };
        open.connections.insert(number, new);
        Some(Slot { number, close, open: Arc::clone(&self.open) })
    }
}

impl Open {
    /// Returns the connection that is closed for a new one of `peer`.
    fn victim(&self, peer: Peer, now: Instant) -> Option<u64> {
        let mut of_peers = HashMap::<Peer, usize>::new();
        for connection in self.connections.values() {
            *of_peers.entry(connection.peer).or_default() += 1;
        }
        let count = |peer| of_peers.get(&peer).copied().unwrap_or(0);
        let new = count(peer) + 1;
        let candidates = || {
            self.connections.iter().filter(|(_, connection)| connection.peer == peer || count(connection.peer) >= new)
        };
        // A connection with an admitted token is closed only if all candidates have one. Else the new connection waits:
        // a candidate without a token can be closed a moment later.
        let only_admitted = candidates().all(|(_, connection)| connection.admitted);
        let victims = candidates().filter_map(|(number, connection)| {
            let waiting = connection.waiting?;
            let its = count(connection.peer);
            let had_time = now.saturating_duration_since(connection.began) >= GRACE;
            let may = had_time || (connection.peer != peer && its > new);
            (may && connection.admitted == only_admitted).then_some((Reverse(its), waiting, *number))
        });
        victims.min().map(|(.., number)| number)
    }
}

impl Slot {
    /// Resolves when a new connection takes this place.
    pub(super) async fn closed(&self) {
        self.close.notified().await;
    }

    /// Marks the connection as being answered until the result is dropped.
    pub(super) fn busy(&self) -> Busy<'_> {
        self.set(|connection| connection.waiting = None);
        Busy(self)
    }

    /// Notes that a request had an admitted token. Connections with a token are closed last.
    pub(super) fn admitted(&self) {
        self.set(|connection| connection.admitted = true);
    }

    fn set(&self, change: impl FnOnce(&mut Connection)) {
        if let Some(connection) = lock(&self.open).connections.get_mut(&self.number) {
            change(connection);
        }
    }
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.set(|connection| connection.waiting = Some(Instant::now()));
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
    use std::net::IpAddr;

    use super::*;

    fn peer(last: u8) -> Peer {
        Peer::of(IpAddr::from([127, 0, 0, last]))
    }

    fn is_closed(slot: &Slot) -> bool {
        !lock(&slot.open).connections.contains_key(&slot.number)
    }

    #[tokio::test]
    async fn the_one_that_waits_longest_gives_way_and_one_that_is_answered_stays() {
        let counts = Arc::<ServerCounts>::default();
        let connections = Connections::new(2, Arc::clone(&counts));
        let later = || Instant::now() + 2 * GRACE;
        let (first, second) = (connections.enter(peer(1)).unwrap(), connections.enter(peer(1)).unwrap());
        let busy = first.busy();
        let third = connections.enter_at(peer(1), later()).unwrap();
        second.closed().await;
        let _third_busy = third.busy();
        assert!(connections.enter_at(peer(1), later()).is_none(), "both are answered");
        drop(busy);
        let fourth = connections.enter_at(peer(1), later()).unwrap();
        first.closed().await;
        assert_eq!(counts.stats().refusals[Refusal::Connections as usize].1, 2);
        drop((first, second, third.busy(), fourth));
    }

    #[test]
    fn a_connection_has_time_for_its_first_request() {
        let connections = Connections::new(2, Arc::default());
        let (first, _second) = (connections.enter(peer(1)).unwrap(), connections.enter(peer(1)).unwrap());
        assert!(connections.enter(peer(1)).is_none());
        assert!(!is_closed(&first));
        connections.enter_at(peer(1), Instant::now() + 2 * GRACE).unwrap();
        assert!(is_closed(&first));
    }

    #[test]
    fn a_peer_with_many_gives_way_and_takes_no_place_of_one_with_few() {
        let (connections, later) = (Connections::new(4, Arc::default()), Instant::now() + 2 * GRACE);
        let few = connections.enter(peer(2)).unwrap();
        let many: Vec<_> = (0..3).map(|_| connections.enter(peer(1)).unwrap()).collect();
        let busy: Vec<_> = many.iter().map(Slot::busy).collect();
        assert!(connections.enter_at(peer(1), later).is_none(), "all of its own are answered");
        assert!(!is_closed(&few));
        drop(busy);
        let more = connections.enter_at(peer(1), later).unwrap();
        assert!(is_closed(&many[0]) && !is_closed(&few), "the one that waited for the longest is the other peer's");
        // The new peer has no connection yet, so it takes a place at once.
        let another = connections.enter(peer(3)).unwrap();
        assert!(is_closed(&many[1]) && !is_closed(&few));
        drop((more, another));
    }

    #[test]
    fn among_connections_of_one_address_those_without_a_token_give_way() {
        let (connections, later) = (Connections::new(3, Arc::default()), Instant::now() + 2 * GRACE);
        let scraper = connections.enter(peer(1)).unwrap();
        scraper.admitted();
        let mut strangers: Vec<_> = (0..2).map(|_| connections.enter(peer(1)).unwrap()).collect();
        for _ in 0..10 {
            strangers.push(connections.enter_at(peer(1), later).unwrap());
            // The newer connections, too, are older than `GRACE`.
            for connection in lock(&connections.open).connections.values_mut() {
                connection.began = later - GRACE;
            }
        }
        assert!(!is_closed(&scraper));
        assert_eq!(strangers.iter().filter(|stranger| !is_closed(stranger)).count(), 2);
    }

    #[test]
    fn a_connection_with_a_token_does_not_give_way_while_the_only_others_are_new_or_answered() {
        let (connections, now) = (Connections::new(3, Arc::default()), Instant::now());
        let scraper = connections.enter_at(peer(1), now).unwrap();
        scraper.admitted();
        let later = now + 2 * GRACE;
        let strangers: Vec<_> = (0..2).map(|_| connections.enter_at(peer(1), later).unwrap()).collect();
        assert!(connections.enter_at(peer(1), later).is_none(), "the others have time for a request");
        let busy: Vec<_> = strangers.iter().map(Slot::busy).collect();
        assert!(connections.enter_at(peer(1), later + GRACE).is_none(), "the others are answered");
        assert!(!is_closed(&scraper));
        drop(busy);
        connections.enter_at(peer(1), later + GRACE).unwrap();
        assert!(!is_closed(&scraper) && is_closed(&strangers[0]));
        // Another address takes the place when only connections with a token are left.
        drop(strangers);
        let admitted: Vec<_> = (0..2).map(|_| connections.enter_at(peer(1), later).unwrap()).collect();
        admitted.iter().for_each(Slot::admitted);
        connections.enter_at(peer(2), later).unwrap();
        assert!(is_closed(&scraper));
    }

    #[test]
    fn a_place_is_given_back() {
        let connections = Connections::new(1, Arc::default());
        for _ in 0..3 {
            let slot = connections.enter(peer(1)).unwrap();
            let _busy = slot.busy();
        }
    }
}
