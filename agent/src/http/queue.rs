//! Connections that wait for a place. Nothing waits for them: the server accepts others meanwhile. Pure.

use std::collections::{HashSet, VecDeque};

use super::peers::Peer;

/// The largest number of waiting connections.
const MOST: usize = 256;
/// The largest number of one peer.
const MOST_OF_PEER: usize = 64;

/// The waiting connections, in their order of arrival.
#[derive(Debug)]
pub(super) struct Queue<T>(VecDeque<(Peer, T)>);

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Self(VecDeque::new())
    }
}

impl<T> Queue<T> {
    /// Adds a connection; gives it back if it may not wait.
    pub(super) fn push(&mut self, peer: Peer, connection: T) -> Result<(), T> {
        if self.0.len() >= MOST || self.has_many(peer) {
            return Err(connection);
        }
        self.0.push_back((peer, connection));
        Ok(())
    }

    /// Returns whether the peer has as many waiting connections as it may have.
    pub(super) fn has_many(&self, peer: Peer) -> bool {
        self.0.iter().filter(|(other, _)| *other == peer).count() >= MOST_OF_PEER
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Takes out each connection for which `place` has one. Each peer is asked for until there is none for it.
    pub(super) fn place<P>(&mut self, mut place: impl FnMut(Peer) -> Option<P>) -> Vec<(P, T)> {
        let (mut placed, mut without) = (Vec::new(), HashSet::new());
        for (peer, connection) in std::mem::take(&mut self.0) {
            match (!without.contains(&peer)).then(|| place(peer)).flatten() {
                Some(its) => placed.push((its, connection)),
                None => {
                    without.insert(peer);
                    self.0.push_back((peer, connection));
                }
            }
        }
        placed
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    fn peer(last: u8) -> Peer {
        Peer::of(IpAddr::from([127, 0, 0, last]))
    }

    #[test]
    fn a_peer_with_many_does_not_keep_out_another() {
        let mut queue = Queue::default();
        let waiting = (0..100).filter(|number| queue.push(peer(1), *number).is_ok()).count();
        assert_eq!(waiting, MOST_OF_PEER);
        assert!(queue.has_many(peer(1)) && !queue.has_many(peer(2)));
        assert!(queue.push(peer(2), 100).is_ok());
        let placed = queue.place(|of| (of == peer(2)).then_some(()));
        assert_eq!(placed, [((), 100)]);
        let rest: Vec<_> = queue.place(Some).into_iter().map(|(_, number)| number).collect();
        assert_eq!(rest, (0..MOST_OF_PEER).collect::<Vec<_>>(), "in their order");
        assert!(queue.is_empty());
    }

    #[test]
    fn the_queue_is_bounded() {
        let mut queue = Queue::default();
        let waiting = (0..=255).cycle().take(1000).filter(|last| queue.push(peer(*last), ()).is_ok()).count();
        assert_eq!(waiting, MOST);
    }
}
