//! Limits how often an event may happen, with a bucket that fills with time.

use std::{
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

/// A bucket that holds the allowance of one second, and at least 1.
#[derive(Debug)]
pub(super) struct Bucket {
    /// Events a second; 0 is no limit.
    rate: f64,
    state: Mutex<(f64, Instant)>,
}

impl Bucket {
    pub(super) fn new(rate: f64) -> Self {
        Self { rate, state: Mutex::new((rate.max(1.0), Instant::now())) }
    }

    /// Takes one from the bucket; returns whether there was one.
    pub(super) fn take(&self) -> bool {
        self.take_at(Instant::now()).is_none()
    }

    /// Takes one from the bucket, and waits until there is one.
    pub(super) async fn wait(&self) {
        while let Some(wait) = self.take_at(Instant::now()) {
            tokio::time::sleep(wait).await;
        }
    }

    /// Takes one from the bucket. If there is none, returns the time until there will be one.
    fn take_at(&self, now: Instant) -> Option<Duration> {
        if self.rate <= 0.0 {
            return None;
        }
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let (level, since) = *state;
        let level = (level + now.saturating_duration_since(since).as_secs_f64() * self.rate).min(self.rate.max(1.0));
        let enough = level >= 1.0;
        *state = (if enough { level - 1.0 } else { level }, now);
        (!enough).then(|| Duration::from_secs_f64((1.0 - level) / self.rate) + Duration::from_millis(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_holds_as_many_as_the_rate_says() {
        let (bucket, start) = (Bucket::new(4.0), Instant::now());
        let taken = |at: Duration| (0..100).filter(|_| bucket.take_at(start + at).is_none()).count();
        let full = Duration::from_secs(10);
        assert_eq!(taken(full), 4);
        assert_eq!(taken(full + Duration::from_millis(500)), 2);
        assert_eq!(taken(full + Duration::from_secs(60)), 4, "it does not save for long");
        assert!(bucket.take_at(start + Duration::from_secs(70)).unwrap() <= Duration::from_millis(252));
    }

    #[test]
    fn a_rate_of_nothing_is_no_limit() {
        let bucket = Bucket::new(0.0);
        assert!((0..1000).all(|_| bucket.take()));
    }
}
