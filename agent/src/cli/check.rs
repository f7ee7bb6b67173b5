//! `podperf check`: reports which parts of the agent would work on this machine, before the agent starts.

use std::{
    io::{self, IsTerminal, Write},
    process::ExitCode,
};

use clap::{Args, ValueEnum};
use thiserror::Error;

use super::{
    overrides::{self, Overrides},
    run_dir,
};
use crate::{
    check::{Report, judge::judge, probe::Findings, table},
    config::parts,
    http,
    kernel::host::Host,
};

/// The flags of `podperf check`: the agent's, and how to print.
#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// table, or json for programs.
    #[arg(long, value_name = "FORM", default_value = "table", hide_possible_values = true)]
    output: Output,
    #[command(flatten)]
    overrides: Overrides,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Output {
    Table,
    Json,
}

/// The check could not run, and the agent could not run either.
#[derive(Debug, Error)]
#[error("failed to start the runtime")]
pub(super) struct Impossible(#[source] io::Error);

/// Checks the machine, prints the report, and returns the verdict's exit code.
pub(super) fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let file = arguments.overrides.file();
    let settings = overrides::settings(arguments.overrides.config()?, file)?;
    let plan = overrides::plan(&settings.config, file)?;
    let host = Host::read(overrides::cgroup_root(&settings.config));
    let run_dir = run_dir::probe(&settings.config.run_dir);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(Impossible)?;
    let config = &settings.config;
    let bind = async { http::bind(config.listen, config.server.tls_files(), parts::server_limits(config)).map(drop) };
    let findings = runtime.block_on(Findings::gather(&settings, &plan, host, run_dir, bind));
    // Name lookups that still run are abandoned: their time is over.
    runtime.shutdown_background();
    let report = judge(&settings.config, &findings);
    // A reader that closes the pipe has read enough, and still gets the verdict as the exit code.
    io::stdout().write_all(print(&report, arguments.output)?.as_bytes()).ok();
    Ok(ExitCode::from(report.verdict.exit_code()))
}

fn print(report: &Report, output: Output) -> anyhow::Result<String> {
    Ok(match output {
        Output::Table => {
            let no_color = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
            table::render(report, io::stdout().is_terminal() && !no_color)
        }
        Output::Json => serde_json::to_string_pretty(report)? + "\n",
    })
}
