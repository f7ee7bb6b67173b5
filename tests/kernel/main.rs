//! Ring 2: the agent on the running kernel, against loads whose truth is known. Needs root.

use std::process::ExitCode;

use anyhow::{Result, ensure};
use podperf_tests::{agent::Agent, suite};

fn main() -> ExitCode {
    suite::run(&[("the_root_cgroup_is_a_row", &[], the_root_cgroup_is_a_row)])
}

fn the_root_cgroup_is_a_row() -> Result<()> {
    let agent = Agent::start("")?;
    let metrics = agent.fresh_metrics()?;
    ensure!(metrics.get("podperf_cgroup_oncpu_seconds_total", &[("cgroup", "/")]).is_some(), "no row for `/`");
    Ok(())
}
