//! A pod on a played node: its cgroups, its containers, and its reported status.

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Context as _, Result};
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use serde_json::json;

use super::{
    container::{self, Finished, Running},
    directories::{Directories, Naming, random_id},
};
use crate::{cgroup::TestCgroup, control_plane::Client};

/// A pod. Its cgroups, and all processes in them, are removed on drop. It stays in the API server until it is deleted.
#[derive(Debug)]
pub struct PodHandle {
    pod: Pod,
    client: Client,
    naming: Naming,
    // This field comes before `cgroup`, its parent, so that it is removed first.
    sandbox: TestCgroup,
    cgroup: TestCgroup,
    statuses: BTreeMap<String, ContainerStatus>,
}

impl PodHandle {
    pub(super) fn new(pod: Pod, directories: &Directories, client: Client) -> Result<Self> {
        let naming = directories.naming();
        let cgroup = directories.make_for(&pod)?;
        // A runtime makes the sandbox first. Its id is in no status.
        let sandbox = cgroup.child_named(&naming.container(&random_id()?))?;
        Ok(Self { pod, client, naming, sandbox, cgroup, statuses: BTreeMap::new() })
    }

    /// Returns the pod in the last state that the API server returned.
    #[must_use]
    pub const fn pod(&self) -> &Pod {
        &self.pod
    }

    /// Returns the pod's namespace.
    #[must_use]
    pub fn namespace(&self) -> &str {
        self.pod.metadata.namespace.as_deref().unwrap_or_default()
    }

    /// Returns the pod's name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.pod.metadata.name.as_deref().unwrap_or_default()
    }

    /// Returns `metadata.uid`.
    #[must_use]
    pub fn uid(&self) -> &str {
        self.pod.metadata.uid.as_deref().unwrap_or_default()
    }

    /// Returns the pod's cgroup, which holds the cgroups of the containers.
    #[must_use]
    pub const fn cgroup(&self) -> &TestCgroup {
        &self.cgroup
    }

    /// Returns the cgroup of the pod's sandbox, which has no processes.
    #[must_use]
    pub const fn sandbox(&self) -> &TestCgroup {
        &self.sandbox
    }

    /// Starts a container, for the first time or again. The container burns CPU time, then waits for [`Self::finish`].
    pub fn start(&mut self, container: &str, burns: Duration) -> Result<Running> {
        let running = Running::start(container, burns, &self.cgroup, self.naming)?;
        let id = self.naming.runtime.container_id(running.id());
        self.set(container, |before| container::started(container, id, before));
        Ok(running)
    }

    /// Waits until a container has burnt its time and ends. Its cgroup is removed then.
    pub fn finish(&mut self, running: Running) -> Result<Finished> {
        self.end(running, false)
    }

    /// Kills a container, as the kernel does when memory runs out. Its cgroup is removed then.
    pub fn kill(&mut self, running: Running) -> Result<Finished> {
        self.end(running, true)
    }

    /// Sets a container to waiting, for a reason such as `CrashLoopBackOff`.
    pub fn wait(&mut self, container: &str, reason: &str) {
        self.set(container, |before| container::waiting(container, reason, before));
    }

    /// Adds an ephemeral container to the specification.
    pub fn add_ephemeral(&mut self, container: &str) -> Result<()> {
        self.pod = self.client.add_ephemeral_container(self.namespace(), self.name(), container)?;
        Ok(())
    }

    /// Sends the current status of all containers to the API server.
    pub fn report(&mut self) -> Result<()> {
        let spec = self.pod.spec.as_ref().context("a pod without a specification")?;
        let of =
            |names: Vec<&String>| -> Vec<_> { names.into_iter().filter_map(|name| self.statuses.get(name)).collect() };
        let init = spec.init_containers.iter().flatten().map(|container| &container.name);
        let ephemeral = spec.ephemeral_containers.iter().flatten().map(|container| &container.name);
        let status = json!({
            "phase": "Running",
            "initContainerStatuses": of(init.collect()),
            "containerStatuses": of(spec.containers.iter().map(|container| &container.name).collect()),
            "ephemeralContainerStatuses": of(ephemeral.collect()),
        });
        self.pod = self.client.patch_status(self.namespace(), self.name(), &status)?;
        Ok(())
    }

    /// Removes the pod from the API server. Its cgroups stay until it is dropped.
    pub fn delete(&self) -> Result<()> {
        self.client.delete_pod(self.namespace(), self.name())
    }

    fn set(&mut self, container: &str, status: impl FnOnce(Option<ContainerStatus>) -> ContainerStatus) {
        let before = self.statuses.remove(container);
        self.statuses.insert(container.to_owned(), status(before));
    }

    fn end(&mut self, running: Running, kill: bool) -> Result<Finished> {
        let container = running.name().to_owned();
        let finished = running.end(kill)?;
        if let Some(before) = self.statuses.remove(&container) {
            self.statuses.insert(container, container::terminated(before, &finished));
        }
        Ok(finished)
    }
}
