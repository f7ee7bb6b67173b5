//! The sum of a node's times is complete: the time of all CPUs is the threads' run time, the idle time, and the time
//! that the kernel leaves out of both.

use std::{
    fs, thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use podperf_tests::{
    agent::{Agent, Metrics},
    cgroup::TestCgroup,
    hotplug::{NOTICED, Offline},
    process,
    running::{Load, ONCPU, cpus, timed_reading},
    suite::tell,
};

/// Ticks of `/proc/stat` per second.
const TICKS: f64 = 100.0;

/// The times of all CPUs as one reading has them, in seconds.
#[derive(Clone, Copy, Debug)]
struct NodeTimes {
    oncpu: f64,
    idle: f64,
    unaccounted: f64,
}

impl NodeTimes {
    fn of(metrics: &Metrics) -> Result<Self> {
        let get = |name: &str| metrics.get(name, &[]).with_context(|| format!("no `{name}`"));
        Ok(Self {
            oncpu: get(ONCPU)?,
            idle: get("podperf_node_idle_seconds_total")?,
            unaccounted: get("podperf_node_unaccounted_seconds_total")?,
        })
    }

    /// The increases since an earlier reading.
    fn since(self, before: Self) -> Self {
        Self {
            oncpu: self.oncpu - before.oncpu,
            idle: self.idle - before.idle,
            unaccounted: self.unaccounted - before.unaccounted,
        }
    }

    fn sum(self) -> f64 {
        self.oncpu + self.idle + self.unaccounted
    }
}

/// Invariant 1 of ARCHITECTURE.md for times. Unaccounted time must not be more than the kernel's own count of stolen
/// time and interrupts.
pub(crate) fn times_are_the_machine() -> Result<()> {
    let agent = Agent::start("")?;
    let busy = TestCgroup::new("busy")?;
    // Stolen time counts only while a thread runs. These threads are idle threads, so the agent gets the CPU whenever
    // it needs it: the run time of a thread during a reading is in one sum and not yet in the other.
    let spin = format!("spin --idle --seconds 60 --cgroup {}", busy.path().display());
    let _loads = (0..cpus()?).map(|_| Load::start(&spin)).collect::<Result<Vec<_>>>()?;
    // The sums begin with the first reading.
    agent.fresh_metrics()?;
    let left_out_before = left_out()?;
    let earliest = process::stolen()?;
    let (start, first) = timed_reading(&agent)?;
    let early = process::stolen()?;
    thread::sleep(Duration::from_secs(8));
    let late = process::stolen()?;
    let (end, second) = timed_reading(&agent)?;
    let latest = process::stolen()?;
    let cpus = f64::from(u32::try_from(cpus()?)?);
    // The error of each CPU is at most a tick.
    let left_out = left_out()? - left_out_before + cpus / TICKS;
    let truth = (end - start).as_secs_f64() * cpus;
    let grown = NodeTimes::of(&second)?.since(NodeTimes::of(&first)?);
    tell(&format!("{truth:.3} s of all CPUs: {grown:.3?}; the kernel left out {left_out:.2} s at most"));
    let error = grown.sum() / truth - 1.0;
    ensure!(error.abs() <= 0.001, "{grown:?} is not {truth} s ({:+.3} %)", error * 100.0);
    // No row has the run time between the read of a CPU and the end of the reading.
    let took = second.get("podperf_scrape_duration_seconds", &[]).context("no length of the reading")? * cpus;
    ensure!(
        // The kernel counts stolen time by ticks, and leaves time out by the clock.
        grown.unaccounted <= left_out + took + truth / 200.0,
        "{grown:?}, and the kernel left out {left_out} s of {truth} s at most; not read yet are {took} s"
    );
    ensure!(grown.oncpu > truth / 4.0, "the load did too little: {grown:?}");
    let stolen = |metrics: &Metrics| metrics.get("podperf_node_stolen_seconds_total", &[]).context("no stolen time");
    let found = Duration::try_from_secs_f64(stolen(&second)? - stolen(&first)?)?.as_millis();
    let (least, most) = (late.saturating_sub(early).as_millis(), latest.saturating_sub(earliest).as_millis());
    // A time in seconds is rounded, and may be a millisecond less.
    ensure!((least.saturating_sub(1)..=most).contains(&found), "{found} ms stolen, by the kernel {least} to {most}");
    Ok(())
}

/// Returns the time of all CPUs, in seconds, that was stolen or taken by interrupts. Only some kernels leave interrupts
/// out.
fn left_out() -> Result<f64> {
    let stat = fs::read_to_string("/proc/stat")?;
    let ticks: Vec<u32> = stat
        .lines()
        .next()
        .unwrap_or_default()
        .split_whitespace()
        .skip(1)
        .filter_map(|word| word.parse().ok())
        .collect();
    let [_, _, _, _, _, interrupt, softirq, stolen, ..] = ticks[..] else { bail!("a short `/proc/stat`") };
    Ok(f64::from(interrupt + softirq + stolen) / TICKS)
}

/// No sum may have the time in which a CPU is offline.
pub(crate) fn an_offline_cpu_is_not_idle() -> Result<()> {
    const AWAY: Duration = Duration::from_secs(4);
    let agent = Agent::start("")?;
    agent.fresh_metrics()?;
    let (start, first) = timed_reading(&agent)?;
    let offline = Offline::new()?;
    let went = Instant::now();
    // The test also scrapes while the CPU is offline.
    while went.elapsed() < AWAY {
        agent.fresh_metrics()?;
    }
    drop(offline);
    let away = went.elapsed();
    thread::sleep(NOTICED);
    let (end, second) = timed_reading(&agent)?;
    let grown = NodeTimes::of(&second)?.since(NodeTimes::of(&first)?);
    let truth = ((end - start) * u32::try_from(cpus()?)?).saturating_sub(away).as_secs_f64();
    tell(&format!("{truth:.3} s of all CPUs but for {away:.1?} of one: {grown:.3?}"));
    let error = (grown.sum() - truth).abs();
    ensure!(error <= 2.0 * NOTICED.as_secs_f64(), "{grown:?} is not {truth} s");
    ensure!(grown.oncpu + grown.idle <= truth + NOTICED.as_secs_f64(), "{grown:?} is more than {truth} s");
    Ok(())
}
