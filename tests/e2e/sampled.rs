//! Recordings with more than wait times: samples on the CPU, wakers, and filters.

use std::{
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::Signal;
use podperf_tests::{
    agent::Agent,
    cgroup::TestCgroup,
    command::run_load,
    load::cpu::CpuReport,
    process,
    suite::{Need, Test, within},
    tests,
};
use tempfile::TempDir;

use crate::{
    profiles::Held,
    recorded::{Recording, slept},
};

pub(crate) const TESTS: &[Test] = tests![
    #[land] #[measures] a_burner_is_sampled_where_it_burns,
    #[land] #[beside] #[measures] a_wait_has_its_waker: &[Need::Program("go")],
    #[beside] a_sleep_is_ended_by_an_interrupt: &[Need::Program("go")],
    an_interrupt_is_not_the_work_of_those_who_are_interrupted: &[Need::Program("go"), Need::Cpus(2)],
    #[beside] a_waker_has_its_stack,
    #[land] #[measures] long_waits_are_told_one_by_one,
    #[beside] a_recording_has_only_what_its_filter_lets_pass,
];

/// Starts a recording of a cgroup through an agent, into a file of this extension.
fn record(agent: &Agent, cgroup: &TestCgroup, extension: &str, arguments: &[&str]) -> Result<Recording> {
    let url = agent.address().to_string();
    let arguments = [&[cgroup.kernel_path(), "--agent", &url][..], arguments].concat();
    let mut recording = Recording::start("", extension, &arguments)?;
    recording.begun()?;
    Ok(recording)
}

fn a_burner_is_sampled_where_it_burns() -> Result<()> {
    let agent = Agent::start("stacks: {onCpuHertz: 99}")?;
    let cgroup = TestCgroup::new("burner")?;
    let mut recording = record(&agent, &cgroup, "folded", &["--on-cpu", "--duration", "2m"])?;
    let load: CpuReport = run_load(cgroup.path(), &["spin", "--seconds", "2"])?;
    recording.interrupt()?;
    recording.ended()?;
    let text = String::from_utf8(recording.finish()?)?;
    let (mut all, mut burning) = (0.0, 0.0);
    for line in text.lines() {
        let (stack, nanoseconds) = line.rsplit_once(' ').context("not folded")?;
        let nanoseconds: f64 = nanoseconds.parse()?;
        all += nanoseconds;
        burning += if stack.contains("burn") { nanoseconds } else { 0.0 };
    }
    #[expect(clippy::cast_precision_loss, reason = "two seconds")]
    let truth = load.inside.cpu_ns as f64;
    // The recording has 200 samples at random places.
    ensure!((all - truth).abs() <= truth / 10.0, "{all} ns are sampled of {truth} ns:\n{text}");
    ensure!(burning >= all * 0.9, "only {burning} of {all} ns in the burning function:\n{text}");
    Ok(())
}

fn a_wait_has_its_waker() -> Result<()> {
    // The writer stays in its first cgroup, the cgroup of the tests.
    has_waker(&["blocked", "--on", "pipe", "--millis", "3000"], "waker_thread", "podperf-load")
}

fn a_sleep_is_ended_by_an_interrupt() -> Result<()> {
    has_waker(&["sleepers", "--waits", "100", "--millis", "30"], "waker", "(interrupt)")
}

/// Some of the interrupted threads run in user space, and some in the kernel.
fn an_interrupt_is_not_the_work_of_those_who_are_interrupted() -> Result<()> {
    let busy = TestCgroup::new("busy")?;
    let _in_user_space = ["0", "1"].map(|cpu| Held::start(&busy, &["spin", "--idle", "--seconds", "60", "--cpu", cpu]));
    let mut copy = Command::new("dd");
    process::bind_to_parent(&mut copy);
    copy.args(["if=/dev/zero", "of=/dev/null", "bs=4M"]).stdin(Stdio::null()).stderr(Stdio::null());
    let mut in_kernel = copy.spawn()?;
    let woken = has_waker(&["sleepers", "--waits", "100", "--millis", "30"], "waker", "(interrupt)");
    process::end(&mut in_kernel, Signal::SIGKILL, Duration::from_secs(5));
    woken
}

/// Checks that nine tenths of the time in which the load's long waits were blocked have this label.
fn has_waker(load: &[&str], label: &str, value: &str) -> Result<()> {
    let agent = Agent::start("stacks: {wakerAfter: 5ms}")?;
    let cgroup = TestCgroup::new("woken")?;
    let mut recording = record(&agent, &cgroup, "pb.gz", &["--duration", "2m"])?;
    // The recording ends with the load's report: later waits are not part of the load.
    let _: serde_json::Value = Held::start(&cgroup, load)?.finish()?;
    recording.interrupt()?;
    recording.ended()?;
    let directory = TempDir::new()?;
    let file = directory.path().join("out.pb.gz");
    std::fs::write(&file, recording.finish()?)?;
    let tags = Command::new("go").args(["tool", "pprof", "-tags"]).arg(&file).stdin(Stdio::null()).output()?;
    let tags = String::from_utf8(tags.stdout)?;
    let woken = share(&tags, label, value)?.with_context(|| format!("nobody was woken by `{value}`:\n{tags}"))?;
    // A thread that was woken also waits for a CPU, which has no waker.
    let queued = share(&tags, "state", "run_queue")?.unwrap_or(0.0);
    ensure!(woken >= 0.9 * (100.0 - queued), "only {woken} % were woken by `{value}`:\n{tags}");
    Ok(())
}

/// Returns the percentage of the time that has this label, from the output of `pprof -tags`.
fn share(tags: &str, label: &str, value: &str) -> Result<Option<f64>> {
    // ` waker_thread: Total 3.0s of 3.0s (  100%)`, then `                3.0s (  100%): podperf-load`.
    let mut lines = tags.lines().skip_while(|line| !line.trim_start().starts_with(&format!("{label}: ")));
    lines.next().with_context(|| format!("no `{label}`:\n{tags}"))?;
    let line = lines.take_while(|line| !line.trim().is_empty()).find(|line| line.trim_end().ends_with(value));
    let share = |line: &str| -> Result<f64> {
        let share = line.split('(').nth(1).and_then(|rest| rest.split('%').next()).context("no share")?;
        Ok(share.trim().parse()?)
    };
    line.map(share).transpose()
}

/// Returns two long waits of `sleepers`, the later one first.
fn long_waits(stacks: &str, arguments: &[&str]) -> Result<Vec<serde_json::Value>> {
    let agent = Agent::start(&format!("otlp: {{interval: 1s}}\nstacks: {{longWait: 500ms{stacks}}}"))?;
    let cgroup = TestCgroup::new("long")?;
    let load = Held::start(&cgroup, &[&["sleepers", "--waits", "2", "--millis", "600"], arguments].concat())?;
    let path = format!("/debug/waits?subject={}", cgroup.kernel_path());
    let waits = within(Duration::from_secs(30), "both are told", || {
        let (status, _, body) = agent.get(&path, &[])?;
        ensure!(status == 200, "{status}");
        let waits: Vec<serde_json::Value> = serde_json::from_slice(&body)?;
        Ok(Some(waits).filter(|waits| waits.len() >= 2))
    })?;
    drop(load);
    Ok(waits)
}

/// The parent waits until its child is gone.
fn a_waker_has_its_stack() -> Result<()> {
    let is_parents = |wait: &&serde_json::Value| wait["state"] == "uninterruptible";
    let waits = long_waits(", wakerStacks: true", &["--uninterruptible"])?;
    let wait = waits.iter().find(is_parents).with_context(|| format!("no wait for a child: {waits:#?}"))?;
    let stack = wait["waker_stack"].as_str().with_context(|| format!("no stack: {wait:#}"))?;
    let functions: Vec<_> = stack.split(';').collect();
    ensure!(functions.contains(&"main") && functions.contains(&"do_exit"), "{wait:#}");
    let is_sensor = |function: &&&str| function.contains("bpf_trace") || function.contains("traceiter");
    ensure!(functions.iter().find(is_sensor).is_none(), "the sensor is in it: {wait:#}");
    let waits = long_waits("", &["--uninterruptible"])?;
    ensure!(waits.iter().all(|wait| wait["waker_stack"].is_null()), "nobody asked for stacks: {waits:#?}");
    Ok(())
}

fn long_waits_are_told_one_by_one() -> Result<()> {
    let waits = long_waits("", &[])?;
    ensure!(waits.len() == 2, "two became {}: {waits:#?}", waits.len());
    for wait in &waits {
        let seconds = wait["seconds"].as_f64().context("no length")?;
        ensure!((0.6..0.7).contains(&seconds), "600 ms became {wait:#}");
        ensure!(wait["reason"] == "sleep" && wait["waker_of"] == "(interrupt)", "{wait:#}");
        let stack = wait["stack"].as_array().context("no stack")?;
        ensure!(stack.iter().any(|function| function == "podperf_wait_inner"), "{wait:#}");
    }
    let ended = |at: usize| waits[at]["ended"].as_f64().context("no time");
    let apart = ended(0)? - ended(1)?;
    ensure!((0.6..0.7).contains(&apart), "the second one ended {apart} s after the first");
    Ok(())
}

fn a_recording_has_only_what_its_filter_lets_pass() -> Result<()> {
    let agent = Agent::start("")?;
    let cgroup = TestCgroup::new("filtered")?;
    let load = Held::start(&cgroup, &["sleepers", "--waits", "1000000", "--millis", "20"])?;
    let tid = format!("tid == {}", load.pid());
    for (filter, expected, ways) in [
        ("duration >= 20ms && state == S", true, &[true, false][..]),
        ("duration < 10ms || reason == disk", false, &[true, false]),
        (tid.as_str(), true, &[true]),
        ("tid == 1", false, &[true]),
    ] {
        for &through in ways {
            let arguments = ["--duration", "1s", "--filter", filter];
            let recording = if through {
                record(&agent, &cgroup, "folded", &arguments)?
            } else {
                Recording::start("", "folded", &[&[cgroup.kernel_path()][..], &arguments].concat())?
            };
            let (slept, says) = match recording.finish() {
                Ok(folded) => (slept(&folded)?, String::from_utf8(folded)?),
                Err(error) if error.to_string().contains("nothing was recorded") => (0.0, error.to_string()),
                Err(error) => return Err(error),
            };
            ensure!((slept > 0.5e9) == expected, "`{filter}` through an agent ({through}): {slept} ns: {says}");
        }
    }
    Ok(())
}
