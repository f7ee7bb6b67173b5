//! A played node: pods by the API, cgroups as a kubelet and a container runtime make them, loads as containers.
//!
//! Nothing is reported by itself: a test says when the API server learns of what has happened ([`PodHandle::report`]),
//! since what comes between is what it is about.

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

/// A pod's quality of service, of which the API server makes `status.qosClass`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Qos {
    /// Neither requests nor limits.
    BestEffort,
    /// Requests.
    Burstable,
    /// Limits of all resources, equal to the requests.
    Guaranteed,
}

/// A node that is played; its cgroups, with all that runs in them, are gone on drop.
#[derive(Debug)]
pub struct Kubelet {
    node: String,
    client: Client,
    directories: Directories,
}

impl Kubelet {
    /// A node under systemd with containerd, as most are.
    pub fn new(node: &str, client: &Client) -> Result<Self> {
        Self::with(node, client, Driver::Systemd, Runtime::Containerd)
    }

    /// A node of another kind.
    pub fn with(node: &str, client: &Client, driver: Driver, runtime: Runtime) -> Result<Self> {
        let directories = Directories::new(node, driver, runtime)?;
        Ok(Self { node: node.to_owned(), client: client.clone(), directories })
    }

    /// Its name.
    #[must_use]
    pub fn node(&self) -> &str {
        &self.node
    }

    /// The path, as the kernel has it, of the cgroup that holds `kubepods`.
    #[must_use]
    pub fn kernel_path(&self) -> &str {
        self.directories.kernel_path()
    }

    /// Makes a plain pod and takes it up.
    pub fn pod(&self, namespace: &str, name: &str, qos: Qos, containers: &[&str]) -> Result<PodHandle> {
        self.run(pod(namespace, name, qos, containers)?)
    }

    /// Makes any pod on this node, its namespace before it, and takes it up.
    pub fn run(&self, mut pod: Pod) -> Result<PodHandle> {
        pod.spec.get_or_insert_default().node_name = Some(self.node.clone());
        self.client.create_namespace(pod.metadata.namespace.as_deref().context("a pod without a namespace")?)?;
        self.take_up(self.client.create_pod(&pod)?)
    }

    /// Makes the cgroups of a pod that the API server has already.
    pub fn take_up(&self, pod: Pod) -> Result<PodHandle> {
        PodHandle::new(pod, &self.directories, self.client.clone())
    }
}

/// A pod for [`Kubelet::run`], to be changed before: labels, owners, init containers, the annotations of a static pod.
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
