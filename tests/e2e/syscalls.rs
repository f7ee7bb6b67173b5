//! `podperf record --syscalls`: the table and the JSON, alone and through an agent.

use anyhow::{Context as _, Result, ensure};
use podperf_tests::{
    agent::{Agent, NO_STACKS},
    cgroup::TestCgroup,
    command::Refusal,
    suite::Test,
    tests,
};
use serde_json::Value;
use tempfile::TempDir;

use crate::{
    profiles::Held,
    recorded::{Recording, command},
};

pub(crate) const TESTS: &[Test] = tests![
    #[beside]
    system_calls_are_recorded_through_an_agent_and_alone,
    #[beside]
    an_agent_without_recordings_refuses_system_calls,
];

const FAILED: i32 = 1;

fn system_calls_are_recorded_through_an_agent_and_alone() -> Result<()> {
    let agent = Agent::start("")?;
    let url = agent.address().to_string();
    let cgroup = TestCgroup::new("calls")?;
    let _load = Held::start(&cgroup, &["sleepers", "--waits", "100000"])?;
    let flags = [cgroup.kernel_path(), "--syscalls", "--duration", "1s"];
    let json = Recording::start("", "json", &[&flags[..], &["--agent", url.as_str()]].concat())?.finish()?;
    let report: Value = serde_json::from_slice(&json)?;
    ensure!(report["subject"] == cgroup.kernel_path() && report["ended_early"].is_null(), "{report:#}");
    let calls = report["calls"].as_array().context("no calls")?;
    let slept = |call: &&Value| call["syscall"].as_str().is_some_and(|name| name.ends_with("nanosleep"));
    let slept = calls.iter().find(slept).with_context(|| format!("nobody slept: {report:#}"))?;
    ensure!(slept["calls"].as_u64() > Some(0) && slept["total_ns"].as_u64() > Some(0), "{slept:#}");
    let directory = TempDir::new()?;
    let output = command(directory.path(), "", &flags)?.output()?;
    let table = String::from_utf8(output.stdout)?;
    let says = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{says}");
    let heads = |line: &str| line.starts_with("syscall ") && line.ends_with(" max");
    ensure!(table.lines().any(heads) && table.contains("nanosleep"), "{table}{says}");
    Ok(())
}

fn an_agent_without_recordings_refuses_system_calls() -> Result<()> {
    let agent = Agent::start(NO_STACKS)?;
    let (url, directory) = (agent.address().to_string(), TempDir::new()?);
    let mut command = command(directory.path(), "", &["--all", "--syscalls", "--agent", &url])?;
    Refusal::of(&mut command)?.expect(FAILED, &["makes no recordings in its mode", "set `stacks.enabled: true`"])
}
