//! The cluster that the tests share: a node for each cgroup driver, where the agents count while pods of all kinds live
//! and die.

use std::{
    path::PathBuf,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use anyhow::{Context as _, Result};
use k8s_openapi::api::core::v1::Pod;
use podperf_tests::{
    control_plane::ControlPlane,
    kubelet::Driver,
    node::{Node, Plan},
    suite::{self, Need, within},
    vm,
};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{pods, registry::Registry, release};

/// The port of the agent on each node.
pub(crate) const AGENT_PORT: u16 = 9799;
/// The time limit. An emulated machine is slow, and this machine may have other work.
pub(crate) const PATIENCE: Duration = Duration::from_secs(180);

/// The needs of the tests that share the cluster.
pub(crate) const NEEDS: &[Need] = &needs_and("prometheus");

/// Returns the needs of a cluster, and one more program.
pub(crate) const fn needs_and(program: &'static str) -> [Need; 9] {
    [
        Need::Program("go"),
        Need::Program("etcd"),
        Need::Program("mke2fs"),
        Need::Program("depmod"),
        Need::Program("buildah"),
        Need::Program("debootstrap"),
        Need::Program("skopeo"),
        Need::Program("jq"),
        Need::Program(program),
    ]
}

/// The cluster's nodes, and their numbers of CPUs. The first node has pods that wait for each other, and these need a
/// CPU of their own.
const NODES: &[(&str, Driver, u8)] = &[("node-a", Driver::Cgroupfs, 3), ("node-b", Driver::Systemd, 2)];

static SHARED: Mutex<Option<Cluster>> = Mutex::new(None);

/// A control plane, its nodes, and the registry of the chart and of the agent's image.
pub(crate) struct Cluster {
    pub(crate) control_plane: ControlPlane,
    pub(crate) nodes: Vec<Node>,
    pub(crate) registry: Registry,
    /// The output of `helm install`.
    pub(crate) installed: String,
}

/// The shared cluster while a test uses it.
pub(crate) struct Shared(MutexGuard<'static, Option<Cluster>>);

impl Shared {
    pub(crate) fn get(&self) -> Result<&Cluster> {
        self.0.as_ref().context("no cluster")
    }
}

/// Returns the cluster with the agent and its pods on each of its nodes. The first test that calls this function starts
/// the cluster.
pub(crate) fn shared() -> Result<Shared> {
    let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
    if shared.is_none() {
        let start = std::time::Instant::now();
        let mut cluster = Cluster::start()?;
        let ready = start.elapsed();
        cluster.installed = release::install(&cluster, &json!({}))?;
        let installed = start.elapsed();
        pods::make_all(&cluster)?;
        release::reach(&cluster)?;
        let all = start.elapsed();
        suite::tell(&format!("nodes ready after {ready:.0?}, agents after {installed:.0?}, all pods after {all:.0?}"));
        *shared = Some(cluster);
    }
    Ok(Shared(shared))
}

/// Returns the shared cluster to its last test, which may change it. The next test starts a new one.
pub(crate) fn take_shared() -> Result<Cluster> {
    shared()?.0.take().context("no cluster")
}

/// Ends the shared cluster: Rust does not drop static values.
pub(crate) fn end() {
    *SHARED.lock().unwrap_or_else(PoisonError::into_inner) = None;
}

/// Returns the archive of the agent's image, and builds it from the Dockerfile if necessary.
pub(crate) fn image() -> Result<PathBuf> {
    Ok(vm::script("image", "build.sh", &[])?.into())
}

impl Cluster {
    /// Boots the nodes, both at once, and waits until they are ready.
    pub(crate) fn start() -> Result<Self> {
        let registry = Registry::start()?;
        let control_plane = ControlPlane::start_for_nodes()?;
        let boot = |(number, (name, driver, cpus)): (u8, &(&str, Driver, u8))| {
            let plan = Plan {
                name,
                number,
                driver: *driver,
                cpus: *cpus,
                registry: registry.address(),
                ports: &[AGENT_PORT],
                static_pods: &[pods::static_pod()],
            };
            Node::boot(&control_plane, &plan)
        };
        let nodes = (0..).zip(NODES).map(boot).collect::<Result<Vec<_>>>()?;
        let mut cluster = Self { control_plane, nodes, registry, installed: String::new() };
        for node in &mut cluster.nodes {
            node.wait_until_ready(&mut cluster.control_plane)?;
        }
        Ok(cluster)
    }

    /// Returns the node with the cgroupfs driver.
    pub(crate) fn node(&self) -> &Node {
        &self.nodes[0]
    }

    /// Creates or changes objects.
    pub(crate) fn apply(&self, objects: &[Value]) -> Result<()> {
        let directory = TempDir::new()?;
        let file = directory.path().join("objects.json");
        std::fs::write(&file, json!({"apiVersion": "v1", "kind": "List", "items": objects}).to_string())?;
        self.control_plane.apply(&file)
    }

    /// Waits for a pod of a namespace whose name begins with this text and that meets the condition. Returns the first
    /// such pod.
    pub(crate) fn wait_for_pod(
        &self,
        namespace: &str,
        name: &str,
        what: &str,
        is: impl Fn(&Pod) -> bool,
    ) -> Result<Pod> {
        let path = format!("/api/v1/namespaces/{namespace}/pods");
        let mut seen = String::new();
        let found = within(PATIENCE, &format!("{namespace}/{name} {what}"), || {
            let list: Value = serde_json::from_str(&self.control_plane.admin().get(&path)?)?;
            let pods: Vec<Pod> = serde_json::from_value(list["items"].clone())?;
            let mut pods = pods
                .into_iter()
                .filter(|pod| pod.metadata.name.as_deref().is_some_and(|found| found.starts_with(name)));
            seen = list["items"].to_string();
            Ok(pods.find(|pod| is(pod)))
        });
        found.with_context(|| self.describe(namespace))
    }

    /// Returns the API server's and the nodes' information on the pods of a namespace.
    pub(crate) fn describe(&self, namespace: &str) -> String {
        let ask = |arguments: &[&str]| {
            self.control_plane.admin_kubectl(arguments).unwrap_or_else(|error| format!("{error:#}"))
        };
        let mut text = ask(&["get", "pods", "-A", "-o", "wide"]);
        text.push_str(&ask(&["get", "events", "-A", "--sort-by=.lastTimestamp"]));
        for node in &self.nodes {
            text.push_str(&node.logs());
            let command = format!("tail -n 20 /var/log/pods/{namespace}_*/*/*.log");
            text.push_str(&node.run(&command).unwrap_or_else(|error| format!("{error:#}")));
        }
        text
    }
}

/// Returns whether a pod is ready.
pub(crate) fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions.into_iter().flatten().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}
