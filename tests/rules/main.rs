//! The chart's rules, dashboards and runbooks, the pages and the reference of metrics: do they agree with the agent and with
//! each other? Needs no root. That queries find data on a real agent is a test of the ring `kube`.

mod dashboards;
mod imports;
mod layers;
mod links;
mod lint;
mod meaning;
mod names;
mod noise;
mod paths;
mod promtool;
mod release;
mod repository;
mod runbooks;
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
        workflows::TESTS,
        layers::TESTS,
        lint::TESTS,
        paths::TESTS,
        meaning::TESTS,
        dashboards::TESTS,
    ];
    suite::run_beside_others(&tests.concat())
}
