//! The agent on real nodes of a real cluster: guests with a kubelet and a container runtime. Needs root.

mod alerts;
mod cluster;
mod image;
mod names;
mod pods;
mod profiles;
mod quickstart;
mod registry;
mod release;
mod uninstall;
mod upgrades;

use std::process::ExitCode;

use podperf_tests::suite;

fn main() -> ExitCode {
    let code = suite::run(
        &[
            image::TESTS,
            registry::TESTS,
            names::TESTS,
            alerts::TESTS,
            upgrades::TESTS,
            profiles::TESTS,
            uninstall::TESTS,
            quickstart::TESTS,
        ]
        .concat(),
    );
    cluster::end();
    code
}
