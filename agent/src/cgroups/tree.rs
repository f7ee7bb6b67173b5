//! Ids, paths and lifetimes of cgroups. Pure: the time is an argument.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use super::saved_cgroup::SavedCgroup;
use super::{DirKind, FlatPath, Found, KubePath};
use crate::model::ids::PodRef;
use crate::{kernel::records::CgroupRecord, model::ids::CgroupId};

/// Time for which a dead cgroup's path is kept, in nanoseconds: its last tasks may still add counts.
const REMEMBER_DEAD_NS: u64 = 60_000_000_000;
/// Time for which the row of a missing cgroup is kept if walks cannot find all cgroups, in nanoseconds.
const KEEP_MISSING_NS: u64 = 300_000_000_000;
/// Largest number of remembered dead cgroups. In a storm those that died first go first.
const MAX_DEAD: usize = 65_536;

/// The living cgroups, and for a while the dead ones.
#[derive(Debug, Default)]
pub struct Tree {
    nodes: HashMap<CgroupId, Node>,
    /// Number of container directories of each pod, the lately dead included.
    pods: HashMap<PodRef, usize>,
    /// Cgroups with counts that no walk found and no record named, each with the time of the first such walk.
    missing: HashMap<CgroupId, u64>,
    /// `true` after the kernel cut a path short, or could not report a change: only a walk finds the true state.
    stale: bool,
    /// `true` if the last walk found all cgroups of the machine.
    is_whole: bool,
}

#[derive(Debug)]
struct Node {
    place: Place,
    died_ns: Option<u64>,
}

/// Place of a cgroup in the tree.
#[derive(Clone, Debug)]
pub struct Place {
    /// Path from the root of the cgroup2 tree.
    pub path: Arc<str>,
    /// The parsed path, for a pod or container.
    pub kube: Option<KubePath>,
    /// Time when the cgroup was first seen.
    pub born_ns: u64,
    /// `true` if its pod had no other container directory before.
    pub first_of_pod: bool,
}

impl Place {
    /// Returns the cgroup in the checkpoint's form.
    #[must_use]
    pub fn save(&self, id: CgroupId, died_ns: Option<u64>) -> SavedCgroup {
        let Self { path, born_ns, first_of_pod, .. } = self;
        SavedCgroup { id: id.0, path: Arc::clone(path), born_ns: *born_ns, first_of_pod: *first_of_pod, died_ns }
    }

    /// Restores the place that the previous agent saved.
    #[must_use]
    pub fn restore(saved: &SavedCgroup) -> Self {
        let SavedCgroup { path, born_ns, first_of_pod, .. } = saved;
        let kube = KubePath::parse(path);
        Self { path: Arc::clone(path), kube, born_ns: *born_ns, first_of_pod: *first_of_pod }
    }

    /// Returns `true` for a container's own directory.
    #[must_use]
    pub fn is_container(&self) -> bool {
        let Some(kube) = &self.kube else {
            return FlatPath::parse(&self.path).is_some_and(|flat| flat.dir_len == self.path.len());
        };
        let is_container = kube.container.is_some_and(|container| container.kind == DirKind::Container);
        is_container && kube.dir_len == self.path.len()
    }
}

impl Tree {
    /// Returns all cgroups, for the checkpoint.
    #[must_use]
    pub fn save(&self) -> Vec<SavedCgroup> {
        self.nodes.iter().map(|(id, node)| node.place.save(*id, node.died_ns)).collect()
    }

    /// Restores the tree that the previous agent saved. A walk then finds later changes.
    #[must_use]
    pub fn restore(saved: Vec<SavedCgroup>) -> Self {
        let mut this = Self::default();
        for node in saved {
            let place = Place::restore(&node);
            if let Some(kube) = place.kube.filter(|_| place.is_container()) {
                *this.pods.entry(kube.pod).or_default() += 1;
            }
            this.nodes.insert(CgroupId(node.id), Node { place, died_ns: node.died_ns });
        }
        this
    }

    /// Applies a change that the cgroup sensor reported at `now_ns`.
    pub fn apply(&mut self, record: CgroupRecord, now_ns: u64) {
        match record {
            CgroupRecord::Named(id, Some(path)) => self.put(id, path, now_ns),
            CgroupRecord::Named(_, None) => self.stale = true,
            CgroupRecord::Died(id) => {
                if let Some(node) = self.nodes.get_mut(&id) {
                    node.died_ns.get_or_insert(now_ns);
                }
            }
        }
    }

