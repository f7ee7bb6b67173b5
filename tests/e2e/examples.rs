//! The example receivers of `config`. The tests use the same files and change only addresses.

use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use podperf_tests::{
    agent::{self, Agent},
    collector::Collector,
    command::Refusal,
    rules::root,
    suite::{Test, within},
    tests,
};
use tempfile::TempDir;

use crate::{
    profiles::{DEADLINE, GO},
    receivers::arrives,
};

pub(crate) const TESTS: &[Test] = tests![
    #[beside] the_example_collector_shows_what_it_takes_and_passes_it_on: &[GO],
    #[land] #[beside] the_agent_takes_the_example_for_pyroscope,
];

const PYROSCOPE: &str = "config/pyroscope.yaml";

fn the_example_collector_shows_what_it_takes_and_passes_it_on() -> Result<()> {
    let backend = Collector::start()?;
    let example = Collector::start_example(&backend)?;
    let agent = Agent::start(&format!(
        "otlp: {{endpoint: '{}', interval: 1s, metrics: {{enabled: true, interval: 1s}}}}",
        example.endpoint()
    ))?;
    arrives(&agent, &backend).with_context(|| example.log())?;
    within(DEADLINE, "metrics are passed on", || {
        Ok((!backend.metric("podperf.cgroup.oncpu.time")?.is_empty()).then_some(()))
    })
    .with_context(|| example.log())?;
    let log = example.log();
    ensure!(["Profiles", "Metrics"].iter().all(|kind| log.contains(kind)), "not shown: {log}");
    Ok(())
}

/// Starts the agent without a cgroup tree. It reads its configuration before it fails.
fn the_agent_takes_the_example_for_pyroscope() -> Result<()> {
    let empty = TempDir::new()?;
    let mut command = Command::new(agent::binary()?);
    command.args(["agent", "--config"]).arg(root().join(PYROSCOPE)).arg("--cgroup-root").arg(empty.path());
    Refusal::of(&mut command)?.expect(3, &["is not a cgroup2 mount"])
}
