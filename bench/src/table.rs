//! The benchmark's results as text for people.

use std::fmt::Write as _;

use anyhow::Result;
use podperf_tests::load::ring::Spread;

use super::Measurement;
use super::agent::Rest;
use super::scale::{FULL, Row, Scale};

/// A goal: the extra cost of one monitor as a part of another monitor's extra cost.
pub(super) struct Goal {
    pub(super) of: &'static str,
    pub(super) to: &'static str,
    pub(super) at_most: f64,
}

/// A sensor that rides on the program at the context switch.
pub(super) struct Rider {
    pub(super) sensor: &'static str,
    /// The most that it may add to facts and times, in ns of a BPF run.
    pub(super) most_ns: f64,
    pub(super) monitor: &'static str,
}

pub(super) const RIDERS: [Rider; 2] = [
    Rider { sensor: "histograms", most_ns: 10.0, monitor: "podperf-histograms" },
    Rider { sensor: "syscalls", most_ns: 5.0, monitor: "podperf-syscalls" },
];

pub(super) const GOALS: [Goal; 7] = [
    Goal { of: "podperf-stacks", to: "perf-both", at_most: 0.25 },
    Goal { of: "podperf-stacks", to: "perf-off-cpu", at_most: 0.65 },
    Goal { of: "podperf-stacks", to: "offcputime", at_most: 0.13 },
    Goal { of: "podperf-stacks", to: "bpftrace", at_most: 0.2 },
    Goal { of: "podperf-stacks", to: "bare", at_most: 1.6 },
    Goal { of: "podperf-times", to: "perf-bpf", at_most: 0.12 },
    Goal { of: "podperf-counters", to: "perf-bpf", at_most: 0.6 },
];

const REST_RSS_MIB: f64 = 30.0;
const REST_CPU_PERCENT: f64 = 0.3;
const SCRAPE_MS: f64 = 25.0;
const READING_MS: f64 = 5.0;
const SCALE_RSS_MIB: f64 = 48.0;
pub(super) const WAKEUPS_PERCENT: f64 = 0.5;
pub(super) const SYMBOLS_RSS_MIB: f64 = 80.0;

/// Returns one line per monitor.
pub fn measurements(measurements: &[Measurement]) -> String {
    let mut text = format!(
        "{:<18} {:<30} {:>8} {:>16}  {:>14}  {:>10}\n",
        "key", "monitor", "extra", "min..max", "ratio to base", "BPF ns/run"
    );
    for one in measurements {
        let (key, title) = (one.monitor.key, one.monitor.title);
        let _ = write!(text, "{key:<18} {title:<30} ");
        let _ = match (&one.failure, one.extra_ns(), one.ratio()) {
            (Some(failure), ..) => writeln!(text, "not measured: {failure}"),
            (None, Some(extra), Some(ratio)) => {
                let range = format!("{:+.0}..{:+.0}", extra.min, extra.max);
                let ratio = format!("{:.2}/{:.2}/{:.2}", ratio.min, ratio.median, ratio.max);
                let bpf = one.bpf_ns_per_run.map_or_else(|| "-".to_owned(), |ns| format!("{ns:.0}"));
                writeln!(text, "{:>+8.0} {range:>16}  {ratio:>14}  {bpf:>10}", extra.median)
            }
            _ => writeln!(text, "not measured: no rounds"),
        };
    }
    let bases: Vec<f64> = measurements.iter().flat_map(|m| &m.pairs).map(|pair| pair.0).collect();
    if let Some(base) = Spread::of(bases) {
        let _ = writeln!(
            text,
            "extra: CPU ns per hop (median over the rounds); base {:.0} ({:.0}..{:.0}) ns per hop",
            base.median, base.min, base.max
        );
    }
    text
}

/// Returns one line per goal.
pub fn goals(measurements: &[Measurement]) -> String {
    let mut text = "\ngoals\n".to_owned();
    for goal in &GOALS {
        let _ = write!(text, "{} / {}: ", goal.of, goal.to);
        let _ = match extra_of(measurements, goal.of).zip(extra_of(measurements, goal.to)) {
            Some((of, to)) => {
                writeln!(text, "{}, {of:+.0} / {to:+.0} ns", verdict(of / to, goal.at_most, ""))
            }
            None => writeln!(text, "not measured"),
        };
    }
    for rider in RIDERS {
        if let Some(added) = rider.adds(measurements) {
            let _ = writeln!(text, "{} - podperf-times: {}", rider.monitor, verdict(added, rider.most_ns, " ns"));
        }
    }
    text
}

