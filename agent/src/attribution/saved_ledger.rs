//! The accounts as the checkpoint stores them. Pure.

use crate::{cgroups::saved_cgroup::SavedCgroup, pods::saved_pods::SavedContainer};
use serde::{Deserialize, Serialize};
use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use super::schema::{Schema, counter_label};
use super::{
    Ledger, Row,
    ledger::{Account, Waiting},
    node_time::NodeTime,
    zero_first::ZeroFirst,
};
use crate::{cgroups::Place, model::ids::CgroupId, pods::saved_pods::Pods};

/// All accounts of the checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub struct SavedLedger {
    /// The open accounts.
    pub accounts: Vec<SavedAccount>,
    /// Counts without a name.
    pub waiting: Vec<SavedWaiting>,
    /// Sum of the closed accounts.
    pub retired: Vec<u128>,
    /// Counts while CPUs were idle.
    pub idle: Vec<u128>,
    /// Time of the last reading; `None` in files of older versions.
    #[serde(default)]
    pub read_ns: Option<u64>,
    /// Idle time at the last reading, time that is in no row and not idle, and the excess to subtract from that time
    /// later, all in nanoseconds; `None` in files of older versions.
    #[serde(default)]
    pub node: Option<(u64, u64, u64)>,
    /// The kernel's account of stolen time at the last reading, and the stolen time since the first one, in
    /// nanoseconds; `None` in files of older versions.
    #[serde(default)]
    pub stolen: Option<(u64, u64)>,
    /// The start of each counter by its name, Unix time in nanoseconds. A counter that is missing here and in the
    /// labels of the numbers was not counted.
    #[serde(default)]
    pub counters_started_unix_ns: BTreeMap<String, u64>,
}

/// One account of the checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct SavedAccount {
    /// The row of the account.
    pub row: Row,
    /// The numbers of the usage, see [`crate::attribution::schema::Schema`].
    pub usage: Vec<u128>,
    /// Time when its counts were zero, Unix time in nanoseconds. It is missing in files of older versions, which sent
    /// `State::started_unix_ns` of the checkpoint as the start of every series.
    #[serde(default)]
    pub started_unix_ns: Option<u64>,
    /// Index of the pod in the checkpoint's list of pods.
    pub pod: Option<usize>,
    /// The container's last life.
    pub container: Option<SavedContainer>,
    /// Time when its cgroup was first missed, and the number of exports since.
    pub ended: Option<(u64, u32)>,
    /// `true` if snapshots do not show the account.
    pub hidden: bool,
    /// Indexes of the numbers that scrapers get unchanged; `None` means all numbers, as in files of older versions.
    #[serde(default)]
    pub revealed: Option<Vec<usize>>,
}

/// Counts that wait for a name.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct SavedWaiting {
    /// Id of the cgroup.
    pub cgroup: u64,
    /// The numbers of the usage, see [`crate::attribution::schema::Schema`].
    pub usage: Vec<u128>,
    /// Time since which the counts wait.
    pub since_ns: u64,
    /// Path of the cgroup, if known.
    pub place: Option<SavedCgroup>,
}

impl Ledger {
    /// Returns all of the ledger's state that must not be lost, for the checkpoint.
    pub fn save(&self, schema: &Schema, pods: &mut Pods) -> SavedLedger {
        let account = |(row, account): (&Row, &Account)| SavedAccount {
            row: row.clone(),
            usage: schema.words(&account.usage),
            started_unix_ns: Some(unix_ns(account.started)),
            pod: account.pod.as_ref().map(|pod| pods.place(pod)),
            container: account.container.as_ref().map(|info| pods.save_container(info)),
            ended: account.ended,
            hidden: account.hidden,
            revealed: account.zero_first.save().map(|numbers| schema.places(numbers)),
        };
        let waiting = |(cgroup, waiting): (&CgroupId, &Waiting)| SavedWaiting {
            cgroup: cgroup.0,
            usage: schema.words(&waiting.usage),
            since_ns: waiting.since_ns,
            place: waiting.place.as_ref().map(|place| place.save(*cgroup, None)),
        };
        let counters = schema.slots().iter().zip(&self.counters_started);
        SavedLedger {
            accounts: self.accounts.iter().map(account).collect(),
            waiting: self.waiting.iter().map(waiting).collect(),
            retired: schema.words(&self.retired),
            idle: schema.words(&self.idle),
            read_ns: self.read_ns,
            node: self.node.idle_ns.map(|idle_ns| (idle_ns, self.node.unaccounted_ns, self.node.excess_ns)),
            stolen: self.node.stolen,
            counters_started_unix_ns: counters.map(|((name, _), started)| (name.clone(), unix_ns(*started))).collect(),
        }
    }

