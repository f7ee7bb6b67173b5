//! Limits the time for unwinding the stacks of one pod or cgroup, so that one owner cannot take all of it. Pure.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

/// The time of one owner in each second, and while the agent saves CPU time.
const TIME: Duration = Duration::from_millis(200);
const LITTLE_TIME: Duration = Duration::from_millis(25);
const PERIOD: Duration = Duration::from_secs(1);
/// The most seconds whose time an owner owes. The rest is forgiven: a turn that waited for a file, or time that the owner
/// used before the agent began to save, would cost many seconds of little time.
const MOST_PERIODS: u32 = 4;

/// The time that each owner has used.
#[derive(Debug, Default)]
pub(super) struct Allowances {
    since: Option<Instant>,
    used: HashMap<String, Duration>,
    saves: bool,
}

impl Allowances {
    /// Gives owners little time from now on, or as much as before.
    pub(super) fn save(&mut self, saves: bool) {
        self.saves = saves;
    }

    const fn time(&self) -> Duration {
        if self.saves { LITTLE_TIME } else { TIME }
    }

    /// Returns the time that an owner has left in this second; `None` if there is none.
    pub(super) fn left(&mut self, owner: &str) -> Option<Duration> {
        self.left_at(owner, self.time(), Instant::now())
    }

    /// Returns the time that an owner has left if it borrows that of the next second; `None` if there is none.
    pub(super) fn with_loan(&mut self, owner: &str) -> Option<Duration> {
        self.left_at(owner, 2 * self.time(), Instant::now())
    }

    /// Returns the part of `most` that an owner has left.
    fn left_at(&mut self, owner: &str, most: Duration, now: Instant) -> Option<Duration> {
        let passed = self.since.map_or(PERIOD, |since| now.saturating_duration_since(since));
        let periods = u32::try_from(passed.as_millis() / PERIOD.as_millis()).unwrap_or(u32::MAX);
        if periods > 0 {
            // A turn may end late: its excess is subtracted from the next seconds.
            let (free, most_used) = (self.time().saturating_mul(periods), MOST_PERIODS * self.time());
            self.used.retain(|_, used| {
                *used = (*used).min(most_used).saturating_sub(free);
                !used.is_zero()
            });
            self.since = Some(now);
        }
        let left = most.saturating_sub(self.used.get(owner).copied().unwrap_or_default());
        (!left.is_zero()).then_some(left)
    }

    /// Notes that an owner has used time.
    pub(super) fn used(&mut self, owner: String, time: Duration) {
        *self.used.entry(owner).or_default() += time;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_pays_back_its_excess_and_takes_nothing_from_another_owner() {
        let mut allowances = Allowances::default();
        let start = Instant::now();
        assert_eq!(allowances.left_at("a", TIME, start), Some(TIME));
        allowances.used("a".into(), TIME / 4);
        assert_eq!(allowances.left_at("a", TIME, start), Some(TIME / 4 * 3));
        assert_eq!(allowances.left_at("a", 2 * TIME, start), Some(TIME / 4 * 7));
        allowances.used("a".into(), 3 * TIME);
        assert_eq!(allowances.left_at("a", TIME, start), None);
        assert_eq!(allowances.left_at("a", 2 * TIME, start), None, "it owes more than a loan");
        assert_eq!(allowances.left_at("b", TIME, start), Some(TIME));
        assert_eq!(allowances.left_at("a", TIME, start + PERIOD), None, "it owes two periods and a quarter");
        assert_eq!(allowances.left_at("a", TIME, start + 4 * PERIOD), Some(TIME));
        assert!(allowances.used.is_empty());
    }

    #[test]
    fn an_owner_has_little_time_while_the_agent_saves() {
        let mut allowances = Allowances::default();
        let start = Instant::now();
        assert!(allowances.left_at("a", TIME, start).is_some());
        allowances.save(true);
        assert_eq!(allowances.time(), LITTLE_TIME);
        allowances.used("a".into(), 3 * LITTLE_TIME);
        assert_eq!(allowances.left_at("a", LITTLE_TIME, start + PERIOD), None, "it owes two periods");
        assert_eq!(allowances.left_at("a", LITTLE_TIME, start + 3 * PERIOD), Some(LITTLE_TIME));
        allowances.save(false);
        assert_eq!(allowances.time(), TIME);
    }

    #[test]
    fn an_owner_has_time_again_after_some_seconds_whatever_it_has_used() {
        let most = PERIOD * MOST_PERIODS;
        for saves in [false, true] {
            let mut allowances = Allowances::default();
            let start = Instant::now();
            // The owner has used much time before the agent saves.
            assert_eq!(allowances.left_at("a", TIME, start), Some(TIME));
            allowances.used("a".into(), 100 * TIME);
            allowances.save(saves);
            let time = allowances.time();
            assert_eq!(allowances.left_at("a", time, start + PERIOD), None);
            assert_eq!(allowances.left_at("a", time, start + most - PERIOD), None, "the debt is not forgotten");
            assert_eq!(allowances.left_at("a", time, start + most), Some(time));
        }
    }
}
