//! Invalid or short-lived pods and statuses. No count is lost or goes to another pod.

use std::{collections::BTreeMap, thread, time::Duration};

use anyhow::{Result, ensure};
use http::Method;
use podperf_tests::{
    agent::{Agent, Metrics},
    cluster::{
        BURN, CGROUP_ONCPU, Cluster, NODE, ONCPU, SHOP, SOON, Spoilt, burn_in, configuration, is_close, wait_for_part,
    },
    control_plane::NEEDS,
    kubelet::{self, Kubelet, Qos, random_id},
    suite::Test,
    tests,
};
use serde_json::json;

pub(crate) const TESTS: &[Test] = tests![
    without_a_status_one_of_two_containers_is_counted_with_all_pods: NEEDS,
    a_status_of_a_container_that_is_not_there_makes_no_series: NEEDS,
    #[land] a_pod_that_the_api_does_not_know_is_unresolved_until_it_does: NEEDS,
    #[land] #[exact] a_pod_and_its_successor_of_the_same_name_share_the_series: NEEDS,
    #[land] #[exact] a_pod_that_is_deleted_before_it_ends_has_its_last_counts: NEEDS,
    a_node_name_that_no_pod_has_is_doubted: NEEDS,
];

const PATIENCE: &str = "patience: 2s";
const WAITING: &str = "podperf_cgroups_unresolved";
const POD_INFO: &str = "podperf_pod_info";
const AN_HOUR: Duration = Duration::from_secs(3600);

fn without_a_status_one_of_two_containers_is_counted_with_all_pods() -> Result<()> {
    let cluster = Cluster::start(PATIENCE, "")?;
    let row = all_pods(&cluster.kubelet);
    let mut pod = cluster.kubelet.pod(SHOP, "silent", Qos::Burstable, &["app", "proxy"])?;
    let before = cluster.agent.fresh_metrics()?.sum(CGROUP_ONCPU, &[("cgroup", &row)]);
    let mut truth = Duration::ZERO;
    for container in ["app", "proxy"] {
        // Both lives together are too short for a row of the pod's own.
        let running = pod.start(container, BURN / 4)?;
        truth += pod.finish(running)?.cpu;
    }
    let metrics = cluster.wait_for(CGROUP_ONCPU, &[("cgroup", &row)], |seconds| is_close(seconds - before, truth))?;
    ensure!(of(&metrics, "silent").is_none(), "a guess: {:?}", of(&metrics, "silent"));
    // A later status names only later lives.
    let running = pod.start("app", BURN)?;
    pod.report()?;
    let finished = pod.finish(running)?;
    cluster.wait_for_cpu("silent", "app", finished.cpu)?;
    Ok(())
}

fn a_status_of_a_container_that_is_not_there_makes_no_series() -> Result<()> {
    let cluster = Cluster::start(PATIENCE, "")?;
    let mut pod = cluster.kubelet.pod(SHOP, "ghost", Qos::Burstable, &["app", "proxy"])?;
    report_id(&cluster, "ghost", &format!("containerd://{}", random_id()?))?;
    // The pause is longer than the patience, so a wrong series would exist by now.
    thread::sleep(Duration::from_secs(3));
    let metrics = cluster.agent.fresh_metrics()?;
    let series = metrics.samples().iter().find(|sample| sample.labels.get("pod").is_some_and(|pod| pod == "ghost"));
    ensure!(series.is_none(), "of nothing: {series:?}");
    let running = pod.start("app", BURN)?;
    pod.report()?;
    let finished = pod.finish(running)?;
    cluster.wait_for_cpu("ghost", "app", finished.cpu)?;
    ensure_undisturbed(&cluster)
}

