//! Tells the kernel side in which levels of the tree cgroups have names of their own: before it counts, and again when
//! the tree or the depth of series has changed.

use std::{collections::BTreeMap, io, path::Path};

use tracing::debug;

use super::Collector;
use crate::{
    cgroups::{Tree, named_levels, walk},
    model::ids::CgroupId,
};

/// Walks the cgroup tree and returns its levels with names, for programs that do not count yet. `depth` is the number of
/// levels in which cgroups have series.
///
/// # Errors
///
/// When the tree cannot be walked.
pub fn find_levels(cgroup_root: &Path, depth: usize) -> io::Result<BTreeMap<CgroupId, u64>> {
    let mut tree = Tree::default();
    tree.walked(walk(cgroup_root)?, 0);
    Ok(named_levels(tree.cgroups(), depth))
}

impl Collector {
    /// Tells the programs the levels of the tree as it is now.
    pub(super) fn name_levels(&self) {
        let levels = named_levels(self.tree.cgroups(), self.settings.rules.selection.depth);
        if let Err(error) = self.sensors.name_levels(&levels) {
            debug!(%error, "the levels of names are not written, the next reading does it");
        }
    }
}
