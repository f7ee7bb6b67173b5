//! Index of container ids: the pods that the API reports for the node, and the pods that it reported until lately.
//! Pure.
//!
//! The collector's thread applies each [`PodChange`]; [`crate::attribution`] reads the index. A deleted pod stays for a
//! while, and so does an id that a restart replaced, because their last counts are still to come. While the API is out
//! of reach, the index removes nothing, and [`PodIndex::synced_ns`] returns `None`: a missing name may still come.

use super::pod::ContainerInfo;
use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use super::saved_pods::{Pods, SavedPod};
use super::{Container, ContainerKind, Pod, PodChange};
use crate::model::ids::{ConfigHash, ContainerId, PodRef};

/// Time for which a pod or an id stays after the API has dropped it, in nanoseconds: counts may still refer to it.
const RETAIN_NS: u64 = 300_000_000_000;

/// The expected future of a container, by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outlook {
    /// The container runs, or will run (again).
    Runs,
    /// The container has ended, but its pod still exists.
    Over,
    /// The container's pod is gone.
    Gone,
}

/// The pods of the node.
#[derive(Debug, Default)]
pub struct PodIndex {
    pods: HashMap<PodRef, Known>,
    /// The pods of static pods' manifest hashes: the directory of a static pod carries this hash, not the UID of its
    /// mirror pod.
    mirrors: HashMap<ConfigHash, PodRef>,
    /// The pod that has a name now: another pod may have had the name before.
    names: HashMap<(Arc<str>, Arc<str>), PodRef>,
    containers: HashMap<ContainerId, Life>,
    listed: bool,
    synced_ns: Option<u64>,
}

#[derive(Debug)]
struct Known {
    pod: Arc<Pod>,
    deleted_ns: Option<u64>,
    ids: Vec<ContainerId>,
}

#[derive(Debug)]
struct Life {
    info: Arc<ContainerInfo>,
    /// Time at which the pod's status stopped naming this life.
    replaced_ns: Option<u64>,
}

impl PodIndex {
    /// Returns the pods, for the checkpoint.
    #[must_use]
    pub fn save(&self, pods: &mut Pods) -> Vec<SavedPod> {
        let known = self.pods.values();
        known.map(|known| SavedPod { pod: pods.place(&known.pod), deleted_ns: known.deleted_ns }).collect()
    }

    /// Restores the index that the previous agent saved. Later changes come with the first list.
    #[must_use]
    pub fn restore(saved: &[SavedPod], pods: &Pods) -> Self {
        let mut this = Self::default();
        // Living pods come last, so that a name belongs to the pod that has it now.
        for dead in [true, false] {
            for SavedPod { pod, deleted_ns } in saved.iter().filter(|saved| saved.deleted_ns.is_some() == dead) {
                if let Some(pod) = pods.at(*pod) {
                    this.put(Pod::clone(pod), *deleted_ns, deleted_ns.unwrap_or(0));
                }
            }
        }
        this
    }

    /// Applies a change that the API reported at `now_ns`.
    pub fn apply(&mut self, change: PodChange, now_ns: u64) {
        match change {
            PodChange::All(pods) => {
                let listed: HashSet<_> = pods.iter().filter_map(key).collect();
                for (_, known) in self.pods.iter_mut().filter(|(key, _)| !listed.contains(key)) {
                    known.deleted_ns.get_or_insert(now_ns);
                }
                for pod in pods {
                    self.put(pod, None, now_ns);
                }
                self.claim_hashes();
                self.listed = true;
                self.synced_ns.get_or_insert(now_ns);
            }
            PodChange::Applied(pod) => self.put(pod, None, now_ns),
            PodChange::Deleted(pod) => self.put(pod, Some(now_ns), now_ns),
            PodChange::Connected if self.listed => {
                self.synced_ns.get_or_insert(now_ns);
            }
            PodChange::Connected => {}
            PodChange::Disconnected => self.synced_ns = None,
        }
    }

