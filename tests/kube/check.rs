//! `podperf check` before an agent is on the node: it asks the real API server, and reports every obstacle to names.

use std::{process::Command, time::Duration};

use anyhow::{Context as _, Result, ensure};
use podperf_tests::{
    agent,
    cluster::{NODE, SHOP, SOON, Spoilt, configuration},
    control_plane::NEEDS,
    kubelet::Qos,
    suite::{Test, within},
    tests,
};
use serde_json::Value;
use tempfile::TempDir;

pub(crate) const TESTS: &[Test] = tests![
    #[land] #[beside] check_says_beforehand_whether_pods_will_have_names: NEEDS,
];

const AN_HOUR: Duration = Duration::from_secs(3600);
const USABLE: i32 = 0;
const DEGRADED: i32 = 1;

fn check_says_beforehand_whether_pods_will_have_names() -> Result<()> {
    let spoilt = Spoilt::start(AN_HOUR)?;
    let of = |node: &str, code: i32, id: &str, names: &[&str]| -> Result<()> {
        let config = configuration(&spoilt.credentials, node, "", "counters: {groups: []}");
        let directory = TempDir::new()?;
        let agent = agent::command(directory.path(), &config)?;
        let mut command = Command::new(agent.get_program());
        let output = command.arg("check").args(agent.get_args().skip(1)).args(["--output", "json"]).output()?;
        let report: Value = serde_json::from_slice(&output.stdout)?;
        let checks = report["checks"].as_array().context("no lines")?;
        let pods = checks.iter().find(|line| line["check"] == "pods").context("no line `pods`")?;
        let words = [&pods["detail"], &pods["fix"]].map(|text| text.as_str().unwrap_or_default()).join(" ");
        let right = output.status.code() == Some(code) && pods["id"] == id;
        ensure!(
            right && names.iter().all(|name| words.contains(name)),
            "not {code}, `{id}` with {names:?}: {report:#}"
        );
        Ok(())
    };
    // The credentials are right, but nothing proves the node's name.
    of(NODE, DEGRADED, "pods-none", &["`a-node`", "`nodeName`"])?;
    let _pod = spoilt.kubelet.pod(SHOP, "cart", Qos::Burstable, &["web"])?;
    of(NODE, USABLE, "pods-known", &["1 pods", "`a-node`"])?;
    of("another-node", DEGRADED, "pods-none", &["`another-node`"])?;
    spoilt.plane.revoke()?;
    let refused = ["`podperf/podperf`", "config/rbac.yaml"];
    within(SOON, "the role is gone", || Ok(of(NODE, DEGRADED, "pods-refused", &refused).ok()))
}
