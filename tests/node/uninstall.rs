//! `helm uninstall` leaves nothing on the nodes.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use podperf_tests::{
    node::Node,
    suite::{Test, within},
    tests,
};
use serde_json::Value;

use crate::{
    cluster::{self, Cluster, NEEDS},
    release,
};

pub(crate) const TESTS: &[Test] = tests![
    after_the_uninstall_nothing_is_left_on_any_node: NEEDS,
];

fn after_the_uninstall_nothing_is_left_on_any_node() -> Result<()> {
    let cluster = &cluster::take_shared()?;
    let uids = running_agents(cluster)?;
    release::uninstall(cluster)?;
    ensure_nothing_is_left(cluster, &uids)
}

/// Returns the pod UID of each node's agent, and checks that each agent has a cgroup and BPF objects.
pub(crate) fn running_agents(cluster: &Cluster) -> Result<Vec<String>> {
    let uids = cluster.nodes.iter().map(|node| {
        let agent = release::agent_of(cluster, node.name())?;
        let uid = agent.metadata.uid.context("an agent without a UID")?;
        let before = bpf(node)?;
        ensure!(before.iter().all(|(_, objects)| !objects.is_empty()), "{}: {before:?}", node.name());
        ensure!(!cgroups(node, &uid)?.is_empty(), "the agent of {} has no cgroup", node.name());
        Ok(uid)
    });
    uids.collect()
}

/// Checks that these agents have left nothing on their nodes, and their release nothing in the cluster.
pub(crate) fn ensure_nothing_is_left(cluster: &Cluster, uids: &[String]) -> Result<()> {
    for (node, uid) in cluster.nodes.iter().zip(uids) {
        within(Duration::from_secs(60), "the agent is gone from its node", || {
            Ok((cgroups(node, uid)?.is_empty() && bpf(node)?.iter().all(|(_, objects)| objects.is_empty()))
                .then_some(()))
        })
        .with_context(|| format!("{}: {:?}", node.name(), bpf(node)))?;
        // The kubelet has made the directory of the pins, and it stays.
        let pins = node.run("find /sys/fs/bpf -mindepth 1 ! -path /sys/fs/bpf/podperf")?;
        ensure!(pins.is_empty(), "pinned on {}: {pins}", node.name());
    }
    let kinds = "daemonsets,pods,configmaps,services,serviceaccounts,secrets,roles,rolebindings,clusterroles,\
                 clusterrolebindings";
    let arguments =
        ["get", kinds, "--all-namespaces", "--selector=app.kubernetes.io/instance=podperf", "--output=name"];
    let left = cluster.control_plane.admin_kubectl(&arguments)?;
    ensure!(left.is_empty(), "left in the cluster: {left}");
    Ok(())
}

/// Returns the cgroups of a pod.
fn cgroups(node: &Node, uid: &str) -> Result<String> {
    // systemd writes the id with underscores.
    let pattern = uid.replace('-', "?");
    node.run(&format!("find /sys/fs/cgroup -type d -name '*{pattern}*' 2>/dev/null; true"))
}

/// Returns the BPF programs, links and maps of a node, without the runtime's and systemd's own, which are attached to
/// cgroups.
fn bpf(node: &Node) -> Result<Vec<(&'static str, Vec<Value>)>> {
    let show = |kind: &'static str| {
        let text = node.run(&format!("bpftool --json {kind} show"))?;
        let all: Vec<Value> = serde_json::from_str(&text).with_context(|| format!("bpftool {kind}: {text}"))?;
        let is_own = |object: &Value| !object["type"].as_str().is_some_and(|kind| kind.starts_with("cgroup"));
        Ok((kind, all.into_iter().filter(is_own).collect()))
    };
    ["prog", "link", "map"].into_iter().map(show).collect()
}
