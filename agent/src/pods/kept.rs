//! Pods and containers as the checkpoint has them.

use std::{collections::HashMap, sync::Arc};

use serde::{Deserialize, Serialize};

use super::{ContainerInfo, Pod};
use crate::model::ids::ContainerId;

/// A pod that was told.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct KeptPod {
    /// Its place.
    pub pod: usize,
    /// When it was gone.
    pub deleted_ns: Option<u64>,
}

/// A life of a container.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct KeptContainer {
    pod: usize,
    name: Arc<str>,
    image: Arc<str>,
    id: ContainerId,
}

/// The pods by their places: each is kept once, however many name it.
#[derive(Debug, Default)]
pub struct Pods {
    pods: Vec<Arc<Pod>>,
    places: HashMap<*const Pod, usize>,
}

impl Pods {
    /// Those that were kept.
    #[must_use]
    pub fn of(pods: Vec<Pod>) -> Self {
        Self { pods: pods.into_iter().map(Arc::new).collect(), places: HashMap::new() }
    }

    /// All, to be kept.
    #[must_use]
    pub fn into_kept(self) -> Vec<Pod> {
        self.pods.into_iter().map(Arc::unwrap_or_clone).collect()
    }

    /// The place of a pod.
    pub fn place(&mut self, pod: &Arc<Pod>) -> usize {
        *self.places.entry(Arc::as_ptr(pod)).or_insert_with(|| {
            self.pods.push(Arc::clone(pod));
            self.pods.len() - 1
        })
    }

    /// The pod at a place.
    #[must_use]
    pub fn at(&self, place: usize) -> Option<&Arc<Pod>> {
        self.pods.get(place)
    }

    /// A container, to be kept.
    pub fn keep_container(&mut self, info: &ContainerInfo) -> KeptContainer {
        let pod = self.place(&info.pod);
        KeptContainer { pod, name: Arc::clone(&info.name), image: Arc::clone(&info.image), id: info.id }
    }

    /// A container that was kept.
    #[must_use]
    pub fn container(&self, kept: KeptContainer) -> Option<Arc<ContainerInfo>> {
        let KeptContainer { pod, name, image, id } = kept;
        Some(Arc::new(ContainerInfo { pod: Arc::clone(self.at(pod)?), name, image, id }))
    }
}
