//! The clock of reads. It stands still while a thread that reads files, or that waits for them, is ready to run and has
//! no CPU: on a busy node a wall clock would end the time for names before anything was read.

use std::{
    fs::File,
    os::unix::fs::FileExt as _,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use crate::model::duration::nanoseconds;

/// The clock may stand still for this many times as long as the time that it is for.
pub(super) const MOST_STILL: u32 = 3;

/// A handle of the clock.
#[derive(Clone, Debug, Default)]
pub(super) struct Clock(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    /// The time for which it stood still, in nanoseconds.
    stood: AtomicU64,
    /// The time for which it may still stand, in nanoseconds.
    left: AtomicU64,
}

impl Clock {
    /// Returns the time of this clock.
    pub(super) fn now(&self) -> Instant {
        let now = Instant::now();
        now.checked_sub(Duration::from_nanos(self.0.stood.load(Ordering::Relaxed))).unwrap_or(now)
    }

    /// Begins an amount of work for which there is this time.
    pub(super) fn begin(&self, time: Duration) {
        self.0.left.store(nanoseconds(time * MOST_STILL), Ordering::Relaxed);
    }

    /// Returns for how long the clock stands still if a thread has waited for a CPU for this time.
    pub(super) fn stands(&self, waited: Duration) -> Duration {
        waited.min(Duration::from_nanos(self.0.left.load(Ordering::Relaxed)))
    }

    /// Lets the clock stand still for a time that a thread has waited.
    pub(super) fn stand(&self, waited: Duration) {
        let still = nanoseconds(self.stands(waited));
        self.0.left.fetch_sub(still, Ordering::Relaxed);
        self.0.stood.fetch_add(still, Ordering::Relaxed);
    }
}

thread_local! {
    /// The thread's own account. It stays open, since it is read at each turn.
    static SCHEDSTAT: Option<File> = File::open("/proc/thread-self/schedstat").ok();
}

/// Returns for how long the calling thread has waited for a CPU so far; zero on a kernel that does not say.
pub(super) fn waited() -> Duration {
    let mut text = [0; 64];
    let read = |file: &Option<File>| file.as_ref()?.read_at(&mut text, 0).ok();
    let length = SCHEDSTAT.with(read).unwrap_or(0);
    let text = text.get(..length).and_then(|text| std::str::from_utf8(text).ok());
    Duration::from_nanos(text.and_then(parse).unwrap_or(0))
}

/// Returns the second of three numbers: the time on a CPU, the time in a run queue, and the number of time slices.
fn parse(schedstat: &str) -> Option<u64> {
    schedstat.split_ascii_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_stands_still_for_the_time_without_a_cpu() {
        let (clock, minute) = (Clock::default(), Duration::from_secs(60));
        let before = clock.now();
        clock.stand(minute);
        assert!(clock.now() >= before, "it is for no work");
        clock.begin(minute);
        clock.stand(minute);
        assert!(clock.now() < before);
        // At most three minutes for one of work.
        clock.stand(100 * minute);
        assert!(clock.now() + 3 * minute >= before);
    }

    #[test]
    fn the_time_in_the_run_queue_is_the_second_number() {
        assert_eq!(parse("1500 20 3\n"), Some(20));
        assert_eq!(parse(""), None);
        let before = waited();
        assert!(waited() >= before);
    }
}
