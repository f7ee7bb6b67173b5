//! Who did it: deltas per cgroup id become accounts per row, and accounts a [`Snapshot`]. Pure.
//!
//! Deltas are posted to the account of the row that their cgroup is counted in. So a nested cgroup rolls up, a dead
//! one leaves its counts where they were, a cgroup that comes back under its old path adds to the same account, and
//! no account ever falls. Deltas of a cgroup without a path yet wait for it.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    time::SystemTime,
};

use crate::{
    cgroups::{Selection, Tree},
    ids::CgroupId,
    readings::Usage,
};

/// The row of cgroups whose path was never learnt.
pub const UNRESOLVED: &str = "(unresolved)";

/// Everything that the node did since the agent started. Immutable once taken.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// When the kernel's counts were read.
    pub taken: SystemTime,
    /// Row and what it did, by path. Rows do not overlap: their sum and `idle_ns` is the node.
    pub rows: Vec<(String, Usage)>,
    /// What ended rows had done.
    pub retired: Usage,
    /// Time that CPUs were idle.
    pub idle_ns: u64,
    /// What the counters counted while CPUs were idle.
    pub idle: Usage,
    /// Cgroups that live.
    pub cgroups_tracked: usize,
    /// Cgroups whose counts wait for a path.
    pub cgroups_unresolved: usize,
}

/// The accounts.
#[derive(Debug, Default)]
pub struct Ledger {
    accounts: BTreeMap<String, Account>,
    waiting: HashMap<CgroupId, Waiting>,
    retired: Usage,
    idle: Usage,
}

#[derive(Debug, Default)]
struct Account {
    usage: Usage,
    /// When its cgroup was first missed, and how often it was exported since.
    ended: Option<(u64, u32)>,
}

#[derive(Debug)]
struct Waiting {
    usage: Usage,
    since_ns: u64,
}

impl Ledger {
    /// Posts the deltas of one reading. Counts whose path is not known after `patience_ns` go to [`UNRESOLVED`].
    pub fn post(
        &mut self,
        deltas: Vec<(CgroupId, Usage)>,
        tree: &Tree,
        selection: &Selection,
        now_ns: u64,
        patience_ns: u64,
    ) {
        for (cgroup, delta) in deltas {
            if cgroup == CgroupId::IDLE {
                self.idle.add(&delta);
            } else if let Some(path) = tree.path(cgroup) {
                self.account(selection.row(path)).add(&delta);
            } else {
                let waiting = Waiting { usage: Usage::default(), since_ns: now_ns };
                self.waiting.entry(cgroup).or_insert(waiting).usage.add(&delta);
            }
        }
        for (cgroup, Waiting { usage, since_ns }) in std::mem::take(&mut self.waiting) {
            if let Some(path) = tree.path(cgroup) {
                self.account(selection.row(path)).add(&usage);
            } else if now_ns.saturating_sub(since_ns) > patience_ns {
                self.account(UNRESOLVED).add(&usage);
            } else {
                self.waiting.insert(cgroup, Waiting { usage, since_ns });
            }
        }
    }

    /// Ends the accounts whose cgroup has been gone for `grace_ns` and was exported twice since.
    pub fn retire(&mut self, tree: &Tree, now_ns: u64, grace_ns: u64) {
        let living: HashSet<&str> = tree.living().collect();
        let retired = &mut self.retired;
        self.accounts.retain(|path, account| {
            if living.contains(path.as_str()) || path == "/" || path == UNRESOLVED {
                account.ended = None;
                return true;
            }
            let (since_ns, exports) = account.ended.get_or_insert((now_ns, 0));
            let keep = now_ns.saturating_sub(*since_ns) < grace_ns || *exports < 2;
            if !keep {
                retired.add(&account.usage);
            }
            keep
        });
    }

    /// Says that a snapshot was exported.
    pub fn exported(&mut self) {
        for (_, exports) in self.accounts.values_mut().filter_map(|account| account.ended.as_mut()) {
            *exports += 1;
        }
    }

    /// The accounts as they stand.
    #[must_use]
    pub fn snapshot(&self, taken: SystemTime, idle_ns: u64, tree: &Tree) -> Snapshot {
        Snapshot {
            taken,
            rows: self.accounts.iter().map(|(path, account)| (path.clone(), account.usage.clone())).collect(),
            retired: self.retired.clone(),
            idle_ns,
            idle: self.idle.clone(),
            cgroups_tracked: tree.len(),
            cgroups_unresolved: self.waiting.len(),
        }
    }

    fn account(&mut self, row: &str) -> &mut Usage {
        // The entry API would copy the path on every call.
        if !self.accounts.contains_key(row) {
            self.accounts.insert(row.to_owned(), Account::default());
        }
        self.accounts.get_mut(row).map(|account| &mut account.usage).expect("was just inserted")
    }
}

