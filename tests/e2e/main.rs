//! The agent as its users meet it: command line, HTTP, a real Prometheus, a real OpenTelemetry Collector. Needs root.

use std::process::ExitCode;

use anyhow::{Result, ensure};
use podperf_tests::{agent::Agent, suite};

fn main() -> ExitCode {
    suite::run(&[("a_started_agent_is_alive_and_ready", &[], a_started_agent_is_alive_and_ready)])
}

fn a_started_agent_is_alive_and_ready() -> Result<()> {
    let agent = Agent::start("")?;
    for path in ["/livez", "/readyz"] {
        let (status, _, _) = agent.get(path, &[])?;
        ensure!(status == 200, "{path} answered {status}");
    }
    Ok(())
}
