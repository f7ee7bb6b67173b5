//! Time between two attempts, and timeouts of requests.

use std::{
    hash::{BuildHasher, RandomState},
    time::Duration,
};

/// All delays and timeouts of a source; tests use shorter ones.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    /// Minimum delay before the second attempt. It doubles with each further attempt.
    pub(super) first: Duration,
    /// Maximum delay between two attempts.
    pub(super) most: Duration,
    /// Timeout for a whole list. The API server stops on its side after 60 s.
    pub(super) list: Duration,
    /// Timeout for a watch to begin.
    pub(super) open: Duration,
    /// Time after which a watch that has not begun counts as an outage: from then on, changes may be late.
    pub(super) hesitate: Duration,
    /// Longest silence in a watch. The API server sends a bookmark every minute.
    pub(super) idle: Duration,
    /// A watch that ends sooner counts as a failure.
    pub(super) brief: Duration,
    /// A watch that lasts this long resets the back-off.
    pub(super) settled: Duration,
    /// Minimum time between two polls of a kubelet, however often the agent pokes it.
    pub(super) polls: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            first: Duration::from_millis(800),
            most: Duration::from_secs(30),
            list: Duration::from_secs(60),
            open: Duration::from_secs(30),
            hesitate: Duration::from_secs(2),
            idle: Duration::from_secs(150),
            brief: Duration::from_secs(1),
            settled: Duration::from_secs(10),
            polls: Duration::from_secs(1),
        }
    }
}

/// Delays that grow with each attempt, with a random part so that nodes do not retry at the same moment.
#[derive(Debug)]
pub(super) struct Backoff {
    pace: Pace,
    attempts: u32,
}

impl Backoff {
    pub(super) const fn new(pace: Pace) -> Self {
        Self { pace, attempts: 0 }
    }

    /// Returns the next delay: a random time between half of this attempt's limit and the whole limit.
    pub(super) fn next(&mut self) -> Duration {
        let turn = self.pace.first.saturating_mul(2_u32.saturating_pow(self.attempts + 1)).min(self.pace.most);
        self.attempts = (self.attempts + 1).min(16);
        turn / 2 + (turn / 2).mul_f64(f64::from(random(1000)) / 1000.0)
    }

    pub(super) const fn reset(&mut self) {
        self.attempts = 0;
    }
}

/// Returns a random number below `below`, for spread and not for secrets: std seeds its hasher's keys from the system's
/// random source.
pub(super) fn random(below: u32) -> u32 {
    u32::try_from(RandomState::new().hash_one(0_u8) % u64::from(below)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_most_and_are_spread() {
        let mut backoff = Backoff::new(Pace::default());
        for (least, most) in
            [(800, 1600), (1600, 3200), (3200, 6400), (6400, 12_800), (12_800, 25_600), (15_000, 30_000)]
        {
            let wait = backoff.next().as_millis();
            assert!((least..=most).contains(&wait), "{wait} not in {least}..={most}");
        }
        for _ in 0..100 {
            assert!(backoff.next() <= Pace::default().most);
        }
        backoff.reset();
        assert!(backoff.next() <= Duration::from_millis(1600));
        let waits: std::collections::HashSet<_> = (0..20).map(|_| Backoff::new(Pace::default()).next()).collect();
        assert!(waits.len() > 10, "{waits:?}");
    }
}
