//! A played node: it makes pods by the API, cgroups as a kubelet and a container runtime do, and runs loads as
//! containers.
//!
//! The node reports nothing by itself. Each test decides when the API server gets a report ([`PodHandle::report`]),
//! because tests check the time before the report.

mod container;
mod directories;
mod pod;

use anyhow::{Context as _, Result};
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use self::directories::Directories;
pub use self::{
    container::{Finished, Running},
    directories::{Driver, Runtime, random_id},
    pod::PodHandle,
};
use crate::control_plane::Client;

/// A pod's quality of service, from which the API server derives `status.qosClass`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Qos {
    /// Neither requests nor limits.
    BestEffort,
    /// Requests.
    Burstable,
    /// Limits of all resources, equal to the requests.
    Guaranteed,
}

/// A played node. Its cgroups, and all processes in them, are removed on drop.
#[derive(Debug)]
pub struct Kubelet {
    node: String,
    client: Client,
    directories: Directories,
}

impl Kubelet {
    /// Makes a node under systemd with containerd, the most common kind.
    pub fn new(node: &str, client: &Client) -> Result<Self> {
        Self::with(node, client, Driver::Systemd, Runtime::Containerd)
    }

    /// Makes a node of another kind.
    pub fn with(node: &str, client: &Client, driver: Driver, runtime: Runtime) -> Result<Self> {
        let directories = Directories::new(node, driver, runtime)?;
        Ok(Self { node: node.to_owned(), client: client.clone(), directories })
    }

    /// Returns the node's name.
    #[must_use]
    pub fn node(&self) -> &str {
        &self.node
    }

    /// Returns the kernel's path of the cgroup that holds `kubepods`.
    #[must_use]
    pub fn kernel_path(&self) -> &str {
        self.directories.kernel_path()
    }

    /// Makes a plain pod and starts it on the node.
    pub fn pod(&self, namespace: &str, name: &str, qos: Qos, containers: &[&str]) -> Result<PodHandle> {
        self.run(pod(namespace, name, qos, containers)?)
    }

    /// Makes any pod on this node, and before it the pod's namespace, and starts it.
    pub fn run(&self, mut pod: Pod) -> Result<PodHandle> {
        pod.spec.get_or_insert_default().node_name = Some(self.node.clone());
        self.client.create_namespace(pod.metadata.namespace.as_deref().context("a pod without a namespace")?)?;
        self.take_up(self.client.create_pod(&pod)?)
    }

    /// Makes the cgroups of a pod that already exists in the API server.
    pub fn take_up(&self, pod: Pod) -> Result<PodHandle> {
        PodHandle::new(pod, &self.directories, self.client.clone())
    }
}

/// Returns a pod for [`Kubelet::run`]. The caller may add labels, owners, init containers or the annotations of a
/// static pod.
pub fn pod(namespace: &str, name: &str, qos: Qos, containers: &[&str]) -> Result<Pod> {
    let resources = match qos {
        Qos::BestEffort => json!({}),
        Qos::Burstable => json!({"requests": {"cpu": "10m"}}),
        Qos::Guaranteed => json!({"limits": {"cpu": "10m", "memory": "10Mi"}}),
    };
    let containers: Vec<Value> = containers
        .iter()
        .map(|name| json!({"name": name, "image": container::IMAGE, "resources": resources}))
        .collect();
    let pod = json!({"metadata": {"namespace": namespace, "name": name}, "spec": {"containers": containers}});
    Ok(serde_json::from_value(pod)?)
}