fn a_pod_that_the_api_does_not_know_is_unresolved_until_it_does() -> Result<()> {
    let cluster = Cluster::start(PATIENCE, "")?;
    let unresolved = |metrics: &Metrics| metrics.sum(CGROUP_ONCPU, &[("cgroup", "(unresolved)")]);
    // This pod's container runs before the pod is bound to this node. The path has the pod's UID, but the watch has no
    // such pod.
    let unbound = cluster.plane.admin().create_pod(&kubelet::pod(SHOP, "late", Qos::Burstable, &["app"])?)?;
    let mut pod = cluster.kubelet.take_up(unbound)?;
    let before = unresolved(&cluster.agent.fresh_metrics()?);
    let first = pod.start("app", BURN)?;
    first.burnt()?;
    let truth = first.cgroup().cpu_usage()?;
    let row = [("cgroup", "(unresolved)")];
    let metrics = cluster.wait_for(CGROUP_ONCPU, &row, |seconds| seconds - before >= truth.as_secs_f64() * 0.99)?;
    ensure!(of(&metrics, "late").is_none(), "named by nobody");
    let metrics = cluster.wait_for(WAITING, &[], |waiting| waiting == 0.0)?;
    // The container and its sandbox, and the leftovers of killed tests on this machine.
    let unknown =
        wait_for_part(&cluster.agent, "names", "degraded", &["containers are of pods that the API does not know"])?;
    let unknown: u32 = unknown.split(' ').next().unwrap_or_default().parse()?;
    ensure!(unknown >= 2, "{unknown} containers without a pod, and it has two");
    let (given, counters) = (unresolved(&metrics), totals(&metrics));

    let binding = json!({
        "apiVersion": "v1", "kind": "Binding", "metadata": {"name": "late"},
        "target": {"apiVersion": "v1", "kind": "Node", "name": NODE},
    });
    cluster.plane.admin().request(Method::POST, &format!("/api/v1/namespaces/{SHOP}/pods/late/binding"), &binding)?;
    pod.report()?;
    match unknown - 2 {
        0 => wait_for_part(&cluster.agent, "names", "healthy", &[])?,
        others => wait_for_part(&cluster.agent, "names", "degraded", &[&format!("{others} of ")])?,
    };
    pod.finish(first)?;
    let second = pod.start("app", BURN)?;
    pod.report()?;
    let second = pod.finish(second)?;
    // The first life's short time after its pod became known is part of the series.
    let labels = [("namespace", SHOP), ("pod", "late"), ("container", "app")];
    let metrics = cluster.wait_for(ONCPU, &labels, |seconds| {
        is_close(seconds, second.cpu)
            || (seconds > second.cpu.as_secs_f64() && seconds < (second.cpu + BURN / 2).as_secs_f64())
    })?;
    ensure!(unresolved(&metrics) == given, "the unresolved went from {given} to {}", unresolved(&metrics));
    for (series, then) in counters {
        let now = totals(&metrics).get(&series).copied();
        ensure!(now.is_none_or(|now| now >= then), "{series} fell from {then} to {now:?}");
    }
    Ok(())
}

fn a_pod_and_its_successor_of_the_same_name_share_the_series() -> Result<()> {
    let cluster = Cluster::start("", "")?;
    let mut truth = Duration::ZERO;
    let mut pod = cluster.kubelet.pod(SHOP, "db-0", Qos::Burstable, &["app"])?;
    let mut running = pod.start("app", BURN)?;
    pod.report()?;
    for _ in 0..4 {
        // The test deletes the pod by force: the container of the previous pod is still there when the container of its
        // successor starts.
        pod.delete()?;
        let mut successor = cluster.kubelet.pod(SHOP, "db-0", Qos::Burstable, &["app"])?;
        ensure!(successor.uid() != pod.uid(), "the same pod");
        let next = successor.start("app", BURN)?;
        successor.report()?;
        next.burnt()?;
        truth += pod.finish(running)?.cpu;
        (pod, running) = (successor, next);
    }
    let uid = pod.uid().to_owned();
    truth += pod.finish(running)?.cpu;
    pod.report()?;
    let metrics = cluster.wait_for_cpu("db-0", "app", truth)?;
    ensure!(metrics.get(POD_INFO, &[("pod", "db-0")]) == Some(1.0), "more than one podperf_pod_info");
    ensure!(metrics.get(POD_INFO, &[("pod", "db-0"), ("uid", &uid)]) == Some(1.0), "podperf_pod_info of an older one");
    ensure_undisturbed(&cluster)
}

fn a_pod_that_is_deleted_before_it_ends_has_its_last_counts() -> Result<()> {
    let cluster = Cluster::start("", "")?;
    let mut pod = cluster.kubelet.pod(SHOP, "forced", Qos::Burstable, &["app"])?;
    let running = pod.start("app", BURN)?;
    pod.report()?;
    cluster.wait_for(POD_INFO, &[("pod", "forced")], |there| there == 1.0)?;
    pod.delete()?;
    cluster.wait_for("podperf_kube_pods", &[], |pods| pods == 0.0)?;
    // The first process holds the container open. Another process burns after the pod is gone.
    let used = running.cgroup().cpu_usage()?;
    burn_in(running.cgroup(), BURN)?;
    let finished = pod.finish(running)?;
    ensure!(finished.cpu >= used + BURN, "nothing ran after the pod was gone");
    cluster.wait_for_cpu("forced", "app", finished.cpu)?;
    Ok(())
}

