//! The cost of podperf's programs and of its process, and the decision to give something up for it. Pure. Answers to
//! readers do not count: the HTTP server has a limit of its own.
//!
//! The cost is judged by its mean over periods of [`JUDGED`], because profiles are made in bursts. Over the limit, the
//! next step of [`super::steps`] is given up. The first window after that is judged only if it is far over the limit,
//! since it contains work that had begun before; so is the first window after the start. Once something is given up, the
//! mean since the last change must be over the limit, too, or that of the last minutes ([`REMEMBERED`]): so bursts do
//! not add up while their mean is below the limit. With room, steps come back: first one, and then three times as many
//! in each further period. Between the limit and the room, one step comes back after minutes. If the cost is over the
//! limit soon after a step came back, the next attempt waits twice as long, unless the cost has fallen meanwhile.

use std::time::Duration;

/// Shortest window over which the cost is measured.
const LEAST_WINDOW: Duration = Duration::from_secs(5);
/// Shortest period over which the cost is judged. It is as long as the interval at which profiles are sent by default.
const JUDGED: Duration = Duration::from_secs(10);
/// The longest time over which the cost is judged for a further step. The shortest is half of it, or the time since the
/// last change.
const REMEMBERED: Duration = Duration::from_mins(5);
/// Multiple of the limit above which one window is enough.
const FAR_OVER: f64 = 2.0;
/// Share of the limit below which there is room for a step: most steps at most double a part of the cost when they come
/// back.
const ROOM: f64 = 0.6;
/// Time with room after which the first step comes back.
const QUIET: Duration = Duration::from_secs(10);
/// Factor from that time to the time below the limit after which a step comes back without room.
const WITHOUT_ROOM: u32 = 30;
/// The same time after many attempts that were too early.
const MOST_QUIET: Duration = Duration::from_mins(30);
/// Time after a step came back for which the cost shows whether that was too early; also the time with room at half the
/// cost that ends the longer times.
const PROBATION: Duration = Duration::from_secs(60);
/// Factor from the number of steps that come back in one period to the number in the next one.
const FASTER: usize = 3;

/// The change to make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Give up the next step.
    Shed,
    /// Restore this many steps, beginning with the one that was given up last; all of them if there are fewer.
    Restore(usize),
}

/// Total CPU time of podperf since its start.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cost {
    /// Time in the BPF programs.
    pub programs: Duration,
    /// Time in the agent's own process, without the time spent for readers.
    pub process: Duration,
}

/// The limit, and the measured cost.
#[derive(Clone, Copy, Debug)]
pub struct Overhead {
    /// Percent of all CPUs; 0 means no limit.
    most_percent: f64,
    cpus: u32,
    /// The end of the last window.
    last: Option<(Duration, Cost)>,
    /// The begin of the period that is judged next; `None` until the first window after the start or a step has ended.
    period: Option<(Duration, Cost)>,
    /// The begin of the time that is judged for a further step, and of the one that follows.
    remembered: Option<[(Duration, Cost); 2]>,
    /// The cost in the last window.
    percent: f64,
    /// The number of steps that are given up.
    shed: usize,
    /// Time since which there is room.
    room_since: Option<Duration>,
    /// Time since which the cost is below the limit and no step came back.
    below_since: Option<Duration>,
    /// Time with room after which a step comes back.
    quiet: Duration,
    /// The number of steps that come back next.
    next: usize,
    /// The last steps that came back, until their probation ends: the time, and the mean cost before it.
    restored: Option<(Duration, f64)>,
    /// The mean cost before the last step that came back too early.
    too_much_at: f64,
}

impl Overhead {
    /// Creates the limit; `most_percent` is a percentage of the time of all `cpus` together.
    #[must_use]
    pub const fn new(most_percent: f64, cpus: u32) -> Self {
        Self {
            most_percent,
            cpus,
            last: None,
            period: None,
            remembered: None,
            percent: 0.0,
            shed: 0,
            room_since: None,
            below_since: None,
            quiet: QUIET,
            next: 1,
            restored: None,
            too_much_at: 0.0,
        }
    }

