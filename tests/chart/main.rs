//! The Helm chart: what it renders, what it refuses, and that its documents say so. By the real helm, built by
//! `build.sh`; no cluster, no root.

mod agent;
mod commands;
mod config;
mod documents;
mod examples;
mod helm;
mod kubernetes;
mod privileges;
mod prometheus;
mod refusals;
mod rules;
mod schema;
mod wrong_values;

use std::process::ExitCode;

use podperf_tests::suite;

fn main() -> ExitCode {
    let rendered = [examples::TESTS, privileges::TESTS, kubernetes::TESTS, rules::TESTS].concat();
    let values = [schema::TESTS, wrong_values::TESTS, refusals::TESTS, config::TESTS].concat();
    let others = [agent::TESTS, documents::TESTS, commands::TESTS, prometheus::TESTS].concat();
    suite::run_beside_others(&[rendered, values, others].concat())
}
