//! The pods that the tests look for. They run shell scripts, so that an emulated machine is not overloaded: one pod of
//! each kind on the first node, and the pods that stay unchanged on all later nodes.

use anyhow::{Context as _, Result};
use k8s_openapi::api::core::v1::Pod;
use podperf_tests::node::TOOLS_IMAGE;
use serde_json::{Value, json};

use crate::cluster::{Cluster, is_ready};

/// The namespace of the pods.
pub(crate) const NAMESPACE: &str = "shop";
/// The namespace of static pods. It always exists.
pub(crate) const STATIC_NAMESPACE: &str = "default";

/// A loop that runs a little and sleeps. It takes one or two hundredths of an emulated CPU: there are ten such pods.
const BUSY: &str = "while :; do i=0; while [ $i -lt 300 ]; do i=$((i+1)); done; sleep 1; done";
/// A loop that sleeps and waits for the disk.
const BLOCKED: &str = "while :; do sleep 2; dd if=/dev/zero of=/tmp/file bs=4k count=8 conv=fsync 2>/dev/null; done";
/// A script that runs a little, and fails.
const CRASHING: &str = "i=0; while [ $i -lt 3000 ]; do i=$((i+1)); done; exit 1";
/// A script that runs a little, and succeeds.
const BRIEF: &str = "i=0; while [ $i -lt 3000 ]; do i=$((i+1)); done";
/// The same script with two more seconds.
const TWO_SECONDS: &str = "i=0; while [ $i -lt 3000 ]; do i=$((i+1)); done; sleep 2";

/// Returns a container that runs a script.
pub(crate) fn container(name: &str, script: &str) -> Value {
    json!({"name": name, "image": TOOLS_IMAGE, "imagePullPolicy": "Never", "command": ["sh", "-c", script]})
}

/// Returns a pod on a node.
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

/// Returns a static pod. Its name in the cluster ends with the node's name.
pub(crate) fn static_pod() -> Value {
    let mut pod = pod("static", "", &[container("web", BUSY)]);
    pod["metadata"]["namespace"] = json!(STATIC_NAMESPACE);
    pod["spec"]["nodeSelector"] = json!({});
    pod
}

/// A kind of pod: its namespace, the container that identifies it, its objects, and its final state.
pub(crate) struct Kind {
    pub(crate) namespace: &'static str,
    pub(crate) name: &'static str,
    pub(crate) container: &'static str,
    /// Returns the object for a pod's name and its node. `None` for a static pod, which the kubelet has itself.
    object: Option<fn(&str, &str) -> Value>,
    what: &'static str,
    comes_so_far: fn(&Pod) -> bool,
}

const fn staying(name: &'static str, container: &'static str, object: fn(&str, &str) -> Value) -> Kind {
    Kind { namespace: NAMESPACE, name, container, object: Some(object), what: "is ready", comes_so_far: is_ready }
}

const BUSY_KIND: Kind = staying("busy", "web", busy);
const STATIC_KIND: Kind = Kind { namespace: STATIC_NAMESPACE, object: None, ..staying("static", "web", busy) };
const ALL_KINDS: &[Kind] = &[
    BUSY_KIND,
    staying("blocked", "db", blocked),
    Kind { what: "has crashed", comes_so_far: |pod| restarts(pod) >= 1, ..staying("crashing", "app", crashing) },
    staying("prepared", "setup", prepared),
    staying("escorted", "proxy", escorted),
    Kind { what: "has succeeded", comes_so_far: |pod| phase(pod) == "Succeeded", ..staying("brief", "task", brief) },
    STATIC_KIND,
];
const STAYING_KINDS: &[Kind] = &[BUSY_KIND, STATIC_KIND];

/// Returns the kinds of pods of the cluster's n-th node.
pub(crate) fn kinds(node: usize) -> &'static [Kind] {
    if node == 0 { ALL_KINDS } else { STAYING_KINDS }
}

/// Creates the pods, and waits until all have reached their final state. A pod's name is the name of its kind and the
/// name of its node.
pub(crate) fn make_all(cluster: &Cluster) -> Result<()> {
    cluster.control_plane.admin().create_namespace(NAMESPACE)?;
    let objects = cluster.nodes.iter().enumerate().flat_map(|(number, node)| {
        let make = |kind: &Kind| Some(kind.object?(&format!("{}-{}", kind.name, node.name()), node.name()));
        kinds(number).iter().filter_map(make)
    });
    cluster.apply(&objects.collect::<Vec<_>>())?;
    for (number, node) in cluster.nodes.iter().enumerate() {
        for kind in kinds(number) {
            let name = format!("{}-{}", kind.name, node.name());
            cluster.wait_for_pod(kind.namespace, &name, kind.what, kind.comes_so_far)?;
        }
    }
    Ok(())
}

fn busy(name: &str, node: &str) -> Value {
    let app = json!({"app": name});
    json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "selector": {"matchLabels": app},
            "template": {"metadata": {"labels": app}, "spec": pod(name, node, &[container("web", BUSY)])["spec"]},
        },
    })
}

fn blocked(name: &str, node: &str) -> Value {
    pod(name, node, &[container("db", BLOCKED)])
}

fn crashing(name: &str, node: &str) -> Value {
    pod(name, node, &[container("app", CRASHING)])
}

fn prepared(name: &str, node: &str) -> Value {
    let mut pod = pod(name, node, &[container("web", BUSY)]);
    pod["spec"]["initContainers"] = json!([container("setup", BRIEF)]);
    pod
}

fn escorted(name: &str, node: &str) -> Value {
    let mut pod = pod(name, node, &[container("web", BUSY)]);
    let mut proxy = container("proxy", BUSY);
    proxy["restartPolicy"] = json!("Always");
    pod["spec"]["initContainers"] = json!([proxy]);
    pod
}

fn brief(name: &str, node: &str) -> Value {
    let mut pod = pod(name, node, &[container("task", TWO_SECONDS)]);
    pod["spec"]["restartPolicy"] = json!("Never");
    json!({
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"template": {"spec": pod["spec"]}},
    })
}

/// Returns the pod's name.
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
