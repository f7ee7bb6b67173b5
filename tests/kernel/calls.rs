//! The sensor `calls`, and recordings of system calls. The truth is the number of system calls that the load makes.

use std::{thread, time::Duration};

use anyhow::{Context as _, Result, ensure};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use podperf_tests::{
    agent::{self, Agent, Metrics},
    bpffs::Bpffs,
    cgroup::TestCgroup,
    http::{ask, get_within},
    load::{calls::CallsReport, storm::StormReport},
    process::refuse_call,
    running::{Counts, count, run},
    suite::{Need, Test, has_own_machine, within},
    tests,
};
use serde_json::Value;

use crate::syscalls::reader;

pub(crate) const TESTS: &[Test] = tests![
    #[exact]
    calls_and_errors_over_migrations_are_exact: &[Need::Cpus(2)],
    #[exact]
    calls_go_on_over_upgrades_and_kills,
    #[exact]
    only_errors_are_counted_where_the_setting_says_so,
    #[land]
    #[exact]
    the_begin_of_a_child_is_no_call,
    a_refused_call_has_its_name_and_its_errno,
    a_call_that_begins_again_is_interrupted_each_time,
    #[exact]
    a_recording_has_each_call_and_each_error,
];

/// Without a cap: the loads do nothing but system calls, and over the cap the sensor stops counting.
const ON: &str = "sensors: {calls: {enabled: true}}\noverhead: {maxPercent: 0}";
const CALLS: &str = "podperf_cgroup_syscalls_total";
const ERRORS: &str = "podperf_cgroup_syscall_errors_total";

/// Returns the number of calls of this name; none has no series.
pub(crate) fn calls(metrics: &Metrics, cgroup: &TestCgroup, call: &str) -> f64 {
    count(metrics, CALLS, cgroup, &[("syscall", call)]).unwrap_or_default()
}

/// Runs the load in `cgroup`, and returns its calls and those of `before`.
fn load(cgroup: &TestCgroup, rounds: u32, before: CallsReport) -> Result<CallsReport> {
    let more: CallsReport = run(&format!("calls --rounds {rounds} --cgroup {}", cgroup.path().display()))?;
    Ok(CallsReport { rounds: before.rounds + more.rounds, moves: before.moves + more.moves })
}

/// Checks all calls whose number the load knows, and all errors.
fn are_exact(metrics: &Metrics, cgroup: &TestCgroup, truth: CallsReport) -> Result<()> {
    let (rounds, moves) = (f64::from(truth.rounds), f64::from(truth.moves));
    let expected = [
        ("openat", rounds),
        ("read", 2.0 * rounds),
        ("fsync", rounds),
        ("getppid", rounds),
        ("(other)", moves),
        ("kill", moves),
        ("rt_sigsuspend", moves),
        ("rt_sigreturn", moves),
    ];
    for (call, number) in expected {
        let found = calls(metrics, cgroup, call);
        ensure!(found == number, "{found} of {number} calls of `{call}`");
    }
    errors_are_exact(metrics, cgroup, truth)
}

/// Checks all errors.
fn errors_are_exact(metrics: &Metrics, cgroup: &TestCgroup, truth: CallsReport) -> Result<()> {
    let (rounds, moves) = (f64::from(truth.rounds), f64::from(truth.moves));
    // No series is for `fsync` with EINVAL, and none for `rt_sigsuspend` with EINTR.
    let expected = [
        ("openat", "ENOENT", rounds),
        ("read", "EBADF", rounds),
        ("(other)", "EINVAL", rounds),
        ("(other)", "EINTR", moves),
    ];
    for (call, errno, number) in expected {
        let found = count(metrics, ERRORS, cgroup, &[("syscall", call), ("errno", errno)])?;
        ensure!(found == number, "{found} of {number} errors `{errno}` of `{call}`");
    }
    let (all, truth) = (metrics.sum(ERRORS, &[("cgroup", cgroup.kernel_path())]), 3.0 * rounds + moves);
    ensure!(all == truth, "{all} errors, of {truth}");
    Ok(())
}

const NONE: CallsReport = CallsReport { rounds: 0, moves: 0 };

/// Ten million calls of four processes; fewer where each instruction is emulated.
fn calls_and_errors_over_migrations_are_exact() -> Result<()> {
    let agent = Agent::start(ON)?;
    let cgroup = TestCgroup::new("calls")?;
    let truth = load(&cgroup, if has_own_machine() { 50_000 } else { 500_000 }, NONE)?;
    are_exact(&agent.fresh_metrics()?, &cgroup, truth)
}

/// The other build has another word before the words of each row of a sensor.
fn calls_go_on_over_upgrades_and_kills() -> Result<()> {
    let bpffs = Bpffs::mount()?;
    let yaml = format!("{}\n{ON}", bpffs.yaml());
    let mut agent = Agent::start(&yaml)?;
    let cgroup = TestCgroup::new("upgraded")?;
    let (ours, theirs) = (agent::binary()?, agent::other_layout()?);
    let mut truth = NONE;
    for build in [&theirs, &ours, &ours] {
        truth = load(&cgroup, 1000, truth)?;
        agent.restart_as(build, Signal::SIGKILL, &yaml)?;
        are_exact(&agent.fresh_metrics()?, &cgroup, truth)?;
    }
    Ok(())
}

fn only_errors_are_counted_where_the_setting_says_so() -> Result<()> {
    let agent = Agent::start(&ON.replace("{enabled: true}", "{enabled: true, errorsOnly: true}"))?;
    let cgroup = TestCgroup::new("errors")?;
    let truth = load(&cgroup, 1000, NONE)?;
    let metrics = agent.fresh_metrics()?;
    errors_are_exact(&metrics, &cgroup, truth)?;
    ensure!(metrics.get(CALLS, &[]).is_none(), "there are series of calls");
    Ok(())
}