impl Rider {
    /// Returns the ns of a BPF run that the sensor adds to facts and times.
    pub(super) fn adds(&self, measurements: &[Measurement]) -> Option<f64> {
        let of = |key| measurements.iter().find(|one| one.monitor.key == key)?.bpf_ns_per_run;
        Some(of(self.monitor)? - of("podperf-times")?)
    }
}

/// Returns the median extra cost of a monitor.
pub(super) fn extra_of(measurements: &[Measurement], key: &str) -> Option<f64> {
    let one = measurements.iter().find(|m| m.monitor.key == key && m.failure.is_none())?;
    one.extra_ns().map(|spread| spread.median)
}

/// Returns the text about the agent with nothing to do.
pub fn rest(rest: &Result<Rest>) -> String {
    let mut text = "\nagent at rest, default configuration, one scrape each 15 s\n".to_owned();
    let _ = match rest {
        Ok(rest) => writeln!(
            text,
            "RSS: {}\nCPU of one core: {}\nlast scrape: {} bytes in {:.1} ms",
            verdict(rest.rss_mib, REST_RSS_MIB, " MiB"),
            verdict(rest.cpu_percent, REST_CPU_PERCENT, " %"),
            rest.scrape_bytes,
            rest.scrape_time.as_secs_f64() * 1e3,
        ),
        Err(error) => writeln!(text, "not measured: {error:#}"),
    };
    text
}

/// Returns one line per row, and the goals, which apply to the full node in every format.
pub fn scale(scale: &Result<Scale>) -> String {
    let mut text =
        "\nscale: one node, default configuration, 4 software events in place of its 4 of the PMU\n".to_owned();
    let scale = match scale {
        Ok(scale) => scale,
        Err(error) => return text + &format!("not measured: {error:#}\n"),
    };
    let _ = writeln!(
        text,
        "{:<31} {:<11} {:>9} {:>11} {:>10} {:>11} {:>7} {:>6} {:>9} {:>7} {:>8} {:>7}",
        "node",
        "format",
        "scrape ms",
        "min..max",
        "reading ms",
        "min..max",
        "RSS MiB",
        "peak",
        "rest ms/s",
        "series",
        "bytes",
        "names s"
    );
    let range = |spread: &Spread| format!("{:.1}..{:.1}", spread.min, spread.max);
    for row in &scale.rows {
        let _ = writeln!(
            text,
            "{:<31} {:<11} {:>9.1} {:>11} {:>10.1} {:>11} {:>7.1} {:>6.1} {:>9.2} {:>7} {:>8} {:>7.1}",
            row.title,
            row.format.name,
            row.scrape_ms.median,
            range(&row.scrape_ms),
            row.reading_ms.median,
            range(&row.reading_ms),
            row.rss_mib,
            row.peak_mib,
            row.rest_ms,
            row.series,
            row.bytes,
            row.names_after.as_secs_f64(),
        );
    }
    text.push_str(
        "scrape: agent CPU for a reading and its answer, less its rest (median); reading: flush, read, roll up; \
         RSS after all scrapes; names: from the start of the agent to all containers' names in a scrape\n",
    );
    let _ = writeln!(text, "load average: {} before, {} after", scale.load_before, scale.load_after);
    text.push_str("\ngoals\n");
    let full = || scale.rows.iter().filter(|row| row.title == FULL);
    let worst = |figure: fn(&Row) -> f64| full().map(figure).fold(0.0, f64::max);
    for (name, value, at_most, unit) in [
        ("CPU of a scrape", worst(|row| row.scrape_ms.median), SCRAPE_MS, " ms"),
        ("reading", worst(|row| row.reading_ms.median), READING_MS, " ms"),
        ("RSS", worst(|row| row.rss_mib), SCALE_RSS_MIB, " MiB"),
    ] {
        let _ = writeln!(text, "{name}: {}", verdict(value, at_most, unit));
    }
    text
}

fn verdict(value: f64, at_most: f64, unit: &str) -> String {
    let word = if value <= at_most { "met" } else { "missed" };
    format!("{value:.2}{unit} (goal {at_most}{unit}): {word}")
}
