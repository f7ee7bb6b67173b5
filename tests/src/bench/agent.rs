//! The agent as the benchmark runs it: its configurations, its start, and what
//! it uses when nothing happens.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::Signal;
use nix::unistd::{SysconfVar, sysconf};

use super::monitor::{EVENTS, Process};
use super::setup::Setup;

/// The agent says so on stderr once it answers.
const READY: &str = "listening on http://";
const READY_DEADLINE: Duration = Duration::from_secs(30);
const SCRAPE_INTERVAL: Duration = Duration::from_secs(15);
/// The start is over by then, and is not part of the rest.
const REST_AFTER: Duration = Duration::from_secs(5);

/// What the agent is told to measure.
#[derive(Clone, Copy, Debug)]
pub enum Configuration {
    /// What it does unless told otherwise.
    Default,
    /// Facts and times from task fields, no stacks, no perf counters.
    Times,
    /// The same, and both stacks of every wait.
    Stacks,
    /// Nothing but the benchmark's events, read as perf counters.
    Counters,
}

impl Configuration {
    /// The configuration file.
    fn yaml(self, run_directory: &Path) -> String {
        let common = format!("listen: \"127.0.0.1:0\"\nrunDir: \"{}\"\n", run_directory.display());
        let measured = match self {
            Self::Default => String::new(),
            Self::Times => sections(true, false, ""),
            // Stacks are taken only while there is somewhere to send them; nothing listens there.
            Self::Stacks => sections(true, true, "") + "otlp:\n  endpoint: http://127.0.0.1:1\n",
            Self::Counters => sections(false, false, &format!("[{}]", EVENTS.join(", "))),
        };
        common + &measured
    }
}

fn sections(facts: bool, stacks: bool, groups: &str) -> String {
    format!(
        "facts:\n  enabled: {facts}\n\
         stacks:\n  enabled: {stacks}\n\
         counters:\n  groups: [{groups}]\n"
    )
}

/// An agent that answers.
#[derive(Debug)]
pub struct Agent {
    /// Its process.
    pub process: Process,
    address: SocketAddr,
}

/// Starts the agent and waits until it says where it listens.
pub fn start(setup: &Setup, configuration: Configuration) -> Result<Agent> {
    let directory = setup.scratch.path().join("agent");
    let run_directory = directory.join("run");
    fs::create_dir_all(&run_directory)?;
    let config = directory.join("podperf.yaml");
    fs::write(&config, configuration.yaml(&run_directory))?;
    let mut command = Command::new(&setup.agent);
    command.args(["agent", "--config"]).arg(&config);
    let mut process = setup.spawn("podperf", &mut command, Signal::SIGTERM)?;
    let deadline = Instant::now() + READY_DEADLINE;
    loop {
        process.check()?;
        if let Some(address) = address_in(&process.words()) {
            return Ok(Agent { process, address });
        }
        let seconds = READY_DEADLINE.as_secs();
        ensure!(Instant::now() < deadline, "`podperf` did not say `{READY}` within {seconds} s");
        thread::sleep(Duration::from_millis(20));
    }
}

/// The address after [`READY`], which ends where the address does.
fn address_in(words: &str) -> Option<SocketAddr> {
    let (_, rest) = words.split_once(READY)?;
    let end = rest.find(|c: char| !(c.is_ascii_digit() || c == '.' || c == ':'))?;
    rest[..end].parse().ok()
}

/// What the agent used while it was scraped and nothing else.
#[derive(Clone, Copy, Debug)]
pub struct Rest {
    /// `VmRSS` at the end.
    pub rss_mib: f64,
    /// CPU time in percent of one core.
    pub cpu_percent: f64,
    /// Size of the last scrape.
    pub scrape_bytes: usize,
    /// How long the last scrape took.
    pub scrape_time: Duration,
}

/// Runs the agent with its default configuration for `length`.
pub fn rest(setup: &Setup, length: Duration) -> Result<Rest> {
    let mut agent = start(setup, Configuration::Default)?;
    thread::sleep(REST_AFTER);
    let pid = agent.process.id();
    let (cpu_before, begin) = (cpu_time(pid)?, Instant::now());
    let (scrape_bytes, scrape_time) = loop {
        let last = agent.scrape()?;
        thread::sleep(SCRAPE_INTERVAL.min(length.saturating_sub(begin.elapsed())));
        if begin.elapsed() >= length {
            break last;
        }
    };
    agent.process.check()?;
    let used = cpu_time(pid)?.saturating_sub(cpu_before);
    Ok(Rest {
        rss_mib: rss_mib(pid)?,
        cpu_percent: 100.0 * used.as_secs_f64() / begin.elapsed().as_secs_f64(),
        scrape_bytes,
        scrape_time,
    })
}

impl Agent {
    fn scrape(&self) -> Result<(usize, Duration)> {
        let begin = Instant::now();
        let mut stream = TcpStream::connect(self.address).context("failed to reach the agent")?;
        let address = self.address;
        write!(stream, "GET /metrics HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n")?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).context("failed to scrape the agent")?;
        ensure!(answer.starts_with(b"HTTP/1.1 200"), "the agent refused to be scraped");
        Ok((answer.len(), begin.elapsed()))
    }
}

/// User and system time of a process (proc_pid_stat(5), fields 14 and 15).
fn cpu_time(pid: u32) -> Result<Duration> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The name before the last `)` may hold anything.
    let (_, fields) = stat.rsplit_once(')').context("failed to read a `stat` file")?;
    let mut ticks = 0_u64;
    for field in fields.split_whitespace().skip(11).take(2) {
        ticks += field.parse::<u64>()?;
    }
    let per_second = sysconf(SysconfVar::CLK_TCK)?.context("failed to find the clock tick")?;
    Ok(Duration::from_millis(ticks * 1_000 / u64::try_from(per_second)?))
}

fn rss_mib(pid: u32) -> Result<f64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib: f64 = line.context("failed to find `VmRSS`")?.trim_end_matches("kB").trim().parse()?;
    Ok(kib / 1024.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_is_found_in_a_log_line() {
        let line = "INFO podperf: listening on http://127.0.0.1:43211 parts=3\n";
        assert_eq!(address_in(line).map(|address| address.port()), Some(43211));
        assert_eq!(address_in("INFO podperf: listening on http://127.0.0.1:43"), None);
    }
}
