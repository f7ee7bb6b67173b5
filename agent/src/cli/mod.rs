//! The commands, one file each, and their exit codes.

mod agent;
mod check;
mod client;
mod completions;
mod follow;
mod healthcheck;
mod man;
mod metrics;
mod overrides;
mod probe;
mod record;
mod run_dir;
mod time;
mod unpin;
mod version;

use std::{
    io::{self, Write as _},
    process::ExitCode,
};

use anyhow::Context as _;
use clap::{CommandFactory as _, Parser, Subcommand, error::ErrorKind};

use crate::{
    config::ConfigError,
    events::plan::PlanError,
    export::otlp::EndpointError,
    kernel::{LoadError, host::Unsupported},
    pods::SourceError,
    transport::tls::TlsError,
};

/// Tells why a pod is slow: counts, waits and stacks per cgroup.
#[derive(Debug, Parser)]
#[command(
    name = "podperf",
    version,
    long_version = version::LONG,
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
    /// Report which parts of the agent would work on this machine, and how to fix the others.
    ///
    /// Exit codes: 0 usable; 1 degraded: something that was asked for is missing, and the rest works; 2 unusable: the
    /// agent would refuse to start, or arguments or configuration are bad.
    Check(check::Arguments),
    /// Record the stacks of a pod or cgroup for a while, as a flame graph or for pprof, or its system calls.
    ///
    /// Records through the agent of this node, which needs no privileges. Without an agent it starts the sensors
    /// itself, which needs the agent's privileges. Ctrl-C ends the recording early and writes what there is.
    Record(Box<record::Arguments>),
    /// Ask agents over the network whether they are ready and count.
    ///
    /// A host name with several addresses, such as that of a headless Service, stands for all of them. Exit codes: 0 all
    /// are ready and count; 1 one is not, or none was found.
    Probe(probe::Arguments),
    /// Ask the agent of this container whether it is alive or ready, for the kubelet's probes.
    ///
    /// It asks by a socket of the network namespace, so that no flood of the agent's port keeps it out. Exit codes: 0
    /// yes; 1 no, or no agent of this user.
    Healthcheck(healthcheck::Arguments),
    /// Print what `/metrics` can hold: every family with its type, unit, labels and meaning.
    Metrics(metrics::Arguments),
    /// Remove what agents have pinned and kept on this machine. No agent may run.
    ///
    /// Counters begin at zero in the next agent.
    Unpin(unpin::Arguments),
    /// Print a script with which a shell completes these commands and their flags.
    Completions(completions::Arguments),
    /// Print the manual page, or write the pages of all commands into a directory.
    Man(man::Arguments),
}

impl Cli {
    /// Runs the command, and returns its exit code.
    ///
    /// # Errors
    ///
    /// Returns any error that ended the command; see [`exit_code`].
    pub fn run(self) -> anyhow::Result<ExitCode> {
        match self.command {
            Command::Agent(arguments) => agent::run(&arguments).map(|()| ExitCode::SUCCESS),
            Command::Check(arguments) => check::run(&arguments),
            Command::Record(arguments) => record::run(&arguments).map(|()| ExitCode::SUCCESS),
            Command::Probe(arguments) => probe::run(&arguments),
            Command::Healthcheck(arguments) => healthcheck::run(&arguments),
            Command::Metrics(arguments) => metrics::run(&arguments).map(|()| ExitCode::SUCCESS),
            Command::Unpin(arguments) => unpin::run(&arguments).map(|()| ExitCode::SUCCESS),
            Command::Completions(arguments) => completions::run(&arguments).map(|()| ExitCode::SUCCESS),
            Command::Man(arguments) => man::run(&arguments).map(|()| ExitCode::SUCCESS),
        }
    }
}

/// Prints an error on stderr in the form of clap's own errors: after `error:`, coloured on a terminal.
pub fn report(error: &anyhow::Error) {
    // A stderr that is closed has no reader.
    clap::Error::raw(ErrorKind::Io, format!("{error:#}\n")).with_cmd(&Cli::command()).print().ok();
}

/// Prints the whole output of a command. A reader that closes the pipe has read enough.
fn print(text: &[u8]) -> anyhow::Result<()> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error).context("failed to write to stdout"),
        _ => Ok(()),
    }
}

/// Returns the exit code for an error, so that scripts and supervisors can decide which failures are worth a restart.
#[must_use]
pub fn exit_code(error: &anyhow::Error) -> ExitCode {
    let bad_argument = error.is::<record::BadOutput>() || error.is::<record::BadSubject>();
    let bad = bad_argument || error.is::<ConfigError>() || error.is::<PlanError>();
    let unusable = error.is::<SourceError>() || error.is::<EndpointError>() || error.is::<TlsError>();
    let unsupported = error.is::<Unsupported>() || error.is::<record::NobodyRecords>();
    if bad || unusable || error.is::<check::Impossible>() {
        ExitCode::from(2)
    } else if unsupported || error.downcast_ref().is_some_and(LoadError::is_unsupported) {
        ExitCode::from(3)
    } else {
        ExitCode::FAILURE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn help(command: &str) -> String {
        let mut all = Cli::command();
        all.build();
        all.find_subcommand_mut(command).unwrap().render_long_help().to_string()
    }

    #[test]
    fn the_command_is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_commands_own_flags_come_first_and_shared_ones_under_headings() {
        for (command, own) in [("agent", "--log-level"), ("check", "--output"), ("record", "--on-cpu")] {
            let text = help(command);
            let at = |word: &str| text.find(word).unwrap_or_else(|| panic!("no `{word}` in {text}"));
            assert!(at("\nOptions:") < at(own) && at(own) < at("--config"), "{text}");
            assert!(at("--config") < at("\nKubernetes:") && at("\nKubernetes:") < at("--kubeconfig"), "{text}");
            assert!(at("--kubeconfig") < at("\nConnection:"), "{text}");
            assert!(text.contains("[env: NODE_NAME]"), "{text}");
        }
    }

    #[test]
    fn a_recording_without_a_subject_is_refused_with_both_ways_to_name_one() {
        let error = Cli::try_parse_from(["podperf", "record"]).unwrap_err().to_string();
        assert!(error.contains("<POD|CGROUP|--all>"), "{error}");
        assert!(Cli::try_parse_from(["podperf", "record", "--all", "/a"]).is_err());
        assert!(Cli::try_parse_from(["podperf", "record", "--all"]).is_ok());
    }
}
