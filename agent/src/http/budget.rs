//! The limit on the CPU time of answering, `server.limits.maxPercent`.
//!
//! A bucket fills at the rate of the limit, and each answer takes its CPU time out. While the bucket is empty, the
//! server refuses pages, drawings and recordings. Scrapes with an admitted token go on: the rate of the token's owner
//! bounds them, and requests without a token must not block them. Other scrapes go on at the rate at which a Prometheus
//! scrapes.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use super::{peers::Shares, rate::Bucket};
use crate::model::status::State;
use crate::telemetry::http::Share;

/// The bucket holds at most the allowance of this time, so that one drawing may take a second at once.
const HOLDS: Duration = Duration::from_secs(30);
/// The reported share is the mean over at least this time.
const LEAST_WINDOW: Duration = Duration::from_secs(5);
/// The state reports a refusal for this time.
const TOLD_FOR: Duration = Duration::from_secs(60);
/// Number of scrapes a second that are answered over the limit, from all addresses together.
const SCRAPES: f64 = 10.0;
/// The largest `Retry-After`, in seconds.
const LONGEST_WAIT: u64 = 60;

/// A kind of request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asked {
    /// A scrape with an admitted token.
    ScrapeByToken,
    /// A scrape without a token.
    Scrape,
    /// A request for a page, a drawing or a recording.
    Other,
}

/// The limit, and the CPU time that was used so far.
#[derive(Debug)]
pub(super) struct Budget {
    most_percent: f64,
    scrapes: Bucket,
    level: Mutex<Level>,
}

#[derive(Debug)]
struct Level {
    /// CPU seconds that the bucket gains in a second; 0 is no limit.
    rate: f64,
    cpus: f64,
    /// CPU seconds in the bucket; negative after an answer that cost more than the bucket held.
    left: f64,
    /// The time of the last update, and the total cost at that time.
    last: Option<(Duration, Duration)>,
    /// CPU seconds that were taken out of the bucket so far.
    used: f64,
    /// The start of the window of the reported share, and `used` at that time.
    window: (Duration, f64),
    percent: f64,
    refused: Option<Duration>,
}

impl Budget {
    /// Returns a full bucket. `most_percent` is a share of the time of all `cpus` together; 0 is no limit.
    pub(super) fn new(most_percent: f64, cpus: u32) -> Self {
        let cpus = f64::from(cpus.max(1));
        let rate = most_percent / 100.0 * cpus;
        let level = Level {
            rate,
            cpus,
            left: rate * HOLDS.as_secs_f64(),
            last: None,
            used: 0.0,
            window: Default::default(),
            percent: 0.0,
            refused: None,
        };
        Self { most_percent, scrapes: Bucket::new(SCRAPES), level: Mutex::new(level) }
    }

    /// Adds the cost until `now`, and returns the share of CPU time, the state of the server and its detail.
    pub(super) fn look(&self, now: Duration, cost: Duration) -> (Share, State, String) {
        let mut level = self.lock();
        level.look(now, cost);
        let (percent, most) = (level.percent, self.most_percent);
        let share = Share { percent, most_percent: most };
        if level.refused.is_some_and(|refused| now.saturating_sub(refused) < TOLD_FOR) {
            let detail = format!(
                "answering takes {percent:.2} % of the node's CPU time, and `server.limits.maxPercent` is {most} %: requests \
                 are refused, but for scrapes by token and one scrape in 5 s of each other (ask less often, or raise it)"
            );
            return (share, State::Degraded, detail);
        }
        let cap = if most > 0.0 { format!(", of at most {most} %") } else { String::new() };
        (share, State::Healthy, format!("answering takes {percent:.2} % of the node's CPU time{cap}"))
    }

    /// Returns whether the bucket is empty.
    pub(super) fn is_spent(&self) -> bool {
        self.lock().wait().is_some()
    }

    /// Admits a request, or returns the number of seconds until the bucket has time again.
    pub(super) fn admit(&self, asked: Asked, shares: &Shares, now: Duration) -> Result<(), u64> {
        let Some(wait) = self.lock().wait() else { return Ok(()) };
        let may = match asked {
            Asked::ScrapeByToken => true,
            Asked::Scrape => shares.scrapes.take() && self.scrapes.take(),
            Asked::Other => false,
        };
        if may {
            return Ok(());
        }
        self.lock().refused = Some(now);
        Err(wait)
    }

