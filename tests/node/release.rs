//! The agent in a cluster, installed by the real helm from the chart in the registry.

use std::{
    path::PathBuf,
    process::{Command, Output, Stdio},
};

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use podperf_tests::{
    agent::{COALESCED_FOR, Metrics},
    http, vm,
};
use serde_json::Value;
use tempfile::TempDir;

use crate::cluster::{AGENT_PORT, Cluster, is_ready};

/// The namespace of the installation, and the release's name.
pub(crate) const NAMESPACE: &str = "podperf";

/// Installs the chart, and waits until an agent is ready on each node. Returns helm's messages.
pub(crate) fn install(cluster: &Cluster, values: &Value) -> Result<String> {
    cluster.control_plane.admin().create_namespace(NAMESPACE)?;
    let messages = helm_with(cluster, "install", values)?;
    cluster.nodes.iter().try_for_each(|node| agent_of(cluster, node.name()).map(drop))?;
    Ok(messages)
}

/// Changes the release's values. Agents that need a restart have not restarted yet.
pub(crate) fn upgrade(cluster: &Cluster, values: &Value) -> Result<()> {
    helm_with(cluster, "upgrade", values).map(drop)
}

/// Removes the release, and waits until it is gone.
pub(crate) fn uninstall(cluster: &Cluster) -> Result<()> {
    helm(cluster, &["uninstall", NAMESPACE, "--wait", "--timeout=3m"]).map(drop)
}

/// Returns the agent of a node, once it is ready.
pub(crate) fn agent_of(cluster: &Cluster, node: &str) -> Result<Pod> {
    let is_there = |pod: &Pod| pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()) == Some(node);
    let stays = |pod: &Pod| pod.metadata.deletion_timestamp.is_none();
    cluster.wait_for_pod(NAMESPACE, "podperf", &format!("is ready on {node}"), |pod| {
        is_there(pod) && stays(pod) && is_ready(pod)
    })
}

/// Makes the agents reachable from here, at the port of their node. Call it again after each restart of an agent.
pub(crate) fn reach(cluster: &Cluster) -> Result<()> {
    for node in &cluster.nodes {
        let agent = agent_of(cluster, node.name())?;
        let address = agent.status.and_then(|status| status.pod_ip).context("an agent without an address")?;
        node.forward(AGENT_PORT, &address, AGENT_PORT)?;
    }
    Ok(())
}

/// Scrapes a reading of the n-th node that began after this call.
pub(crate) fn fresh_metrics(cluster: &Cluster, node: usize) -> Result<Metrics> {
    std::thread::sleep(COALESCED_FOR);
    let address = cluster.nodes[node].port(AGENT_PORT)?;
    let (status, body) = http::get_text(address, "/metrics")?;
    ensure!(status == 200, "/metrics answered {status}: {body}");
    Ok(Metrics::parse(&body))
}

/// Returns the output of `helm`.
pub(crate) fn helm(cluster: &Cluster, arguments: &[&str]) -> Result<String> {
    Ok(String::from_utf8(run(cluster, arguments)?.stdout)?)
}

fn run(cluster: &Cluster, arguments: &[&str]) -> Result<Output> {
    let programs = PathBuf::from(vm::script("chart", "build.sh", &["helm"])?);
    let home = TempDir::new()?;
    let mut command = Command::new(programs.join("helm"));
    command.args(["--kubeconfig", &cluster.control_plane.admin_kubeconfig().display().to_string()]);
    command.args(["--namespace", NAMESPACE]).args(arguments);
    // The home directory has helm's caches and preferences.
    let output = command.env("HOME", home.path()).stdin(Stdio::null()).output().context("failed to start helm")?;
    let says = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "helm {arguments:?} failed ({}): {says}\n{}",
        output.status,
        cluster.describe(NAMESPACE)
    );
    Ok(output)
}

/// Returns helm's messages. They name the digest of the chart.
fn helm_with(cluster: &Cluster, verb: &str, values: &Value) -> Result<String> {
    let directory = TempDir::new()?;
    let file = directory.path().join("values.json");
    std::fs::write(&file, values.to_string())?;
    let file = format!("--values={}", file.display());
    // All agents restart at once, because no agent depends on another one.
    let at_once = "--set=updateStrategy.rollingUpdate.maxUnavailable=100%";
    let [chart, plain, version] = &cluster.registry.chart_arguments();
    let output = run(cluster, &[verb, NAMESPACE, chart, plain, version, &file, at_once])?;
    Ok(String::from_utf8(output.stderr)?)
}

/// Returns the rules of the chart as a rule file of Prometheus, with these values set.
pub(crate) fn rules(cluster: &Cluster, set: &[String]) -> Result<String> {
    let [chart, plain, version] = &cluster.registry.chart_arguments();
    let mut arguments = vec!["template", NAMESPACE, chart, plain, version, "--show-only=templates/prometheusrule.yaml"];
    for value in set {
        arguments.extend(["--set", value]);
    }
    // The file has the part below `spec` of each object.
    let mut rules = String::from("groups:\n");
    let mut inside = false;
    for line in helm(cluster, &arguments)?.lines() {
        match line {
            "  groups:" => inside = true,
            _ if !line.starts_with(' ') => inside = false,
            _ if inside => {
                rules.push_str(line.strip_prefix("  ").unwrap_or(line));
                rules.push('\n');
            }
            _ => {}
        }
    }
    Ok(rules)
}
