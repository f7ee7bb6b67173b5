//! Ids, paths and lives. Pure: the time is an argument.

use std::collections::{HashMap, HashSet};

use crate::{ids::CgroupId, kernel::records::CgroupRecord};

/// How long a dead cgroup's path is kept for what its last tasks still settle, in nanoseconds.
const REMEMBER_DEAD_NS: u64 = 60_000_000_000;

/// The cgroups that live, and for a while those that lived.
#[derive(Debug, Default)]
pub struct Tree {
    nodes: HashMap<CgroupId, Node>,
    /// The kernel cut a path short, or could not report a change: only a walk knows.
    stale: bool,
}

#[derive(Debug)]
struct Node {
    path: String,
    died_ns: Option<u64>,
}

impl Tree {
    /// Takes in a change that the cgroup sensor reported at `now_ns`.
    pub fn apply(&mut self, record: CgroupRecord, now_ns: u64) {
        match record {
            CgroupRecord::Named(id, Some(path)) => {
                self.nodes.insert(id, Node { path, died_ns: None });
            }
            CgroupRecord::Named(_, None) => self.stale = true,
            CgroupRecord::Died(id) => {
                if let Some(node) = self.nodes.get_mut(&id) {
                    node.died_ns.get_or_insert(now_ns);
                }
            }
        }
    }

    /// Takes in a walk that began at `now_ns`: what it did not find is dead.
    pub fn walked(&mut self, found: Vec<(CgroupId, String)>, now_ns: u64) {
        self.stale = false;
        let living: HashSet<_> = found.iter().map(|(id, _)| *id).collect();
        for (id, node) in &mut self.nodes {
            if !living.contains(id) {
                node.died_ns.get_or_insert(now_ns);
            }
        }
        for (id, path) in found {
            self.nodes.insert(id, Node { path, died_ns: None });
        }
    }

    /// Whether only a walk can tell the tree's state.
    #[must_use]
    pub const fn is_stale(&self) -> bool {
        self.stale
    }

    /// Says that changes were lost.
    pub const fn lost_changes(&mut self) {
        self.stale = true;
    }

    /// The path of a cgroup that lives or lately did.
    #[must_use]
    pub fn path(&self, id: CgroupId) -> Option<&str> {
        self.nodes.get(&id).map(|node| node.path.as_str())
    }

    /// The paths of all that live.
    pub fn living(&self) -> impl Iterator<Item = &str> {
        self.nodes.values().filter(|node| node.died_ns.is_none()).map(|node| node.path.as_str())
    }

    /// How many live.
    #[must_use]
    pub fn len(&self) -> usize {
        self.living().count()
    }

    /// Whether none lives.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether `id` died before `before_ns`: a reading after that has all that its tasks did.
    #[must_use]
    pub fn died_before(&self, id: CgroupId, before_ns: u64) -> bool {
        self.nodes.get(&id).and_then(|node| node.died_ns).is_some_and(|died| died < before_ns)
    }

    /// Forgets cgroups that died long ago.
    pub fn prune(&mut self, now_ns: u64) {
        self.nodes.retain(|_, node| node.died_ns.is_none_or(|died| now_ns.saturating_sub(died) < REMEMBER_DEAD_NS));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: CgroupId = CgroupId(7);

    fn born(path: &str) -> CgroupRecord {
        CgroupRecord::Named(ID, Some(path.into()))
    }

    #[test]
    fn a_dead_cgroup_keeps_its_path_for_its_last_counts() {
        let mut tree = Tree::default();
        tree.apply(born("/short"), 0);
        tree.apply(CgroupRecord::Died(ID), 3);
        assert_eq!(tree.path(ID), Some("/short"));
        assert!(tree.is_empty() && tree.died_before(ID, 4) && !tree.died_before(ID, 3));
        tree.prune(3 + REMEMBER_DEAD_NS);
        assert_eq!(tree.path(ID), None);
    }

    #[test]
    fn a_renamed_cgroup_has_its_new_path() {
        let mut tree = Tree::default();
        tree.apply(born("/old"), 0);
        tree.apply(born("/new"), 0);
        assert_eq!(tree.path(ID), Some("/new"));
    }

    #[test]
    fn a_walk_mends_what_was_lost() {
        let mut tree = Tree::default();
        tree.apply(born("/gone"), 0);
        tree.apply(CgroupRecord::Named(CgroupId(8), None), 0);
        assert!(tree.is_stale());
        tree.walked(vec![(CgroupId(8), "/long".into())], 5);
        assert!(!tree.is_stale());
        assert_eq!(tree.living().collect::<Vec<_>>(), ["/long"]);
    }
}
