//! The agent gets less than it needs: no locked memory, no file descriptors, little memory.

use std::{
    fs,
    io::Write as _,
    net::TcpStream,
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::Signal;

use podperf_tests::{
    agent::{self, Agent, Metrics},
    cluster::wait_for_part,
    command::Refusal,
    suite::{Need, Test, within},
    tests,
};
use tempfile::TempDir;

use crate::table::{dropped, nothing_was_lost, row, serves_and_counts};

pub(crate) const TESTS: &[Test] = tests![
    #[land] #[measures] without_locked_memory_all_is_counted: PRLIMIT,
    an_agent_without_a_file_descriptor_to_spare_goes_on_counting: PRLIMIT,
    an_agent_that_gets_no_more_memory_answers_or_ends_by_name: PRLIMIT,
    an_agent_near_its_budget_of_memory_gives_up_all_but_counts,
    #[land] maps_larger_than_the_budget_of_memory_are_refused_by_name,
];

const PRLIMIT: &[Need] = &[Need::Program("prlimit")];
/// The server waits a second before it accepts connections again.
const SOON: Duration = Duration::from_secs(15);
const CONNECTIONS: usize = 24;
/// The time limit of three readings, on a loaded machine.
const MEMORY: Duration = Duration::from_secs(60);

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
    // The agent cannot accept all of these connections. The kernel accepts them, and half a request keeps each open.
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

/// A failed allocation ends a Rust program. It must not make it hang.
fn an_agent_that_gets_no_more_memory_answers_or_ends_by_name() -> Result<()> {
    let mut agent = Agent::start("")?;
    agent.fresh_metrics()?;
    let status = fs::read_to_string(format!("/proc/{}/status", agent.pid()))?;
    let size = status.lines().find_map(|line| line.strip_prefix("VmSize:")).context("no `VmSize`")?;
    let kib: u64 = size.trim().trim_end_matches("kB").trim().parse()?;
    let bytes = (kib << 10) + (4 << 20);
    // The released agent ends where that of a debug build goes on without the thread.
    agent.expect_panics();
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

/// The limit is 85 % of the agent's need: the agent stays over it after it has given up all features. It walks by frame
/// pointers: an agent without room for the maps of unwind tables would start without them, and need less.
fn an_agent_near_its_budget_of_memory_gives_up_all_but_counts() -> Result<()> {
    const CAPS: &str = "stacks: {unwind: frame-pointers}\notlp: {interval: 1s}\noverhead: {maxPercent: 0, ";
    let taken = {
        let agent = Agent::start(&format!("{CAPS}maxMemory: 0}}"))?;
        figure(&agent.fresh_metrics()?, "podperf_overhead_memory_bytes")?
    };
    // The limit is above the agent's need at its start, and below its need without all optional features.
    let budget = (taken * 0.85).floor();
    let mut agent = Agent::start(&format!("{CAPS}maxMemory: {budget}}}"))?;
    let mut order = Vec::new();
    let metrics = within(MEMORY, "all is given up", || {
        let metrics = agent.fresh_metrics()?;
        let now = given_up(&metrics)?;
        if order.last() != Some(&now) {
            order.push(now);
        }
        Ok((now == [1.0; 3]).then_some(metrics))
    })?;
    // The first reading may be before the first scrape.
    let expected = [[0.0; 3], [1.0, 0.0, 0.0], [1.0, 1.0, 0.0], [1.0; 3]];
    ensure!(expected.ends_with(&order), "given up in this order: {order:?}");
    let limit = figure(&metrics, "podperf_overhead_memory_limit_bytes")?;
    ensure!(limit == budget, "a cap of {limit} and not of {budget}");
    ensure!(agent.log().contains("near the budget of memory"), "not in the log: {}", agent.log());
    let detail = wait_for_part(&agent, "memory", "degraded", &["given up: caches, recordings, stacks"])?;
    for path in ["/flamegraph", "/debug/profile?seconds=1&format=svg", "/debug/waits"] {
        let (code, _, says) = agent.get(path, &[])?;
        let says = String::from_utf8_lossy(&says).into_owned();
        ensure!(code == 503 && says.contains("raise `overhead.maxMemory`"), "{path} answered {code}: {says}");
    }
    // The agent counts all threads that run and wait now, without stacks.
    let metrics = serves_and_counts(&mut agent)?;
    nothing_was_lost(&metrics)?;
    let without = |metrics: &Metrics| dropped(metrics, "stack_shed");
    ensure!(without(&metrics)? > 0.0, "stacks are taken");

    // A larger limit applies at once, and the features return one by one.
    let config = agent.directory().join("podperf.yaml");
    let text = fs::read_to_string(&config)?.replace(&format!("maxMemory: {budget}"), "maxMemory: 4Gi");
    fs::write(&config, text)?;
    agent.signal(Signal::SIGHUP)?;
    let mut order = Vec::new();
    within(MEMORY, "all is back", || {
        let now = given_up(&agent.fresh_metrics()?)?;
        if order.last() != Some(&now) {
            order.push(now);
        }
        Ok((now == [0.0; 3]).then_some(()))
    })?;
    let expected = [[1.0; 3], [1.0, 1.0, 0.0], [1.0, 0.0, 0.0], [0.0; 3]];
    ensure!(expected.ends_with(&order), "given back in this order: {order:?}");
    wait_for_part(&agent, "memory", "healthy", &["4096 MiB"])?;
    let before = without(&agent.fresh_metrics()?)?;
    let (code, _, _) = agent.get("/flamegraph", &[])?;
    ensure!(code == 200, "/flamegraph answered {code}");
    let metrics = serves_and_counts(&mut agent)?;
    nothing_was_lost(&metrics)?;
    ensure!(without(&metrics)? == before, "stacks are still left out");
    row("memory near `overhead.maxMemory`", &format!("`memory degraded {detail}`; flame graphs answer 503"), "0");
    Ok(())
}

/// Returns whether each feature is given up for memory, in their order.
fn given_up(metrics: &Metrics) -> Result<[f64; 3]> {
    let of = |feature| {
        let labels = [("cap", "memory"), ("feature", feature)];
        metrics.get("podperf_overhead_shed", &labels).with_context(|| format!("no `{feature}`"))
    };
    Ok([of("caches")?, of("recordings")?, of("stacks")?])
}

fn maps_larger_than_the_budget_of_memory_are_refused_by_name() -> Result<()> {
    // Each way to find user stacks, and its rings in MiB, which the metric does not include.
    let mut says = String::new();
    for (unwind, rings) in [("frame-pointers", 1.25), ("tables", 3.25)] {
        let sizes = format!("cgroups: {{max: 2048}}\nstacks: {{maxSamples: 32768, unwind: {unwind}}}\n");
        let directory = TempDir::new()?;
        let refusal =
            Refusal::of(&mut agent::command(directory.path(), &format!("{sizes}overhead: {{maxMemory: 30Mi}}"))?)?;
        refusal.expect(2, &["`overhead.maxMemory`: 30 MiB is too little", "`stacks.maxSamples`", "`cgroups.max`"])?;
        let mebi = refusal.says.split("sizes take ").nth(1).and_then(|rest| rest.split(' ').next());
        let said: f64 = mebi.context("no size of the maps")?.parse()?;
        // The expected size is the maps' later size.
        let agent = Agent::start(&format!("{sizes}overhead: {{maxMemory: 4Gi}}"))?;
        let taken = agent.metrics()?.sum("podperf_bpf_map_memory_bytes", &[]) / f64::from(1 << 20) + rings;
        ensure!((said / taken - 1.0).abs() < 0.1, "{unwind}: {said} MiB were expected, and {taken} MiB are taken");
        says = refusal.says;
    }
    row("maps larger than `overhead.maxMemory`", &format!("it exits with 2: `{}`", says.trim()), "0");
    Ok(())
}

fn figure(metrics: &Metrics, name: &str) -> Result<f64> {
    metrics.get(name, &[]).with_context(|| format!("no `{name}`"))
}

fn limit(agent: &Agent, limit: &str) -> Result<()> {
    let status = Command::new("prlimit").args(["--pid", &agent.pid().to_string(), limit]).status()?;
    ensure!(status.success(), "prlimit failed: {status}");
    Ok(())
}

/// Returns a line of the log without its time and level.
pub(crate) fn message(line: &str) -> &str {
    let levels = ["ERROR", "WARN", "INFO"];
    levels.iter().find_map(|level| Some(line.split_once(level)?.1.trim())).unwrap_or(line)
}
