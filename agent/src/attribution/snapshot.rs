//! What the ledger says at one moment.

use std::{sync::Arc, time::SystemTime};

use super::{NotExported, Row, Shown};
use crate::{
    model::usage::Usage,
    pods::{ContainerInfo, Pod},
};

/// Everything that the node did since the agent started. Immutable once taken.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// When the kernel's counts were read.
    pub taken: SystemTime,
    /// When the first agent of this series of restarts began to count: the start of all that has no row.
    pub started: SystemTime,
    /// The start of each counter, by slot. A counter that was configured later starts later than its rows.
    pub counters_started: Vec<SystemTime>,
    /// Rows and what they did, sorted. They do not overlap: their sum, `elsewhere`, idle and unaccounted time is the
    /// node.
    pub rows: Vec<RowUsage>,
    /// The pods of these rows: one per namespace and name.
    pub pods: Vec<Arc<Pod>>,
    /// What ended rows had done, and what waits for a name.
    pub elsewhere: Usage,
    /// Time that CPUs were idle.
    pub idle_ns: u64,
    /// Time of CPUs that is in no row and not idle.
    pub unaccounted_ns: u64,
    /// What the counters counted while CPUs were idle.
    pub idle: Usage,
    /// Cgroups that live.
    pub cgroups_tracked: usize,
    /// Cgroups whose counts wait for a path or a name.
    pub cgroups_unresolved: usize,
    /// Rows that ended before their grace, since too many had ended.
    pub forgotten: u64,
    /// Containers that live but have no row, by [`NotExported::ALL`].
    pub not_exported: [usize; NotExported::ALL.len()],
}

/// A row and what it did.
#[derive(Clone, Debug)]
pub struct RowUsage {
    /// Which.
    pub row: Row,
    /// When all of its counts were zero. Another start means other counts: a row that had ended and came back.
    pub started: SystemTime,
    /// The container's last life, where the row is a container's.
    pub container: Option<Arc<ContainerInfo>>,
    /// What it did, through all its lives.
    pub usage: Usage,
    /// Says what of that scrapers are shown.
    pub shown: Shown,
}

impl Snapshot {
    /// Returns the start of a counter in a row: the later one of the two starts.
    #[must_use]
    pub fn counter_started(&self, slot: usize, row: SystemTime) -> SystemTime {
        self.counters_started.get(slot).map_or(row, |counter| row.max(*counter))
    }

    /// The sum of all rows, what is elsewhere and idle included.
    #[must_use]
    pub fn total(&self) -> Usage {
        let mut total = self.elsewhere.clone();
        total.add(&self.idle);
        for row in &self.rows {
            total.add(&row.usage);
        }
        total
    }
}
