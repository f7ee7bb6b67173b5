//! Pods and containers as the checkpoint stores them.

use std::{collections::HashMap, sync::Arc};

use serde::{Deserialize, Serialize};

use super::{ContainerInfo, Pod};
use crate::model::ids::ContainerId;

/// A reported pod.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct SavedPod {
    /// The pod's index in the checkpoint's list of pods.
    pub pod: usize,
    /// Time at which the pod was deleted; `None` while it exists.
    pub deleted_ns: Option<u64>,
}

/// One life of a container.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct SavedContainer {
    pod: usize,
    name: Arc<str>,
    image: Arc<str>,
    id: ContainerId,
}

/// The pods by index: the checkpoint stores each pod once, however many entries name it.
#[derive(Debug, Default)]
pub struct Pods {
    pods: Vec<Arc<Pod>>,
    places: HashMap<*const Pod, usize>,
}

impl Pods {
    /// Restores the pods of a checkpoint.
    #[must_use]
    pub fn of(pods: Vec<Pod>) -> Self {
        Self { pods: pods.into_iter().map(Arc::new).collect(), places: HashMap::new() }
    }

    /// Returns all pods, for the checkpoint.
    #[must_use]
    pub fn into_saved(self) -> Vec<Pod> {
        self.pods.into_iter().map(Arc::unwrap_or_clone).collect()
    }

    /// Returns the index of a pod. Adds the pod if it is new.
    pub fn place(&mut self, pod: &Arc<Pod>) -> usize {
        *self.places.entry(Arc::as_ptr(pod)).or_insert_with(|| {
            self.pods.push(Arc::clone(pod));
            self.pods.len() - 1
        })
    }

    /// Returns the pod at an index.
    #[must_use]
    pub fn at(&self, place: usize) -> Option<&Arc<Pod>> {
        self.pods.get(place)
    }

    /// Returns a container in the checkpoint's form.
    pub fn save_container(&mut self, info: &ContainerInfo) -> SavedContainer {
        let pod = self.place(&info.pod);
        SavedContainer { pod, name: Arc::clone(&info.name), image: Arc::clone(&info.image), id: info.id }
    }

    /// Restores a container of the checkpoint; `None` if its pod is missing.
    #[must_use]
    pub fn container(&self, saved: SavedContainer) -> Option<Arc<ContainerInfo>> {
        let SavedContainer { pod, name, image, id } = saved;
        Some(Arc::new(ContainerInfo { pod: Arc::clone(self.at(pod)?), name, image, id }))
    }
}
