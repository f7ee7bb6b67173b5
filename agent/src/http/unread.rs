//! Limits the bytes of answers that are being sent, and the time for each. A client that reads slowly holds them, and
//! each of its connections may hold the metrics of another reading.

use std::{
    collections::HashMap,
    io,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll},
    time::{Duration, Instant},
};

use axum::body::Bytes;
use hyper::body::{Body, Frame, SizeHint};

use super::peers::Peer;

/// The most bytes that answers to a peer may take while they are being sent, without the last one.
const MOST_UNREAD: usize = 32 << 20;
/// The same for all peers together. Beyond it, only peers that hold nothing get an answer.
const MOST_OF_ALL: usize = 64 << 20;
/// The same, beyond which nobody gets one.
const MOST: usize = 2 * MOST_OF_ALL;
/// The time in which an answer must be read, by the clock of the machine. Scrapers wait for 10 s, as a rule.
const TIME: Duration = Duration::from_secs(30);
/// The largest part of an answer that is sent at once.
const PART: usize = 64 << 10;

/// The bytes of the answers that are being sent, by peer. Clones share them.
#[derive(Clone, Debug, Default)]
pub(super) struct Unread(Arc<Mutex<HashMap<Peer, usize>>>);

/// An answer that is being sent.
struct Held {
    bytes: Bytes,
    to: Peer,
    unread: Unread,
}

/// The body of an answer. It ends with an error, and so does the connection, if it is not sent in time.
#[derive(Debug)]
pub(super) struct Answer {
    rest: Bytes,
    until: Instant,
}

impl Unread {
    /// Returns true if another answer may be made for this peer.
    pub(super) fn has_room(&self, to: Peer) -> bool {
        let held = self.lock();
        let all: usize = held.values().sum();
        all < MOST && held.get(&to).is_none_or(|its| *its < MOST_UNREAD && all < MOST_OF_ALL)
    }

    /// Returns an answer with these bytes. They count as unread until it is sent.
    pub(super) fn answer(&self, to: Peer, bytes: Bytes) -> Answer {
        Answer { rest: self.hold(to, bytes), until: Instant::now() + TIME }
    }

    fn hold(&self, to: Peer, bytes: Bytes) -> Bytes {
        *self.lock().entry(to).or_default() += bytes.len();
        Bytes::from_owner(Held { bytes, to, unread: self.clone() })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Peer, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut held = self.unread.lock();
        let left = held.get(&self.to).map_or(0, |all| all.saturating_sub(self.bytes.len()));
        if left == 0 {
            held.remove(&self.to);
        } else {
            held.insert(self.to, left);
        }
    }
}

impl Body for Answer {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        Poll::Ready(if self.rest.is_empty() {
            None
        } else if Instant::now() > self.until {
            Some(Err(io::ErrorKind::TimedOut.into()))
        } else {
            let part = self.rest.len().min(PART);
            Some(Ok(Frame::data(self.rest.split_to(part))))
        })
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.rest.len() as u64)
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use http_body_util::BodyExt as _;

    use super::*;

    fn peer(last: u8) -> Peer {
        Peer::of(IpAddr::from([10, 0, 0, last]))
    }

    #[test]
    fn an_address_has_room_until_it_holds_too_much() {
        let unread = Unread::default();
        let [slow, other] = [1, 2].map(peer);
        let bytes = Bytes::from(vec![0; MOST_UNREAD / 2]);
        let first = unread.hold(slow, bytes.clone());
        assert!(unread.has_room(slow));
        let second = unread.hold(slow, bytes.clone());
        assert!(!unread.has_room(slow) && unread.has_room(other));
        assert_eq!(second, bytes);
        drop(first.slice(1..));
        assert!(!unread.has_room(slow), "the rest is not sent");
        drop(first);
        assert!(unread.has_room(slow));
        drop(second);
        assert!(unread.lock().is_empty());
    }

    #[test]
    fn over_the_limit_of_all_who_holds_nothing_gets_an_answer_until_there_is_twice_as_much() {
        let (unread, bytes) = (Unread::default(), Bytes::from(vec![0; MOST_UNREAD - 1]));
        let held: Vec<_> = [1, 2, 3].map(|last| unread.hold(peer(last), bytes.clone())).into();
        assert!(!unread.has_room(peer(1)) && unread.has_room(peer(9)));
        let more: Vec<_> = [4, 5].map(|last| unread.hold(peer(last), bytes.clone())).into();
        assert!(!unread.has_room(peer(9)));
        drop(more);
        assert!(unread.has_room(peer(9)));
        drop(held);
    }

    #[tokio::test]
    async fn an_answer_is_whole_unless_its_time_is_over() {
        let unread = Unread::default();
        let bytes: Bytes = b"answer ".iter().copied().cycle().take(3 * PART + 1).collect();
        let answer = || unread.answer(peer(1), bytes.clone());
        assert_eq!(answer().size_hint().exact(), Some(bytes.len() as u64));
        assert_eq!(answer().collect().await.unwrap().to_bytes(), bytes);
        let mut late = answer();
        assert_eq!(late.frame().await.unwrap().unwrap().into_data().unwrap().len(), PART);
        late.until = Instant::now();
        assert_eq!(late.frame().await.unwrap().unwrap_err().kind(), io::ErrorKind::TimedOut);
        drop(late);
        assert!(unread.lock().is_empty());
    }
}
