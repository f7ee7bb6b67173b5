//! The sensor `histograms`. The truth is the load's number of waits, and the counters of the same time.

use std::time::Duration;

use anyhow::{Result, ensure};
use nix::sys::signal::Signal;
use podperf_tests::{
    agent::{self, Agent, Metrics},
    bpffs::Bpffs,
    cgroup::TestCgroup,
    load::sleepers::SleepersReport,
    running::{Load, OFFCPU, count, run, time},
    suite::Test,
    tests,
};

pub(crate) const TESTS: &[Test] = tests![
    #[land]
    #[measures]
    sleeps_are_in_the_bucket_of_their_length,
    #[exact]
    histograms_go_on_over_upgrades_and_kills,
    a_queue_is_as_long_as_who_is_before,
];

pub(crate) const ON: &str = "sensors: {histograms: {enabled: true}}\nmetrics: {classicBuckets: true}";
const WAIT: &str = "podperf_cgroup_wait_duration_seconds";
const QUEUE: &str = "podperf_cgroup_runqueue_latency_seconds";

/// Returns the number of waits above 2^(`log` - 1) s and up to 2^`log` s.
fn bucket(metrics: &Metrics, family: &str, cgroup: &TestCgroup, labels: &[(&str, &str)], log: i32) -> Result<f64> {
    let up_to = |log: i32| {
        let border = 2_f64.powi(log).to_string();
        let labels: Vec<_> = labels.iter().copied().chain([("le", border.as_str())]).collect();
        count(metrics, &format!("{family}_bucket"), cgroup, &labels)
    };
    Ok(up_to(log)? - up_to(log - 1)?)
}

/// Checks that the sums of all histograms are the counters of the same states, to the nanosecond. The load has ended.
pub(crate) fn sums_are_the_counters(metrics: &Metrics, cgroup: &TestCgroup) -> Result<()> {
    let states = [("interruptible", WAIT), ("uninterruptible", WAIT), ("throttled", WAIT), ("run_queue", QUEUE)];
    for (state, family) in states {
        let labels: &[_] = if family == QUEUE { &[] } else { &[("state", state)] };
        let counter = time(metrics, OFFCPU, cgroup, &[("state", state)])?;
        // A histogram without a wait has no series.
        let sum = time(metrics, &format!("{family}_sum"), cgroup, labels).unwrap_or_default();
        ensure!(sum == counter, "the sum of `{state}` is {sum:?}, and the counter is {counter:?}");
    }
    Ok(())
}

fn sleeps_are_in_the_bucket_of_their_length() -> Result<()> {
    const WAITS: u32 = 400;
    let agent = Agent::start(ON)?;
    let cgroup = TestCgroup::new("sleeps")?;
    // 5 ms are between 2^-8 and 2^-7 s, which is 7.8 ms.
    let report: SleepersReport =
        run(&format!("sleepers --waits {WAITS} --millis 5 --cgroup {}", cgroup.path().display()))?;
    let metrics = agent.fresh_metrics()?;
    sums_are_the_counters(&metrics, &cgroup)?;
    let interruptible = [("state", "interruptible")];
    let found = bucket(&metrics, WAIT, &cgroup, &interruptible, -7)?;
    // A virtual CPU may be away when a timer is due.
    ensure!(found >= f64::from(WAITS) * 0.9, "{found} of {WAITS} waits of 5 ms in their bucket: {report:?}");
    let switches = count(&metrics, "podperf_cgroup_context_switches_total", &cgroup, &[("kind", "voluntary")])?
        + count(&metrics, "podperf_cgroup_context_switches_total", &cgroup, &[("kind", "involuntary")])?;
    let queued = count(&metrics, &format!("{QUEUE}_count"), &cgroup, &[])?;
    // Each wait ends in the run queue. The load's first wait may belong to the cgroup before, and its last never ends.
    ensure!((queued - switches).abs() <= 2.0, "{queued} waits for a CPU, and {switches} switches");
    Ok(())
}

/// The other build has another word before the words of each row of a sensor.
fn histograms_go_on_over_upgrades_and_kills() -> Result<()> {
    const WAITS: u32 = 100;
    let bpffs = Bpffs::mount()?;
    let yaml = format!("{}\n{ON}", bpffs.yaml());
    let mut agent = Agent::start(&yaml)?;
    let cgroup = TestCgroup::new("upgraded")?;
    let sleepers = format!("sleepers --waits {WAITS} --millis 5 --cgroup {}", cgroup.path().display());
    let (ours, theirs) = (agent::binary()?, agent::other_layout()?);
    for (turn, build) in (1..).zip([&theirs, &ours, &ours]) {
        let _: SleepersReport = run(&sleepers)?;
        agent.restart_as(build, Signal::SIGKILL, &yaml)?;
        let metrics = agent.fresh_metrics()?;
        sums_are_the_counters(&metrics, &cgroup)?;
        let count = count(&metrics, &format!("{WAIT}_count"), &cgroup, &[("state", "interruptible")])?;
        ensure!(count >= f64::from(turn * WAITS), "{count} waits of {turn} loads");
    }
    Ok(())
}

/// A realtime task has the CPU for 6 of 8 ms, and the load wakes up 2 ms after it last ran: it waits for 6 ms.
fn a_queue_is_as_long_as_who_is_before() -> Result<()> {
    const WAITS: u32 = 300;
    let agent = Agent::start(ON)?;
    let (realtime, cgroup) = (TestCgroup::new("realtime")?, TestCgroup::new("queued")?);
    let _bursts = Load::start(&format!(
        "fifo --seconds 0.006 --times 5000 --pause-millis 2 --cpu 0 --cgroup {}",
        realtime.path().display()
    ))?;
    let _: SleepersReport =
        run(&format!("sleepers --waits {WAITS} --millis 2 --cpu 0 --cgroup {}", cgroup.path().display()))?;
    let metrics = agent.fresh_metrics()?;
    sums_are_the_counters(&metrics, &cgroup)?;
    let (queued, found) =
        (count(&metrics, &format!("{QUEUE}_count"), &cgroup, &[])?, bucket(&metrics, QUEUE, &cgroup, &[], -7)?);
    ensure!(found >= f64::from(WAITS) * 0.6, "{found} of {queued} waits for a CPU took about 6 ms");
    let whole = time(&metrics, &format!("{QUEUE}_sum"), &cgroup, &[])?;
    ensure!(whole > Duration::from_millis(3) * WAITS, "only {whole:?} in the run queue");
    Ok(())
}