    /// Restores the accounts of the previous agent, whose numbers have these labels. `started` is the start of the
    /// first agent in this series of restarts, and becomes the start of accounts that were saved without one. Counters
    /// and accounts that begin with this agent start at `now`.
    #[must_use]
    pub fn restore(
        saved: SavedLedger,
        labels: &[String],
        schema: &Schema,
        pods: &Pods,
        started: SystemTime,
        now: SystemTime,
    ) -> Self {
        let counter_started = |(name, _): &(String, _)| match saved.counters_started_unix_ns.get(name) {
            _ if !labels.is_empty() && !labels.contains(&counter_label(name)) => now,
            Some(saved) => time(*saved),
            None => started,
        };
        let counters_started = schema.slots().iter().map(counter_started).collect();
        let account = |saved: SavedAccount| {
            let account = Account {
                usage: schema.usage(&saved.usage, labels),
                started: saved.started_unix_ns.map_or(started, time),
                pod: saved.pod.and_then(|place| pods.at(place)).map(Arc::clone),
                container: saved.container.and_then(|container| pods.container(container)),
                alive_at: 0,
                ended: saved.ended,
                hidden: saved.hidden,
                zero_first: saved
                    .revealed
                    .map_or_else(ZeroFirst::off, |places| ZeroFirst::restore(schema.numbers_at(&places, labels))),
            };
            (saved.row, account)
        };
        let waiting = |saved: SavedWaiting| {
            let place = saved.place.map(|node| Place::restore(&node));
            (
                CgroupId(saved.cgroup),
                Waiting { usage: schema.usage(&saved.usage, labels), since_ns: saved.since_ns, place },
            )
        };
        let accounts: HashMap<Row, Account> = saved.accounts.into_iter().map(account).collect();
        let mut this = Self {
            accounts,
            waiting: saved.waiting.into_iter().map(waiting).collect(),
            retired: schema.usage(&saved.retired, labels),
            idle: schema.usage(&saved.idle, labels),
            opens_at: now,
            read_ns: saved.read_ns,
            node: saved.node.map_or_else(NodeTime::default, |(idle_ns, unaccounted_ns, excess_ns)| NodeTime {
                idle_ns: Some(idle_ns),
                unaccounted_ns,
                excess_ns,
                stolen: saved.stolen,
            }),
            counters_started,
            ..Self::new(started)
        };
        this.count_pod_rows();
        this
    }
}

