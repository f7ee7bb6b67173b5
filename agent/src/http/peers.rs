//! The rates of requests: of each address, and of each owner of an admitted token.
//!
//! Both tables are bounded: the entry that was not used for the longest time is dropped. When its peer returns, it
//! starts with full buckets.

use std::{
    collections::HashMap,
    hash::Hash,
    net::{IpAddr, Ipv4Addr},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use super::rate::Bucket;

/// The largest number of entries in each of the two tables.
const MOST: usize = 1024;
/// The part of the rate for refused requests.
const REFUSED: f64 = 0.2;
/// The part of the rate for reviews of unknown tokens; all addresses together have twice as much.
const REVIEWS: f64 = 0.1;
/// Each address has one more review in this time.
const FIRST_EVERY: Duration = Duration::from_secs(10);
/// The largest number of addresses that have such a review in that time.
const MOST_FIRST: usize = 256;
/// New connections a second that each peer may have while the server is over its limit of CPU time.
const CONNECTIONS: f64 = 50.0;
/// Scrapes a second that each peer may send while the server is over its limit of CPU time.
const SCRAPES: f64 = 0.2;

/// The source of requests: an IPv4 address, or the /64 of an IPv6 address, which a network gives to one host. Each user
/// of a machine has all of 127.0.0.0/8: besides 127.0.0.1, these addresses are eight peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Peer(IpAddr);

/// The rates of a peer or an identity.
#[derive(Debug)]
pub(super) struct Shares {
    /// Rate of requests that are admitted.
    pub(super) requests: Bucket,
    /// Rate of requests that are refused.
    pub(super) refused: Bucket,
    /// Rate of reviews of unknown tokens.
    pub(super) reviews: Bucket,
    /// Rate of scrapes while the server is over its limit of CPU time.
    pub(super) scrapes: Bucket,
    /// Rate of new connections while the server is over its limit of CPU time.
    pub(super) connections: Bucket,
}

/// Rates by peer or identity.
#[derive(Debug)]
pub(super) struct Table<K> {
    rate: f64,
    known: Mutex<Known<K>>,
}

#[derive(Debug)]
struct Known<K> {
    /// The rates, with the number of the last request that used them.
    shares: HashMap<K, (Arc<Shares>, u64)>,
    requests: u64,
}

impl Peer {
    pub(super) fn of(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V6(address) => {
                let [a, b, c, d, ..] = address.segments();
                Self(IpAddr::from([a, b, c, d, 0, 0, 0, 0]))
            }
            IpAddr::V4(address) if address.is_loopback() && address != Ipv4Addr::LOCALHOST => {
                let [.., last] = address.octets();
                Self(IpAddr::from([127, 0, 0, 8 + last % 8]))
            }
            address => Self(address),
        }
    }
}

/// One review in ten seconds for each address. Reviews of other addresses do not use it up.
#[derive(Debug, Default)]
pub(super) struct FirstReviews(Mutex<HashMap<Peer, Instant>>);

impl FirstReviews {
    /// Takes the review of this address; returns whether there was one.
    pub(super) fn take(&self, who: Peer) -> bool {
        self.take_at(who, Instant::now())
    }

    fn take_at(&self, who: Peer, now: Instant) -> bool {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_recent = |then: &Instant| now.saturating_duration_since(*then) < FIRST_EVERY;
        if last.get(&who).is_some_and(is_recent) {
            return false;
        }
        if last.len() >= MOST_FIRST {
            last.retain(|_, then| is_recent(then));
        }
        let has_room = last.len() < MOST_FIRST;
        if has_room {
            last.insert(who, now);
        }
        has_room
    }
}

impl Shares {
    fn new(rate: f64) -> Self {
        Self {
            requests: Bucket::new(rate),
            refused: Bucket::new(rate * REFUSED),
            reviews: Bucket::new(rate * REVIEWS),
            scrapes: Bucket::new(SCRAPES),
            connections: Bucket::new(CONNECTIONS),
        }
    }
}

/// Returns the rate of reviews of unknown tokens, for all addresses together.
pub(super) fn all_reviews(rate: f64) -> Bucket {
    Bucket::new(2.0 * rate * REVIEWS)
}

impl<K: Clone + Eq + Hash> Table<K> {
    /// Returns an empty table with `rate` requests a second for each entry; 0 is no limit.
    pub(super) fn new(rate: f64) -> Self {
        Self { rate, known: Mutex::new(Known { shares: HashMap::new(), requests: 0 }) }
    }

    pub(super) fn of(&self, who: &K) -> Arc<Shares> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.requests += 1;
        let request = known.requests;
        if let Some((shares, last)) = known.shares.get_mut(who) {
            *last = request;
            return Arc::clone(shares);
        }
        if known.shares.len() >= MOST
            && let Some(oldest) = known.shares.iter().min_by_key(|(_, (_, last))| *last).map(|(who, _)| who.clone())
        {
            known.shares.remove(&oldest);
        }
        let shares = Arc::new(Shares::new(self.rate));
        known.shares.insert(who.clone(), (Arc::clone(&shares), request));
        shares
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn a_peer_is_an_ipv4_address_or_a_64th_of_ipv6() {
        let peer = |text: &str| Peer::of(text.parse().unwrap());
        assert_eq!(peer("::ffff:10.0.0.1"), peer("10.0.0.1"));
        assert_ne!(peer("10.0.0.2"), peer("10.0.0.1"));
        assert_eq!(peer("2001:db8:1:2::1"), peer("2001:db8:1:2:ffff::9"));
        assert_ne!(peer("2001:db8:1:3::1"), peer("2001:db8:1:2::1"));
        let local: HashSet<_> = (2..=255).map(|last| Peer::of(IpAddr::from([127, 1, 2, last]))).collect();
        assert!(local.len() == 8 && !local.contains(&peer("127.0.0.1")), "{local:?}");
    }

    #[test]
    fn each_has_a_share_of_its_own_and_who_was_silent_for_the_longest_is_forgotten() {
        let table = Table::new(1.0);
        let first = table.of(&0);
        assert!(first.requests.take() && !first.requests.take() && table.of(&1).requests.take());
        for who in 2..=MOST {
            assert!(table.of(&who).requests.take() && !table.of(&0).requests.take(), "{who}");
        }
        assert_eq!(table.known.lock().unwrap().shares.len(), MOST);
        assert!(table.of(&1).requests.take(), "who was forgotten begins with a full bucket");
    }

    #[test]
    fn each_address_has_one_review_in_ten_seconds_and_the_table_is_bounded() {
        let (reviews, start) = (FirstReviews::default(), Instant::now());
        let peer = |number: usize| Peer::of(std::net::Ipv4Addr::from(u32::try_from(number).unwrap()).into());
        assert!(reviews.take_at(peer(0), start) && !reviews.take_at(peer(0), start + FIRST_EVERY / 2));
        let later = start + FIRST_EVERY;
        assert!(reviews.take_at(peer(0), later) && !reviews.take_at(peer(0), later));
        assert!((1..MOST_FIRST).all(|number| reviews.take_at(peer(number), later)));
        assert!(!reviews.take_at(peer(MOST_FIRST), later));
        assert_eq!(reviews.0.lock().unwrap().len(), MOST_FIRST);
        assert!(reviews.take_at(peer(MOST_FIRST), later + FIRST_EVERY));
        assert_eq!(reviews.0.lock().unwrap().len(), 1);
    }
}
