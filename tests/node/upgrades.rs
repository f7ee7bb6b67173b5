//! The effect of `helm upgrade` on counts, and `helm test`.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use podperf_tests::{
    agent::Metrics,
    http,
    node::GUEST_HOST,
    suite::{Test, within},
    tests,
};
use serde_json::{Value, json};

use crate::{
    cluster::{self, AGENT_PORT, Cluster, NEEDS},
    release::{self, NAMESPACE},
};

pub(crate) const TESTS: &[Test] = tests![
    helm_test_asks_the_agent: NEEDS,
    an_upgrade_that_the_agent_follows_loses_no_count: NEEDS,
    an_upgrade_that_restarts_the_agent_loses_no_count: NEEDS,
];

const ONCPU: &str = "podperf_container_oncpu_seconds_total";
const CPU_CLOCK: &str = "podperf_container_cpu_clock_seconds_total";
const FAULTS: &str = "podperf_container_page_faults_total";
/// The time limit for a changed ConfigMap: the kubelet updates its mounted files at its next sync.
const FOLLOWED_WITHIN: Duration = Duration::from_secs(120);

fn helm_test_asks_the_agent() -> Result<()> {
    let shared = cluster::shared()?;
    let cluster = shared.get()?;
    // The cluster has no DNS, so the test names one agent, by its port on the test host.
    let ask = |port: u16| -> Result<String> {
        let url = format!("http://{GUEST_HOST}:{port}");
        release::upgrade(cluster, &json!({"tests": {"url": url, "wait": "5s"}}))?;
        release::helm(cluster, &["test", NAMESPACE, "--timeout=3m"])
    };
    let said = ask(cluster.node().port(AGENT_PORT)?.port())?;
    ensure!(said.contains("Phase:          Succeeded"), "{said}");
    ensure!(ask(http::free_address()?.port()).is_err(), "nobody is there, and the test passes");
    // A user runs this command next, after a failed `helm test`.
    let log = cluster.control_plane.admin_kubectl(&["logs", "--namespace", NAMESPACE, "podperf-test"])?;
    ensure!(log.contains("0 of 1 agents are ready and count"), "{log}");
    cluster.control_plane.admin().delete_pod(NAMESPACE, "podperf-test")
}

fn an_upgrade_that_the_agent_follows_loses_no_count() -> Result<()> {
    let shared = cluster::shared()?;
    let cluster = shared.get()?;
    let agent = release::agent_of(cluster, cluster.node().name())?;
    let before = release::fresh_metrics(cluster, 0)?;
    ensure!(before.get(FAULTS, &[]).is_none(), "page faults are exported before they are asked for");

    release::upgrade(cluster, &json!({"config": {"metrics": {"facts": ["oncpu", "page_faults"]}}}))?;
    let after = within(FOLLOWED_WITHIN, "the agent exports page faults", || {
        let metrics = release::fresh_metrics(cluster, 0)?;
        Ok(metrics.get(FAULTS, &[]).is_some().then_some(metrics))
    })?;
    ensure!(
        after.get("podperf_container_offcpu_seconds_total", &[("state", "run_queue")]).is_none(),
        "what was taken away is there"
    );
    let still = release::agent_of(cluster, cluster.node().name())?;
    ensure!(still.metadata.uid == agent.metadata.uid, "another agent: {still:?}");
    ensure_nothing_fell(&before, &after)
}

fn an_upgrade_that_restarts_the_agent_loses_no_count() -> Result<()> {
    let shared = cluster::shared()?;
    let cluster = shared.get()?;
    let first = release::fresh_metrics(cluster, 0)?;
    // The defaults of earlier builds.
    let all = json!({"own": "all"});
    restart(cluster, &json!({"mode": "metrics", "host": {"ownPinsOnly": false}, "config": {"metrics": all}}))?;
    let before = release::fresh_metrics(cluster, 0)?;
    ensure_nothing_fell(&first, &before)?;
    // Debian's kernels require this capability: they start with a kernel.perf_event_paranoid of 3.
    let capabilities = json!({"capabilities": {"addSysAdmin": true}});
    let counters = json!({"groups": [["cpu-clock"]]});
    restart(cluster, &json!({"securityContext": capabilities, "config": {"counters": counters, "metrics": all}}))?;
    let mut seen = None;
    let after = within(FOLLOWED_WITHIN, "the new agent counts what it was told to", || {
        let metrics = seen.insert(release::fresh_metrics(cluster, 0)?);
        let counts = metrics.get(CPU_CLOCK, &[]).is_some_and(|sum| sum > 0.0);
        Ok(counts.then(|| metrics.clone()))
    });
    let states = || seen.iter().flat_map(Metrics::samples).filter(|sample| sample.name == "podperf_pmu_event_state");
    let after = after.with_context(|| format!("{:?}", states().collect::<Vec<_>>()))?;
    ensure_nothing_fell(&before, &after)?;
    let taken_over = |metrics: &Metrics| metrics.sum("podperf_starts_total", &[("how", "taken_over")]);
    ensure!(taken_over(&after) > taken_over(&before), "the pins of the whole bpffs are not found in the own directory");
    // No agent ran in between, and the counts of that time are there.
    let busy = |metrics: &Metrics| metrics.sum(ONCPU, &[("namespace", "shop"), ("container", "proxy")]);
    ensure!(busy(&after) > busy(&before), "{} s after {} s", busy(&after), busy(&before));
    Ok(())
}

/// Changes the release's values, and waits for the next agent.
fn restart(cluster: &Cluster, values: &Value) -> Result<()> {
    let old = release::agent_of(cluster, cluster.node().name())?;
    release::upgrade(cluster, values)?;
    within(cluster::PATIENCE, "there is another agent", || {
        let agent = release::agent_of(cluster, cluster.node().name())?;
        Ok((agent.metadata.uid != old.metadata.uid).then_some(()))
    })?;
    release::reach(cluster)
}

/// Checks that each container's counter is at least its earlier value.
fn ensure_nothing_fell(before: &Metrics, after: &Metrics) -> Result<()> {
    let fallen: Vec<_> = containers(before)
        // The agent's own container may be a new one.
        .filter(|(labels, _)| labels[0] != NAMESPACE)
        .filter(|(labels, value)| after.get(ONCPU, &pairs(labels)).is_none_or(|now| now < *value))
        .collect();
    ensure!(fallen.is_empty(), "these have lost counts: {fallen:?}");
    Ok(())
}

/// Returns the series of a fact, by the labels that identify a container.
fn containers(metrics: &Metrics) -> impl Iterator<Item = ([String; 3], f64)> + '_ {
    let of = metrics.samples().iter().filter(|sample| sample.name == ONCPU);
    of.map(|sample| {
        let label = |name: &str| sample.labels.get(name).cloned().unwrap_or_default();
        ([label("namespace"), label("pod"), label("container")], sample.value)
    })
}

fn pairs(labels: &[String; 3]) -> [(&str, &str); 3] {
    [("namespace", &labels[0]), ("pod", &labels[1]), ("container", &labels[2])]
}
