//! `podperf-soak`: the agent under churn behind `make soak`.

#![expect(clippy::print_stdout, reason = "the result is for the terminal")]

use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;
use podperf_bench::soak::{self, SoakArgs};

/// Keep an agent under churn, and say whether anything grows or gets lost
#[derive(Debug, Parser)]
struct Cli {
    #[command(flatten)]
    soak: SoakArgs,
}

fn main() -> Result<ExitCode> {
    let report = soak::run(Cli::parse().soak)?;
    println!("{report}");
    Ok(if report.passed() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