    /// Removes pods and ids that were deleted or replaced long ago. A pod that still has a cgroup stays: below `kubepods`, or
    /// one of a container outside of it.
    pub fn prune(
        &mut self,
        now_ns: u64,
        has_cgroup: impl Fn(PodRef) -> bool,
        is_outside: impl Fn(&ContainerId) -> bool,
    ) {
        let old = |since: Option<u64>| since.is_some_and(|since| now_ns.saturating_sub(since) >= RETAIN_NS);
        let (containers, mirrors, names) = (&mut self.containers, &mut self.mirrors, &mut self.names);
        self.pods.retain(|key, Known { pod, deleted_ns, ids }| {
            // The cgroup of a hash belongs to the pod that holds the hash, not to each pod that names it.
            let of_hash = |hash| mirrors.get(&hash) == Some(key) && has_cgroup(PodRef::Static(hash));
            let lives = has_cgroup(*key) || pod.config_hash.is_some_and(of_hash) || ids.iter().any(&is_outside);
            if old(*deleted_ns) && !lives {
                ids.iter().for_each(|id| {
                    containers.remove(id);
                });
                mirrors.retain(|_, mirror| mirror != key);
                names.retain(|_, named| named != key);
                return false;
            }
            ids.retain(|id| {
                let gone = containers.get(id).is_none_or(|life| old(life.replaced_ns));
                if gone {
                    containers.remove(id);
                }
                !gone
            });
            true
        });
    }

    /// Returns the time since which no change was missed; `None` while the API is out of reach.
    #[must_use]
    pub const fn synced_ns(&self) -> Option<u64> {
        self.synced_ns
    }

    /// Returns the number of pods that exist now.
    #[must_use]
    pub fn len(&self) -> usize {
        self.pods.values().filter(|known| known.deleted_ns.is_none()).count()
    }

    /// Returns `true` if no pod exists now.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pods.values().all(|known| known.deleted_ns.is_some())
    }

    /// Returns the container that has this id, or had it lately.
    #[must_use]
    pub fn container(&self, id: ContainerId) -> Option<&Arc<ContainerInfo>> {
        self.containers.get(&id).map(|life| &life.info)
    }

    /// Returns the pod of a pod's directory.
    #[must_use]
    pub fn pod(&self, pod: PodRef) -> Option<&Arc<Pod>> {
        let key = match pod {
            PodRef::Static(hash) => self.mirrors.get(&hash)?,
            PodRef::Uid(_) => &pod,
        };
        self.pods.get(key).map(|known| &known.pod)
    }

    /// Returns the pod that has this name now, or had it last.
    #[must_use]
    pub fn named(&self, namespace: &Arc<str>, pod: &Arc<str>) -> Option<&Arc<Pod>> {
        let key = self.names.get(&(Arc::clone(namespace), Arc::clone(pod)))?;
        self.pods.get(key).map(|known| &known.pod)
    }

    /// Returns the expected future of a container, or of a whole pod when `container` is `None`.
    #[must_use]
    pub fn outlook(&self, namespace: &Arc<str>, pod: &Arc<str>, container: Option<&str>) -> Outlook {
        let key = self.names.get(&(Arc::clone(namespace), Arc::clone(pod)));
        let Some(Known { pod, deleted_ns: None, .. }) = key.and_then(|key| self.pods.get(key)) else {
            return Outlook::Gone;
        };
        let runs = |container: &Container| {
            !container.ended && matches!(container.kind, ContainerKind::Main | ContainerKind::Sidecar)
        };
        let asked = |candidate: &&Container| container.is_none_or(|name| &*candidate.name == name);
        if !pod.over && pod.containers.iter().filter(asked).any(runs) { Outlook::Runs } else { Outlook::Over }
    }

    /// Gives free hashes to the pods that name them: such a pod may have come while another pod still held the hash.
    fn claim_hashes(&mut self) {
        for (key, known) in self.pods.iter().filter(|(_, known)| known.deleted_ns.is_none()) {
            if let Some(hash) = known.pod.config_hash {
                self.mirrors.entry(hash).or_insert(*key);
            }
        }
    }

    fn put(&mut self, pod: Pod, deleted_ns: Option<u64>, now_ns: u64) {
        let Some(key) = key(&pod) else { return };
        let pod = Arc::new(pod);
        if let Some(before) = self.pods.get(&key).and_then(|known| known.pod.config_hash)
            && pod.config_hash != Some(before)
            && self.mirrors.get(&before) == Some(&key)
        {
            self.mirrors.remove(&before);
        }
        if let Some(hash) = pod.config_hash {
            let has = self.mirrors.get(&hash);
            let lives = has.and_then(|has| self.pods.get(has)).is_some_and(|known| known.deleted_ns.is_none());
            // A living pod keeps its hash, and a deleted pod takes none.
            if has.is_none() || (!lives && deleted_ns.is_none()) {
                self.mirrors.insert(hash, key);
            }
        }
        let name = (Arc::clone(&pod.namespace), Arc::clone(&pod.name));
        if deleted_ns.is_none() || !self.names.contains_key(&name) {
            self.names.insert(name, key);
        }

        let mut ids = Vec::new();
        for container in &pod.containers {
            for id in [container.current, container.last].into_iter().flatten() {
                let info = ContainerInfo {
                    pod: Arc::clone(&pod),
                    name: Arc::clone(&container.name),
                    image: Arc::clone(&container.image),
                    id,
                };
                self.containers.insert(id, Life { info: Arc::new(info), replaced_ns: None });
                ids.push(id);
            }
        }
        // The pod keeps the ids of earlier lives until `prune` removes them.
        if let Some(before) = self.pods.get(&key) {
            for id in before.ids.iter().filter(|id| !ids.contains(id)).copied().collect::<Vec<_>>() {
                if let Some(life) = self.containers.get_mut(&id) {
                    life.replaced_ns.get_or_insert(now_ns);
                    ids.push(id);
                }
            }
        }
        self.pods.insert(key, Known { pod, deleted_ns, ids });
    }
}

