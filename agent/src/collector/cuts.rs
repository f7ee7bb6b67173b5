//! Limits the cuts of the window for recordings: at most one per second for all requests together. Pure.

use std::{
    mem,
    time::{Duration, Instant},
};

/// The window is cut at most once in this time. Requests that arrive earlier wait for the end of this time and share
/// one cut.
const CUT_AT_MOST_EVERY: Duration = Duration::from_secs(1);

/// The requests that wait for a cut.
#[derive(Debug)]
pub(super) struct Cuts<T> {
    last: Option<Instant>,
    waiting: Vec<T>,
}

impl<T> Cuts<T> {
    pub(super) const fn new() -> Self {
        Self { last: None, waiting: Vec::new() }
    }

    /// Adds a request.
    pub(super) fn ask(&mut self, asks: T) {
        self.waiting.push(asks);
    }

    /// Returns the time until the next cut is due; `None` if no request waits.
    pub(super) fn due_in(&self, now: Instant) -> Option<Duration> {
        let left = |last: Instant| (last + CUT_AT_MOST_EVERY).saturating_duration_since(now);
        (!self.waiting.is_empty()).then(|| self.last.map_or(Duration::ZERO, left))
    }

    /// Takes all requests if a cut is due; returns an empty list before that.
    pub(super) fn due(&mut self, now: Instant) -> Vec<T> {
        if self.due_in(now) == Some(Duration::ZERO) { self.take() } else { Vec::new() }
    }

    /// Takes all requests.
    pub(super) fn take(&mut self) -> Vec<T> {
        mem::take(&mut self.waiting)
    }

    /// Notes that the window was cut.
    pub(super) const fn done(&mut self, now: Instant) {
        self.last = Some(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_is_cut_at_once_and_those_of_the_second_after_it_share_one() {
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        let mut cuts = Cuts::new();
        assert_eq!((cuts.due_in(at(0)), cuts.due(at(0))), (None, vec![]));
        cuts.ask(1);
        assert_eq!(cuts.due(at(0)), [1]);
        cuts.done(at(0));
        for (number, millis) in [(2, 1), (3, 300), (4, 999)] {
            cuts.ask(number);
            assert_eq!(cuts.due(at(millis)), Vec::<i32>::new());
        }
        assert_eq!(cuts.due_in(at(300)), Some(Duration::from_millis(700)));
        assert_eq!(cuts.due(at(1000)), [2, 3, 4]);
        cuts.done(at(1000));
        assert_eq!(cuts.due_in(at(1001)), None);
    }

    #[test]
    fn a_cut_that_failed_is_tried_again_at_once() {
        let now = Instant::now();
        let mut cuts = Cuts::new();
        cuts.ask(1);
        assert_eq!(cuts.due(now), [1]);
        cuts.ask(2);
        assert_eq!(cuts.due(now), [2]);
    }

    #[test]
    fn however_many_ask_there_is_one_cut_a_second() {
        let start = Instant::now();
        let (mut cuts, mut made) = (Cuts::new(), 0);
        for millis in 0..10_000 {
            let now = start + Duration::from_millis(millis);
            cuts.ask(millis);
            if !cuts.due(now).is_empty() {
                cuts.done(now);
                made += 1;
            }
        }
        assert_eq!(made, 10);
    }
}