    /// Applies a walk that began at `now_ns`: cgroups that the walk did not find are dead, except below directories that
    /// could not be read.
    pub fn walked(&mut self, found: Found, now_ns: u64) {
        self.stale = false;
        let living: HashSet<_> = found.cgroups.iter().map(|(id, _)| *id).collect();
        for (id, node) in &mut self.nodes {
            if !living.contains(id) && !found.may_miss(&node.place.path) {
                node.died_ns.get_or_insert(now_ns);
            }
        }
        self.is_whole = found.unreadable.is_empty() && living.contains(&CgroupId::ROOT);
        let mut cgroups = found.cgroups;
        // The kernel assigns growing ids, so this is the order of creation.
        cgroups.sort_unstable_by_key(|(id, _)| *id);
        for (id, path) in cgroups {
            self.put(id, path, now_ns);
        }
    }

    /// Notes the cgroups with counts that a walk at `now_ns` did not find. All others are found, or have no counts.
    pub fn note_missing(&mut self, ids: &HashSet<CgroupId>, now_ns: u64) {
        self.missing.retain(|id, _| ids.contains(id));
        for id in ids {
            self.missing.entry(*id).or_insert(now_ns);
        }
    }

    /// Returns `true` if the last walk did not find a cgroup with this id. The next walk would not find it either.
    #[must_use]
    pub fn is_missing(&self, id: CgroupId) -> bool {
        self.missing.contains_key(&id)
    }

    /// Returns `true` if only a walk can find the tree's state.
    #[must_use]
    pub const fn is_stale(&self) -> bool {
        self.stale
    }

    /// Notes that changes were lost.
    pub const fn lost_changes(&mut self) {
        self.stale = true;
    }

    /// Returns the place of a cgroup that lives, or lived lately.
    #[must_use]
    pub fn place(&self, id: CgroupId) -> Option<&Place> {
        self.nodes.get(&id).map(|node| &node.place)
    }

    /// Returns the places of all living cgroups.
    pub fn living(&self) -> impl Iterator<Item = &Place> {
        self.cgroups().map(|(_, place)| place)
    }

    /// Returns all living cgroups, each with its place.
    pub fn cgroups(&self) -> impl Iterator<Item = (CgroupId, &Place)> + Clone {
        self.nodes.iter().filter(|(_, node)| node.died_ns.is_none()).map(|(id, node)| (*id, &node.place))
    }

    /// Returns `true` if a pod has a container directory, or had one lately.
    #[must_use]
    pub fn has_pod(&self, pod: PodRef) -> bool {
        self.pods.contains_key(&pod)
    }

    /// Returns `true` if one of the wanted pods has a container directory below `kubepods`, or had one lately, where only
    /// root makes directories.
    #[must_use]
    pub fn has_container_of(&self, wanted: impl Fn(PodRef) -> bool) -> bool {
        self.nodes.values().any(|Node { place, .. }| {
            let is_wanted = |kube: &KubePath| wanted(kube.pod) && !FlatPath::is_users(&place.path[..kube.root_len]);
            place.is_container() && place.kube.as_ref().is_some_and(is_wanted)
        })
    }

    /// Returns the number of living cgroups.
    #[must_use]
    pub fn len(&self) -> usize {
        self.living().count()
    }

    /// Returns `true` if no cgroup lives.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns `true` if `id` died before `before_ns`: a reading after that time contains all counts of its tasks. A
    /// missing cgroup is dead if walks find all cgroups of the machine. Otherwise it counts as dead after some minutes, so
    /// that it does not keep its place in the kernel's tables for ever; if it lives, it gets a new row.
    #[must_use]
    pub fn died_before(&self, id: CgroupId, before_ns: u64) -> bool {
        let died_ns = match self.nodes.get(&id) {
            Some(node) => node.died_ns,
            None => self.missing.get(&id).map(|at| at + if self.is_whole { 0 } else { KEEP_MISSING_NS }),
        };
        died_ns.is_some_and(|died| died < before_ns)
    }

    /// Removes cgroups that died long ago.
    pub fn prune(&mut self, now_ns: u64) {
        let mut dead: Vec<u64> = self.nodes.values().filter_map(|node| node.died_ns).collect();
        let earliest = match dead.len().saturating_sub(MAX_DEAD) {
            0 => 0,
            over => *dead.select_nth_unstable(over).1,
        };
        let pods = &mut self.pods;
        self.nodes.retain(|_, Node { place, died_ns }| {
            let remembered = |died: u64| died >= earliest && now_ns.saturating_sub(died) < REMEMBER_DEAD_NS;
            let keep = died_ns.is_none_or(remembered);
            if !keep && let Some(kube) = place.kube.filter(|_| place.is_container()) {
                let left = pods.get_mut(&kube.pod).map_or(0, |count| {
                    *count -= 1;
                    *count
                });
                if left == 0 {
                    pods.remove(&kube.pod);
                }
            }
            keep
        });
    }

