//! The trend of a figure: a line through the floor of its second half, by least squares. Pure.
//!
//! A request takes memory only for as long as its answer takes, but leaked memory stays. So the second half is cut into
//! stretches, and each stretch contributes its smallest value.

use std::fmt;

/// The number of standard deviations around the line from which growth counts.
const NOISE: f64 = 1.0;
/// Number of stretches in the second half.
const STRETCHES: usize = 20;
/// Seconds until the caches are full: pages show the windows of the last five minutes.
pub(super) const WARM_UP: f64 = 360.0;

/// A figure over time.
#[derive(Clone, Debug)]
pub struct Figure {
    /// The figure's name, with its unit.
    pub name: &'static str,
    /// The growth that is allowed in the second half, regardless of the noise.
    pub allowance: f64,
    /// Seconds from the start, and the value.
    pub points: Vec<(f64, f64)>,
}

/// The trend of a figure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Trend {
    /// The smallest value of the first stretch.
    pub first: f64,
    /// The smallest value of the last stretch.
    pub last: f64,
    /// The rise of the line in an hour.
    pub per_hour: f64,
    /// The rise of the line in the second half.
    pub growth: f64,
    /// Standard deviation around the line.
    pub noise: f64,
}

impl Figure {
    /// Returns the line through the floor of the second half, without the time after the start; `None` for fewer than
    /// three points there.
    #[must_use]
    pub fn trend(&self) -> Option<Trend> {
        let end = self.points.last()?.0;
        let half = &self.points[self.points.partition_point(|(at, _)| *at < (end / 2.0).max(WARM_UP))..];
        let least = |stretch: &[(f64, f64)]| stretch.iter().copied().min_by(|one, other| one.1.total_cmp(&other.1));
        let half: Vec<_> = half.chunks(half.len().div_ceil(STRETCHES).max(1)).filter_map(least).collect();
        let (&(begin, first), &(_, last)) = (half.first()?, half.last()?);
        if half.len() < 3 {
            return None;
        }
        #[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
        let count = half.len() as f64;
        let mean = |of: fn(&(f64, f64)) -> f64| half.iter().map(of).sum::<f64>() / count;
        let (at, value) = (mean(|point| point.0), mean(|point| point.1));
        let spread: f64 = half.iter().map(|point| (point.0 - at).powi(2)).sum();
        let slope = half.iter().map(|point| (point.0 - at) * (point.1 - value)).sum::<f64>() / spread;
        let around = half.iter().map(|point| (point.1 - value - slope * (point.0 - at)).powi(2));
        let noise = (around.sum::<f64>() / count).sqrt();
        Some(Trend { first, last, per_hour: slope * 3600.0, growth: slope * (end - begin), noise })
    }

    /// Returns whether the figure grows by more than its allowance, and by more than the noise.
    #[must_use]
    pub fn grows(&self) -> bool {
        self.trend().is_some_and(|trend| trend.growth > self.allowance.max(NOISE * trend.noise))
    }
}

/// A row of the table.
impl fmt::Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(trend) = self.trend() else { return write!(f, "{:<28} too short to say", self.name) };
        let Trend { first, last, per_hour, growth, noise } = trend;
        let verdict = if self.grows() { "GROWS" } else { "steady" };
        write!(
            f,
            "{:<28} {first:>10.1} {last:>10.1} {per_hour:>+12.2} {growth:>+10.2} {:>10.2} {noise:>8.2}  {verdict}",
            self.name, self.allowance
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure(value: impl Fn(f64) -> f64) -> Figure {
        let points = (0..1200).map(|second| (f64::from(second), value(f64::from(second)))).collect();
        Figure { name: "x", allowance: 1.0, points }
    }

    #[test]
    fn a_leak_grows_and_a_saw_does_not() {
        let leak = figure(|second| 50.0 + second / 100.0);
        let trend = leak.trend().expect("enough points");
        assert!((trend.per_hour - 36.0).abs() < 0.01 && trend.noise < 0.01, "{trend:?}");
        assert!(leak.grows());
        assert!(!figure(|second| 50.0 + second % 20.0).grows());
        // The height of the peaks does not matter: the floor rises.
        assert!(figure(|second| 50.0 + second / 100.0 + 30.0 * (second % 20.0)).grows());
        assert!(!figure(|second| 50.0 - second).grows());
    }

    #[test]
    fn what_grows_only_at_first_is_steady() {
        assert!(!figure(|second| second.min(500.0)).grows());
        // This growth is below the allowance.
        assert!(!figure(|second| second / 1000.0).grows());
    }

    #[test]
    fn of_the_start_nothing_is_said() {
        let mut short = figure(|second| second);
        short.points.truncate(360);
        assert_eq!(short.trend(), None);
        assert!(short.to_string().contains("too short"), "{short}");
    }
}
