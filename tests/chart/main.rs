//! The Helm chart: its renderings, its error messages, and its documents. The tests use the real helm, built by
//! `build.sh`, and a real API server without nodes, and need no root.

mod agent;
mod api_server;
mod commands;
mod compatibility;
mod config;
mod demo;
mod documents;
mod examples;
mod helm;
mod kubernetes;
mod labels;
mod managed;
mod mixin;
mod network;
mod open_profiles;
mod privileges;
mod prometheus;
mod refusals;
mod rules;
mod schema;
mod secrets;
mod value_sets;
mod wrong_values;

use std::process::ExitCode;

use podperf_tests::{control_plane::SharedPlane, suite};

fn main() -> ExitCode {
    let rendered = [examples::TESTS, privileges::TESTS, kubernetes::TESTS, rules::TESTS, mixin::TESTS].concat();
    let values = [schema::TESTS, wrong_values::TESTS, refusals::TESTS, config::TESTS].concat();
    let others =
        [agent::TESTS, documents::TESTS, commands::TESTS, prometheus::TESTS, demo::TESTS, compatibility::TESTS]
            .concat();
    let traps = [labels::TESTS, network::TESTS, open_profiles::TESTS, secrets::TESTS].concat();
    let installed = [api_server::TESTS, api_server::UMBRELLA, managed::TESTS].concat();
    let code = suite::run_beside_others(&[rendered, values, others, traps, installed].concat());
    SharedPlane::end();
    code
}
