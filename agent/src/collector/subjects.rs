//! Finds the subjects of all cgroups, for recordings that choose cgroups themselves.

use std::time::Instant;

use super::{Collector, names};
use crate::{
    attribution::Subject,
    kernel::clock::{monotonic_ns, thread_cpu},
    model::ids::CgroupId,
};

impl Collector {
    /// Returns all living cgroups with their subjects. The account of readers pays for it, since a recording asks four
    /// times a second.
    pub(super) fn subjects(&self) -> Vec<(CgroupId, Subject)> {
        let (start, spent) = (Instant::now(), thread_cpu());
        let (now_ns, rules) = (monotonic_ns(), &self.settings.rules);
        let names = names(&self.tree, self.pods.as_ref(), &self.settings);
        let cgroups = self.tree.cgroups();
        let subjects =
            cgroups.map(|(id, place)| (id, Subject::of(place, &names.owner(place, now_ns), rules))).collect();
        // A thread runs on at most one CPU, even if its CPU clock shows more time.
        self.settings.answering.charge(thread_cpu().saturating_sub(spent).min(start.elapsed()));
        subjects
    }
}
