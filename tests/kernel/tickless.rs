//! A `nohz_full` CPU on which one thread runs has no tick. The truth is the kernel's count of interrupts on that CPU,
//! with an agent and without one.

use std::{
    collections::BTreeMap,
    fs,
    process::Command,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use podperf_tests::{
    agent::{self, Agent},
    cgroup::TestCgroup,
    running::{Counts, Load, count, oncpu_is_cpu_stat},
    suite::{Need, Test, nohz_full_cpu, tell},
    tests,
};
use serde_json::Value;
use tempfile::TempDir;

pub(crate) const TESTS: &[Test] = tests![
    a_nohz_full_cpu_is_left_alone_and_its_burner_is_counted: &[Need::NohzFull],
];

const FACTS: &str = "metrics: {facts: [oncpu, context_switches, profile_samples]}\n";
const SWITCHES: &str = "podperf_cgroup_context_switches_total";
const SAMPLES: &str = "podperf_cgroup_profile_samples_total";
/// The time in which the kernel stops the tick of a CPU with a new burner.
const SETTLES: Duration = Duration::from_secs(1);
const WATCHED: Duration = Duration::from_secs(4);
/// The time between two readings.
const PAUSE: Duration = Duration::from_millis(50);
/// The largest number of interrupts a second without an agent: a tenth of the tick.
const MOST_ALONE: f64 = 25.0;
/// The smallest number of further interrupts a second while the CPU is sampled: less than half of the samples.
const LEAST_SAMPLED: f64 = 20.0;

/// A CPU on which one thread burns, watched for a while.
#[derive(Debug)]
struct Watched {
    /// Interrupts in a second, by the first word of their line; without those that did not come.
    interrupts: BTreeMap<String, f64>,
    /// Calls of `meanwhile` in a second.
    rounds: f64,
}

impl Watched {
    fn total(&self) -> f64 {
        self.interrupts.values().sum()
    }
}

/// Returns the number of interrupts on a CPU since boot, by the first word of their line.
fn interrupts(cpu: usize) -> Result<BTreeMap<String, u64>> {
    let text = fs::read_to_string("/proc/interrupts")?;
    let title = format!("CPU{cpu}");
    let mut titles = text.lines().next().unwrap_or_default().split_whitespace();
    let column = titles.position(|found| found == title).with_context(|| format!("no column of CPU {cpu}"))?;
    let lines = text.lines().skip(1).filter_map(|line| {
        let (name, counts) = line.split_once(':')?;
        let count: u64 = counts.split_whitespace().nth(column)?.parse().ok()?;
        Some((name.trim().to_owned(), count))
    });
    Ok(lines.collect())
}

/// Calls `meanwhile` again and again, while one thread of a cgroup burns on a CPU.
fn watch(cpu: usize, cgroup: &TestCgroup, meanwhile: impl Fn() -> Result<()>) -> Result<Watched> {
    let load = Load::start(&format!("spin --cpu {cpu} --seconds 600 --cgroup {}", cgroup.path().display()))?;
    thread::sleep(SETTLES);
    let (before, start) = (interrupts(cpu)?, Instant::now());
    let mut rounds = 0_u32;
    while start.elapsed() < WATCHED {
        meanwhile()?;
        rounds += 1;
    }
    let (after, seconds) = (interrupts(cpu)?, start.elapsed().as_secs_f64());
    ensure!(Counts::of(load.pid())?.state == "R", "the burner does not burn");
    let came = |(name, count): (&String, &u64)| {
        let came = count - before.get(name).unwrap_or(&0);
        (came > 0).then(|| (name.clone(), came as f64 / seconds))
    };
    Ok(Watched { interrupts: after.iter().filter_map(came).collect(), rounds: f64::from(rounds) / seconds })
}

/// Watches the CPU while an agent with these keys of `overhead` makes readings. Also returns the number of samples of
/// the burner. Its time and its switches must be counted once it has left the CPU.
fn watch_with_agent(cpu: usize, overhead: &str) -> Result<(Watched, f64)> {
    let agent = Agent::start(&format!("{FACTS}overhead: {{{overhead}}}\n"))?;
    let cgroup = TestCgroup::new("burner")?;
    let watched = watch(cpu, &cgroup, || {
        thread::sleep(PAUSE);
        agent.metrics().map(drop)
    })?;
    let metrics = agent.fresh_metrics()?;
    oncpu_is_cpu_stat(&metrics, &cgroup)?;
    ensure!(count(&metrics, SWITCHES, &cgroup, &[])? >= 1.0, "no switch of the burner is counted");
    Ok((watched, metrics.sum(SAMPLES, &[("cgroup", cgroup.kernel_path()), ("profile", "cpu")])))
}

/// `podperf check` names the CPU.
fn check_names(cpu: usize) -> Result<()> {
    let directory = TempDir::new()?;
    let agent = agent::command(directory.path(), "")?;
    let mut command = Command::new(agent.get_program());
    let output = command.arg("check").args(agent.get_args().skip(1)).args(["--output", "json"]).output()?;
    let report: Value = serde_json::from_slice(&output.stdout)?;
    let checks = report["checks"].as_array().context("no lines")?;
    let line = checks.iter().find(|line| line["check"] == "isolated cpus").context("no line `isolated cpus`")?;
    let detail = line["detail"].as_str().unwrap_or_default();
    ensure!(line["id"] == "isolated-cpus-left-alone" && detail.starts_with(&format!("{cpu}: ")), "{line}");
    Ok(())
}

/// With a PMU, an event with a frequency would bring back the tick of all CPUs. The last agent shows that samples and
/// readings would be seen.
fn a_nohz_full_cpu_is_left_alone_and_its_burner_is_counted() -> Result<()> {
    let cpu = nohz_full_cpu().context("no `nohz_full` CPU")?;
    check_names(cpu)?;
    let alone = watch(cpu, &TestCgroup::new("alone")?, || {
        thread::sleep(PAUSE);
        Ok(())
    })?;
    let (quiet, no_samples) = watch_with_agent(cpu, "maxPercent: 0")?;
    let (sampled, samples) = watch_with_agent(cpu, "maxPercent: 0, interruptIsolatedCpus: true")?;
    tell(&format!(
        "interrupts a second: {:.1} without an agent, {:.1} with one ({:.1} readings), {:.1} if it samples",
        alone.total(),
        quiet.total(),
        quiet.rounds,
        sampled.total()
    ));
    ensure!(alone.total() < MOST_ALONE, "the tick goes on without an agent: {alone:?}");
    // A reading that interrupts the CPU does so once or twice.
    let most = alone.total() + quiet.rounds / 2.0 + 1.0;
    ensure!(
        quiet.total() <= most,
        "more than {most:.1} interrupts a second: {quiet:?}, and {alone:?} without an agent"
    );
    ensure!(no_samples == 0.0, "{no_samples} samples on a CPU that is left alone");
    ensure!(samples > 0.0, "no samples with `interruptIsolatedCpus: true`");
    ensure!(
        sampled.total() >= quiet.total() + LEAST_SAMPLED,
        "samples are not seen: {sampled:?}, and {quiet:?} without"
    );
    Ok(())
}
