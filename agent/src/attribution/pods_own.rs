//! Decides when a pod has a row of its own, in addition to its containers' rows. Pure.
//!
//! Nearly all pods have outside of their containers only a sandbox, which sleeps: a row for each would double the
//! number of series for nothing. A virtual machine that runs the containers needs such a row.

use crate::model::facts::Fact;
use std::collections::HashMap;

use super::{Owner, Row};
use crate::model::usage::Usage;

/// Least CPU time between two readings that opens a row, if it is also at least one part in `ENOUGH_SHARE` of one CPU's
/// time.
pub(super) const ENOUGH_NS: u64 = 100_000_000;
pub(super) const ENOUGH_SHARE: u64 = 50;

/// Counts of pods without such a row, from outside of their containers, in one reading. A pod may have several cgroups
/// there.
#[derive(Debug, Default)]
pub(super) struct PodsOwn(HashMap<Row, Deferred>);

#[derive(Debug)]
struct Deferred {
    owner: Owner,
    /// The row of the cgroup that all pods have in common.
    common: Row,
    usage: Usage,
    since_ns: Option<u64>,
}

impl PodsOwn {
    /// Adds the counts of a pod's cgroup since `since_ns`; `None` if that time is not known.
    pub(super) fn add(&mut self, row: Row, owner: &Owner, common: &str, usage: &Usage, since_ns: Option<u64>) {
        let new =
            || Deferred { owner: owner.clone(), common: Row::Cgroup(common.into()), usage: Usage::default(), since_ns };
        let deferred = self.0.entry(row).or_insert_with(new);
        deferred.usage.add(usage);
        deferred.since_ns = deferred.since_ns.min(since_ns);
    }

    /// Returns the row of each pod's counts: the pod's own row from now on, or the common row.
    pub(super) fn decide(self, now_ns: u64) -> impl Iterator<Item = (Row, Owner, Usage)> {
        self.0.into_iter().map(move |(row, Deferred { owner, common, usage, since_ns })| {
            let share = since_ns.map(|since_ns| now_ns.saturating_sub(since_ns) / ENOUGH_SHARE);
            let is_enough = share.is_some_and(|share| usage.facts[Fact::ON_CPU] >= share.max(ENOUGH_NS).into());
            (if is_enough { row } else { common }, owner, usage)
        })
    }
}
