//! The agent as its users meet it: command line, HTTP, a real Prometheus, a real OpenTelemetry Collector. Needs root.

mod check;
mod checked;
mod command;
mod lifecycle;
mod nobody;
mod profiles;
mod receivers;
mod refusals;
mod scrape;

use std::process::ExitCode;

use podperf_tests::suite;

fn main() -> ExitCode {
    suite::run(
        &[scrape::TESTS, profiles::TESTS, receivers::TESTS, refusals::TESTS, lifecycle::TESTS, check::TESTS].concat(),
    )
}
