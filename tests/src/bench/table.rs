//! The benchmark's results as text for people.

use std::fmt::Write as _;

use anyhow::Result;

use super::Measurement;
use super::agent::Rest;

/// A goal: the extra cost of one monitor, as a part of that of another.
struct Goal {
    of: &'static str,
    to: &'static str,
    at_most: f64,
}

const GOALS: [Goal; 3] = [
    Goal { of: "podperf-stacks", to: "perf-both", at_most: 0.25 },
    Goal { of: "podperf-times", to: "perf-bpf", at_most: 0.25 },
    Goal { of: "podperf-counters", to: "perf-bpf", at_most: 0.6 },
];

const REST_RSS_MIB: f64 = 30.0;
const REST_CPU_PERCENT: f64 = 0.3;

/// One line per monitor.
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
    if let Some(base) = crate::load::ring::Spread::of(bases) {
        let _ = writeln!(
            text,
            "extra: CPU ns per hop (median over the rounds); base {:.0} ({:.0}..{:.0}) ns per hop",
            base.median, base.min, base.max
        );
    }
    text
}

/// One line per goal.
pub fn goals(measurements: &[Measurement]) -> String {
    let extra = |key: &str| {
        let one = measurements.iter().find(|m| m.monitor.key == key && m.failure.is_none())?;
        one.extra_ns().map(|spread| spread.median)
    };
    let mut text = "\ngoals\n".to_owned();
    for goal in &GOALS {
        let _ = write!(text, "{} / {}: ", goal.of, goal.to);
        let _ = match extra(goal.of).zip(extra(goal.to)) {
            Some((of, to)) => writeln!(text, "{}", verdict(of / to, goal.at_most, "")),
            None => writeln!(text, "not measured"),
        };
    }
    text
}

/// The agent with nothing to do.
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

fn verdict(value: f64, at_most: f64, unit: &str) -> String {
    let word = if value <= at_most { "met" } else { "missed" };
    format!("{value:.2}{unit} (goal {at_most}{unit}): {word}")
}
