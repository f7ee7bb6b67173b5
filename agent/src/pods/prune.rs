//! Turns the API's pod into podperf's: chooses the fields to keep, and their names. Pure.

use std::{collections::HashMap, sync::Arc};

use super::{
    pod::{Container, ContainerKind, Pod},
    raw_pod::{RawContainer, RawContainerStatus, RawMeta, RawOwner, RawPod},
    workload::Workload,
};
use crate::model::ids::ContainerId;

/// The largest size of a label or annotation that is kept, in bytes.
const MOST_BYTES: usize = 1024;

/// The labels and annotations to keep, by key, with their names in Prometheus.
#[derive(Clone, Debug, Default)]
pub(super) struct PruneRules {
    labels: Vec<(String, Arc<str>)>,
    annotations: Vec<(String, Arc<str>)>,
    origin: Origin,
}

/// The source of the pods, which decides whether the agent accepts a pod as static: any user may write an annotation.
#[derive(Clone, Debug)]
pub(super) enum Origin {
    /// The API server, for the pods of this node. Its copy of a static pod has the node as owner.
    Api { node: Arc<str> },
    /// The node's kubelet, which writes the pod's origin into each pod.
    Kubelet,
}

impl Default for Origin {
    fn default() -> Self {
        Self::Api { node: "".into() }
    }
}

impl Origin {
    fn is_static(&self, pod: &RawMeta) -> bool {
        let annotation = |key: &str| pod.annotations.get(key);
        match self {
            Self::Api { node } => {
                let is_node = |owner: &RawOwner| owner.kind == "Node" && *owner.name == **node;
                annotation("kubernetes.io/config.mirror").is_some() && pod.owner_references.iter().any(is_node)
            }
            Self::Kubelet => annotation("kubernetes.io/config.source").is_some_and(|source| source != "api"),
        }
    }
}

impl PruneRules {
    /// Creates the rules from keys as the pod spells them. The name of a key does not depend on the other keys of a
    /// pod.
    pub(super) fn new(labels: &[String], annotations: &[String], origin: Origin) -> Self {
        Self { labels: named("label", labels), annotations: named("annotation", annotations), origin }
    }

    /// Returns the pod; `None` without a name or a namespace, which every real pod has.
    pub(super) fn prune(&self, raw: RawPod) -> Option<Pod> {
        let RawPod { metadata, spec, status } = raw;
        if metadata.name.is_empty() || metadata.namespace.is_empty() {
            return None;
        }
        let label = |key: &str| metadata.labels.get(key).map(String::as_str);
        let annotation = |key: &str| metadata.annotations.get(key).map(String::as_str);
        let owner = metadata.owner_references.iter().find(|owner| owner.controller);
        let is_static = self.origin.is_static(&metadata);
        let workload = if is_static {
            Workload::of_static(&metadata.name)
        } else {
            Workload::of(owner.map(|owner| (&*owner.kind, &*owner.name)), label, &metadata.name)
        };
        let kept = |from: &HashMap<String, String>, keys: &[(String, Arc<str>)]| -> Vec<_> {
            let value = |(key, name): &(String, Arc<str>)| Some((Arc::clone(name), Arc::from(cut(from.get(key)?))));
            keys.iter().filter_map(value).collect()
        };
        let mut labels = kept(&metadata.labels, &self.labels);
        labels.extend(kept(&metadata.annotations, &self.annotations));

        let lists = [
            (spec.init_containers, &status.init_container_statuses, ContainerKind::Init),
            (spec.containers, &status.container_statuses, ContainerKind::Main),
            (spec.ephemeral_containers, &status.ephemeral_container_statuses, ContainerKind::Ephemeral),
        ];
        let containers = lists.into_iter().flat_map(|(containers, statuses, kind)| {
            containers.into_iter().map(move |raw| {
                let status = statuses.iter().find(|status| status.name == raw.name);
                container(&raw, status, kind)
            })
        });
        Some(Pod {
            uid: metadata.uid.parse().ok(),
            // To the kubelet, a static pod's hash is its UID.
            config_hash: is_static
                .then(|| annotation("kubernetes.io/config.hash").unwrap_or(&metadata.uid).parse().ok())
                .flatten(),
            namespace: metadata.namespace.as_str().into(),
            name: metadata.name.as_str().into(),
            workload,
            qos_class: status.qos_class.to_lowercase().into(),
            priority_class: spec.priority_class_name.into(),
            service_name: annotation("resource.opentelemetry.io/service.name")
                .filter(|name| !name.is_empty())
                .map(|name| Arc::from(cut(name))),
            scrape: annotation("podperf.io/scrape") != Some("false"),
            labels,
            over: matches!(&*status.phase, "Succeeded" | "Failed"),
            containers: containers.collect(),
        })
    }
}

/// Returns the beginning of a value: Kubernetes allows annotations of 256 KiB, and each scrape, profile and checkpoint has
/// them.
fn cut(value: &str) -> &str {
    &value[..value.floor_char_boundary(MOST_BYTES)]
}

fn container(raw: &RawContainer, status: Option<&RawContainerStatus>, kind: ContainerKind) -> Container {
    let id = |text: &str| ContainerId::from_status(text);
    let ended = status.and_then(|status| status.state.terminated.as_ref());
    let before = status.and_then(|status| status.last_state.terminated.as_ref());
    let image = if raw.image.is_empty() { status.map_or("", |status| &status.image) } else { &raw.image };
    Container {
        name: raw.name.as_str().into(),
        image: image.into(),
        kind: match kind {
            ContainerKind::Init if raw.restart_policy == "Always" => ContainerKind::Sidecar,
            kind => kind,
        },
        current: status
            .and_then(|status| id(&status.container_id))
            .or_else(|| ended.and_then(|ended| id(&ended.container_id))),
        last: before.and_then(|before| id(&before.container_id)),
        ended: ended.is_some(),
    }
}

/// Returns the keys with the names that kube-state-metrics gives them, in the order of the keys.
fn named(prefix: &str, keys: &[String]) -> Vec<(String, Arc<str>)> {
    let mut keys = keys.to_vec();
    keys.sort();
    keys.dedup();
    let names: Vec<_> = keys.iter().map(|key| format!("{prefix}_{}", sanitised(key))).collect();
    let unique = |(at, name): (usize, &String)| -> Arc<str> {
        let same = |other: &&String| *other == name;
        if names.iter().filter(same).count() == 1 {
            return name.as_str().into();
        }
        let number = 1 + names[..at].iter().filter(same).count();
        format!("{name}_conflict{number}").into()
    };
    let unique: Vec<_> = names.iter().enumerate().map(unique).collect();
    keys.into_iter().zip(unique).collect()
}

/// Returns the name of a label's key in [`super::Pod::labels`], unless another key has the same name.
pub fn label_name(key: &str) -> String {
    format!("label_{}", sanitised(key))
}

/// Converts a key by kube-state-metrics' rules: a character that a label's name cannot hold becomes `_`, and
/// `camelCase` becomes `camel_case`.
fn sanitised(key: &str) -> String {
    let mut name = String::with_capacity(key.len());
    let mut before = ' ';
    for letter in key.chars() {
        if letter.is_ascii_uppercase() && (before.is_ascii_lowercase() || before.is_ascii_digit()) {
            name.push('_');
        }
        name.push(if letter.is_ascii_alphanumeric() { letter.to_ascii_lowercase() } else { '_' });
        before = letter;
    }
    name
}

#[cfg(test)]
#[path = "prune_tests.rs"]
mod tests;
