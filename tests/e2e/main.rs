//! The agent as its users meet it: command line, HTTP, a real Prometheus, a real OpenTelemetry Collector. Needs root.

mod check;
mod checked;
mod command;
mod filters;
mod lifecycle;
mod memo;
mod names;
mod nobody;
mod profiles;
mod refusals;
mod scrape;

use std::process::ExitCode;

use podperf_tests::suite;

fn main() -> ExitCode {
    suite::run(
        &[
            scrape::TESTS,
            profiles::TESTS,
            memo::TESTS,
            names::TESTS,
            filters::TESTS,
            refusals::TESTS,
            lifecycle::TESTS,
            check::TESTS,
        ]
        .concat(),
    )
}
