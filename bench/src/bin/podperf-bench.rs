//! `podperf-bench`: the side-by-side benchmark behind `make bench`.

#![expect(clippy::print_stdout, reason = "the result is for the terminal")]

use anyhow::Result;
use clap::Parser as _;
use podperf_bench::BenchArgs;

fn main() -> Result<()> {
    print!("{}", podperf_bench::run(&BenchArgs::parse())?);
    Ok(())
}
