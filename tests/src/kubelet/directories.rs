//! The cgroups of a node, of pods and of containers, named as each driver and each runtime names them.

use std::{fs::File, io::Read as _};

use anyhow::{Context as _, Result};
use k8s_openapi::api::core::v1::Pod;

use crate::cgroup::TestCgroup;

/// The annotation of a static pod with the UID in its cgroup's name: the API server gives the mirror pod another UID.
const CONFIG_HASH: &str = "kubernetes.io/config.hash";

/// The maker of the cgroups: `cgroupDriver` of a kubelet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Driver {
    /// Slices and scopes.
    Systemd,
    /// Plain directories.
    Cgroupfs,
}

/// The container runtime, which names the container's cgroup and the id in the pod's status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Runtime {
    /// containerd by its CRI plugin.
    Containerd,
    /// CRI-O.
    CriO,
    /// Docker by cri-dockerd.
    Docker,
}

impl Runtime {
    /// `containerID` in a container's status.
    pub(super) fn container_id(self, id: &str) -> String {
        let scheme = match self {
            Self::Containerd => "containerd",
            Self::CriO => "cri-o",
            Self::Docker => "docker",
        };
        format!("{scheme}://{id}")
    }
}

/// A node's own cgroups, below one that belongs to the test.
#[derive(Debug)]
pub(super) struct Directories {
    // The root is removed with everything below it, so the drops of the other fields find nothing to remove.
    root: TestCgroup,
    guaranteed: TestCgroup,
    burstable: TestCgroup,
    best_effort: TestCgroup,
    naming: Naming,
}

impl Directories {
    pub(super) fn new(node: &str, driver: Driver, runtime: Runtime) -> Result<Self> {
        let naming = Naming { driver, runtime };
        let root = TestCgroup::new(node)?;
        let kubepods = root.child_named(&naming.qos(""))?;
        Ok(Self {
            burstable: kubepods.child_named(&naming.qos("burstable"))?,
            best_effort: kubepods.child_named(&naming.qos("besteffort"))?,
            guaranteed: kubepods,
            root,
            naming,
        })
    }

    pub(super) fn kernel_path(&self) -> &str {
        self.root.kernel_path()
    }

    pub(super) fn naming(&self) -> Naming {
        self.naming
    }

    /// Makes the cgroup of a pod that exists in the API server.
    pub(super) fn make_for(&self, pod: &Pod) -> Result<TestCgroup> {
        let status = pod.status.as_ref().and_then(|status| status.qos_class.as_deref());
        let (qos, parent) = match status.context("a pod without a QoS class")? {
            "Guaranteed" => ("", &self.guaranteed),
            "Burstable" => ("burstable", &self.burstable),
            _ => ("besteffort", &self.best_effort),
        };
        let hash = pod.metadata.annotations.as_ref().and_then(|annotations| annotations.get(CONFIG_HASH));
        let uid = hash.or(pod.metadata.uid.as_ref()).context("a pod without a UID")?;
        parent.child_named(&self.naming.pod(qos, uid))
    }
}

/// The scheme for the names of a node's cgroups.
#[derive(Clone, Copy, Debug)]
pub(super) struct Naming {
    driver: Driver,
    pub(super) runtime: Runtime,
}

impl Naming {
    fn qos(self, qos: &str) -> String {
        match (self.driver, qos) {
            (Driver::Systemd, "") => "kubepods.slice".into(),
            (Driver::Systemd, _) => format!("kubepods-{qos}.slice"),
            (Driver::Cgroupfs, "") => "kubepods".into(),
            (Driver::Cgroupfs, _) => qos.into(),
        }
    }

    /// Returns the name of a pod's cgroup. systemd reads a `-` as a `/`, so each `-` of the UID becomes a `_` there.
    fn pod(self, qos: &str, uid: &str) -> String {
        match (self.driver, qos) {
            (Driver::Systemd, "") => format!("kubepods-pod{}.slice", uid.replace('-', "_")),
            (Driver::Systemd, _) => format!("kubepods-{qos}-pod{}.slice", uid.replace('-', "_")),
            (Driver::Cgroupfs, _) => format!("pod{uid}"),
        }
    }

    pub(super) fn container(self, id: &str) -> String {
        match (self.driver, self.runtime) {
            (Driver::Systemd, Runtime::Containerd) => format!("cri-containerd-{id}.scope"),
            (Driver::Systemd, Runtime::CriO) => format!("crio-{id}.scope"),
            (Driver::Systemd, Runtime::Docker) => format!("docker-{id}.scope"),
            (Driver::Cgroupfs, Runtime::CriO) => format!("crio-{id}"),
            (Driver::Cgroupfs, Runtime::Containerd | Runtime::Docker) => id.into(),
        }
    }
}

/// Returns 64 hex digits, in the form of a runtime's container id.
pub fn random_id() -> Result<String> {
    let mut bytes = [0; 32];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}