impl Snapshot {
    /// The sum of all rows, ended ones and idle included.
    #[must_use]
    pub fn total(&self) -> Usage {
        let mut total = self.retired.clone();
        total.add(&self.idle);
        for (_, usage) in &self.rows {
            total.add(usage);
        }
        total
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::records::CgroupRecord;

    const CHILD: CgroupId = CgroupId(10);
    const PATIENCE: u64 = 30;

    fn ran(ns: u64) -> Usage {
        Usage { oncpu_ns: ns, counts: vec![ns], ..Usage::default() }
    }

    fn tree(nodes: &[(u64, &str)]) -> Tree {
        let mut tree = Tree::default();
        tree.walked(nodes.iter().map(|(id, path)| (CgroupId(*id), (*path).to_owned())).collect(), 0);
        tree
    }

    fn all() -> Selection {
        Selection::new(2, &[], &[]).unwrap()
    }

    fn row(ledger: &Ledger, path: &str) -> Option<u64> {
        let snapshot = ledger.snapshot(SystemTime::UNIX_EPOCH, 0, &Tree::default());
        snapshot.rows.iter().find(|(row, _)| row == path).map(|(_, usage)| usage.oncpu_ns)
    }

    #[test]
    fn nested_cgroups_roll_up_and_a_dead_child_stays_in_its_parent() {
        let mut tree = tree(&[(1, "/"), (9, "/a/b"), (10, "/a/b/child")]);
        let mut ledger = Ledger::default();
        ledger.post(vec![(CgroupId(9), ran(5)), (CHILD, ran(7))], &tree, &all(), 0, PATIENCE);
        tree.apply(CgroupRecord::Died(CHILD), 1);
        ledger.retire(&tree, 100, 0);
        assert_eq!(row(&ledger, "/a/b"), Some(12));
        assert_eq!(row(&ledger, "/a/b/child"), None);
    }

    #[test]
    fn counts_wait_for_a_path_and_then_go_where_they_belong() {
        let mut ledger = Ledger::default();
        ledger.post(vec![(CHILD, ran(7))], &tree(&[]), &all(), 0, PATIENCE);
        assert_eq!(row(&ledger, "/late"), None);
        ledger.post(vec![], &tree(&[(10, "/late")]), &all(), PATIENCE, PATIENCE);
        assert_eq!(row(&ledger, "/late"), Some(7));
    }

    #[test]
    fn counts_that_never_get_a_path_are_one_row() {
        let mut ledger = Ledger::default();
        ledger.post(vec![(CHILD, ran(7)), (CgroupId(11), ran(1))], &tree(&[]), &all(), 0, PATIENCE);
        ledger.post(vec![], &tree(&[]), &all(), PATIENCE + 1, PATIENCE);
        assert_eq!(row(&ledger, UNRESOLVED), Some(8));
    }

    #[test]
    fn an_ended_row_is_exported_twice_and_for_its_grace_and_the_sum_keeps_it() {
        let mut ledger = Ledger::default();
        let mut tree = tree(&[(10, "/job")]);
        ledger.post(vec![(CHILD, ran(7))], &tree, &all(), 0, PATIENCE);
        tree.apply(CgroupRecord::Died(CHILD), 1);
        ledger.retire(&tree, 2, 10);
        ledger.exported();
        ledger.retire(&tree, 100, 10);
        assert_eq!(row(&ledger, "/job"), Some(7), "exported only once");
        ledger.exported();
        ledger.retire(&tree, 101, 10);
        assert_eq!(row(&ledger, "/job"), None);
        assert_eq!(ledger.snapshot(SystemTime::UNIX_EPOCH, 0, &tree).total().oncpu_ns, 7);
    }

    #[test]
    fn a_row_that_comes_back_goes_on_where_it_was() {
        let mut ledger = Ledger::default();
        let mut tree = tree(&[(10, "/unit")]);
        ledger.post(vec![(CHILD, ran(7))], &tree, &all(), 0, PATIENCE);
        tree.apply(CgroupRecord::Died(CHILD), 1);
        ledger.retire(&tree, 2, 10);
        tree.apply(CgroupRecord::Named(CgroupId(12), Some("/unit".into())), 3);
        ledger.post(vec![(CgroupId(12), ran(1))], &tree, &all(), 3, PATIENCE);
        ledger.retire(&tree, 100, 10);
        assert_eq!(row(&ledger, "/unit"), Some(8));
    }

    #[test]
    fn every_delta_is_in_the_sum_whatever_becomes_of_its_cgroup() {
        let mut ledger = Ledger::default();
        let tree = tree(&[(1, "/"), (9, "/a")]);
        let deltas = vec![(CgroupId::ROOT, ran(1)), (CgroupId(9), ran(2)), (CgroupId::IDLE, ran(4)), (CHILD, ran(8))];
        ledger.post(deltas, &tree, &all(), 0, PATIENCE);
        ledger.post(vec![], &tree, &all(), PATIENCE + 1, PATIENCE);
        assert_eq!(ledger.snapshot(SystemTime::UNIX_EPOCH, 0, &tree).total(), ran(15));
    }
}
