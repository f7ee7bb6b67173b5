//! Nothing is lost between the rows: their sum is the time of the whole machine.

use std::{
    fs, thread,
    time::{Duration, Instant, SystemTime},
};

use anyhow::{Context as _, Result, ensure};
use podperf_tests::{
    agent::{Agent, Metrics},
    cgroup::TestCgroup,
    running::{CPU_CLOCK, Load, cpus},
};

/// Unix time of the reading behind a scrape.
const READ_AT: &str = "podperf_reading_timestamp_seconds";

/// Scrapes a new reading, and returns it with its moment, as the agent reports it. The counts belong to that moment,
/// even if the scrape takes long, as in an emulated machine. The wall clock may be set between two readings, so the
/// function converts each moment to the monotonic clock.
pub(crate) fn timed_reading(agent: &Agent) -> Result<(Instant, Metrics)> {
    let metrics = agent.fresh_metrics()?;
    let (now, wall) = (Instant::now(), SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?);
    let read = Duration::try_from_secs_f64(metrics.get(READ_AT, &[]).context("no time of the reading")?)?;
    let at = wall.checked_sub(read).and_then(|ago| now.checked_sub(ago));
    Ok((at.context("the reading is not older than its scrape")?, metrics))
}

/// Law 1, for an event that counts time itself: the increase of all rows and of the idle time is every CPU's wall time.
pub(crate) fn all_rows_are_the_machine() -> Result<()> {
    let agent = Agent::start("counters: {groups: [[cpu-clock]]}\n")?;
    let (ping, pong) = (TestCgroup::new("ping")?, TestCgroup::new("pong")?);
    let cgroups = format!("{},{}", ping.path().display(), pong.path().display());
    let _ring = Load::start(&format!("ring --slices 100000 --cgroups {cgroups}"))?;
    let idle_before = idle_ticks()?;
    let (start, first) = timed_reading(&agent)?;
    thread::sleep(Duration::from_secs(8));
    let (end, second) = timed_reading(&agent)?;
    let was_idle = idle_ticks()? > idle_before;
    let sum = |metrics: &Metrics| metrics.get(CPU_CLOCK, &[]).context("no cpu-clock");
    let grown = sum(&second)? - sum(&first)?;
    let truth = (end - start).as_secs_f64() * f64::from(u32::try_from(cpus()?)?);
    let error = grown / truth - 1.0;
    ensure!(error.abs() <= 0.001, "grew by {grown} s, and the truth is {truth} s ({:+.3} %)", error * 100.0);
    let idle = second.get(CPU_CLOCK, &[("cgroup", "(idle)")]).context("no row `(idle)`")?;
    ensure!(idle > 0.0 || !was_idle, "never idle");
    Ok(())
}

/// Returns the idle time of all CPUs by the kernel, in ticks.
pub(crate) fn idle_ticks() -> Result<u64> {
    let stat = fs::read_to_string("/proc/stat")?;
    Ok(stat.split_whitespace().nth(4).context("a short `/proc/stat`")?.parse()?)
}
