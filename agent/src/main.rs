//! `podperf`: see [`podperf::cli`].

use std::process::ExitCode;

use clap::Parser;
use podperf::cli::{Cli, exit_code};

#[expect(clippy::print_stderr, reason = "the last word of a command that failed, log or no log")]
fn main() -> ExitCode {
    match Cli::parse().run() {
        Ok(code) => code,
        Err(error) => {
            eprintln!("podperf: {error:#}");
            exit_code(&error)
        }
    }
}
