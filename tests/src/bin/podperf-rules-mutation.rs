//! `podperf-rules-mutation`: spoils each rule and wants the tests to notice, behind `make rules-mutation`.

use std::process::ExitCode;

use anyhow::Result;
use podperf_tests::rules::mutation;

fn main() -> Result<ExitCode> {
    Ok(if mutation::run()? { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