/// A child begins with the return of the call that made it, which its parent made.
fn the_begin_of_a_child_is_no_call() -> Result<()> {
    let agent = Agent::start(ON)?;
    let cgroup = TestCgroup::new("children")?;
    let report: StormReport = run(&format!("storm --count 1000 --cgroup {}", cgroup.path().display()))?;
    let metrics = agent.fresh_metrics()?;
    let [made, slept] = ["clone", "nanosleep"].map(|call| calls(&metrics, &cgroup, call));
    let children = f64::from(u32::try_from(report.children)?);
    ensure!(made == children && slept == children, "{made} `clone` and {slept} `nanosleep` of {report:?}");
    Ok(())
}

/// A seccomp profile refuses a call before the kernel begins it.
fn a_refused_call_has_its_name_and_its_errno() -> Result<()> {
    let agent = Agent::start(ON)?;
    let cgroup = TestCgroup::new("refused")?;
    let mut command = cgroup.command();
    // This program ignores the error.
    let status = refuse_call(command.arg("sync"), libc::SYS_sync).status().context("failed to run `sync`")?;
    ensure!(status.success(), "`sync` ended with {status}");
    let metrics = agent.fresh_metrics()?;
    let refused = [("syscall", "(other)"), ("errno", "EPERM")];
    let errors = count(&metrics, ERRORS, &cgroup, &refused).unwrap_or_default();
    let all = calls(&metrics, &cgroup, "sync");
    ensure!(all == 1.0 && errors == 1.0, "{all} calls of `sync`, and {errors} errors `EPERM`");
    Ok(())
}

/// A thread that was stopped begins its call again when it goes on, and the program sees neither.
fn a_call_that_begins_again_is_interrupted_each_time() -> Result<()> {
    const STOPS: u32 = 5;
    let agent = Agent::start(ON)?;
    let cgroup = TestCgroup::new("stopped")?;
    let load = reader(&cgroup)?;
    let pid = Pid::from_raw(i32::try_from(load.pid())?);
    let reads = |metrics: &Metrics| {
        let interrupted = [("syscall", "read"), ("errno", "EINTR")];
        [calls(metrics, &cgroup, "read"), count(metrics, ERRORS, &cgroup, &interrupted).unwrap_or_default()]
    };
    let before = reads(&agent.fresh_metrics()?);
    for _ in 0..STOPS {
        kill(pid, Signal::SIGSTOP)?;
        within(Duration::from_secs(20), "the load is stopped", || {
            Ok((Counts::of(load.pid())?.state == "T").then_some(()))
        })?;
        kill(pid, Signal::SIGCONT)?;
        load.wait_until_blocked()?;
    }
    let after = reads(&agent.fresh_metrics()?);
    let more = [after[0] - before[0], after[1] - before[1]];
    ensure!(more == [f64::from(STOPS); 2], "{more:?} returns of `read`, and with `EINTR`, for {STOPS} stops");
    Ok(())
}

/// The load enters the cgroup by a call that began elsewhere. Its last call, `exit_group`, never returns.
fn a_recording_has_each_call_and_each_error() -> Result<()> {
    const PROCESSES: u64 = 4;
    let agent = Agent::start("")?;
    let cgroup = TestCgroup::new("recorded")?;
    let (address, id) = (agent.address(), "/debug/recordings/calls");
    let path = format!("/debug/syscalls?subject={}&seconds=300&format=json&id=calls", cgroup.kernel_path());
    let recording = thread::spawn(move || get_within(Duration::from_secs(330), address, &path));
    within(Duration::from_secs(30), "the recording begins", || {
        ensure!(!recording.is_finished(), "the recording has ended");
        let (status, _, far) = agent.get(id, &[])?;
        Ok((status == 200 && !String::from_utf8(far)?.contains("null")).then_some(()))
    })?;
    let truth = load(&cgroup, 1000, NONE)?;
    let (status, ..) = ask(address, &format!("DELETE {id}"), &[], "")?;
    ensure!(status == 204, "its end is answered with {status}");
    let (status, _, body) = recording.join().ok().context("the request panicked")??;
    let text = String::from_utf8(body)?;
    ensure!(status == 200, "{status}: {text}");
    let report: Value = serde_json::from_str(&text)?;
    let calls = report["calls"].as_array().context("no calls")?;
    let (rounds, moves) = (u64::from(truth.rounds), u64::from(truth.moves));
    for (name, number, errors) in [
        ("openat", rounds, rounds),
        ("read", 2 * rounds, rounds),
        ("fsync", rounds, rounds),
        ("getppid", rounds, 0),
        ("sched_setaffinity", moves, 0),
        ("kill", moves, 0),
        ("rt_sigsuspend", moves, moves),
        ("rt_sigreturn", moves, 0),
    ] {
        let call = calls.iter().find(|call| call["syscall"] == name).with_context(|| format!("no `{name}`: {text}"))?;
        let of = |key: &str| call[key].as_u64().with_context(|| format!("no `{key}`: {text}"));
        let found = (of("calls")?, of("errors")?);
        ensure!(found == (number, errors), "`{name}`: {found:?} calls and errors, of {number} and {errors}");
        let (total, min, max) = (of("total_ns")?, of("min_ns")?, of("max_ns")?);
        ensure!(0 < min && min * number <= total && total <= max * number, "`{name}`: {total} ns, {min} to {max}");
    }
    let missing = &report["not_counted"];
    let expected = [("began_before", PROCESSES), ("in_progress", 0), ("not_entered", 0), ("lost", 0)];
    ensure!(expected.iter().all(|(key, number)| missing[*key] == *number), "{missing}, expected {expected:?}");
    Ok(())
}
