//! Finds the owner of a cgroup. Pure.

use std::sync::Arc;

use crate::{
    cgroups::{DirKind, Place, Tree},
    model::ids::CgroupId,
    pods::{ContainerInfo, Pod, PodIndex},
};

/// The owner of a cgroup.
#[derive(Clone, Debug)]
pub enum Owner {
    /// The cgroup itself, which is in no pod.
    Cgroup,
    /// A container of a pod.
    Container(Arc<ContainerInfo>),
    /// A pod, but none of its containers: the pod's own directory, its sandbox, the runtime's monitor.
    Pod(Arc<Pod>),
    /// A pod or container whose name may still come.
    Unknown,
    /// A pod that the API does not know, although the agent has missed no change for a while.
    Unresolved,
}

/// The known cgroups and pods.
#[derive(Clone, Copy, Debug)]
pub struct Names<'a> {
    /// The cgroups.
    pub tree: &'a Tree,
    /// The pods; `None` without a source of pods. Then cgroups of pods are treated like all other cgroups.
    pub pods: Option<&'a PodIndex>,
    /// Longest wait for a name while the agent misses no change, in nanoseconds.
    pub patience_ns: u64,
}

impl<'a> Names<'a> {
    /// Returns the newest known pod with this pod's namespace and name: the pod itself, or a later one.
    #[must_use]
    pub fn newest(&self, pod: &'a Arc<Pod>) -> &'a Arc<Pod> {
        self.pods.and_then(|pods| pods.named(&pod.namespace, &pod.name)).unwrap_or(pod)
    }

    /// Returns the owner of a cgroup with a path.
    #[must_use]
    pub fn owner(&self, place: &Place, now_ns: u64) -> Owner {
        let (Some(pods), Some(kube)) = (self.pods, &place.kube) else { return Owner::Cgroup };
        let container = kube.container.filter(|container| container.kind == DirKind::Container);
        if let Some(info) = container.and_then(|container| pods.container(container.id)) {
            return Owner::Container(Arc::clone(info));
        }
        // The name may still be on its way if the cgroup is new, or if an outage ended lately.
        let overdue = pods
            .synced_ns()
            .is_some_and(|synced_ns| now_ns.saturating_sub(place.born_ns.max(synced_ns)) > self.patience_ns);
        match (pods.pod(kube.pod), container) {
            (None, _) if overdue => Owner::Unresolved,
            (None, _) => Owner::Unknown,
            (Some(pod), None) => Owner::Pod(Arc::clone(pod)),
            (Some(_), Some(_)) if !overdue => Owner::Unknown,
            // No status names this container. It is the sandbox, which is the first directory that the runtime makes;
            // or a life that came and went between two statuses. Such a life has a name if the pod has only one
            // container.
            (Some(pod), Some(container)) => match pod.containers.as_slice() {
                [only] if !place.first_of_pod => Owner::Container(Arc::new(ContainerInfo {
                    pod: Arc::clone(pod),
                    name: Arc::clone(&only.name),
                    image: Arc::clone(&only.image),
                    id: container.id,
                })),
                _ => Owner::Pod(Arc::clone(pod)),
            },
        }
    }

    /// Returns the owner of a cgroup by its id; `None` without a known path.
    #[must_use]
    pub fn owner_of(&self, cgroup: CgroupId, now_ns: u64) -> Option<(&Place, Owner)> {
        let place = self.tree.place(cgroup)?;
        Some((place, self.owner(place, now_ns)))
    }
}
