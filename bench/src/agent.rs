//! The agent in the benchmark: its configurations, and its resource use at rest.

use std::{
    fs,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use nix::unistd::{SysconfVar, sysconf};
use podperf_tests::agent::Agent;

use super::monitor::EVENTS;

/// The default cap. Agents in tests have no cap unless they set one.
pub(super) const CAP: &str = "overhead: {maxPercent: 5}\n";

const STACKS: &str = "stacks: {unwind: frame-pointers, wakerAfter: 0s, onCpuHertz: 0}\ncounters: {groups: []}\n";
const SCRAPE_INTERVAL: Duration = Duration::from_secs(15);
/// The wait after the start, which is not part of the rest.
pub(super) const REST_AFTER: Duration = Duration::from_secs(5);

/// The part of the work that the agent is configured to measure.
#[derive(Clone, Copy, Debug)]
pub enum Configuration {
    /// The default configuration.
    Default,
    /// Facts and times from task fields, no stacks, no perf counters.
    Times,
    /// The same as `Times`, and the sensor of this name.
    Sensor(&'static str),
    /// The same as `Times`, and both stacks of every wait by frame pointers; neither wakers nor samples on the CPU.
    Stacks,
    /// The same as `Stacks`, by unwind tables.
    Tables,
    /// Only the benchmark's events, read as perf counters.
    Counters,
}

impl Configuration {
    /// Starts an agent of this configuration.
    pub fn start(self, program: &Path) -> Result<Agent> {
        Agent::start_to_measure(program, &self.yaml())
    }

    fn yaml(self) -> String {
        let groups = format!("[{}]", EVENTS.join(", "));
        match self {
            Self::Default => String::new(),
            Self::Times => without_stacks(true, ""),
            Self::Sensor(name) => without_stacks(true, "") + &format!("sensors: {{{name}: {{enabled: true}}}}\n"),
            Self::Stacks => STACKS.to_owned(),
            Self::Tables => STACKS.replace("frame-pointers", "tables"),
            Self::Counters => without_stacks(false, &groups),
        }
    }
}

/// Returns a configuration without stacks, with these groups of counters.
pub(super) fn without_stacks(facts: bool, groups: &str) -> String {
    let metrics = if facts { "" } else { "metrics: {facts: []}\n" };
    format!("{metrics}stacks: {{enabled: false}}\ncounters: {{groups: [{groups}]}}\n")
}

/// The agent's resource use while it serves scrapes and does nothing else.
#[derive(Clone, Copy, Debug)]
pub struct Rest {
    /// `VmRSS` at the end.
    pub rss_mib: f64,
    /// CPU time in percent of one core.
    pub cpu_percent: f64,
    /// Size of the last scrape in bytes.
    pub scrape_bytes: usize,
    /// Duration of the last scrape.
    pub scrape_time: Duration,
}

/// Runs the agent with its default configuration for `length`.
pub fn rest(program: &Path, length: Duration) -> Result<Rest> {
    let agent = Configuration::Default.start(program)?;
    thread::sleep(REST_AFTER);
    let (cpu_before, begin) = (cpu_time(agent.pid())?, Instant::now());
    let (scrape_bytes, scrape_time) = loop {
        let scrape = Instant::now();
        let (status, _, body) = agent.get("/metrics", &[])?;
        ensure!(status == 200, "the agent refused to be scraped");
        let last = (body.len(), scrape.elapsed());
        thread::sleep(SCRAPE_INTERVAL.min(length.saturating_sub(begin.elapsed())));
        if begin.elapsed() >= length {
            break last;
        }
    };
    let used = cpu_time(agent.pid())?.saturating_sub(cpu_before);
    Ok(Rest {
        rss_mib: memory_mib(agent.pid(), "VmRSS")?,
        cpu_percent: 100.0 * used.as_secs_f64() / begin.elapsed().as_secs_f64(),
        scrape_bytes,
        scrape_time,
    })
}

/// User and system time of a process (proc_pid_stat(5), fields 14 and 15).
fn cpu_time(pid: u32) -> Result<Duration> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The name before the last `)` may contain any character.
    let (_, fields) = stat.rsplit_once(')').context("failed to read a `stat` file")?;
    let mut ticks = 0_u64;
    for field in fields.split_whitespace().skip(11).take(2) {
        ticks += field.parse::<u64>()?;
    }
    let per_second = sysconf(SysconfVar::CLK_TCK)?.context("failed to find the clock tick")?;
    Ok(Duration::from_millis(ticks * 1_000 / u64::try_from(per_second)?))
}

/// Returns a line of `/proc/PID/status` in MiB, such as `VmRSS`.
pub(super) fn memory_mib(pid: u32, name: &str) -> Result<f64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    let kib: f64 = line.with_context(|| format!("failed to find `{name}`"))?.trim_end_matches("kB").trim().parse()?;
    Ok(kib / 1024.0)
}

#[cfg(test)]
mod tests {
    use podperf::config::Config;

    use super::*;
    use crate::{growth::watch::ROOM, locks::LOCKS, servers::FACTS, table::RIDERS};

    /// A key that the agent does not know would end each part of the benchmark.
    #[test]
    fn the_agent_takes_each_configuration() {
        use Configuration::{Counters, Default, Sensor, Stacks, Tables, Times};
        let riders = RIDERS.map(|rider| Sensor(rider.sensor).yaml());
        let whole = [Default, Times, Stacks, Tables, Counters].map(Configuration::yaml);
        let with = [CAP.to_owned() + FACTS, without_stacks(true, "") + LOCKS, without_stacks(false, "[cycles]") + ROOM];
        for yaml in whole.iter().chain(&riders).chain(&with) {
            if let Err(error) = Config::parse(yaml) {
                panic!("{error}: {yaml}");
            }
        }
    }
}
