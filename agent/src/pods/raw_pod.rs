//! The few fields of the API's pod that the agent uses, as `v1.Pod` spells them. Pure.
//!
//! The parser is lenient: a missing or null field becomes empty. It skips all other fields.

use std::collections::HashMap;

use serde::{Deserialize, Deserializer};

/// `v1.PodList`.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct RawList {
    #[serde(deserialize_with = "or_default")]
    pub(super) kind: String,
    #[serde(deserialize_with = "or_default")]
    pub(super) metadata: RawListMeta,
    #[serde(deserialize_with = "or_default")]
    pub(super) items: Vec<RawPod>,
}

/// `ListMeta`.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct RawListMeta {
    #[serde(deserialize_with = "or_default")]
    pub(super) resource_version: String,
}

/// `v1.Pod`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct RawPod {
    #[serde(deserialize_with = "or_default")]
    pub(super) metadata: RawMeta,
    #[serde(deserialize_with = "or_default")]
    pub(super) spec: RawSpec,
    #[serde(deserialize_with = "or_default")]
    pub(super) status: RawStatus,
}

/// `ObjectMeta`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct RawMeta {
    #[serde(deserialize_with = "or_default")]
    pub(super) name: String,
    #[serde(deserialize_with = "or_default")]
    pub(super) namespace: String,
    #[serde(deserialize_with = "or_default")]
    pub(super) uid: String,
    #[serde(deserialize_with = "or_default")]
    pub(super) resource_version: String,
    #[serde(deserialize_with = "or_default")]
    pub(super) labels: HashMap<String, String>,
    #[serde(deserialize_with = "or_default")]
    pub(super) annotations: HashMap<String, String>,
    #[serde(deserialize_with = "or_default")]
    pub(super) owner_references: Vec<RawOwner>,
}

/// `OwnerReference`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct RawOwner {
    #[serde(deserialize_with = "or_default")]
    pub(super) kind: String,
    #[serde(deserialize_with = "or_default")]
    pub(super) name: String,
    #[serde(deserialize_with = "or_default")]
    pub(super) controller: bool,
}

/// `PodSpec`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct RawSpec {
    #[serde(deserialize_with = "or_default")]
    pub(super) priority_class_name: String,
    #[serde(deserialize_with = "or_default")]
    pub(super) init_containers: Vec<RawContainer>,
    #[serde(deserialize_with = "or_default")]
    pub(super) containers: Vec<RawContainer>,
    #[serde(deserialize_with = "or_default")]
    pub(super) ephemeral_containers: Vec<RawContainer>,
}

/// `Container` and `EphemeralContainer`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct RawContainer {
    #[serde(deserialize_with = "or_default")]
    pub(super) name: String,
    #[serde(deserialize_with = "or_default")]
    pub(super) image: String,
    #[serde(deserialize_with = "or_default")]
    pub(super) restart_policy: String,
}

/// `PodStatus`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct RawStatus {
    #[serde(deserialize_with = "or_default")]
    pub(super) phase: String,
    #[serde(deserialize_with = "or_default")]
    pub(super) qos_class: String,
    #[serde(deserialize_with = "or_default")]
    pub(super) init_container_statuses: Vec<RawContainerStatus>,
    #[serde(deserialize_with = "or_default")]
    pub(super) container_statuses: Vec<RawContainerStatus>,
    #[serde(deserialize_with = "or_default")]
    pub(super) ephemeral_container_statuses: Vec<RawContainerStatus>,
}

/// `ContainerStatus`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct RawContainerStatus {
    #[serde(deserialize_with = "or_default")]
    pub(super) name: String,
    #[serde(deserialize_with = "or_default")]
    pub(super) image: String,
    #[serde(deserialize_with = "or_default", rename = "containerID")]
    pub(super) container_id: String,
    #[serde(deserialize_with = "or_default")]
    pub(super) state: RawState,
    #[serde(deserialize_with = "or_default")]
    pub(super) last_state: RawState,
}

/// `ContainerState`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct RawState {
    pub(super) terminated: Option<RawTerminated>,
}

/// `ContainerStateTerminated`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct RawTerminated {
    #[serde(deserialize_with = "or_default", rename = "containerID")]
    pub(super) container_id: String,
}

fn or_default<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(deserializer: D) -> Result<T, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}
