//! Decides when a pod has a row of its own beside its containers'. Pure.
//!
//! Nearly all pods are a sandbox outside of their containers, which sleeps: a row for each would double the number of series for
//! nothing. A virtual machine that runs the containers is another matter.

use crate::model::facts::Fact;
use std::collections::HashMap;

use super::{Owner, Row};
use crate::model::usage::Usage;

/// CPU time from one reading to the next that is enough for a row, if it is also this share of one CPU.
pub(super) const ENOUGH_NS: u64 = 100_000_000;
pub(super) const ENOUGH_SHARE: u64 = 50;

/// What pods without such a row did outside of their containers, in one reading. A pod may have several cgroups there.
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
    /// Adds what a cgroup of a pod did since `since_ns`; `None` if nobody knows since when.
    pub(super) fn add(&mut self, row: Row, owner: &Owner, common: &str, usage: &Usage, since_ns: Option<u64>) {
        let new =
            || Deferred { owner: owner.clone(), common: Row::Cgroup(common.into()), usage: Usage::default(), since_ns };
        let deferred = self.0.entry(row).or_insert_with(new);
        deferred.usage.add(usage);
        deferred.since_ns = deferred.since_ns.min(since_ns);
    }

    /// The row that each is counted in: the pod's own from now on, or the common one.
    pub(super) fn decide(self, now_ns: u64) -> impl Iterator<Item = (Row, Owner, Usage)> {
        self.0.into_iter().map(move |(row, Deferred { owner, common, usage, since_ns })| {
            let share = since_ns.map(|since_ns| now_ns.saturating_sub(since_ns) / ENOUGH_SHARE);
            let is_enough = share.is_some_and(|share| usage.facts[Fact::ON_CPU] >= share.max(ENOUGH_NS));
            (if is_enough { row } else { common }, owner, usage)
        })
    }
}
