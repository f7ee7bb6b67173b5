//! Finds the workload that a pod is a replica of, from its owner reference and its labels alone. Pure.
//!
//! A Deployment owns its pods through a ReplicaSet, and a CronJob through a Job. The agent may read pods only, so it
//! cannot request the owner of a ReplicaSet or a Job. It derives the owner from the name, by the rules of the
//! controller that makes the name.

use std::{ops::Range, sync::Arc};

use serde::{Deserialize, Serialize};

/// The years 2020 to 2100, in minutes since the epoch. Most dates written as eight digits lie outside.
const SCHEDULED_MINUTES: Range<u64> = 26_297_280..68_374_080;

/// The object that a user deployed.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Deserialize, Serialize)]
pub struct Workload {
    /// The kind of workload.
    pub kind: WorkloadKind,
    /// The workload's name; the pod's own name if the pod has no owner.
    pub name: Arc<str>,
}

/// The kinds of workload.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Deserialize, Serialize)]
#[expect(missing_docs, reason = "Kubernetes' own names")]
pub enum WorkloadKind {
    Deployment,
    ReplicaSet,
    StatefulSet,
    DaemonSet,
    Job,
    CronJob,
    ReplicationController,
    /// A pod without an owner.
    BarePod,
    /// A pod that the kubelet runs from a file.
    StaticPod,
    /// A custom kind, in lower case.
    Other(Arc<str>),
}

impl Workload {
    /// Returns the workload of a pod, from the kind and name of its controller.
    pub(super) fn of<'a>(
        owner: Option<(&str, &str)>,
        label: impl Fn(&'static str) -> Option<&'a str>,
        pod_name: &str,
    ) -> Self {
        let Some((kind, name)) = owner else {
            return Self { kind: WorkloadKind::BarePod, name: pod_name.into() };
        };
        // A ReplicaSet's name is its owner's name and a hash. Its pods have the hash as a label.
        let without = |key| name.strip_suffix(label(key)?)?.strip_suffix('-').filter(|name| !name.is_empty());
        let (kind, name) = match kind {
            "ReplicaSet" => match (without("pod-template-hash"), without("rollouts-pod-template-hash")) {
                (Some(deployment), _) => (WorkloadKind::Deployment, deployment),
                // Argo Rollouts uses the Deployments' scheme, with a label of its own.
                (None, Some(rollout)) => (WorkloadKind::Other("rollout".into()), rollout),
                (None, None) => (WorkloadKind::ReplicaSet, name),
            },
            "Job" => match cron_job(name) {
                Some(cron_job) => (WorkloadKind::CronJob, cron_job),
                None => (WorkloadKind::Job, name),
            },
            "StatefulSet" => (WorkloadKind::StatefulSet, name),
            "DaemonSet" => (WorkloadKind::DaemonSet, name),
            "ReplicationController" => (WorkloadKind::ReplicationController, name),
            "Node" => (WorkloadKind::StaticPod, pod_name),
            kind => (WorkloadKind::Other(kind.to_lowercase().into()), name),
        };
        Self { kind, name: name.into() }
    }

    /// Returns the workload of a pod that the kubelet reads from a file.
    pub(super) fn of_static(pod_name: &str) -> Self {
        Self { kind: WorkloadKind::StaticPod, name: pod_name.into() }
    }
}

/// Returns the CronJob of a Job, from the Job's name: the CronJob controller appends the scheduled time, in minutes
/// since the epoch. The Job's annotation `batch.kubernetes.io/cronjob-scheduled-timestamp` would be certain, but does
/// not reach the Job's pods.
fn cron_job(job: &str) -> Option<&str> {
    let (name, minutes) = job.rsplit_once('-')?;
    let scheduled = minutes.len() == 8 && minutes.parse().is_ok_and(|minutes| SCHEDULED_MINUTES.contains(&minutes));
    (scheduled && !name.is_empty()).then_some(name)
}

