//! The state of the ledger at one moment.

use std::{sync::Arc, time::SystemTime};

use super::{NotExported, Row, Shown};
use crate::{
    model::usage::Usage,
    pods::{ContainerInfo, Pod},
};

/// All counts of the node since the agent started. Immutable once taken.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// Time at which the kernel's counts were read.
    pub taken: SystemTime,
    /// Start of the first agent in this series of restarts: the start of all sums without a row.
    pub started: SystemTime,
    /// The start of each counter, by slot. A counter that was configured later starts later than its rows.
    pub counters_started: Vec<SystemTime>,
    /// Rows and their counts, sorted. Rows do not overlap: the sum of all rows, `elsewhere`, idle and unaccounted time
    /// is the node.
    pub rows: Vec<RowUsage>,
    /// The pods of these rows: one per namespace and name.
    pub pods: Vec<Arc<Pod>>,
    /// Counts of rows that have ended, and counts that wait for a name.
    pub elsewhere: Usage,
    /// Idle time of all CPUs, in nanoseconds.
    pub idle_ns: u64,
    /// Time of CPUs that is in no row and not idle, in nanoseconds.
    pub unaccounted_ns: u64,
    /// Time that the hypervisor took from all CPUs, in nanoseconds; `None` if the kernel's account cannot be read.
    pub stolen_ns: Option<u64>,
    /// Counts of the counters while CPUs were idle.
    pub idle: Usage,
    /// Number of living cgroups.
    pub cgroups_tracked: usize,
    /// Number of cgroups whose counts wait for a path or a name.
    pub cgroups_unresolved: usize,
    /// Number of rows that ended before their grace period was over, because too many rows had ended.
    pub forgotten: u64,
    /// Number of living containers without a row, by [`NotExported::ALL`].
    pub not_exported: [usize; NotExported::ALL.len()],
}

/// A row and its counts.
#[derive(Clone, Debug)]
pub struct RowUsage {
    /// The row.
    pub row: Row,
    /// Time at which all of its counts were zero. A changed start means new counts: the row had ended and came back.
    pub started: SystemTime,
    /// The container's last life, for the row of a container.
    pub container: Option<Arc<ContainerInfo>>,
    /// Counts of the row, through all its lives.
    pub usage: Usage,
    /// Limits the part of the usage that scrapers get.
    pub shown: Shown,
}

impl Snapshot {
    /// Returns the start of a counter in a row: the later one of the two starts.
    #[must_use]
    pub fn counter_started(&self, slot: usize, row: SystemTime) -> SystemTime {
        self.counters_started.get(slot).map_or(row, |counter| row.max(*counter))
    }

    /// Returns the sum of all rows, `elsewhere` and idle counts included.
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

#[cfg(test)]
impl Snapshot {
    /// Returns a snapshot of rows, without any time or count besides.
    pub(crate) fn of_rows(started: SystemTime, rows: Vec<RowUsage>) -> Self {
        Self {
            taken: started,
            started,
            counters_started: Vec::new(),
            rows,
            pods: Vec::new(),
            elsewhere: Usage::default(),
            idle_ns: 0,
            unaccounted_ns: 0,
            stolen_ns: None,
            idle: Usage::default(),
            cgroups_tracked: 1,
            cgroups_unresolved: 0,
            forgotten: 0,
            not_exported: [0; NotExported::ALL.len()],
        }
    }
}
