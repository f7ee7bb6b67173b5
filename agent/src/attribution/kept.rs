//! The accounts as they are kept for the next agent. Pure.

use std::{collections::HashMap, sync::Arc};

use super::{
    Ledger, Row,
    ledger::{Account, Waiting},
};
use crate::{
    cgroups::Place,
    ids::CgroupId,
    restart::{KeptAccount, KeptLedger, KeptWaiting, Pods, Shape},
};

impl Ledger {
    /// All that must not be lost.
    pub fn keep(&self, shape: &Shape, pods: &mut Pods) -> KeptLedger {
        let account = |(row, account): (&Row, &Account)| KeptAccount {
            row: row.clone(),
            usage: shape.words(&account.usage),
            pod: account.pod.as_ref().map(|pod| pods.place(pod)),
            container: account.container.as_ref().map(|info| pods.keep_container(info)),
            ended: account.ended,
            hidden: account.hidden,
        };
        let waiting = |(cgroup, waiting): (&CgroupId, &Waiting)| KeptWaiting {
            cgroup: cgroup.0,
            usage: shape.words(&waiting.usage),
            since_ns: waiting.since_ns,
            place: waiting.place.as_ref().map(|place| place.keep(*cgroup, None)),
        };
        KeptLedger {
            accounts: self.accounts.iter().map(account).collect(),
            waiting: self.waiting.iter().map(waiting).collect(),
            retired: shape.words(&self.retired),
            idle: shape.words(&self.idle),
        }
    }

    /// The accounts of the agent before this one, whose numbers have these labels.
    #[must_use]
    pub fn resume(kept: KeptLedger, labels: &[String], shape: &Shape, pods: &Pods) -> Self {
        let account = |kept: KeptAccount| {
            let account = Account {
                usage: shape.usage(&kept.usage, labels),
                pod: kept.pod.and_then(|place| pods.at(place)).map(Arc::clone),
                container: kept.container.and_then(|container| pods.container(container)),
                alive_at: 0,
                ended: kept.ended,
                hidden: kept.hidden,
            };
            (kept.row, account)
        };
        let waiting = |kept: KeptWaiting| {
            let place = kept.place.map(|node| Place::resume(&node));
            (CgroupId(kept.cgroup), Waiting { usage: shape.usage(&kept.usage, labels), since_ns: kept.since_ns, place })
        };
        let accounts: HashMap<Row, Account> = kept.accounts.into_iter().map(account).collect();
        let mut this = Self {
            accounts,
            waiting: kept.waiting.into_iter().map(waiting).collect(),
            retired: shape.usage(&kept.retired, labels),
            idle: shape.usage(&kept.idle, labels),
            ..Self::default()
        };
        this.count_pod_rows();
        this
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;
    use crate::{attribution::Names, cgroups::Tree, pods::PodIndex, readings::Usage};

    #[test]
    fn accounts_and_what_waits_come_back() {
        let shape = Shape::of_slots(vec![("cycles".into(), Some(0))]);
        let usage = |oncpu_ns| Usage { oncpu_ns, counts: vec![7], ..Usage::default() };
        let row = Row::Cgroup("/a".into());
        let mut ledger = Ledger::default();
        ledger.accounts.insert(row.clone(), Account { usage: usage(1), ended: Some((5, 1)), ..Account::default() });
        let place = Place { path: "/b".into(), kube: None, born_ns: 3, first_of_pod: false };
        ledger.waiting.insert(CgroupId(9), Waiting { usage: usage(2), since_ns: 4, place: Some(place) });
        (ledger.retired, ledger.idle) = (usage(10), usage(20));

        let mut pods = Pods::default();
        let kept = ledger.keep(&shape, &mut pods);
        let resumed = Ledger::resume(kept.clone(), shape.labels(), &shape, &Pods::of(pods.into_kept()));
        assert_eq!(resumed.keep(&shape, &mut Pods::default()), kept);
        let (tree, index) = (Tree::default(), PodIndex::default());
        let names = Names { tree: &tree, pods: Some(&index), patience_ns: 0 };
        let snapshot = resumed.snapshot(SystemTime::UNIX_EPOCH, 0, &names);
        assert_eq!((&snapshot.rows[0].row, snapshot.total().oncpu_ns), (&row, 33));
        assert_eq!(snapshot.idle.counts, [7]);
    }
}