impl WorkloadKind {
    /// Returns the value of the label `workload_type`: kubernetes-mixin's names, in lower case throughout.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::Deployment => "deployment",
            Self::ReplicaSet => "replicaset",
            Self::StatefulSet => "statefulset",
            Self::DaemonSet => "daemonset",
            Self::Job => "job",
            Self::CronJob => "cronjob",
            Self::ReplicationController => "replicationcontroller",
            Self::BarePod => "barepod",
            Self::StaticPod => "staticpod",
            Self::Other(kind) => kind,
        }
    }

    /// Returns the OpenTelemetry attribute for the workload's name; `None` for kinds without one.
    #[must_use]
    pub const fn attribute(&self) -> Option<&'static str> {
        match self {
            Self::Deployment => Some("k8s.deployment.name"),
            Self::ReplicaSet => Some("k8s.replicaset.name"),
            Self::StatefulSet => Some("k8s.statefulset.name"),
            Self::DaemonSet => Some("k8s.daemonset.name"),
            Self::Job => Some("k8s.job.name"),
            Self::CronJob => Some("k8s.cronjob.name"),
            Self::ReplicationController => Some("k8s.replicationcontroller.name"),
            Self::BarePod | Self::StaticPod | Self::Other(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workloads_are_identified_by_owner_and_labels() {
        let hash = ("pod-template-hash", "5d4f8c7b9");
        let rollout = ("rollouts-pod-template-hash", "5d4f8c7b9");
        for (owner, label, kind, name) in [
            (None, None, "barepod", "pod"),
            (Some(("ReplicaSet", "web-5d4f8c7b9")), Some(hash), "deployment", "web"),
            (Some(("ReplicaSet", "web-v2-5d4f8c7b9")), Some(hash), "deployment", "web-v2"),
            (Some(("ReplicaSet", "web-5d4f8c7b9")), None, "replicaset", "web-5d4f8c7b9"),
            (Some(("ReplicaSet", "web-6d4f8c7b9")), Some(hash), "replicaset", "web-6d4f8c7b9"),
            (Some(("ReplicaSet", "web5d4f8c7b9")), Some(hash), "replicaset", "web5d4f8c7b9"),
            (Some(("ReplicaSet", "-5d4f8c7b9")), Some(hash), "replicaset", "-5d4f8c7b9"),
            (Some(("ReplicaSet", "web")), Some(("pod-template-hash", "")), "replicaset", "web"),
            (Some(("ReplicaSet", "web-5d4f8c7b9")), Some(rollout), "rollout", "web"),
            (Some(("Job", "backup-29184720")), None, "cronjob", "backup"),
            (Some(("Job", "x-12")), None, "job", "x-12"),
            (Some(("Job", "import-20240115")), None, "job", "import-20240115"),
            (Some(("Job", "import-99999999")), None, "job", "import-99999999"),
            (Some(("Job", "import-+9184720")), None, "job", "import-+9184720"),
            (Some(("Job", "-29184720")), None, "job", "-29184720"),
            (Some(("Job", "29184720")), None, "job", "29184720"),
            (Some(("StatefulSet", "db")), None, "statefulset", "db"),
            (Some(("DaemonSet", "log")), None, "daemonset", "log"),
            (Some(("ReplicationController", "old")), None, "replicationcontroller", "old"),
            (Some(("Node", "node-1")), None, "staticpod", "pod"),
            (Some(("SparkApplication", "pi")), None, "sparkapplication", "pi"),
        ] {
            let value = |key| label.filter(|(known, _)| *known == key).map(|(_, value)| value);
            let workload = Workload::of(owner, value, "pod");
            assert_eq!((workload.kind.name(), &*workload.name), (kind, name), "{owner:?} {label:?}");
        }
    }

    #[test]
    fn only_kinds_of_the_semantic_conventions_are_attributes() {
        assert_eq!(WorkloadKind::CronJob.attribute(), Some("k8s.cronjob.name"));
        assert_eq!(WorkloadKind::StaticPod.attribute(), None);
        assert_eq!(WorkloadKind::Other("rollout".into()).attribute(), None);
    }
}
