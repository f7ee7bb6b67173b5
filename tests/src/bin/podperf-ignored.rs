//! `podperf-ignored`: lists the tests that `make test` left out, behind `make ignored`.

use anyhow::Result;
use clap::Parser;
use podperf_tests::ignored::{self, IgnoredArgs};

/// Name the tests that were ignored, and fail for a reason that is not listed
#[derive(Debug, Parser)]
struct Cli {
    #[command(flatten)]
    args: IgnoredArgs,
}

fn main() -> Result<()> {
    ignored::run(&Cli::parse().args)
}
