//! The agent and a real Kubernetes API server, with a played kubelet. Needs root.

mod access;
mod cardinality;
mod causes;
mod check;
mod churn;
mod counted;
mod counters;
mod credentials;
mod dashboards;
mod delays;
mod drawing;
mod examples;
mod hangs;
mod harness;
mod holders;
mod kubeconfig;
mod kubelet_source;
mod large;
mod line;
mod names;
mod outages;
mod profiles;
mod restarts;
mod slow;
mod strange;

use std::process::ExitCode;

use podperf_tests::{control_plane::SharedPlane, suite};

fn main() -> ExitCode {
    let code = suite::run(
        &[
            // The tests with the longest waits come first, so that all other tests run beside them.
            hangs::TESTS,
            podperf_tests::clock::TESTS,
            harness::TESTS,
            names::TESTS,
            cardinality::TESTS,
            profiles::TESTS,
            kubelet_source::TESTS,
            churn::TESTS,
            restarts::TESTS,
            outages::TESTS,
            delays::TESTS,
            credentials::TESTS,
            access::TESTS,
            check::TESTS,
            holders::TESTS,
            kubeconfig::TESTS,
            strange::TESTS,
            large::TESTS,
            slow::TESTS,
            causes::TESTS,
            dashboards::TESTS,
            drawing::TESTS,
            examples::TESTS,
        ]
        .concat(),
    );
    SharedPlane::end();
    code
}
