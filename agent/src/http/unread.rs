//! Counts the bytes of answers that are being sent to each address. A client that reads slowly holds them, and each of
//! its connections may hold the metrics of another reading.

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use axum::body::Bytes;

/// The most bytes that answers to an address may take while they are being sent, without the last one.
const MOST_UNREAD: usize = 32 << 20;

/// The bytes of the answers that are being sent, by address. Clones share them.
#[derive(Clone, Debug, Default)]
pub(super) struct Unread(Arc<Mutex<HashMap<IpAddr, usize>>>);

/// An answer that is being sent.
struct Held {
    bytes: Bytes,
    to: IpAddr,
    unread: Unread,
}

impl Unread {
    /// Returns true if another answer may be made for this address.
    pub(super) fn has_room(&self, to: IpAddr) -> bool {
        self.lock().get(&to).is_none_or(|held| *held < MOST_UNREAD)
    }

    /// Returns the same bytes, which count as unread until they are dropped.
    pub(super) fn hold(&self, to: IpAddr, bytes: Bytes) -> Bytes {
        *self.lock().entry(to).or_default() += bytes.len();
        Bytes::from_owner(Held { bytes, to, unread: self.clone() })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<IpAddr, usize>> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_room_until_it_holds_too_much() {
        let unread = Unread::default();
        let [slow, other] = [1, 2].map(|last| IpAddr::from([127, 0, 0, last]));
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
}
