//! The pods that the tests look for: of each kind one a node, in shell, so that an emulated machine is not overrun.

use anyhow::{Context as _, Result};
use k8s_openapi::api::core::v1::Pod;
use podperf_tests::node::TOOLS_IMAGE;
use serde_json::{Value, json};

use crate::cluster::{Cluster, is_ready};

/// Where they are.
pub(crate) const NAMESPACE: &str = "shop";
/// Where static pods are: no namespace has to be made for it.
pub(crate) const STATIC_NAMESPACE: &str = "default";

/// Runs a little, sleeps, and again. One or two hundredths of an emulated CPU: there are ten of them.
const BUSY: &str = "while :; do i=0; while [ $i -lt 300 ]; do i=$((i+1)); done; sleep 1; done";
/// Sleeps, waits for the disk, and again.
const BLOCKED: &str = "while :; do sleep 2; dd if=/dev/zero of=/tmp/file bs=4k count=8 conv=fsync 2>/dev/null; done";
/// Runs a little, and fails.
const CRASHING: &str = "i=0; while [ $i -lt 3000 ]; do i=$((i+1)); done; exit 1";
/// Runs a little, and ends well.
const BRIEF: &str = "i=0; while [ $i -lt 3000 ]; do i=$((i+1)); done";
/// The same, and two seconds in all.
const TWO_SECONDS: &str = "i=0; while [ $i -lt 3000 ]; do i=$((i+1)); done; sleep 2";

/// A container that runs a script.
pub(crate) fn container(name: &str, script: &str) -> Value {
    json!({"name": name, "image": TOOLS_IMAGE, "imagePullPolicy": "Never", "command": ["sh", "-c", script]})
}

/// A pod on a node.
pub(crate) fn pod(name: &str, node: &str, containers: &[Value]) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "nodeSelector": {"kubernetes.io/hostname": node},
            "terminationGracePeriodSeconds": 1,
            "containers": containers,
        },
    })
}

/// A pod that the kubelet runs by itself; its name in the cluster ends with the node's.
pub(crate) fn static_pod() -> Value {
    let mut pod = pod("static", "", &[container("web", BUSY)]);
    pod["metadata"]["namespace"] = json!(STATIC_NAMESPACE);
    pod["spec"]["nodeSelector"] = json!({});
    pod
}

/// Makes one pod of each kind for each node, and waits until all have come as far as they can. Their names are those of
/// their kinds with that of their node.
pub(crate) fn make_all(cluster: &Cluster) -> Result<()> {
    cluster.control_plane.admin().create_namespace(NAMESPACE)?;
    let objects: Vec<_> = cluster.nodes.iter().flat_map(|node| of_each_kind(node.name())).collect();
    cluster.apply(&objects)?;
    for node in &cluster.nodes {
        let wait = |namespace: &str, kind: &str, what: &str, is: fn(&Pod) -> bool| {
            cluster.wait_for_pod(namespace, &format!("{kind}-{}", node.name()), what, is).map(drop)
        };
        for kind in ["busy", "blocked", "prepared", "escorted"] {
            wait(NAMESPACE, kind, "is ready", is_ready)?;
        }
        wait(NAMESPACE, "crashing", "has crashed twice", |pod| restarts(pod) >= 2)?;
        wait(NAMESPACE, "brief", "has succeeded", |pod| phase(pod) == "Succeeded")?;
        wait(STATIC_NAMESPACE, "static", "is ready", is_ready)?;
    }
    Ok(())
}

/// All but the static one.
fn of_each_kind(node: &str) -> Vec<Value> {
    let named = |kind: &str| format!("{kind}-{node}");
    let of = |kind: &str, containers: &[Value]| pod(&named(kind), node, containers);
    let mut prepared = of("prepared", &[container("web", BUSY)]);
    prepared["spec"]["initContainers"] = json!([container("setup", BRIEF)]);
    let mut escorted = of("escorted", &[container("web", BUSY)]);
    let mut proxy = container("proxy", BUSY);
    proxy["restartPolicy"] = json!("Always");
    escorted["spec"]["initContainers"] = json!([proxy]);
    let mut brief = of("brief", &[container("task", TWO_SECONDS)]);
    brief["spec"]["restartPolicy"] = json!("Never");
    let app = json!({"app": named("busy")});
    vec![
        json!({
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": named("busy"), "namespace": NAMESPACE},
            "spec": {
                "selector": {"matchLabels": app},
                "template": {"metadata": {"labels": app}, "spec": of("busy", &[container("web", BUSY)])["spec"]},
            },
        }),
        of("blocked", &[container("db", BLOCKED)]),
        of("crashing", &[container("app", CRASHING)]),
        prepared,
        escorted,
        json!({
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": named("brief"), "namespace": NAMESPACE},
            "spec": {"template": {"spec": brief["spec"]}},
        }),
    ]
}

/// Its name.
pub(crate) fn name(pod: &Pod) -> Result<&str> {
    pod.metadata.name.as_deref().context("a pod without a name")
}

fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default()
}

fn restarts(pod: &Pod) -> i32 {
    let statuses = pod.status.as_ref().and_then(|status| status.container_statuses.as_ref());
    statuses.into_iter().flatten().map(|status| status.restart_count).sum()
}
