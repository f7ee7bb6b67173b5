//! The commands, one file each, and what they exit with.

mod agent;
mod check;
mod client;
mod follow;
mod metrics;
mod overrides;
mod probe;
mod record;
mod run_dir;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::{
    config::ConfigError,
    events::plan::PlanError,
    export::otlp::EndpointError,
    kernel::{LoadError, host::Unsupported},
    pods::SourceError,
};

/// Tells why a pod is slow: counts, waits and stacks per cgroup.
#[derive(Debug, Parser)]
#[command(
    name = "podperf",
    version,
    after_help = "Exit codes: 0 done; 1 failed; 2 bad arguments or configuration; 3 this machine cannot run podperf. Those of \
                  `check`: 0 usable; 1 degraded; 2 unusable, or bad arguments or configuration."
)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Count, sample and serve until SIGTERM or SIGINT; SIGHUP reloads the configuration.
    Agent(agent::Arguments),
    /// Say what of the agent would work on this machine, and what would mend the rest.
    ///
    /// Exit codes: 0 usable; 1 degraded: something that was asked for is missing, and the rest works; 2 unusable: the
    /// agent would refuse to start, or arguments or configuration are bad.
    Check(check::Arguments),
    /// Record the stacks of a pod or cgroup for a while, as a flame graph or for pprof.
    ///
    /// Goes through the agent of this node where one runs, which needs no privileges. Else it looks by itself, which
    /// takes those of the agent, and is over with the recording. Ctrl-C ends it early and writes what there is.
    Record(Box<record::Arguments>),
    /// Ask agents over the network whether they are ready and count.
    ///
    /// A host name with several addresses, such as that of a headless Service, stands for all of them. Exit codes: 0 all
    /// are ready and count; 1 one is not, or none was found.
    Probe(probe::Arguments),
    /// Print what `/metrics` can hold: every family with its type, unit, labels and meaning.
    Metrics(metrics::Arguments),
}

impl Cli {
    /// Runs the command, and hands back what to exit with.
    ///
    /// # Errors
    ///
    /// Whatever ended it; see [`exit_code`].
    pub fn run(self) -> anyhow::Result<ExitCode> {
        match self.command {
            Command::Agent(arguments) => agent::run(&arguments).map(|()| ExitCode::SUCCESS),
            Command::Check(arguments) => check::run(&arguments),
            Command::Record(arguments) => record::run(&arguments).map(|()| ExitCode::SUCCESS),
            Command::Probe(arguments) => probe::run(&arguments),
            Command::Metrics(arguments) => metrics::run(&arguments).map(|()| ExitCode::SUCCESS),
        }
    }
}

/// What to exit with, so that scripts and supervisors can tell what is worth a restart.
#[must_use]
pub fn exit_code(error: &anyhow::Error) -> ExitCode {
    let bad = error.is::<ConfigError>() || error.is::<PlanError>() || error.is::<record::BadOutput>();
    let unusable = error.is::<SourceError>() || error.is::<EndpointError>();
    if bad || unusable || error.is::<check::Impossible>() {
        ExitCode::from(2)
    } else if error.is::<Unsupported>() || matches!(error.downcast_ref(), Some(LoadError::Lockdown { .. })) {
        ExitCode::from(3)
    } else {
        ExitCode::FAILURE
    }
}
