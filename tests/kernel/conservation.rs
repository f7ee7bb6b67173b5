//! Nothing is lost between the rows: their sum is the time of the whole machine.

use std::{fs, thread, time::Duration};

use anyhow::{Context as _, Result, ensure};
use podperf_tests::{
    agent::Agent,
    cgroup::TestCgroup,
    running::{CPU_CLOCK, Load, all_rows_are_the_cpus, timed_reading},
};

pub(crate) fn all_rows_are_the_machine() -> Result<()> {
    let agent = Agent::start("counters: {groups: [[cpu-clock]]}\n")?;
    let (ping, pong) = (TestCgroup::new("ping")?, TestCgroup::new("pong")?);
    let cgroups = format!("{},{}", ping.path().display(), pong.path().display());
    let _ring = Load::start(&format!("ring --slices 100000 --cgroups {cgroups}"))?;
    let idle_before = idle_ticks()?;
    let first = timed_reading(&agent)?;
    thread::sleep(Duration::from_secs(8));
    let second = timed_reading(&agent)?;
    let was_idle = idle_ticks()? > idle_before;
    all_rows_are_the_cpus(&first, &second)?;
    let idle = second.1.get(CPU_CLOCK, &[("cgroup", "(idle)")]).context("no row `(idle)`")?;
    ensure!(idle > 0.0 || !was_idle, "never idle");
    Ok(())
}

/// Returns the idle time of all CPUs by the kernel, in ticks.
pub(crate) fn idle_ticks() -> Result<u64> {
    let stat = fs::read_to_string("/proc/stat")?;
    Ok(stat.split_whitespace().nth(4).context("a short `/proc/stat`")?.parse()?)
}
