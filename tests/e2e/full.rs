//! A table of samples that is too small: time without room there is in the row of its cgroup, and no time stays
//! unreported.

use std::{
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use podperf_tests::{
    agent::{Agent, Metrics, testing},
    cgroup::TestCgroup,
    load, process,
    suite::{Test, tell},
    tests,
};

pub(crate) const TESTS: &[Test] = tests![processes_that_find_no_room_in_the_table_keep_their_time];

/// Each process has a key of its own. One cgroup can take half of the table.
const PROCESSES: usize = 200;
const TABLE: &str = "stacks: {maxSamples: 256, onCpuHertz: 0, maxWalks: 0}";
/// The kernel side sums a thread's waits below 10 ms in the thread's own record until the agent reads the table.
const SLEEPER: [&str; 5] = ["sleepers", "--waits", "4000", "--millis", "7"];
/// The windows between the two scrapes, each of this length or more. A scrape lacks a part of its last window: with one
/// long window that was 1 to 3 % of the time.
const WINDOWS: usize = 16;
const WINDOW: Duration = Duration::from_secs(1);
/// The share of the time that may be missing or too much.
const MOST_OFF: f64 = 0.02;

/// The same processes find no room in each window. Their sums must not stay in their records, because no metric covers
/// these.
fn processes_that_find_no_room_in_the_table_keep_their_time() -> Result<()> {
    let agent = Agent::start(&(testing("maxStacks=32768") + TABLE))?;
    let cgroup = TestCgroup::new("full")?;
    let mut sleepers = (0..PROCESSES).map(|_| sleeper(&cgroup)).collect::<Result<Vec<Child>>>()?;
    let at = |metrics: &Metrics| {
        let labels = [("cgroup", cgroup.kernel_path())];
        let of = |name| metrics.sum(name, &labels);
        (of("podperf_cgroup_offcpu_seconds_total"), of("podperf_cgroup_wait_seconds_total"))
    };
    let window = || {
        thread::sleep(WINDOW);
        agent.fresh_metrics()
    };
    // The first window of each process also has its earlier waits.
    window()?;
    let before = at(&window()?);
    for _ in 1..WINDOWS {
        window()?;
    }
    let metrics = window()?;
    let after = at(&metrics);
    for sleeper in &mut sleepers {
        sleeper.kill().ok();
        sleeper.wait()?;
    }
    let (counted, told) = (after.0 - before.0, after.1 - before.1);
    let over = metrics.sum("podperf_bpf_drops_total", &[("reason", "sample_stack")]);
    tell(&format!("{PROCESSES} processes: {told} s of {counted} s have a reason or are unknown; {over} found no room"));
    ensure!(over > 0.0, "all found room");
    ensure!((told / counted - 1.0).abs() <= MOST_OFF, "{told} s of {counted} s");
    Ok(())
}

fn sleeper(cgroup: &TestCgroup) -> Result<Child> {
    let mut command = Command::new(load::binary()?);
    command.args(SLEEPER).arg("--cgroup").arg(cgroup.path()).stdin(Stdio::null()).stdout(Stdio::null());
    process::bind_to_parent(&mut command).spawn().context("failed to start a load")
}
