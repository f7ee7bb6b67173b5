//! Nothing is lost between the rows: all of them together are the machine.

use std::{
    fs, thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use podperf_tests::{
    agent::{Agent, COALESCED_FOR, Metrics},
    cgroup::TestCgroup,
};

use crate::running::{Load, cpus};

/// Counts the CPU's own time.
pub(crate) const CPU_CLOCK: &str = "podperf_cgroup_cpu_clock_seconds_total";

/// A scrape that took longer tells its instant too badly.
const SHARP: Duration = Duration::from_millis(7);

/// A scrape of a new reading, and when it was. The scrape before it keeps the agent from reading on its own, which it
/// does after 10 s without one: that reading would be handed out again.
pub(crate) fn sharp_reading(agent: &Agent) -> Result<(Instant, Metrics)> {
    for _ in 0..20 {
        agent.metrics()?;
        thread::sleep(COALESCED_FOR);
        let start = Instant::now();
        let metrics = agent.metrics()?;
        if start.elapsed() <= SHARP {
            return Ok((start, metrics));
        }
    }
    bail!("no scrape within {SHARP:?}: the machine is too busy")
}

/// Law 1, for an event that counts time itself: what all rows and idleness grow by is every CPU's wall time.
pub(crate) fn all_rows_are_the_machine() -> Result<()> {
    let agent = Agent::start("counters: {groups: [[cpu-clock]]}\n")?;
    let (ping, pong) = (TestCgroup::new("ping")?, TestCgroup::new("pong")?);
    let cgroups = format!("{},{}", ping.path().display(), pong.path().display());
    let _ring = Load::start(&format!("ring --slices 100000 --cgroups {cgroups}"))?;
    let idle_before = idle_ticks()?;
    let (start, first) = sharp_reading(&agent)?;
    thread::sleep(Duration::from_secs(8));
    let (end, second) = sharp_reading(&agent)?;
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

/// Of all CPUs, as the kernel counts them.
fn idle_ticks() -> Result<u64> {
    let stat = fs::read_to_string("/proc/stat")?;
    Ok(stat.split_whitespace().nth(4).context("a short `/proc/stat`")?.parse()?)
}
