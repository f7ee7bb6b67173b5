//! Tests of the agent as a user runs it: command line, HTTP, a real Prometheus, a real OpenTelemetry Collector. Needs
//! root.

mod accessible;
mod addresses;
mod bounds;
mod check;
mod checked;
mod commands;
mod conformance;
mod cuts;
mod debug_files;
mod examples;
mod filters;
mod flood;
mod full;
mod hung;
mod java;
mod lifecycle;
mod limits;
mod mounts;
mod musl;
mod names;
mod nobody;
mod pages;
mod privileges;
mod profiles;
mod proxies;
mod readers;
mod reasons;
mod receivers;
mod record;
mod recorded;
mod refusals;
mod restart;
mod sampled;
mod scrape;
mod stack_cache;
mod storm;
mod strangers;
mod syscalls;
mod tls;
mod waiting;
mod wide_filters;
mod zero_first;

use std::process::ExitCode;

use podperf_tests::suite;

fn main() -> ExitCode {
    let agent = [
        scrape::TESTS,
        refusals::TESTS,
        commands::TESTS,
        lifecycle::TESTS,
        restart::TESTS,
        bounds::TESTS,
        check::TESTS,
        proxies::TESTS,
        mounts::TESTS,
    ]
    .concat();
    let server = [
        limits::TESTS,
        readers::TESTS,
        wide_filters::TESTS,
        strangers::TESTS,
        flood::TESTS,
        tls::TESTS,
        privileges::TESTS,
    ]
    .concat();
    let receivers = [addresses::TESTS, profiles::TESTS, receivers::TESTS, conformance::TESTS, examples::TESTS].concat();
    let waits = [waiting::TESTS, zero_first::TESTS].concat();
    let stacks = [
        names::TESTS,
        debug_files::TESTS,
        hung::TESTS,
        musl::TESTS,
        java::TESTS,
        filters::TESTS,
        stack_cache::TESTS,
        storm::TESTS,
        full::TESTS,
    ]
    .concat();
    let shown =
        [record::TESTS, syscalls::TESTS, cuts::TESTS, sampled::TESTS, pages::TESTS, accessible::TESTS, reasons::TESTS]
            .concat();
    suite::run(&[agent, waits, server, receivers, stacks, shown].concat())
}
