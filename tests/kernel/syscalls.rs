//! The sensor `syscalls`. The truth is the system call that the load makes, and the counters of the same time.

use std::{thread, time::Duration};

use anyhow::{Result, ensure};
use nix::sys::signal::Signal;
use podperf_tests::{
    agent::{self, Agent, Metrics},
    bpffs::Bpffs,
    cgroup::TestCgroup,
    process,
    running::{Load, OFFCPU, time},
    suite::Test,
    tests,
};

use crate::{
    going_on::CHARGED_AFTER,
    reasons::{Blocked, DISK},
};

#[cfg(target_arch = "x86_64")]
mod bits_32;

pub(crate) fn tests() -> Vec<Test> {
    let tests: &[Test] = tests![
        waits_are_in_the_call_that_slept,
        waits_for_a_disk_are_in_their_call_and_those_for_pages_in_none: &[DISK],
        #[exact] a_call_over_an_upgrade_keeps_its_name,
        #[land] #[measures] a_call_that_began_before_the_sensor_has_its_name,
    ];
    #[cfg(target_arch = "x86_64")]
    let tests = [tests, bits_32::TESTS].concat();
    tests.to_vec()
}

const ON: &str = "sensors: {syscalls: {enabled: true}}";
const WAIT: &str = "podperf_cgroup_syscall_wait_seconds_total";

/// Returns the time in all of these calls.
fn waited(metrics: &Metrics, cgroup: &TestCgroup, calls: &[&str]) -> Duration {
    // A call without waits has no series.
    calls.iter().filter_map(|call| time(metrics, WAIT, cgroup, &[("syscall", call)]).ok()).sum()
}

/// Checks that all calls together are the counters of both kinds of sleep, to the nanosecond. The load has ended.
fn calls_are_the_counters(metrics: &Metrics, cgroup: &TestCgroup) -> Result<()> {
    let counter = |state| time(metrics, OFFCPU, cgroup, &[("state", state)]).unwrap_or_default();
    let counters = counter("interruptible") + counter("uninterruptible");
    let calls = Duration::from_secs_f64(metrics.sum(WAIT, &[("cgroup", cgroup.kernel_path())]));
    ensure!(calls.abs_diff(counters) < Duration::from_micros(1), "{calls:?} in all calls, and {counters:?} asleep");
    Ok(())
}

/// Checks the calls of loads that block: the name of the load, and the calls in which it may wait.
fn blocked(cases: &[(&str, &[&str])]) -> Result<()> {
    let agent = Agent::start(ON)?;
    for (on, calls) in cases {
        let load = Blocked::run(&agent, on)?;
        calls_are_the_counters(&load.metrics, &load.cgroup)?;
        let found = waited(&load.metrics, &load.cgroup, calls);
        load.is_found(&format!("{on}: waits in {calls:?}"), found)?;
        ensure!(found > Duration::from_millis(1), "{on}: only {found:?} in {calls:?}");
    }
    Ok(())
}

/// The C library decides between an older and a newer call.
fn waits_are_in_the_call_that_slept() -> Result<()> {
    blocked(&[
        ("futex", &["futex"]),
        ("network", &["recvfrom"]),
        ("pipe", &["read"]),
        ("poll", &["poll", "ppoll"]),
        ("sleep", &["nanosleep", "clock_nanosleep"]),
    ])
}

fn waits_for_a_disk_are_in_their_call_and_those_for_pages_in_none() -> Result<()> {
    blocked(&[("disk", &["fdatasync"]), ("page-fault", &["(none)"])])
}

/// Starts a load that blocks in a read.
pub(crate) fn reader(cgroup: &TestCgroup) -> Result<Load> {
    let mut load = Load::start(&format!("faults --pages 1 --switches 1 --wait --cgroup {}", cgroup.path().display()))?;
    load.wait_for_word("ready")?;
    load.go_on()?;
    load.wait_for_word("done")?;
    load.wait_until_blocked()?;
    // From now on a reading charges a part of the wait.
    thread::sleep(CHARGED_AFTER);
    Ok(load)
}

/// Ends the read, and checks that its whole wait since `began_ns` is in `read`.
fn is_a_read(agent: &Agent, cgroup: &TestCgroup, mut load: Load, began_ns: u64) -> Result<()> {
    let least = Duration::from_nanos(process::monotonic_ns()? - began_ns);
    load.go_on()?;
    load.end()?;
    let metrics = agent.fresh_metrics()?;
    let (found, other) = (waited(&metrics, cgroup, &["read"]), waited(&metrics, cgroup, &["(other)"]));
    ensure!(found >= least, "{found:?} in `read`, {other:?} in other calls, of at least {least:?}");
    Ok(())
}

/// From one layout to another, and back.
fn a_call_over_an_upgrade_keeps_its_name() -> Result<()> {
    let bpffs = Bpffs::mount()?;
    let yaml = format!("{}\n{ON}", bpffs.yaml());
    let mut agent = Agent::start(&yaml)?;
    let cgroup = TestCgroup::new("over")?;
    let load = reader(&cgroup)?;
    let began_ns = process::monotonic_ns()?;
    for build in [agent::other_layout()?, agent::binary()?] {
        agent.restart_as(&build, Signal::SIGTERM, &yaml)?;
        agent.fresh_metrics()?;
    }
    is_a_read(&agent, &cgroup, load, began_ns)
}

/// The programs of both agents have one layout, and share the records of tasks.
fn a_call_that_began_before_the_sensor_has_its_name() -> Result<()> {
    let bpffs = Bpffs::mount()?;
    let mut agent = Agent::start(&bpffs.yaml())?;
    let cgroup = TestCgroup::new("before")?;
    let load = reader(&cgroup)?;
    let began_ns = process::monotonic_ns()?;
    agent.fresh_metrics()?;
    agent.restart_as(&agent::binary()?, Signal::SIGTERM, &format!("{}\n{ON}", bpffs.yaml()))?;
    is_a_read(&agent, &cgroup, load, began_ns)
}
