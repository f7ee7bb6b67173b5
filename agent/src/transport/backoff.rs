//! Delays that grow with each attempt, with a random part so that nodes do not retry at the same moment.

use std::time::Duration;

use crate::model::random::random_below;

/// The delays between attempts at one thing.
#[derive(Debug)]
pub(crate) struct Backoff {
    first: Duration,
    most: Duration,
    /// The maximum of the previous delay.
    limit: Duration,
}

impl Backoff {
    /// Makes delays from `first`, the shortest before the second attempt, up to `most`.
    pub(crate) const fn new(first: Duration, most: Duration) -> Self {
        Self { first, most, limit: first }
    }

    /// Returns the next delay: a random time between half of this attempt's limit and the whole limit.
    pub(crate) fn next(&mut self) -> Duration {
        self.limit = self.limit.saturating_mul(2).min(self.most);
        let half = self.limit / 2;
        half + half.mul_f64(f64::from(random_below(1000)) / 1000.0)
    }

    pub(crate) const fn reset(&mut self) {
        self.limit = self.first;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: Duration = Duration::from_secs(30);

    const fn backoff() -> Backoff {
        Backoff::new(Duration::from_millis(800), MOST)
    }

    #[test]
    fn waits_double_up_to_the_most_and_are_spread() {
        let mut backoff_of_one = backoff();
        for (least, most) in
            [(800, 1600), (1600, 3200), (3200, 6400), (6400, 12_800), (12_800, 25_600), (15_000, 30_000)]
        {
            let wait = backoff_of_one.next().as_millis();
            assert!((least..=most).contains(&wait), "{wait} not in {least}..={most}");
        }
        for _ in 0..100 {
            assert!(backoff_of_one.next() <= MOST);
        }
        backoff_of_one.reset();
        assert!(backoff_of_one.next() <= Duration::from_millis(1600));
        let waits: std::collections::HashSet<_> = (0..20).map(|_| backoff().next()).collect();
        assert!(waits.len() > 10, "{waits:?}");
    }
}
