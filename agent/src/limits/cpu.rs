//! The cost of podperf's sensors, and the features that the agent gives up when the cost is too high. Pure. Answers to
//! readers do not count: the HTTP server has a limit of its own.
//!
//! The order is fixed: first the stacks of waits, then groups of counters from the last to the first. Times, waits and
//! switches stay: they are the agent's purpose. Features come back one by one once there is room.

use std::time::Duration;

/// Share of the limit below which there is room for a feature.
const ROOM: f64 = 0.5;
/// Time with room after which a feature comes back.
const QUIET: Duration = Duration::from_secs(300);
/// Shortest window over which the cost is measured.
const LEAST_WINDOW: Duration = Duration::from_secs(5);

/// The step to take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Give up the next feature.
    Shed,
    /// Restore the feature that was given up last.
    Restore,
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
    last: Option<(Duration, Cost)>,
    percent: f64,
    shed: usize,
    /// Time since which there is room.
    quiet_since: Option<Duration>,
}

impl Overhead {
    /// Creates the limit; `most_percent` is a percentage of the time of all `cpus` together.
    #[must_use]
    pub const fn new(most_percent: f64, cpus: u32) -> Self {
        Self { most_percent, cpus, last: None, percent: 0.0, shed: 0, quiet_since: None }
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

    /// Measures the cost up to `now`, and returns the step to take. At most one step per window, so that each step
    /// shows its effect.
    pub fn observe(&mut self, now: Duration, cost: Cost) -> Option<Step> {
        let (then, before) = *self.last.get_or_insert((now, cost));
        let window = now.saturating_sub(then);
        if window < LEAST_WINDOW {
            return None;
        }
        self.last = Some((now, cost));
        let used = cost.programs.saturating_sub(before.programs) + cost.process.saturating_sub(before.process);
        self.percent = 100.0 * used.as_secs_f64() / (window.as_secs_f64() * f64::from(self.cpus.max(1)));
        if self.most_percent <= 0.0 {
            return None;
        }
        if self.percent > self.most_percent {
            self.quiet_since = None;
            return Some(Step::Shed);
        }
        if self.shed == 0 || self.percent > self.most_percent * ROOM {
            self.quiet_since = None;
            return None;
        }
        let since = *self.quiet_since.get_or_insert(now);
        if now.saturating_sub(since) < QUIET {
            return None;
        }
        self.quiet_since = None;
        Some(Step::Restore)
    }

    /// Notes that a step was taken.
    pub const fn done(&mut self, step: Step) {
        match step {
            Step::Shed => self.shed += 1,
            Step::Restore => self.shed = self.shed.saturating_sub(1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// Observes every 10 s on two CPUs, each time after the given milliseconds of cost; takes each returned step.
    fn observe(overhead: &mut Overhead, millis: &[u64]) -> Vec<Option<Step>> {
        let (mut now, mut cost) = overhead.last.unwrap_or_default();
        if overhead.last.is_none() {
            overhead.observe(now, cost);
        }
        let steps = millis.iter().map(|millis| {
            now += at(10);
            cost.programs += Duration::from_millis(*millis);
            let step = overhead.observe(now, cost);
            step.into_iter().for_each(|step| overhead.done(step));
            step
        });
        steps.collect()
    }

    #[test]
    fn the_share_is_of_all_cpus_and_of_the_last_window() {
        let mut overhead = Overhead::new(0.0, 2);
        observe(&mut overhead, &[400, 200]);
        assert!((overhead.percent() - 1.0).abs() < 1e-9, "{}", overhead.percent());
        let cost = Cost { process: at(1), ..overhead.last.unwrap().1 };
        overhead.observe(at(21), cost);
        assert!((overhead.percent() - 1.0).abs() < 1e-9, "too short a window");
    }

    #[test]
    fn without_a_cap_nothing_is_given_up() {
        assert_eq!(observe(&mut Overhead::new(0.0, 1), &[9000, 9000]), [None, None]);
    }

    #[test]
    fn over_the_cap_something_is_given_up_each_window() {
        let steps = observe(&mut Overhead::new(1.0, 2), &[100, 250, 250, 150, 150]);
        assert_eq!(steps, [None, Some(Step::Shed), Some(Step::Shed), None, None]);
    }

    #[test]
    fn with_room_for_five_minutes_it_comes_back_one_by_one() {
        let mut overhead = Overhead::new(1.0, 2);
        observe(&mut overhead, &[300, 300]);
        let steps = observe(&mut overhead, &[50; 100]);
        let restored: Vec<_> = steps.iter().enumerate().filter(|(_, step)| step.is_some()).collect();
        assert_eq!(restored, [(30, &Some(Step::Restore)), (61, &Some(Step::Restore))]);
    }

    #[test]
    fn just_below_the_cap_nothing_comes_back() {
        let mut overhead = Overhead::new(1.0, 2);
        observe(&mut overhead, &[300]);
        assert!(observe(&mut overhead, &[150; 100]).iter().all(Option::is_none));
    }
}
