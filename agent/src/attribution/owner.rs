//! Finds the owner of a cgroup. Pure.

use std::sync::Arc;

use crate::{
    cgroups::{DirKind, FlatPath, Place, Tree},
    model::ids::{CgroupId, PodRef},
    pods::{ContainerInfo, Pod, PodIndex},
};

/// The owner of a cgroup.
#[derive(Clone, Debug)]
pub enum Owner {
    /// The cgroup itself: it is in no pod, or in none that is known.
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

impl Owner {
    /// Returns the pod; `None` for what belongs to no pod that is known.
    #[must_use]
    pub fn pod(&self) -> Option<&Arc<Pod>> {
        match self {
            Self::Container(info) => Some(&info.pod),
            Self::Pod(pod) => Some(pod),
            Self::Cgroup | Self::Unknown | Self::Unresolved => None,
        }
    }
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
        let Some(pods) = self.pods else { return Owner::Cgroup };
        let flat = FlatPath::parse(&place.path);
        // A container may make directories below its own with any name.
        let is_inside = |root_len| flat.is_some_and(|it| it.dir_len <= root_len && pods.container(it.id).is_some());
        let Some(kube) = place.kube.as_ref().filter(|kube| !is_inside(kube.root_len)) else {
            return self.owner_outside(pods, place, flat, now_ns);
        };
        let container = kube.container.filter(|container| container.kind == DirKind::Container);
        if let Some(info) = container.and_then(|container| pods.container(container.id)) {
            return Owner::Container(Arc::clone(info));
        }
        let overdue = self.is_overdue(pods, place, now_ns);
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

    /// Returns the owner of a cgroup outside of `kubepods`: a container if a pod's status names the id in the path.
    fn owner_outside(&self, pods: &PodIndex, place: &Place, flat: Option<FlatPath>, now_ns: u64) -> Owner {
        let Some(flat) = flat else { return Owner::Cgroup };
        match pods.container(flat.id) {
            // A kubelet puts all containers of a pod below `kubepods` or none: this directory is not the container's.
            Some(info) if self.has_directory(&info.pod) => Owner::Cgroup,
            Some(info) => Owner::Container(Arc::clone(info)),
            // Most such containers belong to no pod, so they wait for a name only where the pods can be nowhere else.
            None if self.tree.has_container_of(|_| true) || self.is_overdue(pods, place, now_ns) => Owner::Cgroup,
            None if pods.is_empty() && pods.synced_ns().is_some() => Owner::Cgroup,
            None => Owner::Unknown,
        }
    }

    /// Returns `true` if a pod has a container directory below `kubepods`, or had one lately.
    fn has_directory(&self, pod: &Pod) -> bool {
        let refs = [pod.uid.map(PodRef::Uid), pod.config_hash.map(PodRef::Static)];
        self.tree.has_container_of(|pod| refs.contains(&Some(pod)))
    }

    /// Returns `true` if a name is not on its way any more: the cgroup is not new, and no outage ended lately.
    fn is_overdue(&self, pods: &PodIndex, place: &Place, now_ns: u64) -> bool {
        let synced_ns = pods.synced_ns();
        synced_ns.is_some_and(|synced_ns| now_ns.saturating_sub(place.born_ns.max(synced_ns)) > self.patience_ns)
    }

    /// Returns the owner of a cgroup by its id; `None` without a known path.
    #[must_use]
    pub fn owner_of(&self, cgroup: CgroupId, now_ns: u64) -> Option<(&Place, Owner)> {
        let place = self.tree.place(cgroup)?;
        Some((place, self.owner(place, now_ns)))
    }
}