    fn lock(&self) -> MutexGuard<'_, Level> {
        self.level.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Level {
    fn look(&mut self, now: Duration, cost: Duration) {
        let Some((then, before)) = self.last.replace((now, cost)) else {
            self.window = (now, self.used);
            return;
        };
        let passed = now.saturating_sub(then).as_secs_f64();
        // All CPUs together give no more time. A clock that shows more was set.
        let goes = cost.saturating_sub(before).as_secs_f64().min(passed * self.cpus);
        self.used += goes;
        self.left = (self.left + passed * self.rate - goes).min(self.rate * HOLDS.as_secs_f64());
        let time = now.saturating_sub(self.window.0);
        if time >= LEAST_WINDOW {
            let used_then = std::mem::replace(&mut self.window, (now, self.used)).1;
            self.percent = 100.0 * (self.used - used_then) / (time.as_secs_f64() * self.cpus);
        }
    }

    /// Returns the seconds until the bucket is no longer empty; `None` if it is not empty.
    fn wait(&self) -> Option<u64> {
        if self.rate <= 0.0 || self.left > 0.0 {
            return None;
        }
        let wait = Duration::try_from_secs_f64(-self.left / self.rate).map_or(LONGEST_WAIT, |wait| wait.as_secs() + 1);
        Some(wait.min(LONGEST_WAIT))
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;
    use crate::http::peers::{Peer, Table};

    const CPUS: u32 = 2;

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(1000 + seconds)
    }

    fn millis(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    fn shares(last: u8) -> std::sync::Arc<Shares> {
        Table::new(50.0).of(&Peer::of(IpAddr::from([10, 0, 0, last])))
    }

    #[test]
    fn over_the_cap_requests_wait_until_the_time_has_come_in_again() {
        let (budget, who) = (Budget::new(5.0, CPUS), shares(1));
        budget.look(at(0), millis(0));
        // The bucket gains 100 ms in a second and holds 3 s.
        budget.look(at(10), millis(2900));
        assert_eq!(budget.admit(Asked::Other, &who, at(10)), Ok(()));
        let (share, state, _) = budget.look(at(20), millis(2900 + 6000));
        assert!((share.percent - 30.0).abs() < 1e-9 && state == State::Healthy, "{share:?}");
        let wait = budget.admit(Asked::Other, &who, at(20)).unwrap_err();
        assert!((39..=40).contains(&wait), "1.1 s were left, 1 s came, 6 s went: {wait}");
        let (_, state, says) = budget.look(at(30), millis(8900));
        assert!(state == State::Degraded && says.contains("`server.limits.maxPercent` is 5 %"), "{says}");
        let wait = budget.admit(Asked::Other, &who, at(30)).unwrap_err();
        assert!((29..=30).contains(&wait), "{wait}");
        budget.look(at(60), millis(8900));
        assert_eq!(budget.admit(Asked::Other, &who, at(60)), Ok(()));
        let (share, state, _) = budget.look(at(95), millis(8900));
        assert!(share.percent == 0.0 && state == State::Healthy, "nothing was refused in the last minute");
    }

    #[test]
    fn over_the_cap_each_may_scrape_now_and_then() {
        let budget = Budget::new(5.0, CPUS);
        budget.look(at(0), millis(0));
        budget.look(at(2), millis(60_000));
        for number in 1..=5 {
            let who = shares(number);
            assert_eq!(budget.admit(Asked::Scrape, &who, at(1)), Ok(()));
            assert!(budget.admit(Asked::Scrape, &who, at(1)).is_err(), "the second one");
        }
        assert_eq!(budget.admit(Asked::ScrapeByToken, &shares(1), at(1)), Ok(()));
        let served = (6..100).filter(|number| budget.admit(Asked::Scrape, &shares(*number), at(1)).is_ok()).count();
        assert!(served < 10, "{served} more of all together");
    }

    #[test]
    fn a_clock_that_jumps_a_day_costs_a_second_of_all_cpus() {
        let (budget, who) = (Budget::new(5.0, CPUS), shares(1));
        budget.look(at(0), millis(0));
        budget.look(at(1), Duration::from_hours(24));
        assert_eq!(budget.admit(Asked::Other, &who, at(1)), Ok(()));
        let (share, ..) = budget.look(at(10), Duration::from_hours(24));
        assert!((share.percent - 10.0).abs() < 1e-9, "2 s of 20: {share:?}");
    }

    #[test]
    fn without_a_cap_everybody_is_answered() {
        let budget = Budget::new(0.0, CPUS);
        budget.look(at(0), millis(0));
        budget.look(at(1), millis(60_000));
        assert_eq!(budget.admit(Asked::Other, &shares(1), at(1)), Ok(()));
    }
}