#[cfg(test)]
impl PodIndex {
    /// Returns the number of all entries.
    fn size(&self) -> usize {
        self.pods.len() + self.mirrors.len() + self.names.len() + self.containers.len()
    }
}

/// Returns the key of a pod. A pod without a UID is one that the kubelet itself read from a file.
pub(super) fn key(pod: &Pod) -> Option<PodRef> {
    pod.uid.map(PodRef::Uid).or(pod.config_hash.map(PodRef::Static))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HASH: &str = "0123456789abcdef0123456789abcdef";

    fn id(digit: char) -> ContainerId {
        digit.to_string().repeat(64).parse().unwrap()
    }

    fn pod(current: char, last: Option<char>) -> Pod {
        let container = Container {
            name: "app".into(),
            image: "image".into(),
            kind: ContainerKind::Main,
            current: Some(id(current)),
            last: last.map(id),
            ended: false,
        };
        Pod { containers: vec![container], ..Pod::example() }
    }

    fn outlook(index: &PodIndex) -> Outlook {
        index.outlook(&"shop".into(), &"web".into(), Some("app"))
    }

    #[test]
    fn both_ids_of_a_status_and_those_of_earlier_ones_have_a_name() {
        let mut index = PodIndex::default();
        index.apply(PodChange::Applied(pod('a', None)), 0);
        index.apply(PodChange::Applied(pod('c', Some('b'))), 1);
        for digit in ['a', 'b', 'c'] {
            assert_eq!(&*index.container(id(digit)).unwrap().name, "app");
        }
        assert!(index.container(id('d')).is_none());
    }

    #[test]
    fn a_replaced_id_and_a_deleted_pod_are_kept_for_their_last_counts() {
        let mut index = PodIndex::default();
        index.apply(PodChange::Applied(pod('a', None)), 0);
        index.apply(PodChange::Applied(pod('b', None)), 1);
        index.prune(RETAIN_NS, |_| false, |_| false);
        assert!(index.container(id('a')).is_some());
        index.prune(1 + RETAIN_NS, |_| false, |_| false);
        assert!(index.container(id('a')).is_none() && index.container(id('b')).is_some());

        index.apply(PodChange::Deleted(pod('b', None)), 10);
        assert_eq!((index.len(), outlook(&index)), (0, Outlook::Gone));
        index.prune(10 + RETAIN_NS, |_| true, |_| false);
        assert!(index.container(id('b')).is_some(), "forgotten with a living cgroup");
        index.prune(10 + RETAIN_NS, |_| false, |_| false);
        assert!(index.container(id('b')).is_none() && index.pods.is_empty() && index.names.is_empty());
    }

    #[test]
    fn a_pod_that_a_complete_list_lacks_is_gone() {
        let mut index = PodIndex::default();
        index.apply(PodChange::All(vec![pod('a', None)]), 0);
        assert_eq!(outlook(&index), Outlook::Runs);
        index.apply(PodChange::All(vec![]), 1);
        assert_eq!(outlook(&index), Outlook::Gone);
        index.apply(PodChange::All(vec![pod('a', None)]), 2);
        assert_eq!(outlook(&index), Outlook::Runs);
    }

    #[test]
    fn restored_pods_have_names_before_the_first_list_and_are_not_taken_for_all() {
        let mut index = PodIndex::default();
        let another = Pod { uid: "00000000-e3b9-43a3-acdb-de4ba71f1fa4".parse().ok(), ..pod('b', None) };
        index.apply(PodChange::All(vec![pod('a', None)]), 0);
        index.apply(PodChange::Deleted(pod('a', None)), 1);
        index.apply(PodChange::Applied(another.clone()), 2);
        let mut pods = Pods::default();
        let saved = index.save(&mut pods);
        let restored = PodIndex::restore(&saved, &Pods::of(pods.into_saved()));
        assert!(restored.container(id('a')).is_some() && restored.container(id('b')).is_some());
        assert_eq!((restored.len(), outlook(&restored), restored.synced_ns()), (1, Outlook::Runs, None));
        assert_eq!(restored.named(&"shop".into(), &"web".into()).unwrap().uid, another.uid);
    }

    #[test]
    fn a_static_pod_is_found_by_the_hash_in_its_path() {
        let hash: ConfigHash = HASH.parse().unwrap();
        let mirror = Pod { config_hash: Some(hash), ..pod('a', None) };
        let own = Pod { uid: None, ..mirror.clone() };
        for told in [mirror, own] {
            let mut index = PodIndex::default();
            index.apply(PodChange::All(vec![told]), 0);
            assert_eq!(index.pod(PodRef::Static(hash)).map(|pod| &*pod.name), Some("web"));
        }
    }

    /// A pod that names the hash of a mirror, with a UID and a name of its own.
    fn impostor(number: u32) -> Pod {
        let uid = format!("{number:08x}-e3b9-43a3-acdb-de4ba71f1fa4").parse().ok();
        Pod { uid, name: format!("impostor-{number}").into(), config_hash: HASH.parse().ok(), ..Pod::example() }
    }

    #[test]
    fn a_living_mirror_is_replaced_by_nobody() {
        let hash: ConfigHash = HASH.parse().unwrap();
        let mirror = Pod { config_hash: Some(hash), ..pod('a', None) };
        let found = |index: &PodIndex| index.pod(PodRef::Static(hash)).map(|pod| pod.name.to_string());
        let mut index = PodIndex::default();
        index.apply(PodChange::All(vec![mirror.clone()]), 0);
        index.apply(PodChange::Applied(impostor(1)), 1);
        assert_eq!(found(&index).as_deref(), Some("web"));
        index.apply(PodChange::Deleted(impostor(1)), 2);
        assert_eq!(found(&index).as_deref(), Some("web"));
        // The kubelet makes another mirror with the same name.
        index.apply(PodChange::Deleted(mirror), 3);
        assert_eq!(found(&index).as_deref(), Some("web"), "its last counts are still to come");
        let another = Pod { name: "web-again".into(), ..impostor(2) };
        index.apply(PodChange::Applied(another), 4);
        assert_eq!(found(&index).as_deref(), Some("web-again"));
    }

    #[test]
    fn a_pod_that_names_a_hash_no_more_has_it_no_more() {
        let hash: ConfigHash = HASH.parse().unwrap();
        let mirror = Pod { config_hash: Some(hash), ..pod('a', None) };
        let mut index = PodIndex::default();
        // An older version trusted this hash and saved it.
        index.apply(PodChange::Applied(impostor(1)), 0);
        let known = Pod { config_hash: None, ..impostor(1) };
        for order in [vec![mirror.clone(), known.clone()], vec![known, mirror]] {
            index.apply(PodChange::All(order), 1);
            assert_eq!(index.pod(PodRef::Static(hash)).map(|pod| &*pod.name), Some("web"));
        }
    }

    #[test]
    fn pods_that_name_a_strangers_hash_and_go_leave_nothing() {
        let mirror = Pod { config_hash: HASH.parse().ok(), ..pod('a', None) };
        let mut index = PodIndex::default();
        index.apply(PodChange::All(vec![mirror]), 0);
        let size = index.size();
        let has_cgroup = |pod: PodRef| matches!(pod, PodRef::Static(_));
        for number in 1..1000 {
            let at = u64::from(number) * RETAIN_NS;
            index.apply(PodChange::Applied(impostor(number)), at);
            index.apply(PodChange::Deleted(impostor(number)), at + 1);
            index.prune(at + 2, has_cgroup, |_| false);
        }
        index.prune(2000 * RETAIN_NS, has_cgroup, |_| false);
        assert_eq!(index.size(), size);
        assert_eq!(index.save(&mut Pods::default()).len(), 1);
    }

    #[test]
    fn it_is_in_step_from_the_first_list_on_and_not_while_disconnected() {
        let mut index = PodIndex::default();
        index.apply(PodChange::Connected, 1);
        assert_eq!(index.synced_ns(), None);
        index.apply(PodChange::All(vec![]), 2);
        index.apply(PodChange::All(vec![]), 3);
        assert_eq!(index.synced_ns(), Some(2), "a list in time changes nothing");
        index.apply(PodChange::Disconnected, 4);
        assert_eq!(index.synced_ns(), None);
        index.apply(PodChange::Connected, 5);
        assert_eq!(index.synced_ns(), Some(5));
    }
}
