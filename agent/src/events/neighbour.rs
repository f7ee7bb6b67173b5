//! Decides when to make room on the PMU for other users, and when to come back. Pure.
//!
//! The kernel lets groups take turns when they do not all fit. So a group that was not on the PMU all the time shows
//! that another user wants counters, too. Then the last group yields, and the next one, until the rest fits; the first
//! group always stays. Later the groups come back one by one. After each attempt that fails, the next wait is twice as
//! long, up to a limit.

use std::time::Duration;

/// A group that was on the PMU for less than this share of the time takes turns. Smaller gaps are the kernel's own
/// pauses.
pub const WHOLE: f64 = 0.98;
/// The wait before the first attempt to come back.
const FIRST_WAIT: Duration = Duration::from_secs(60);
/// The longest wait between two attempts.
const LONGEST_WAIT: Duration = Duration::from_secs(16 * 60);
/// The share of a shorter window is noise, and right after a move it still belongs to the old order.
const LEAST_WINDOW: Duration = Duration::from_secs(1);

/// A change of the groups on the PMU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Move {
    /// Take this group off the PMU.
    Yield(usize),
    /// Put this group back on the PMU.
    Reclaim(usize),
}

/// The groups in the order of their rank, and the state of the PMU.
#[derive(Debug)]
pub struct Neighbour {
    /// Group -> whether it is off the PMU.
    yielded: Vec<bool>,
    moved_at: Duration,
    wait: Duration,
    /// The group that was put back and may have to yield again.
    trying: Option<usize>,
}

impl Neighbour {
    /// Puts `groups` groups on the PMU, the most wanted group first.
    #[must_use]
    pub fn new(groups: usize, now: Duration) -> Self {
        Self { yielded: vec![false; groups], moved_at: now, wait: FIRST_WAIT, trying: None }
    }

    /// Takes the share of the time since the last call that each group was on the PMU; `None` if unknown. Returns at
    /// most one move per call, and the next call observes its effect.
    pub fn observe(&mut self, now: Duration, shares: &[Option<f64>]) -> Option<Move> {
        let since = now.saturating_sub(self.moved_at);
        if since < LEAST_WINDOW {
            return None;
        }
        let on_it = || self.yielded.iter().enumerate().filter(|(_, yielded)| !**yielded).map(|(group, _)| group);
        let crowded = on_it().any(|group| shares.get(group).copied().flatten().is_some_and(|share| share < WHOLE));
        if crowded {
            let last = on_it().next_back().filter(|last| *last > 0)?;
            if self.trying.take().is_some() {
                self.wait = (self.wait * 2).min(LONGEST_WAIT);
            }
            self.yielded[last] = true;
            self.moved_at = now;
            return Some(Move::Yield(last));
        }
        if self.trying.take().is_some() {
            self.wait = FIRST_WAIT;
        }
        let first = self.yielded.iter().position(|yielded| *yielded)?;
        if since < self.wait {
            return None;
        }
        self.yielded[first] = false;
        self.trying = Some(first);
        self.moved_at = now;
        Some(Move::Reclaim(first))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALONE: [Option<f64>; 3] = [Some(1.0), Some(1.0), Some(1.0)];
    const CROWDED: [Option<f64>; 3] = [Some(0.7), Some(0.7), Some(0.6)];

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn alone_nothing_moves() {
        let mut neighbour = Neighbour::new(3, at(0));
        assert!((1..10_000).step_by(10).all(|now| neighbour.observe(at(now), &ALONE).is_none()));
    }

    #[test]
    fn groups_go_from_the_last_and_the_first_stays() {
        let mut neighbour = Neighbour::new(3, at(0));
        let moves: Vec<_> = (1..6).map(|step| neighbour.observe(at(10 * step), &CROWDED)).collect();
        assert_eq!(moves, [Some(Move::Yield(2)), Some(Move::Yield(1)), None, None, None]);
    }

    #[test]
    fn right_after_a_move_nothing_is_concluded() {
        let mut neighbour = Neighbour::new(3, at(0));
        assert_eq!(neighbour.observe(Duration::from_millis(500), &CROWDED), None);
        assert_eq!(neighbour.observe(at(1), &CROWDED), Some(Move::Yield(2)));
        assert_eq!(neighbour.observe(Duration::from_millis(1500), &CROWDED), None);
    }

    #[test]
    fn groups_come_back_in_their_rank_once_the_others_are_gone() {
        let mut neighbour = Neighbour::new(3, at(0));
        neighbour.observe(at(10), &CROWDED);
        neighbour.observe(at(20), &CROWDED);
        let quiet = [Some(1.0), None, None];
        assert_eq!(neighbour.observe(at(70), &quiet), None);
        assert_eq!(neighbour.observe(at(80), &quiet), Some(Move::Reclaim(1)));
        assert_eq!(neighbour.observe(at(90), &ALONE), None);
        assert_eq!(neighbour.observe(at(140), &ALONE), Some(Move::Reclaim(2)));
        assert_eq!(neighbour.observe(at(1000), &ALONE), None);
    }

    #[test]
    fn who_must_go_again_waits_twice_as_long() {
        let mut neighbour = Neighbour::new(2, at(0));
        let (mut now, mut waits) = (10, Vec::new());
        neighbour.observe(at(now), &CROWDED);
        for _ in 0..7 {
            let yielded = now;
            while neighbour.observe(at(now), &[Some(1.0), None]).is_none() {
                now += 1;
            }
            waits.push(now - yielded);
            now += 5;
            assert_eq!(neighbour.observe(at(now), &CROWDED), Some(Move::Yield(1)));
        }
        assert_eq!(waits, [60, 120, 240, 480, 960, 960, 960]);
    }
}
