//! Checks that the chart's rules, dashboards and runbooks, the pages and the reference of metrics agree with the agent
//! and with each other. Needs no root. The ring `kube` tests that queries find data on a real agent.

mod appearance;
mod dashboards;
mod imports;
mod layers;
mod links;
mod lint;
mod named;
mod names;
mod noise;
mod paths;
mod promtool;
mod release;
mod repository;
mod rings;
mod runbooks;
mod toolset;
mod workflows;

use std::process::ExitCode;

use podperf_tests::suite;

fn main() -> ExitCode {
    let tests = [
        promtool::TESTS,
        noise::TESTS,
        names::TESTS,
        runbooks::TESTS,
        links::TESTS,
        release::TESTS,
        repository::TESTS,
        rings::TESTS,
        workflows::TESTS,
        layers::TESTS,
        lint::TESTS,
        paths::TESTS,
        named::TESTS,
        dashboards::TESTS,
        appearance::TESTS,
        toolset::TESTS,
    ];
    suite::run_beside_others(&tests.concat())
}
