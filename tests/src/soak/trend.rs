//! Whether a figure grows: a line through its second half, by least squares. Pure.

use std::fmt;

/// Growth counts from so many standard deviations around the line on.
const NOISE: f64 = 1.0;

/// A figure over time.
#[derive(Clone, Debug)]
pub struct Figure {
    /// What it is, with its unit.
    pub name: &'static str,
    /// What it may grow by in the second half, whatever the noise.
    pub allowance: f64,
    /// Seconds from the start, and the value.
    pub points: Vec<(f64, f64)>,
}

/// What became of a figure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Trend {
    /// The first value of the second half.
    pub first: f64,
    /// The last value.
    pub last: f64,
    /// By how much the line rises in an hour.
    pub per_hour: f64,
    /// By how much it rises in the second half.
    pub growth: f64,
    /// Standard deviation around the line.
    pub noise: f64,
}

impl Figure {
    /// The line through the second half; `None` for fewer than three points there.
    #[must_use]
    pub fn trend(&self) -> Option<Trend> {
        let end = self.points.last()?.0;
        let half: Vec<_> = self.points.iter().copied().filter(|(at, _)| *at >= end / 2.0).collect();
        let (&(begin, first), &(_, last)) = (half.first()?, half.last()?);
        if half.len() < 3 || end <= begin {
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

    /// Whether it grows by more than it may, and by more than noise would.
    #[must_use]
    pub fn grows(&self) -> bool {
        self.trend().is_some_and(|trend| trend.growth > self.allowance.max(NOISE * trend.noise))
    }
}

/// A row of the table.
impl fmt::Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(trend) = self.trend() else { return write!(f, "{:<28} too few points", self.name) };
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
        let points = (0..300).map(|second| (f64::from(second), value(f64::from(second)))).collect();
        Figure { name: "x", allowance: 1.0, points }
    }

    #[test]
    fn a_leak_grows_and_a_saw_does_not() {
        let leak = figure(|second| 50.0 + second / 100.0);
        let trend = leak.trend().expect("enough points");
        assert!((trend.per_hour - 36.0).abs() < 0.01 && trend.noise < 0.01, "{trend:?}");
        assert!(leak.grows());
        assert!(!figure(|second| 50.0 + second % 20.0).grows());
        assert!(!figure(|second| 50.0 - second).grows());
    }

    #[test]
    fn what_grows_only_at_first_is_steady() {
        assert!(!figure(|second| second.min(120.0)).grows());
        // Less than is allowed.
        assert!(!figure(|second| second / 1000.0).grows());
    }
}
