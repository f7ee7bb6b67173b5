//! The commands, one file each, and what they exit with.

mod agent;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::{config::ConfigError, events::plan::PlanError, kernel::host::Unsupported};

/// Tells why a pod is slow: counts, waits and stacks per cgroup.
#[derive(Debug, Parser)]
#[command(
    name = "podperf",
    version,
    after_help = "Exit codes: 0 done; 1 failed; 2 bad arguments or configuration; 3 this machine cannot run podperf."
)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Count, sample and serve until SIGTERM or SIGINT; SIGHUP reloads the configuration.
    Agent(agent::Arguments),
}

impl Cli {
    /// Runs the command.
    ///
    /// # Errors
    ///
    /// Whatever ended it; see [`exit_code`].
    pub fn run(self) -> anyhow::Result<()> {
        match self.command {
            Command::Agent(arguments) => agent::run(&arguments),
        }
    }
}

/// What to exit with, so that scripts and supervisors can tell what is worth a restart.
#[must_use]
pub fn exit_code(error: &anyhow::Error) -> ExitCode {
    if error.is::<ConfigError>() || error.is::<PlanError>() {
        ExitCode::from(2)
    } else if error.is::<Unsupported>() {
        ExitCode::from(3)
    } else {
        ExitCode::FAILURE
    }
}
