//! A real Prometheus with the chart's rules, and pods that trigger alerts.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use podperf_tests::{
    prometheus::Prometheus,
    suite::{Test, within},
    tests,
};
use serde_json::json;

use crate::{
    cluster::{self, AGENT_PORT, Cluster, NEEDS, is_ready},
    pods, release,
};

pub(crate) const TESTS: &[Test] = tests![
    the_run_queue_alert_fires_on_the_pod_that_deserves_it: NEEDS,
    a_loop_over_its_cpu_limit_is_throttled_and_waits_for_nobody: NEEDS,
];

const RUNQUEUE_WAIT: &str = "PodperfContainerRunqueueWait";
const THROTTLED: &str = "PodperfContainerThrottled";
const FIRES_WITHIN: Duration = Duration::from_secs(240);
/// The time without another alert after the first one.
const QUIET_FOR: Duration = Duration::from_secs(20);
/// Four busy loops on one CPU: three of them always wait. Other pods have the other CPUs.
const CROWDED: &str =
    "for i in 1 2 3; do taskset 1 sh -c 'while :; do :; done' & done; taskset 1 sh -c 'while :; do :; done'";

fn the_run_queue_alert_fires_on_the_pod_that_deserves_it() -> Result<()> {
    let shared = cluster::shared()?;
    let cluster = shared.get()?;
    let prometheus = watch(cluster)?;
    let node = cluster.node().name();
    cluster.apply(&[pods::pod("crowded", node, &[pods::container("web", CROWDED)])])?;
    cluster.wait_for_pod(pods::NAMESPACE, "crowded", "is ready", is_ready)?;
    let pods = fired(&prometheus, RUNQUEUE_WAIT, "namespace_pod:podperf_cpu_contention:ratio_rate5m")?;
    ensure!(pods == ["crowded"], "the alert fires on {pods:?}");
    cluster.control_plane.admin().delete_pod(pods::NAMESPACE, "crowded")
}

fn a_loop_over_its_cpu_limit_is_throttled_and_waits_for_nobody() -> Result<()> {
    let shared = cluster::shared()?;
    let cluster = shared.get()?;
    let prometheus = watch(cluster)?;
    let node = cluster.node();
    let mut web = pods::container("web", "while :; do :; done");
    web["resources"] = json!({"limits": {"cpu": "200m"}});
    cluster.apply(&[pods::pod("capped", node.name(), &[web])])?;
    cluster.wait_for_pod(pods::NAMESPACE, "capped", "is ready", is_ready)?;
    let alerts = fired(&prometheus, THROTTLED, "namespace_pod:podperf_throttled:ratio_rate5m")?;
    ensure!(alerts == ["capped"], "the alert fires on {alerts:?}");
    let verdicts = prometheus.query(r#"namespace_pod:podperf_verdict:info{namespace="shop", pod="capped"}"#)?;
    let verdicts: Vec<_> = verdicts.iter().map(|verdict| &verdict.labels["verdict"]).collect();
    ensure!(verdicts == ["throttled"], "the verdict is {verdicts:?}");
    let other =
        format!(r#"count_over_time(ALERTS{{alertname="{RUNQUEUE_WAIT}", alertstate="firing", pod="capped"}}[1h])"#);
    let other = prometheus.query(&other)?;
    ensure!(other.is_empty(), "{RUNQUEUE_WAIT} fired: {other:?}");
    cluster.control_plane.admin().delete_pod(pods::NAMESPACE, "capped")
}

/// Starts a Prometheus that scrapes all agents.
fn watch(cluster: &Cluster) -> Result<Prometheus> {
    let mut set = vec!["prometheusRule.enabled=true".to_owned()];
    // The tests use the chart's thresholds, and change only the duration of the alerts.
    set.extend([RUNQUEUE_WAIT, THROTTLED].map(|alert| format!("prometheusRule.alerts.{alert}.for=10s")));
    let rules = release::rules(cluster, &set)?;
    for alert in [RUNQUEUE_WAIT, THROTTLED] {
        ensure!(rules.contains(alert), "the chart has no alert {alert}: {rules}");
    }
    let scraped = cluster.nodes.iter().map(|node| {
        let labels = json!({"instance": node.name(), "node": node.name()});
        Ok(json!({"targets": [node.port(AGENT_PORT)?], "labels": labels}))
    });
    Prometheus::start_with(
        &json!({
            "global": {"scrape_interval": "2s", "scrape_timeout": "2s", "evaluation_interval": "2s"},
            "scrape_configs": [{
                "job_name": "podperf",
                "honor_labels": true,
                "static_configs": scraped.collect::<Result<Vec<_>>>()?,
            }],
        }),
        Some(&rules),
    )
}

/// Waits until an alert fires, and returns its pods some time later. The series in `shares` explains a failure.
fn fired(prometheus: &Prometheus, alert: &str, shares: &str) -> Result<Vec<String>> {
    let firing = || prometheus.query(&format!(r#"ALERTS{{alertname="{alert}", alertstate="firing"}}"#));
    let fired =
        within(FIRES_WITHIN, &format!("{alert} fires"), || Ok(firing().ok().filter(|alerts| !alerts.is_empty())));
    let shares = || prometheus.query(shares);
    fired.with_context(|| format!("{:?}\n{}", shares(), prometheus.log()))?;
    std::thread::sleep(QUIET_FOR);
    let alerts = firing()?;
    Ok(alerts.iter().map(|alert| alert.labels["pod"].clone()).collect())
}
