//! A pod as the rest of the agent knows it: only the few fields that name its counts, not all of its several kilobytes.
//! Pure.
//!
//! `prune` makes it from the object that the API server or the kubelet sends; [`super::PodIndex`] stores it.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::workload::Workload;
use crate::model::ids::{ConfigHash, ContainerId, PodUid};

/// A pod with only the fields that the agent uses.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct Pod {
    /// `None` for a static pod that the kubelet itself reports: it has only a [`ConfigHash`].
    pub uid: Option<PodUid>,
    /// Hash of the manifest of a static pod, which its directory carries in place of the UID.
    pub config_hash: Option<ConfigHash>,
    /// The pod's namespace.
    pub namespace: Arc<str>,
    /// The pod's name.
    pub name: Arc<str>,
    /// The workload that the pod is a replica of.
    pub workload: Workload,
    /// `burstable`, `besteffort` or `guaranteed`; empty while unknown.
    pub qos_class: Arc<str>,
    /// Name of the priority class; empty without one.
    pub priority_class: Arc<str>,
    /// Value of the annotation `resource.opentelemetry.io/service.name`.
    pub service_name: Option<Arc<str>>,
    /// `true` unless the annotation `podperf.io/scrape` is `false`.
    pub scrape: bool,
    /// The configured labels and annotations that the pod has, as pairs of Prometheus name and value.
    pub labels: Vec<(Arc<str>, Arc<str>)>,
    /// `true` if the pod's phase is `Succeeded` or `Failed`.
    pub over: bool,
    /// The containers of the specification, in its order: init, main, ephemeral.
    pub containers: Vec<Container>,
}

/// A container of a pod, with the ids in its status.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct Container {
    /// The container's name in the pod.
    pub name: Arc<str>,
    /// The image that the specification names; the status' image where the specification has none.
    pub image: Arc<str>,
    /// The list of the pod's specification that the container is in.
    pub kind: ContainerKind,
    /// Id of the current life, or of the last one.
    pub current: Option<ContainerId>,
    /// Id of the previous life.
    pub last: Option<ContainerId>,
    /// `true` if the current life has ended.
    pub ended: bool,
}

/// The role of a container in its pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize, Serialize)]
pub enum ContainerKind {
    /// Runs before the main containers and ends.
    Init,
    /// An init container that keeps running (`restartPolicy: Always`).
    Sidecar,
    /// A regular container, which does the pod's work.
    Main,
    /// Added later, for example by `kubectl debug`.
    Ephemeral,
}

/// A change that a source sends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PodChange {
    /// All pods of the node: a pod that is not in the list is gone.
    All(Vec<Pod>),
    /// A pod is new or has changed.
    Applied(Pod),
    /// A pod is gone. The pod carries its last statuses.
    Deleted(Pod),
    /// The connection is lost: changes may be missed from now on.
    Disconnected,
    /// The connection works: no change is missed from now on. Changes that were missed come now, or came just before.
    Connected,
}

/// One life of a container.
#[derive(Clone, Debug)]
pub struct ContainerInfo {
    /// The pod, as last reported.
    pub pod: Arc<Pod>,
    /// The container's name in the pod.
    pub name: Arc<str>,
    /// The container's image.
    pub image: Arc<str>,
    /// The runtime's id, which changes with each restart.
    pub id: ContainerId,
}

#[cfg(test)]
impl Pod {
    /// Pod `web` of namespace `shop` without an owner, with a UID and nothing else.
    pub(crate) fn example() -> Self {
        Self {
            uid: "6ef0362e-e3b9-43a3-acdb-de4ba71f1fa4".parse().ok(),
            config_hash: None,
            namespace: "shop".into(),
            name: "web".into(),
            workload: Workload { kind: super::WorkloadKind::BarePod, name: "web".into() },
            qos_class: "".into(),
            priority_class: "".into(),
            service_name: None,
            scrape: true,
            labels: Vec::new(),
            over: false,
            containers: Vec::new(),
        }
    }
}
