//! Finds the subjects of all cgroups, for recordings that choose cgroups themselves.

use super::{Collector, names};
use crate::{attribution::Subject, kernel::clock::monotonic_ns, model::ids::CgroupId};

impl Collector {
    /// Returns all living cgroups with their subjects.
    pub(super) fn subjects(&self) -> Vec<(CgroupId, Subject)> {
        let (now_ns, rules) = (monotonic_ns(), &self.settings.rules);
        let names = names(&self.tree, self.pods.as_ref(), &self.settings);
        let cgroups = self.tree.cgroups();
        cgroups.map(|(id, place)| (id, Subject::of(place, &names.owner(place, now_ns), rules))).collect()
    }
}
