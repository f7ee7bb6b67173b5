//! A pod as the rest of the agent knows it: what names its counts, and nothing else of its several kilobytes. Pure.
//!
//! Made by `prune` from what the API server or the kubelet tells; kept by [`super::PodIndex`].

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::workload::Workload;
use crate::model::ids::{ConfigHash, ContainerId, PodUid};

/// A pod, pruned.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct Pod {
    /// `None` for a static pod that the kubelet tells of itself: it has but a [`ConfigHash`].
    pub uid: Option<PodUid>,
    /// Static pods' directories carry it in place of the UID.
    pub config_hash: Option<ConfigHash>,
    /// Its namespace.
    pub namespace: Arc<str>,
    /// Its name.
    pub name: Arc<str>,
    /// What it is a replica of.
    pub workload: Workload,
    /// `burstable`, `besteffort`, `guaranteed`; empty while unknown.
    pub qos_class: Arc<str>,
    /// Empty for none.
    pub priority_class: Arc<str>,
    /// The annotation `resource.opentelemetry.io/service.name`.
    pub service_name: Option<Arc<str>>,
    /// The annotation `podperf.io/scrape` is not `false`.
    pub scrape: bool,
    /// The configured labels and annotations that it has: name in Prometheus, value.
    pub labels: Vec<(Arc<str>, Arc<str>)>,
    /// Its phase is `Succeeded` or `Failed`.
    pub over: bool,
    /// Those of the specification, in its order: init, main, ephemeral.
    pub containers: Vec<Container>,
}

/// A container of a pod, with the ids that its status names.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct Container {
    /// Its name in the pod.
    pub name: Arc<str>,
    /// As the specification says it.
    pub image: Arc<str>,
    /// Which of the pod's lists it is from.
    pub kind: ContainerKind,
    /// Of the life that runs, or ran last.
    pub current: Option<ContainerId>,
    /// Of the life before.
    pub last: Option<ContainerId>,
    /// Its current life is over.
    pub ended: bool,
}

/// What a container is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize, Serialize)]
pub enum ContainerKind {
    /// Runs before the others and ends.
    Init,
    /// An init container that goes on (`restartPolicy: Always`).
    Sidecar,
    /// The pod's purpose.
    Main,
    /// Added later, by `kubectl debug`.
    Ephemeral,
}

/// What a source has to tell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PodChange {
    /// All pods of the node: those that are not among them are gone.
    All(Vec<Pod>),
    /// A pod is new or has changed.
    Applied(Pod),
    /// A pod is gone; with its last statuses.
    Deleted(Pod),
    /// From now on changes may be missed.
    Disconnected,
    /// From now on none is missed; what was missed comes now, or came just before.
    Connected,
}

/// One life of a container.
#[derive(Clone, Debug)]
pub struct ContainerInfo {
    /// Its pod, as it was last told.
    pub pod: Arc<Pod>,
    /// Its name in the pod.
    pub name: Arc<str>,
    /// Its image.
    pub image: Arc<str>,
    /// The runtime's id: another after each restart.
    pub id: ContainerId,
}

#[cfg(test)]
impl Pod {
    /// `web` of namespace `shop`, that nobody owns, with a UID and nothing else.
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
