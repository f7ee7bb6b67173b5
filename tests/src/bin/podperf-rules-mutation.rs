//! `podperf-rules-mutation [PART]`: spoils each rule, or the rules with PART in their name, and expects the tests to
//! fail.

use std::process::ExitCode;

use anyhow::Result;
use podperf_tests::rules::mutation;

fn main() -> Result<ExitCode> {
    let filter = std::env::args().nth(1);
    Ok(if mutation::run(filter.as_deref())? { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