fn a_node_name_that_no_pod_has_is_doubted() -> Result<()> {
    let Spoilt { kubelet, credentials, plane } = Spoilt::start(AN_HOUR)?;
    let mut known = kubelet.pod(SHOP, "known", Qos::Burstable, &["app"])?;
    let mut agent = Agent::start(&configuration(&credentials, "no-such-node", PATIENCE, ""))?;
    let says = ["no pods of node `no-such-node` by watch", "is that the node's name?", "`nodeName`", "`NODE_NAME`"];
    let detail = wait_for_part(&agent, "pods", "degraded", &says)?;
    let line = agent.wait_for_log(&detail, SOON)?;
    ensure!(line.contains("WARN"), "{line}");
    let running = known.start("app", BURN)?;
    known.report()?;
    known.finish(running)?;
    // The API server sends no pod, so the agent shows none. It still counts the local containers.
    wait_for_part(&agent, "names", "degraded", &["of pods that the API does not know"])?;
    let metrics = agent.fresh_metrics()?;
    ensure!(metrics.get("podperf_kube_pods", &[]) == Some(0.0), "it has pods");
    ensure!(
        metrics.get(ONCPU, &[]).is_none() && metrics.get(POD_INFO, &[]).is_none(),
        "pods of another node are shown"
    );
    let unresolved = metrics.sum(CGROUP_ONCPU, &[("cgroup", "(unresolved)")]);
    ensure!(unresolved >= BURN.as_secs_f64() * 0.99, "{unresolved} s are unresolved");
    drop(agent);

    // The node name is right now. The agent ignores a pod of another node.
    plane.admin().create_pod(&{
        let mut elsewhere = kubelet::pod(SHOP, "elsewhere", Qos::Burstable, &["app"])?;
        elsewhere.spec.get_or_insert_default().node_name = Some("another-node".into());
        elsewhere
    })?;
    let agent = Agent::start(&configuration(&credentials, NODE, PATIENCE, ""))?;
    let cluster = Cluster { agent, kubelet, credentials, plane };
    wait_for_part(&cluster.agent, "pods", "healthy", &["1 pods of node `a-node`"])?;
    let running = known.start("app", BURN)?;
    known.report()?;
    let finished = known.finish(running)?;
    let metrics = cluster.wait_for_cpu("known", "app", finished.cpu)?;
    let told = metrics.samples().iter().any(|sample| sample.labels.get("pod").is_some_and(|pod| pod == "elsewhere"));
    ensure!(!told, "a pod of another node is shown");
    Ok(())
}

/// Returns the row of the cgroup that all pods have in common.
fn all_pods(kubelet: &Kubelet) -> String {
    format!("{}/kubepods.slice", kubelet.kernel_path())
}

/// Reports a container's status with this id, for any running container.
fn report_id(cluster: &Cluster, pod: &str, id: &str) -> Result<()> {
    let state = json!({"running": {"startedAt": "2026-01-01T00:00:00Z"}});
    let status = json!({
        "name": "app", "image": "none", "imageID": "", "ready": true, "restartCount": 0, "containerID": id, "state": state,
    });
    cluster.plane.admin().patch_status(SHOP, pod, &json!({"containerStatuses": [status]})).map(drop)
}

/// Checks that the watch had no failure and no restart.
fn ensure_undisturbed(cluster: &Cluster) -> Result<()> {
    let metrics = cluster.agent.metrics()?;
    for name in ["podperf_kube_watch_failures_total", "podperf_kube_watch_restarts_total"] {
        ensure!(
            metrics.get(name, &[]) == Some(0.0),
            "{name} is {:?}:\n{}",
            metrics.get(name, &[]),
            cluster.agent.log()
        );
    }
    Ok(())
}

fn of(metrics: &Metrics, pod: &str) -> Option<f64> {
    metrics.get(ONCPU, &[("namespace", SHOP), ("pod", pod)])
}

/// Returns all counters of containers and cgroups by name and labels.
fn totals(metrics: &Metrics) -> BTreeMap<String, f64> {
    let ours = |name: &str| ["podperf_container_", "podperf_cgroup_"].iter().any(|start| name.starts_with(start));
    let counters = metrics.samples().iter().filter(|sample| ours(&sample.name) && sample.name.ends_with("_total"));
    counters.map(|sample| (format!("{} {:?}", sample.name, sample.labels), sample.value)).collect()
}
