//! `podperf`: see [`podperf::cli`].

use std::process::ExitCode;

use clap::Parser;
use podperf::cli::{Cli, exit_code, report};

fn main() -> ExitCode {
    match Cli::parse().run() {
        Ok(code) => code,
        Err(error) => {
            report(&error);
            exit_code(&error)
        }
    }
}