fn unix_ns(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

fn time(unix_ns: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_nanos(unix_ns)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{
        facts::{Fact, Facts},
        wait::{Unwind, WaitReason, WaitState},
    };
    use crate::{attribution::Names, cgroups::Tree, checkpoint::format::decode, model::usage::Usage, pods::PodIndex};

    #[test]
    fn accounts_and_what_waits_come_back() {
        let schema = Schema::of_slots(vec![("cycles".into(), Some(0))]);
        let usage = |ns| Usage { facts: Facts::from([(Fact::ON_CPU, ns)]), counts: vec![7], ..Usage::default() };
        let row = Row::Cgroup("/a".into());
        let mut ledger = Ledger::new(time(3));
        ledger.counters_started = vec![time(3)];
        ledger.begin_reading(time(50), 100);
        ledger.accounts.insert(
            row.clone(),
            Account {
                usage: usage(1),
                ended: Some((5, 1)),
                zero_first: ZeroFirst::restore(0b101),
                ..Account::opened(time(40))
            },
        );
        let place = Place { path: "/b".into(), kube: None, born_ns: 3, first_of_pod: false };
        ledger.waiting.insert(CgroupId(9), Waiting { usage: usage(2), since_ns: 4, place: Some(place) });
        (ledger.retired, ledger.idle) = (usage(10), usage(20));
        ledger.node = NodeTime { idle_ns: Some(7), unaccounted_ns: 8, excess_ns: 9, stolen: Some((11, 10)) };

        let mut pods = Pods::default();
        let saved = ledger.save(&schema, &mut pods);
        let pods = Pods::of(pods.into_saved());
        let restored = Ledger::restore(saved.clone(), schema.labels(), &schema, &pods, time(3), time(1000));
        assert_eq!(restored.save(&schema, &mut Pods::default()), saved);
        let (tree, index) = (Tree::default(), PodIndex::default());
        let names = Names { tree: &tree, pods: Some(&index), patience_ns: 0 };
        let snapshot = restored.snapshot(SystemTime::UNIX_EPOCH, 0, &names);
        assert_eq!((&snapshot.rows[0].row, snapshot.total().facts[Fact::ON_CPU]), (&row, 33));
        assert_eq!((snapshot.idle.counts, snapshot.stolen_ns), (vec![7], Some(10)));
        assert_eq!((snapshot.rows[0].started, snapshot.started), (time(40), time(3)));
    }

    #[test]
    fn an_account_that_was_saved_without_a_start_began_with_the_first_agent() {
        let schema = Schema::of_slots(vec![("cycles".into(), None)]);
        let mut ledger = Ledger::new(time(3));
        let row = Row::Cgroup("/a".into());
        ledger.accounts.insert(row.clone(), Account::opened(time(40)));
        let mut saved = ledger.save(&schema, &mut Pods::default());
        saved.accounts[0].started_unix_ns = None;
        saved.counters_started_unix_ns.clear();
        let mut restored = Ledger::restore(saved, schema.labels(), &schema, &Pods::default(), time(3), time(1000));
        assert_eq!((restored.accounts[&row].started, &restored.counters_started), (time(3), &vec![time(3)]));
        // The time of the previous agent's last reading is not known: an account that opens now began with this agent.
        restored.begin_reading(time(2000), 5);
        assert_eq!(restored.opens_at, time(1000));
    }

    /// A file of a version that wrote no starts: from a node without pods, with a few more rows.
    const WITHOUT_STARTS: &[u8] = include_bytes!("../checkpoint/without-starts.state");

    #[test]
    fn a_file_without_starts_loses_no_count() {
        let saved = decode(WITHOUT_STARTS).unwrap();
        let schema = Schema::of_slots(saved.slots.clone());
        let labels = saved.labels.clone();
        let lost: Vec<_> = labels.iter().filter(|label| !schema.labels().contains(label)).collect();
        assert_eq!(lost, ["runqueue", "offcpu Preempted", "wait Preempted"], "only what nothing here means");
        // A number keeps its value if its label exists here.
        let resumes = |words: &[u128], usage: &Usage| {
            let before: HashMap<_, _> = labels.iter().zip(words).filter(|(label, _)| !lost.contains(label)).collect();
            let now: HashMap<_, _> = schema.labels().iter().zip(schema.words(usage)).collect();
            before.iter().all(|(label, word)| now.get(label).copied().unwrap_or(0) == **word)
        };
        let of = saved.ledger.clone();
        let (pods, began) = (Pods::of(saved.pods), time(saved.started_unix_ns));
        let restored = Ledger::restore(saved.ledger, &labels, &schema, &pods, began, time(1000));
        assert!(resumes(&of.retired, &restored.retired) && resumes(&of.idle, &restored.idle));
        assert!(resumes(&of.waiting[0].usage, &restored.waiting[&CgroupId(78)].usage));
        assert_eq!((restored.accounts.len(), of.accounts.len()), (3, 3));
        for saved in of.accounts {
            let account = &restored.accounts[&saved.row];
            assert!(resumes(&saved.usage, &account.usage) && account.started == began, "{:?}", saved.row);
        }
        let app = Row::Container { namespace: "shop".into(), pod: "web-0".into(), container: "app".into() };
        let usage = &restored.accounts[&app].usage;
        let states = WaitState::ALL.map(|state| usage.facts[Fact::off_cpu(state)]);
        let disk = usage.facts[Fact::wait(WaitReason::Disk)];
        assert_eq!((usage.facts[Fact::ON_CPU], states, disk), (101, [108, 109, 0, 0], 113));
        let unwound = Unwind::ALL.map(|unwind| usage.facts[Fact::unwound(unwind)]);
        assert_eq!((unwound, &usage.counts), ([126, 127, 128, 129, 0, 0, 0], &vec![130, 131]));
        assert_eq!(&*restored.accounts[&app].container.as_ref().unwrap().pod.workload.name, "web");
    }

    #[test]
    fn a_row_that_is_opened_after_a_restart_starts_at_the_previous_agents_last_reading() {
        let schema = Schema::of_slots(Vec::new());
        let mut ledger = Ledger::new(time(3));
        ledger.begin_reading(time(900), 100);
        let saved = ledger.save(&schema, &mut Pods::default());
        let mut restored = Ledger::restore(saved, schema.labels(), &schema, &Pods::default(), time(3), time(1000));
        restored.begin_reading(time(2000), 1200);
        assert_eq!(restored.opens_at, time(900));
    }

    #[test]
    fn a_counter_that_comes_back_starts_anew() {
        let with = Schema::of_slots(vec![("cycles".into(), None), ("page-faults".into(), None)]);
        let without = Schema::of_slots(vec![("page-faults".into(), None)]);
        let first = Ledger::restore(SavedLedger::default(), &[], &with, &Pods::default(), time(3), time(4));
        assert_eq!(first.counters_started, [time(3), time(3)]);
        let saved = first.save(&with, &mut Pods::default());
        let second = Ledger::restore(saved, with.labels(), &without, &Pods::default(), time(3), time(10));
        assert_eq!(second.counters_started, [time(3)]);
        let saved = second.save(&without, &mut Pods::default());
        let third = Ledger::restore(saved, without.labels(), &with, &Pods::default(), time(3), time(20));
        assert_eq!(third.counters_started, [time(20), time(3)]);
        let saved = third.save(&with, &mut Pods::default());
        let fourth = Ledger::restore(saved, with.labels(), &with, &Pods::default(), time(3), time(30));
        assert_eq!(fourth.counters_started, [time(20), time(3)]);
    }
}
