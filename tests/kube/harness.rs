//! Tests of this ring's own setup: the agent's role, and the cleaning of a shared control plane.

use std::{collections::BTreeSet, time::Duration};

use anyhow::{Result, ensure};
use podperf_tests::{
    control_plane::{Client, NEEDS, SharedPlane},
    kubelet::{Kubelet, Qos},
    suite::Test,
    tests,
};

pub(crate) const TESTS: &[Test] = tests![
    #[land] #[beside] the_service_account_may_only_read_pods: NEEDS,
    what_a_test_leaves_is_gone_for_the_next_one: NEEDS,
];

const AN_HOUR: Duration = Duration::from_secs(3600);
const PODS: &str = "/api/v1/pods";

/// The permissions of every service account by the server's default roles: to review itself, and to read the versions,
/// the health, the list of the APIs, and the keys of tokens.
const EVERY_SERVICE_ACCOUNT: &[&str] = &[
    "selfsubjectreviews.authentication.k8s.io [] [] [create]",
    "selfsubjectaccessreviews.authorization.k8s.io [] [] [create]",
    "selfsubjectrulesreviews.authorization.k8s.io [] [] [create]",
    "[/.well-known/openid-configuration/] [] [get]",
    "[/.well-known/openid-configuration] [] [get]",
    "[/api/*] [] [get]",
    "[/api] [] [get]",
    "[/apis/*] [] [get]",
    "[/apis] [] [get]",
    "[/healthz] [] [get]",
    "[/livez] [] [get]",
    "[/openapi/*] [] [get]",
    "[/openapi] [] [get]",
    "[/openid/v1/jwks/] [] [get]",
    "[/openid/v1/jwks] [] [get]",
    "[/readyz] [] [get]",
    "[/version/] [] [get]",
    "[/version] [] [get]",
];

fn the_service_account_may_only_read_pods() -> Result<()> {
    let control_plane = SharedPlane::take()?;
    let agent = control_plane.agent_credentials(AN_HOUR)?;
    for namespace in ["podperf", "kube-system"] {
        let list = control_plane.kubectl(&agent, &["auth", "can-i", "--list", "--no-headers", "-n", namespace])?;
        let rules: BTreeSet<_> =
            list.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        let mut allowed: BTreeSet<_> = EVERY_SERVICE_ACCOUNT.iter().map(ToString::to_string).collect();
        allowed.insert("pods [] [] [get list watch]".to_owned());
        ensure!(rules == allowed, "in {namespace}, the service account may\n{list}");
    }
    Ok(())
}

fn what_a_test_leaves_is_gone_for_the_next_one() -> Result<()> {
    let left = SharedPlane::take()?;
    Kubelet::new("a-node", left.admin())?.pod("shop", "cart", Qos::Burstable, &["web"])?;
    left.revoke()?;
    let address = left.address();
    drop(left);
    let found = SharedPlane::take()?;
    ensure!(found.address() == address, "it is another control plane");
    let agent = Client::new(&found.agent_credentials(AN_HOUR)?.kubeconfig())?;
    let pods = agent.get(PODS)?;
    ensure!(!pods.contains("\"cart\""), "there is a pod: {pods}");
    Ok(())
}
