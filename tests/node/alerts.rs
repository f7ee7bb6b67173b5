//! A real Prometheus with the chart's rules, and a pod that triggers an alert.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use podperf_tests::{
    prometheus::Prometheus,
    suite::{Test, within},
    tests,
};
use serde_json::json;

use crate::{
    cluster::{self, AGENT_PORT, NEEDS, is_ready},
    pods, release,
};

pub(crate) const TESTS: &[Test] = tests![
    the_run_queue_alert_fires_on_the_pod_that_deserves_it: NEEDS,
];

const FIRES_WITHIN: Duration = Duration::from_secs(240);
/// The time without another alert after the first one.
const QUIET_FOR: Duration = Duration::from_secs(20);
/// Four busy loops on one CPU: three of them always wait. Other pods have the other CPUs.
const CROWDED: &str =
    "for i in 1 2 3; do taskset 1 sh -c 'while :; do :; done' & done; taskset 1 sh -c 'while :; do :; done'";

fn the_run_queue_alert_fires_on_the_pod_that_deserves_it() -> Result<()> {
    let shared = cluster::shared()?;
    let cluster = shared.get()?;
    // The test uses the chart's thresholds, and changes only the duration of the alert.
    let patience = "prometheusRule.alerts.PodperfContainerRunqueueWait.for=10s";
    let rules = release::rules(cluster, &["prometheusRule.enabled=true", patience])?;
    ensure!(rules.contains("PodperfContainerRunqueueWait"), "the chart has no such alert: {rules}");
    let scraped = cluster.nodes.iter().map(|node| {
        let labels = json!({"instance": node.name(), "node": node.name()});
        Ok(json!({"targets": [node.port(AGENT_PORT)?], "labels": labels}))
    });
    let prometheus = Prometheus::start_with(
        &json!({
            "global": {"scrape_interval": "2s", "scrape_timeout": "2s", "evaluation_interval": "2s"},
            "scrape_configs": [{
                "job_name": "podperf",
                "honor_labels": true,
                "static_configs": scraped.collect::<Result<Vec<_>>>()?,
            }],
        }),
        Some(&rules),
    )?;
    let node = cluster.node().name();
    cluster.apply(&[pods::pod("crowded", node, &[pods::container("web", CROWDED)])])?;
    cluster.wait_for_pod(pods::NAMESPACE, "crowded", "is ready", is_ready)?;

    let firing = || prometheus.query(r#"ALERTS{alertname="PodperfContainerRunqueueWait", alertstate="firing"}"#);
    let fired = within(FIRES_WITHIN, "the alert fires", || Ok(firing().ok().filter(|alerts| !alerts.is_empty())));
    let shares = || prometheus.query("namespace_pod:podperf_cpu_contention:ratio_rate5m");
    fired.with_context(|| format!("{:?}\n{}", shares(), prometheus.log()))?;
    std::thread::sleep(QUIET_FOR);
    let alerts = firing()?;
    let pods: Vec<_> = alerts.iter().map(|alert| (&alert.labels["namespace"], &alert.labels["pod"])).collect();
    ensure!(
        matches!(pods[..], [(namespace, pod)] if namespace == pods::NAMESPACE && pod == "crowded"),
        "the alert fires on {pods:?}: {:?}",
        shares()?
    );
    cluster.control_plane.admin().delete_pod(pods::NAMESPACE, "crowded")
}