    fn put(&mut self, id: CgroupId, path: String, now_ns: u64) {
        let known = self.nodes.get_mut(&id);
        if let Some(node) = known
            && *node.place.path == path
        {
            node.died_ns = None;
            return;
        }
        let kube = KubePath::parse(&path);
        let mut place = Place { path: path.into(), kube, born_ns: now_ns, first_of_pod: false };
        if let Some(kube) = kube.filter(|_| place.is_container()) {
            let siblings = self.pods.entry(kube.pod).or_default();
            place.first_of_pod = *siblings == 0;
            *siblings += 1;
        }
        self.nodes.insert(id, Node { place, died_ns: None });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: CgroupId = CgroupId(7);

    fn path(tree: &Tree) -> Option<&str> {
        tree.place(ID).map(|place| &*place.path)
    }

    fn born(path: &str) -> CgroupRecord {
        CgroupRecord::Named(ID, Some(path.into()))
    }

    #[test]
    fn a_dead_cgroup_keeps_its_path_for_its_last_counts() {
        let mut tree = Tree::default();
        tree.apply(born("/short"), 0);
        tree.apply(CgroupRecord::Died(ID), 3);
        assert_eq!(path(&tree), Some("/short"));
        assert!(tree.is_empty() && tree.died_before(ID, 4) && !tree.died_before(ID, 3));
        tree.prune(3 + REMEMBER_DEAD_NS);
        assert_eq!(path(&tree), None);
    }

    #[test]
    fn of_too_many_dead_the_longest_dead_are_forgotten() {
        let mut tree = Tree::default();
        for id in 0..70_000 {
            tree.apply(CgroupRecord::Named(CgroupId(id), Some(format!("/{id}"))), id);
            tree.apply(CgroupRecord::Died(CgroupId(id)), id);
        }
        tree.prune(70_000);
        let first = 70_000 - u64::try_from(MAX_DEAD).unwrap();
        assert!(tree.place(CgroupId(first - 1)).is_none() && tree.place(CgroupId(first)).is_some());
        assert_eq!(tree.nodes.len(), MAX_DEAD);
    }

    #[test]
    fn a_renamed_cgroup_has_its_new_path() {
        let mut tree = Tree::default();
        tree.apply(born("/old"), 0);
        tree.apply(born("/new"), 0);
        assert_eq!(path(&tree), Some("/new"));
    }

    #[test]
    fn a_restored_tree_knows_the_dead_and_the_first_of_a_pod() {
        let mut tree = Tree::default();
        let directory = "/kubepods/pod01234567-89ab-cdef-0123-456789abcdef/";
        let [first, second] = ['a', 'b'].map(|digit| format!("{directory}{}", digit.to_string().repeat(64)));
        tree.apply(born(&first), 1);
        tree.apply(CgroupRecord::Named(CgroupId(8), Some(second)), 2);
        tree.apply(CgroupRecord::Died(ID), 3);
        let mut restored = Tree::restore(tree.save());
        assert!(restored.died_before(ID, 4) && restored.place(ID).unwrap().first_of_pod);
        let place = restored.place(CgroupId(8)).unwrap();
        assert!(place.is_container() && place.born_ns == 2 && !place.first_of_pod);
        restored.prune(3 + REMEMBER_DEAD_NS);
        assert!(restored.has_pod(restored.place(CgroupId(8)).unwrap().kube.unwrap().pod));
    }

    #[test]
    fn a_cgroup_that_no_walk_of_the_whole_tree_finds_is_dead() {
        let unreadable = || vec!["/deep".to_owned()];
        let cases = [
            (CgroupId::ROOT, vec![], 4),
            (CgroupId(300), vec![], 4 + KEEP_MISSING_NS),
            (CgroupId::ROOT, unreadable(), 4 + KEEP_MISSING_NS),
        ];
        for (root, unreadable, dead_at) in cases {
            let mut tree = Tree::default();
            tree.walked(Found { cgroups: vec![(root, "/".into())], unreadable }, 0);
            let ids = HashSet::from([ID]);
            tree.note_missing(&ids, 3);
            tree.note_missing(&ids, 5);
            assert!(tree.is_missing(ID) && !tree.died_before(ID, dead_at - 1) && tree.died_before(ID, dead_at));
            // A record may come after the walk.
            tree.apply(born("/late"), 6);
            assert!(!tree.died_before(ID, u64::MAX));
            tree.note_missing(&HashSet::new(), 8);
            assert!(!tree.is_missing(ID));
        }
    }

    #[test]
    fn a_walk_mends_what_was_lost() {
        let mut tree = Tree::default();
        tree.apply(born("/gone"), 0);
        tree.apply(CgroupRecord::Named(CgroupId(8), None), 0);
        assert!(tree.is_stale());
        let mut found = Found { cgroups: vec![(CgroupId(8), "/long".into())], unreadable: vec!["/".into()] };
        tree.walked(found.clone(), 5);
        assert!(!tree.is_stale() && tree.len() == 2, "a directory could not be read");
        found.unreadable = vec!["/other".into()];
        tree.walked(found, 5);
        assert_eq!(tree.living().map(|place| &*place.path).collect::<Vec<_>>(), ["/long"]);
    }
}
