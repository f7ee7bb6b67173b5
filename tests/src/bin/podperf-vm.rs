//! `podperf-vm`: runs ring 2 on several kernels, behind `make vm`.

use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;
use podperf_tests::vm::{self, VmArgs};

/// Run ring 2 on a row of kernels
#[derive(Debug, Parser)]
struct Cli {
    #[command(flatten)]
    args: VmArgs,
}

fn main() -> Result<ExitCode> {
    Ok(if vm::run(&Cli::parse().args)? { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
