//! Cache of the latest verdicts on tokens. Pure.
//!
//! It holds hashes, no tokens. Rejected tokens have a table of their own, so that a client that tries many tokens does
//! not push out the entries of admitted readers.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use ring::digest::{Context, SHA256};

use super::Verdict;

/// Lifetime of an answer. For this time a removed role still works, or a new role does not work yet.
const ALLOWED_FOR: Duration = Duration::from_secs(60);
const REFUSED_FOR: Duration = Duration::from_secs(10);
/// Lifetime of an answer while the API server is out of reach.
const STALE_FOR: Duration = Duration::from_secs(600);
/// Largest number of entries in each table.
const MOST: usize = 1024;

pub(super) type Hash = [u8; 32];

/// A request, as hashes.
#[derive(Debug)]
pub(super) struct Key {
    token: Hash,
    request: Hash,
}

impl Key {
    pub(super) fn new(token: &str, verb: &str, path: &str) -> Self {
        // Neither part can contain a zero byte, which separates the parts.
        Self { token: hash(&[token]), request: hash(&[token, verb, path]) }
    }

    pub(super) const fn request(&self) -> Hash {
        self.request
    }
}

/// A cached answer.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Known {
    /// The answer is fresh: no new review is needed.
    Fresh(Verdict),
    /// The answer is old, and only used while the API server is out of reach.
    Stale(Verdict),
}

#[derive(Debug, Default)]
pub(super) struct Cache {
    allowed: HashMap<Hash, (Verdict, Instant)>,
    refused: HashMap<Hash, (Verdict, Instant)>,
}

impl Cache {
    pub(super) fn get(&self, key: &Key, now: Instant) -> Option<Known> {
        let found = [self.allowed.get(&key.request), self.refused.get(&key.request), self.refused.get(&key.token)];
        let (verdict, reviewed) = found.into_iter().flatten().max_by_key(|(_, reviewed)| *reviewed)?;
        let fresh = if matches!(verdict, Verdict::Allowed { .. }) { ALLOWED_FOR } else { REFUSED_FOR };
        match now.saturating_duration_since(*reviewed) {
            age if age < fresh => Some(Known::Fresh(verdict.clone())),
            age if age < STALE_FOR => Some(Known::Stale(verdict.clone())),
            _ => None,
        }
    }

    /// Stores an answer in place of the previous one.
    pub(super) fn put(&mut self, key: &Key, verdict: Verdict, now: Instant) {
        self.allowed.remove(&key.request);
        self.refused.remove(&key.request);
        self.refused.remove(&key.token);
        let (answers, hash) = match verdict {
            Verdict::Allowed { .. } => (&mut self.allowed, key.request),
            Verdict::Forbidden { .. } => (&mut self.refused, key.request),
            // A bad token is rejected for every request.
            Verdict::BadToken => (&mut self.refused, key.token),
        };
        if answers.len() >= MOST
            && let Some(oldest) = answers.iter().min_by_key(|(_, (_, reviewed))| *reviewed).map(|(hash, _)| *hash)
        {
            answers.remove(&oldest);
        }
        answers.insert(hash, (verdict, now));
    }
}

fn hash(parts: &[&str]) -> Hash {
    let mut context = Context::new(&SHA256);
    for part in parts {
        context.update(part.as_bytes());
        context.update(&[0]);
    }
    let mut hash = [0; 32];
    hash.copy_from_slice(context.finish().as_ref());
    hash
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allowed() -> Verdict {
        Verdict::Allowed { user: "alice".into() }
    }

    fn forbidden() -> Verdict {
        Verdict::Forbidden { user: "bob".into() }
    }

    #[test]
    fn an_answer_is_good_for_one_request_and_a_time() {
        let (mut cache, start) = (Cache::default(), Instant::now());
        let key = Key::new("t", "get", "/metrics");
        cache.put(&key, allowed(), start);
        assert_eq!(cache.get(&key, start), Some(Known::Fresh(allowed())));
        assert_eq!(cache.get(&key, start + ALLOWED_FOR), Some(Known::Stale(allowed())));
        assert_eq!(cache.get(&key, start + STALE_FOR), None);
        for other in [
            Key::new("t", "get", "/status"),
            Key::new("t", "post", "/metrics"),
            Key::new("u", "get", "/metrics"),
            Key::new("tg", "et", "/metrics"),
        ] {
            assert_eq!(cache.get(&other, start), None);
        }
    }

    #[test]
    fn what_is_refused_is_asked_again_soon() {
        let (mut cache, start) = (Cache::default(), Instant::now());
        let key = Key::new("t", "get", "/metrics");
        cache.put(&key, forbidden(), start);
        assert_eq!(cache.get(&key, start), Some(Known::Fresh(forbidden())));
        assert_eq!(cache.get(&key, start + REFUSED_FOR), Some(Known::Stale(forbidden())));
    }

    #[test]
    fn a_bad_token_is_bad_for_every_path_and_the_last_word_counts() {
        let (mut cache, start) = (Cache::default(), Instant::now());
        let (metrics, status) = (Key::new("t", "get", "/metrics"), Key::new("t", "get", "/status"));
        cache.put(&metrics, allowed(), start);
        let later = start + Duration::from_secs(1);
        cache.put(&status, Verdict::BadToken, later);
        assert_eq!(cache.get(&metrics, later), Some(Known::Fresh(Verdict::BadToken)));
        cache.put(&metrics, allowed(), later + REFUSED_FOR);
        assert_eq!(cache.get(&metrics, later + REFUSED_FOR), Some(Known::Fresh(allowed())));
    }

    #[test]
    fn whoever_tries_many_tokens_pushes_out_nobody_who_may_read() {
        let (mut cache, start) = (Cache::default(), Instant::now());
        let good = Key::new("good", "get", "/metrics");
        cache.put(&good, allowed(), start);
        for number in 0..2 * MOST {
            let key = Key::new(&number.to_string(), "get", "/metrics");
            cache.put(&key, Verdict::BadToken, start + Duration::from_millis(1));
        }
        assert_eq!((cache.allowed.len(), cache.refused.len()), (1, MOST));
        assert_eq!(cache.get(&good, start), Some(Known::Fresh(allowed())));
    }
}