    /// Returns the cost over the last window, in percent of the node's CPU time.
    #[must_use]
    pub const fn percent(&self) -> f64 {
        self.percent
    }

    /// Returns the limit in percent; 0 means no limit.
    #[must_use]
    pub const fn most_percent(&self) -> f64 {
        self.most_percent
    }

    /// Measures the cost up to `now`, and returns the change to make. The caller makes it and calls [`Self::done`].
    pub fn observe(&mut self, now: Duration, cost: Cost) -> Option<Change> {
        let (then, before) = *self.last.get_or_insert((now, cost));
        let window = now.saturating_sub(then);
        if window < LEAST_WINDOW {
            return None;
        }
        self.last = Some((now, cost));
        self.percent = self.percent_of(cost, before, window);
        if self.most_percent <= 0.0 {
            return None;
        }
        let is_far_over = self.percent > self.most_percent * FAR_OVER;
        let (from, at_first) = match self.period {
            Some((from, _)) if !is_far_over && now.saturating_sub(from) < JUDGED => return None,
            Some(period) => period,
            None if is_far_over => (then, before),
            // The first window is not judged.
            None => {
                self.period = self.last;
                return None;
            }
        };
        self.period = self.last;
        let mean = self.percent_of(cost, at_first, now.saturating_sub(from));
        let lasting = self.lasting(now, cost);
        let on_probation = self.restored.filter(|(at, _)| now.saturating_sub(*at) < PROBATION);
        if is_far_over || mean > self.most_percent {
            if self.shed > 0 && lasting <= self.most_percent {
                return None;
            }
            if let Some((_, before)) = on_probation {
                (self.quiet, self.too_much_at) = ((self.quiet * 2).min(MOST_QUIET), before);
            }
            (self.restored, self.room_since, self.below_since, self.next) = (None, None, None, 1);
            self.remembered = Some([(now, cost); 2]);
            self.period = None;
            return Some(Change::Shed);
        }
        if self.restored.is_some() && on_probation.is_none() {
            (self.restored, self.quiet) = (None, QUIET);
        }
        if self.shed == 0 {
            (self.room_since, self.below_since, self.next) = (None, None, 1);
            return None;
        }
        let below_since = *self.below_since.get_or_insert(from);
        let (since, quiet) = if mean > self.most_percent * ROOM {
            (self.room_since, self.next) = (None, 1);
            (below_since, (self.quiet * WITHOUT_ROOM).min(MOST_QUIET))
        } else {
            let since = *self.room_since.get_or_insert(from);
            if mean < self.too_much_at / 2.0 && now.saturating_sub(since) >= PROBATION {
                self.quiet = QUIET;
            }
            (since, self.quiet)
        };
        if now.saturating_sub(since) < quiet {
            return None;
        }
        (self.restored, self.below_since) = (Some((now, mean)), None);
        self.remembered = Some([(now, cost); 2]);
        Some(Change::Restore(self.next))
    }

    /// Returns the mean cost since the last change, or over [`REMEMBERED`] at most.
    fn lasting(&mut self, now: Duration, cost: Cost) -> f64 {
        let [first, second] = self.remembered.get_or_insert([(now, cost); 2]);
        if now.saturating_sub(second.0) >= REMEMBERED / 2 {
            (*first, *second) = (*second, (now, cost));
        }
        let (from, at_first) = *first;
        self.percent_of(cost, at_first, now.saturating_sub(from))
    }

    /// Returns the cost of this time in percent of the node's CPU time.
    fn percent_of(&self, cost: Cost, before: Cost, time: Duration) -> f64 {
        let used = cost.programs.saturating_sub(before.programs) + cost.process.saturating_sub(before.process);
        100.0 * used.as_secs_f64() / (time.as_secs_f64() * f64::from(self.cpus.max(1)))
    }

    /// Notes that a change was made.
    pub const fn done(&mut self, change: Change) {
        match change {
            Change::Shed => self.shed += 1,
            Change::Restore(steps) => {
                self.shed = self.shed.saturating_sub(steps);
                self.next = steps.saturating_mul(FASTER);
            }
        }
    }
}

#[cfg(test)]
#[path = "cpu_tests.rs"]
mod tests;
