//! The agent as its users meet it: command line, HTTP, a real Prometheus, a real OpenTelemetry Collector. Needs root.

mod check;
mod checked;
mod command;
mod lifecycle;
mod nobody;
mod pages;
mod profiles;
mod record;
mod recorded;
mod refusals;
mod scrape;

use std::process::ExitCode;

use podperf_tests::suite;

fn main() -> ExitCode {
    let agent = [scrape::TESTS, profiles::TESTS, refusals::TESTS, lifecycle::TESTS].concat();
    suite::run(&[&agent, check::TESTS, record::TESTS, pages::TESTS].concat())
}
