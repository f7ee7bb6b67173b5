//! The kernel gives the agent less than it asks for: no locked memory, no file descriptors.

use std::{
    fs,
    io::Write as _,
    net::TcpStream,
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use podperf_tests::{
    agent::{self, Agent},
    suite::{Need, Test, within},
};

use crate::table::{nothing_was_lost, row, serves_and_counts};

#[rustfmt::skip]
pub(crate) const TESTS: &[Test] = &[
    ("without_locked_memory_all_is_counted", PRLIMIT, without_locked_memory_all_is_counted),
    ("an_agent_without_a_file_descriptor_to_spare_goes_on_counting", PRLIMIT, an_agent_without_a_file_descriptor_to_spare_goes_on_counting),
    ("an_agent_that_gets_no_more_memory_answers_or_ends_by_name", PRLIMIT, an_agent_that_gets_no_more_memory_answers_or_ends_by_name),
];

const PRLIMIT: &[Need] = &[Need::Program("prlimit")];
/// The server waits a second before it tries to take connections again.
const SOON: Duration = Duration::from_secs(15);
const CONNECTIONS: usize = 24;

fn without_locked_memory_all_is_counted() -> Result<()> {
    let mut agent = Agent::start_changed(&agent::binary()?, "", |command| {
        let mut limited = Command::new("prlimit");
        limited.args(["--memlock=0:0", "--"]).arg(command.get_program()).args(command.get_args());
        *command = limited;
    })?;
    let limits = fs::read_to_string(format!("/proc/{}/limits", agent.pid()))?;
    let line =
        limits.lines().find(|line| line.starts_with("Max locked memory")).context("no limit of locked memory")?;
    ensure!(line.split_whitespace().nth(3) == Some("0"), "{line}");
    nothing_was_lost(&serves_and_counts(&mut agent)?)?;
    row("RLIMIT_MEMLOCK is 0", "nothing: maps are charged to the cgroup's memory", "0");
    Ok(())
}

fn an_agent_without_a_file_descriptor_to_spare_goes_on_counting() -> Result<()> {
    let mut agent = Agent::start("")?;
    agent.fresh_metrics()?;
    let open = fs::read_dir(format!("/proc/{}/fd", agent.pid()))?.count();
    limit(&agent, &format!("--nofile={0}:{0}", open + 2))?;
    // More than it can take; the kernel does, and half a request keeps each open.
    let mut connections = Vec::new();
    for _ in 0..CONNECTIONS {
        let mut stream = TcpStream::connect(agent.address())?;
        stream.write_all(b"GET /metrics HTTP/1.1\r\n")?;
        connections.push(stream);
    }
    let said = agent.wait_for_log("Too many open files", SOON)?;
    let start = Instant::now();
    drop(connections);
    within(SOON, "it answers again", || Ok(agent.get("/livez", &[]).ok().filter(|answer| answer.0 == 200)))
        .with_context(|| agent.log())?;
    let silent = start.elapsed();
    nothing_was_lost(&serves_and_counts(&mut agent)?)?;
    let seen = format!("`{}`; it answers {:.1} s after the connections are gone", message(&said), silent.as_secs_f64());
    row("no file descriptor left (RLIMIT_NOFILE)", &seen, "0");
    Ok(())
}

/// An allocation that fails ends a program of Rust. What may not happen is that it hangs.
fn an_agent_that_gets_no_more_memory_answers_or_ends_by_name() -> Result<()> {
    let mut agent = Agent::start("")?;
    agent.fresh_metrics()?;
    let status = fs::read_to_string(format!("/proc/{}/status", agent.pid()))?;
    let size = status.lines().find_map(|line| line.strip_prefix("VmSize:")).context("no `VmSize`")?;
    let kib: u64 = size.trim().trim_end_matches("kB").trim().parse()?;
    let bytes = (kib << 10) + (4 << 20);
    limit(&agent, &format!("--as={bytes}:{bytes}"))?;
    for path in ["/metrics", "/flamegraph", "/debug/profile?seconds=1&format=svg", "/debug/waits"] {
        agent.get(path, &[]).ok();
    }
    let seen = if serves_and_counts(&mut agent).is_ok() {
        "nothing: 4 MiB more were enough for a scrape, a page and a recording".to_owned()
    } else {
        let status = agent.wait(SOON)?;
        let log = agent.log();
        let line = log.lines().find(|line| line.contains("memory allocation of") || line.contains("panicked"));
        let line = line.with_context(|| format!("it ended without a word: {log}"))?;
        ensure!(!status.success(), "it ended as if all were well");
        format!("`{line}` ({status}), and a restart by the kubelet")
    };
    row("no more memory (RLIMIT_AS)", &seen, "0 while it lives");
    Ok(())
}

fn limit(agent: &Agent, limit: &str) -> Result<()> {
    let status = Command::new("prlimit").args(["--pid", &agent.pid().to_string(), limit]).status()?;
    ensure!(status.success(), "prlimit failed: {status}");
    Ok(())
}

/// A line of the log without its time and level.
pub(crate) fn message(line: &str) -> &str {
    let levels = ["ERROR", "WARN", "INFO"];
    levels.iter().find_map(|level| Some(line.split_once(level)?.1.trim())).unwrap_or(line)
}
