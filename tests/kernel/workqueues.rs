//! The sensor `workqueues`. The truth is the number of bytes that go through a terminal: each write queues one item.

use std::{
    fs::File,
    io::{Read as _, Write as _},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use nix::pty::openpty;
use podperf_tests::{
    agent::{Agent, Metrics},
    suite::{Test, tell, within},
    tests,
};

pub(crate) const TESTS: &[Test] = tests![
    #[measures]
    each_write_to_a_terminal_is_a_run_of_its_function,
];

const ON: &str = "sensors: {workqueues: {enabled: true}}\nmetrics: {classicBuckets: true}\n";
const RUNS: &str = "podperf_node_workqueue_runs_total";
const TIME: &str = "podperf_node_workqueue_seconds_total";
const WAITS: &str = "podperf_node_workqueue_waits_total";
const WAITED: &str = "podperf_node_workqueue_wait_seconds_total";
const LATENCY: &str = "podperf_node_workqueue_latency_seconds";
/// The function that hands the bytes of a terminal over to its reader.
const TERMINAL: &[(&str, &str)] = &[("function", "flush_to_ldisc")];
/// Those who wait for an item queue a barrier behind it. The kernel does not report its activation.
const BARRIER: &[(&str, &str)] = &[("function", "wq_barrier_func")];
const WRITES: u32 = 2_000;
/// The rounding of sums of seconds.
const ROUNDING: f64 = 1e-6;
/// The time after a byte was read in which the item ends that handed it over.
const PAUSE: Duration = Duration::from_millis(1);
/// The time limit for the name of a function, which the agent looks for each ten seconds.
const NAMED: Duration = Duration::from_secs(30);

/// Writes bytes to a new terminal one by one, and reads each of them at its other end.
pub(crate) fn write_to_a_terminal(writes: u32) -> Result<()> {
    let ends = openpty(None, None).context("failed to open a terminal")?;
    let (mut reader, mut writer) = (File::from(ends.master), File::from(ends.slave));
    let mut byte = [0];
    for _ in 0..writes {
        writer.write_all(b"x")?;
        reader.read_exact(&mut byte)?;
        thread::sleep(PAUSE);
    }
    Ok(())
}

/// Returns the growth of a family's series with these labels.
fn grown(before: &Metrics, after: &Metrics, family: &str, labels: &[(&str, &str)]) -> f64 {
    after.sum(family, labels) - before.sum(family, labels)
}

/// Other terminals of the machine may be written to at the same time, and two writes share a run if its worker is kept
/// from a CPU for longer than the pause.
fn each_write_to_a_terminal_is_a_run_of_its_function() -> Result<()> {
    let agent = Agent::start(ON)?;
    let before = within(NAMED, "the function has a series", || {
        write_to_a_terminal(1)?;
        let metrics = agent.fresh_metrics()?;
        Ok(metrics.get(RUNS, TERMINAL).is_some().then_some(metrics))
    })?;
    let began = Instant::now();
    write_to_a_terminal(WRITES)?;
    let took = began.elapsed();
    let after = agent.fresh_metrics()?;
    let (runs, time) = (grown(&before, &after, RUNS, TERMINAL), grown(&before, &after, TIME, TERMINAL));
    let writes = f64::from(WRITES);
    tell(&format!("{runs} runs for {WRITES} writes, {time} s of {took:?}"));
    ensure!((writes * 0.99..=writes * 1.1).contains(&runs), "{runs} runs for {WRITES} writes");
    ensure!(time > 0.0 && time < took.as_secs_f64(), "the runs took {time} s of {took:?}");
    // Few items run at the begin or the end of this time, and few functions are new in it and wait for their names.
    let of_barriers = grown(&before, &after, RUNS, BARRIER);
    let all = grown(&before, &after, RUNS, &[]) - of_barriers;
    let started = grown(&before, &after, &format!("{LATENCY}_count"), &[]);
    ensure!((all - started).abs() <= writes * 0.1, "{all} items ended, {of_barriers} barriers, and {started} started");
    let waited = grown(&before, &after, &format!("{LATENCY}_sum"), &[]);
    ensure!(waited > 0.0, "no item waited for a worker");
    let waits = grown(&before, &after, WAITS, TERMINAL);
    ensure!(waits == runs, "{runs} items of the terminal ended, and {waits} of them waited");
    let of_terminal = grown(&before, &after, WAITED, TERMINAL);
    let most = waited + ROUNDING;
    ensure!(of_terminal > 0.0 && of_terminal <= most, "items of the terminal waited {of_terminal} s of {waited} s");
    // Names only: an address would be a number.
    let is_name = |name: &String| !name.starts_with("0x") && !name.starts_with("ffff");
    let functions = after.samples().iter().filter(|sample| sample.name == RUNS);
    for sample in functions {
        let function = sample.labels.get("function").context("no function")?;
        ensure!(is_name(function), "`{function}` is no name");
    }
    Ok(())
}
