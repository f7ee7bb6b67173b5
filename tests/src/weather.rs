//! The weather of the machine: the time that its host took, and the time in which a task waited for a CPU.
//!
//! Both are nearly zero on an idle machine. [`waited`](crate::waited) asks the same of single processes.

use std::{
    fmt, fs, thread,
    time::{Duration, Instant},
};

use crate::process;

/// The shares of a span's length above which the weather is not calm.
const CALM_WAITED: f64 = 0.05;
const CALM_STOLEN: f64 = 0.01;
/// The length of one look at the weather, and the longest wait for a calm look.
const LOOK: Duration = Duration::from_secs(2);
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// The counts of the machine at the begin of a span.
#[derive(Clone, Copy, Debug)]
pub struct Begin {
    at: Instant,
    stolen: Duration,
    waited: Duration,
}

/// The weather of a span. The parts are shares of its length.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Weather {
    /// The mean share of a CPU that the host took.
    pub stolen: f64,
    /// The share in which at least one task waited for a CPU: "some" of `/proc/pressure/cpu`.
    pub waited: f64,
}

impl Begin {
    /// Returns the counts of now.
    #[must_use]
    pub fn now() -> Self {
        Self { at: Instant::now(), stolen: stolen(), waited: waited() }
    }

    /// Returns the length of the span up to now.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        self.at.elapsed()
    }

    /// Returns the time of the span in which the machine may have kept a thread from running.
    #[must_use]
    pub fn lost(&self) -> Duration {
        stolen().saturating_sub(self.stolen) + waited().saturating_sub(self.waited)
    }

    /// Returns the weather of the span up to now.
    #[must_use]
    pub fn weather(&self) -> Weather {
        let length = self.elapsed().as_secs_f64().max(1e-3);
        let share = |now: Duration, begin| now.saturating_sub(begin).as_secs_f64() / length;
        Weather { stolen: share(stolen(), self.stolen), waited: share(waited(), self.waited) }
    }
}

impl Weather {
    /// Returns whether the machine was too quiet to cause a failure.
    #[must_use]
    pub fn is_calm(&self) -> bool {
        self.waited < CALM_WAITED && self.stolen < CALM_STOLEN
    }
}

impl fmt::Display for Weather {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let calm = if self.is_calm() { "calm" } else { "busy" };
        write!(f, "{calm}: {:.1} % stolen, {:.1} % waited", self.stolen * 100.0, self.waited * 100.0)
    }
}

/// Waits until the machine is quiet, for a minute at most, and returns the last weather that it saw.
#[must_use]
pub fn wait_for_calm() -> Weather {
    let start = Instant::now();
    loop {
        let look = Begin::now();
        thread::sleep(LOOK);
        let weather = look.weather();
        if weather.is_calm() || start.elapsed() >= LONGEST_WAIT {
            return weather;
        }
    }
}

/// Returns the mean stolen time of a CPU.
fn stolen() -> Duration {
    let cpus = thread::available_parallelism().map_or(1, usize::from);
    process::stolen().unwrap_or_default() / u32::try_from(cpus).unwrap_or(u32::MAX)
}

/// Returns "some" of the CPU's pressure; zero on a kernel that does not count it.
fn waited() -> Duration {
    some(&fs::read_to_string("/proc/pressure/cpu").unwrap_or_default())
}

fn some(pressure: &str) -> Duration {
    let line = pressure.lines().find(|line| line.starts_with("some "));
    let total = line.and_then(|line| line.rsplit_once("total=")?.1.parse().ok());
    Duration::from_micros(total.unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pressure_is_the_total_of_some() {
        let pressure = "some avg10=1.00 avg60=0.5 avg300=0.1 total=2500\nfull avg10=0.00 avg60=0 avg300=0 total=7\n";
        assert_eq!(some(pressure), Duration::from_micros(2500));
        assert_eq!(some(""), Duration::ZERO);
    }

    #[test]
    fn a_busy_machine_and_a_busy_host_are_not_calm() {
        let is_calm = |stolen, waited| Weather { stolen, waited }.is_calm();
        assert!(is_calm(0.009, 0.049));
        assert!(!is_calm(0.011, 0.0) && !is_calm(0.0, 0.051));
    }
}
