//! The sensor `latencies`. The truth is the number of system calls that the load makes, and this program's clock.

use std::{
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use nix::sys::signal::Signal;
use podperf_tests::{
    agent::{self, Agent, Metrics},
    bpffs::Bpffs,
    cgroup::TestCgroup,
    load::calls::CallsReport,
    running::{Load, count, run, time},
    suite::Test,
    tests,
};

pub(crate) const TESTS: &[Test] = tests![
    #[exact]
    calls_over_migrations_upgrades_and_kills_are_exact,
    a_sleep_in_a_call_is_measured_whole_over_an_upgrade,
    #[land]
    #[exact]
    only_the_calls_of_the_setting_are_measured,
    ends_that_no_programs_saw_make_no_long_call,
];

const LATENCY: &str = "podperf_cgroup_syscall_latency_seconds";

/// Returns the configuration with these settings of the sensor, and this cap.
fn yaml(settings: &str, cap: &str) -> String {
    format!(
        "sensors: {{latencies: {{enabled: true{settings}}}}}\noverhead: {{maxPercent: {cap}}}\n\
         metrics: {{classicBuckets: true}}\n"
    )
}

/// Returns the number of calls in the histogram of this call; none has no series.
fn calls(metrics: &Metrics, cgroup: &TestCgroup, call: &str) -> f64 {
    count(metrics, &format!("{LATENCY}_count"), cgroup, &[("syscall", call)]).unwrap_or_default()
}

/// Makes system calls in `cgroup`. Returns their number.
fn make_calls(cgroup: &TestCgroup) -> Result<f64> {
    let report: CallsReport = run(&format!("calls --rounds 1000 --cgroup {}", cgroup.path().display()))?;
    Ok(f64::from(report.rounds))
}

/// Starts a load that blocks in `read`, and moves it into `cgroup`. Returns also when it blocked at the latest.
pub(crate) fn blocked_in(cgroup: &TestCgroup) -> Result<(Load, Instant)> {
    let mut load = Load::start("faults --wait --pages 1 --switches 1")?;
    load.wait_for_word("ready")?;
    load.wait_until_blocked()?;
    cgroup.add(load.pid())?;
    Ok((load, Instant::now()))
}

/// The other build has another word before the words of each row of a sensor.
fn calls_over_migrations_upgrades_and_kills_are_exact() -> Result<()> {
    let bpffs = Bpffs::mount()?;
    let yaml = format!("{}\n{}", bpffs.yaml(), yaml("", "0"));
    let mut agent = Agent::start(&yaml)?;
    let cgroup = TestCgroup::new("measured")?;
    let (ours, theirs) = (agent::binary()?, agent::other_layout()?);
    let mut rounds = 0.0;
    for build in [&theirs, &ours, &ours] {
        rounds += make_calls(&cgroup)?;
        agent.restart_as(build, Signal::SIGKILL, &yaml)?;
        let metrics = agent.fresh_metrics()?;
        for (call, number) in [("openat", rounds), ("read", 2.0 * rounds), ("fsync", rounds)] {
            let found = calls(&metrics, &cgroup, call);
            ensure!(found == number, "{found} of {number} calls of `{call}`");
        }
    }
    Ok(())
}

/// The load blocks twice: for its first line, and for its second one while the agent is replaced.
fn a_sleep_in_a_call_is_measured_whole_over_an_upgrade() -> Result<()> {
    const SLEEP: Duration = Duration::from_millis(300);
    let bpffs = Bpffs::mount()?;
    let yaml = format!("{}\n{}", bpffs.yaml(), yaml("", "0"));
    let mut agent = Agent::start(&yaml)?;
    let (cgroup, start) = (TestCgroup::new("asleep")?, Instant::now());
    let (mut load, blocked) = blocked_in(&cgroup)?;
    thread::sleep(SLEEP);
    let mut least = blocked.elapsed();
    load.go_on()?;
    load.wait_for_word("done")?;
    load.wait_until_blocked()?;
    let blocked = Instant::now();
    agent.restart_as(&agent::other_layout()?, Signal::SIGKILL, &yaml)?;
    thread::sleep(SLEEP);
    least += blocked.elapsed();
    load.go_on()?;
    load.end()?;
    let most = start.elapsed();
    let metrics = agent.fresh_metrics()?;
    let found = time(&metrics, &format!("{LATENCY}_sum"), &cgroup, &[("syscall", "read")])?;
    let reads = calls(&metrics, &cgroup, "read");
    ensure!((least..=most).contains(&found), "{found:?} in {reads} calls of `read`, of {least:?} to {most:?}");
    let long = long_reads(&metrics, &cgroup)?;
    ensure!(
        long == 2.0,
        "{long} of {reads} calls of `read` took over a quarter of a second, and the load slept in two"
    );
    Ok(())
}

fn only_the_calls_of_the_setting_are_measured() -> Result<()> {
    let agent = Agent::start(&yaml(", calls: [fsync, openat]", "0"))?;
    let cgroup = TestCgroup::new("chosen")?;
    let rounds = make_calls(&cgroup)?;
    let metrics = agent.fresh_metrics()?;
    let found = ["fsync", "openat", "read", "write"].map(|call| calls(&metrics, &cgroup, call));
    ensure!(found == [rounds, rounds, 0.0, 0.0], "{found:?} calls, of {rounds} each of the first two alone");
    Ok(())
}

/// Returns how many calls of `read` took over a quarter of a second.
fn long_reads(metrics: &Metrics, cgroup: &TestCgroup) -> Result<f64> {
    let border = 2_f64.powi(-2).to_string();
    let short = [("syscall", "read"), ("le", border.as_str())];
    Ok(calls(metrics, cgroup, "read") - count(metrics, &format!("{LATENCY}_bucket"), cgroup, &short)?)
}

/// The load blocks in one call of `read`, which ends while other programs measure another call, and then in the next
/// one, which begins unseen.
fn ends_that_no_programs_saw_make_no_long_call() -> Result<()> {
    let bpffs = Bpffs::mount()?;
    let yaml = |call: &str| format!("{}\n{}", bpffs.yaml(), yaml(&format!(", calls: [{call}]"), "0"));
    let mut agent = Agent::start(&yaml("read"))?;
    let cgroup = TestCgroup::new("unseen")?;
    let (mut load, _) = blocked_in(&cgroup)?;
    thread::sleep(Duration::from_millis(300));
    agent.restart(Signal::SIGKILL, &yaml("fsync"))?;
    load.go_on()?;
    load.wait_for_word("done")?;
    load.wait_until_blocked()?;
    agent.restart(Signal::SIGKILL, &yaml("read"))?;
    load.go_on()?;
    load.end()?;
    make_calls(&cgroup)?;
    let long = long_reads(&agent.fresh_metrics()?, &cgroup)?;
    ensure!(long == 0.0, "{long} long calls of `read`, of two whose begin or end no programs saw");
    Ok(())
}
