//! Tests of [`super`]: a tree, some pods, and the rows that get the counts.

use super::*;
use crate::model::facts::{Fact, Facts};
use crate::{
    attribution::{Level, pods_own::ENOUGH_NS},
    cgroups::{Choice, Found, Selection, Tree},
    kernel::records::CgroupRecord,
    model::ids::ContainerId,
    pods::{Container, ContainerKind, PodChange, PodIndex},
};

const CHILD: CgroupId = CgroupId(10);
const SECOND: u64 = 1_000_000_000;
const PATIENCE: u64 = 60 * SECOND;
const GRACE: u64 = 300 * SECOND;
const UID: &str = "6ef0362e-e3b9-43a3-acdb-de4ba71f1fa4";

/// The state that a collector holds.
struct Node {
    tree: Tree,
    pods: Option<PodIndex>,
    rules: RowRules,
    ledger: Ledger,
}

impl Node {
    fn new(nodes: &[(u64, &str)]) -> Self {
        let mut tree = Tree::default();
        let cgroups = nodes.iter().map(|(id, path)| (CgroupId(*id), (*path).to_owned())).collect();
        tree.walked(Found { cgroups, ..Found::default() }, 0);
        let rules = RowRules {
            selection: Selection { depth: 2, paths: Choice::default() },
            namespaces: Choice::default(),
            level: Level::Container,
            max_containers: 100,
            grace: std::time::Duration::from_nanos(GRACE),
            zero_first: false,
        };
        Self { tree, pods: None, rules, ledger: Ledger::new(SystemTime::UNIX_EPOCH) }
    }

    /// A node of a cluster, with a list of pods as of second 0.
    fn of_cluster(nodes: &[(u64, &str)], pods: Vec<Pod>) -> Self {
        let mut node = Self { pods: Some(PodIndex::default()), ..Self::new(nodes) };
        node.apply(PodChange::All(pods), 0);
        node
    }

    fn apply(&mut self, change: PodChange, now_ns: u64) {
        self.pods.as_mut().unwrap().apply(change, now_ns);
    }

    fn born(&mut self, id: u64, path: &str, now_ns: u64) {
        self.tree.apply(CgroupRecord::Named(CgroupId(id), Some(path.into())), now_ns);
    }

    fn died(&mut self, id: u64, now_ns: u64) {
        self.tree.apply(CgroupRecord::Died(CgroupId(id)), now_ns);
    }

    /// Makes a reading in which these cgroups ran for these times, in nanoseconds.
    fn read(&mut self, now_ns: u64, ran: &[(u64, u64)]) {
        let deltas = ran.iter().map(|(id, ns)| (CgroupId(*id), self::ran(*ns))).collect();
        let names = Names { tree: &self.tree, pods: self.pods.as_ref(), patience_ns: PATIENCE };
        self.ledger.begin_reading(self::taken(now_ns), now_ns);
        self.ledger.reveal(Scrapes { hold_ns: 0, longest_ns: 10 });
        self.ledger.post(deltas, &names, &self.rules, now_ns);
        self.ledger.settle(&names, &self.rules, now_ns);
    }

    fn snapshot(&self) -> Snapshot {
        let names = Names { tree: &self.tree, pods: self.pods.as_ref(), patience_ns: PATIENCE };
        self.ledger.snapshot(SystemTime::UNIX_EPOCH, 0, &names)
    }

    fn row(&self, row: &Row) -> Option<u64> {
        self.snapshot().rows.iter().find(|candidate| candidate.row == *row).map(|found| on_cpu(&found.usage))
    }

    fn cgroup(&self, path: &str) -> Option<u64> {
        self.row(&Row::Cgroup(path.into()))
    }

    fn container(&self, pod: &str, container: &str) -> Option<u64> {
        self.row(&Row::Container { namespace: "shop".into(), pod: pod.into(), container: container.into() })
    }

    fn total(&self) -> u64 {
        on_cpu(&self.snapshot().total())
    }
}

fn on_cpu(usage: &Usage) -> u64 {
    usage.facts[Fact::ON_CPU].try_into().unwrap()
}

/// The wall clock at a time of the monotonic clock.
fn taken(now_ns: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000) + Duration::from_nanos(now_ns)
}

fn ran(ns: u64) -> Usage {
    Usage { facts: Facts::from([(Fact::ON_CPU, ns.into())]), counts: vec![ns.into()], ..Usage::default() }
}

fn id(digit: char) -> ContainerId {
    digit.to_string().repeat(64).parse().unwrap()
}

/// The path of a container of [`UID`]'s pod.
fn path(digit: char) -> String {
    path_in(UID, digit)
}

fn path_in(uid: &str, digit: char) -> String {
    format!("/kubepods/burstable/pod{uid}/{}", digit.to_string().repeat(64))
}

/// A pod of namespace `shop`, with these containers and the ids in its status.
fn pod(name: &str, containers: &[(&str, Option<char>)]) -> Pod {
    let container = |&(name, digit): &(&str, Option<char>)| Container {
        name: name.into(),
        image: "image".into(),
        kind: ContainerKind::Main,
        current: digit.map(id),
        last: None,
        ended: false,
    };
    Pod { name: name.into(), containers: containers.iter().map(container).collect(), ..Pod::example() }
}

#[test]
fn nested_cgroups_roll_up_and_a_dead_child_stays_in_its_parent() {
    let mut node = Node::new(&[(1, "/"), (9, "/a/b"), (10, "/a/b/child")]);
    node.read(0, &[(9, 5), (10, 7)]);
    node.died(10, 1);
    node.read(2 * GRACE, &[]);
    assert_eq!((node.cgroup("/a/b"), node.cgroup("/a/b/child")), (Some(12), None));
}

#[test]
fn counts_wait_for_a_path_and_then_go_where_they_belong() {
    let mut node = Node::new(&[]);
    node.read(0, &[(10, 7)]);
    assert_eq!((node.cgroup("/late"), node.snapshot().cgroups_unresolved), (None, 1));
    node.born(10, "/late", 1);
    node.read(PATH_PATIENCE_NS, &[]);
    assert_eq!((node.cgroup("/late"), node.snapshot().cgroups_unresolved), (Some(7), 0));
}

#[test]
fn counts_that_never_get_a_path_are_one_row() {
    let mut node = Node::new(&[]);
    node.read(0, &[(10, 7), (11, 1)]);
    node.read(PATH_PATIENCE_NS + 1, &[]);
    assert_eq!(node.cgroup(UNRESOLVED), Some(8));
}

#[test]
fn an_ended_row_is_exported_twice_and_for_its_grace_and_the_sum_keeps_it() {
    let mut node = Node::new(&[(10, "/job")]);
    node.read(0, &[(10, 7)]);
    node.died(10, 1);
    node.read(2, &[]);
    node.ledger.exported();
    node.read(2 * GRACE, &[]);
    assert_eq!(node.cgroup("/job"), Some(7), "exported only once");
    node.ledger.exported();
    node.read(2 * GRACE + 1, &[]);
    assert_eq!((node.cgroup("/job"), node.total()), (None, 7));
}

#[test]
fn a_row_that_comes_back_goes_on_where_it_was() {
    let mut node = Node::new(&[(10, "/unit")]);
    node.read(0, &[(10, 7)]);
    node.died(10, 1);
    node.read(2, &[]);
    node.born(12, "/unit", 3);
    node.read(4, &[(12, 1)]);
    node.read(2 * GRACE, &[]);
    assert_eq!(node.cgroup("/unit"), Some(8));
}

#[test]
fn every_delta_is_in_the_sum_whatever_becomes_of_its_cgroup() {
    let mut node = Node::of_cluster(&[(1, "/"), (9, "/a"), (20, &path('a')), (21, &path_in(UID, 'b'))], vec![]);
    node.read(0, &[(1, 1), (9, 2), (CgroupId::IDLE.0, 4), (CHILD.0, 8), (20, 16)]);
    assert_eq!(node.total(), 31, "while some wait");
    node.read(2 * PATIENCE, &[(21, 32)]);
    assert_eq!(node.total(), 63);
}

#[test]
fn without_a_cluster_pods_cgroups_are_like_all_others() {
    let mut node = Node::new(&[(20, &path('a'))]);
    node.read(0, &[(20, 5)]);
    assert_eq!(node.cgroup("/kubepods/burstable"), Some(5));
}

#[test]
fn more_waiting_cgroups_than_there_is_room_for_are_unresolved() {
    let mut node = Node::new(&[]);
    let ran: Vec<_> = (0..=MAX_WAITING as u64).map(|id| (100 + id, 1)).collect();
    node.read(0, &ran);
    assert_eq!((node.cgroup(UNRESOLVED), node.snapshot().cgroups_unresolved), (Some(1), MAX_WAITING));
    assert_eq!(node.total(), MAX_WAITING as u64 + 1);
}

#[test]
fn of_very_many_dead_the_longest_dead_go_before_their_grace_and_nothing_is_lost() {
    const BATCH: u64 = 1024;
    const BATCHES: u64 = 12;
    let mut node = Node::new(&[(1, "/")]);
    for batch in 0..BATCHES {
        let now = (batch + 1) * SECOND;
        let ids: Vec<u64> = (0..BATCH).map(|number| 100 + batch * BATCH + number).collect();
        ids.iter().for_each(|id| node.born(*id, &format!("/run/scope-{id}"), now));
        let ran: Vec<_> = ids.iter().map(|id| (*id, 3)).collect();
        node.read(now, &ran);
        ids.iter().for_each(|id| node.died(*id, now + 1));
        // The collector makes the same reading between two others.
        node.read(now + 2, &[]);
        assert!(node.ledger.accounts.len() <= MAX_ENDED + 1, "{} rows", node.ledger.accounts.len());
        assert_eq!(node.total(), 3 * BATCH * (batch + 1), "batch {batch}");
    }
    assert_eq!(node.snapshot().forgotten, BATCH * BATCHES - MAX_ENDED as u64);
    // The first rows are gone, the last rows are there.
    assert_eq!(
        (node.cgroup("/run/scope-100"), node.cgroup(&format!("/run/scope-{}", 99 + BATCH * BATCHES))),
        (None, Some(3))
    );
}

/// Returns the start and the count of a row.
fn started(node: &Node, row: &Row) -> Option<(SystemTime, u64)> {
    let snapshot = node.snapshot();
    snapshot.rows.into_iter().find(|found| found.row == *row).map(|found| (found.started, on_cpu(&found.usage)))
}

#[test]
fn an_account_that_ended_and_comes_back_has_another_start_after_its_last_counts() {
    let nodes = [(1, "/"), (20, &*path('a'))];
    let mut node = Node::of_cluster(&nodes, vec![pod("db-0", &[("app", Some('a'))])]);
    let app = Row::Container { namespace: "shop".into(), pod: "db-0".into(), container: "app".into() };
    node.read(SECOND, &[(20, 5)]);
    let first = started(&node, &app).unwrap();
    assert_eq!(first, (SystemTime::UNIX_EPOCH, 5), "the first reading's accounts start with the agent");
    node.read(2 * SECOND, &[(20, 5)]);
    assert_eq!(started(&node, &app), Some((first.0, 10)), "a start stays");

    node.died(20, 3 * SECOND);
    node.apply(PodChange::Deleted(pod("db-0", &[("app", Some('a'))])), 3 * SECOND);
    let (mut now, mut last_shown) = (4 * SECOND, 0);
    loop {
        node.read(now, &[]);
        match started(&node, &app) {
            Some(shown) => assert_eq!(shown, (first.0, 10)),
            None => break,
        }
        node.ledger.exported();
        last_shown = now;
        now += 100 * SECOND;
    }
    assert!(now > GRACE && last_shown > 2 * SECOND);

    // The pod of a StatefulSet comes back under its name.
    let uid = "11111111-e3b9-43a3-acdb-de4ba71f1fa4";
    let next = Pod { uid: Some(uid.parse().unwrap()), ..pod("db-0", &[("app", Some('b'))]) };
    node.apply(PodChange::Applied(next), now);
    node.born(21, &path_in(uid, 'b'), now + 1);
    node.read(now + 10 * SECOND, &[(21, 3)]);
    let (start, count) = started(&node, &app).unwrap();
    assert_eq!((start, count), (taken(now), 3), "the reading before it: then it had no counts");
    assert!(start > taken(last_shown) && start < taken(now + 10 * SECOND));
}

#[test]
fn a_start_is_before_the_first_counts_however_the_wall_clock_is_set() {
    let mut node = Node::new(&[(1, "/"), (9, "/a")]);
    node.read(SECOND, &[(9, 1)]);
    node.born(10, "/b", 2 * SECOND);
    // The clock is set back by an hour.
    let set = taken(2 * SECOND) - Duration::from_secs(3600);
    node.ledger.begin_reading(set, 2 * SECOND);
    let names = Names { tree: &node.tree, pods: None, patience_ns: 0 };
    node.ledger.post(vec![(CgroupId(10), ran(1))], &names, &node.rules, 2 * SECOND);
    assert_eq!(started(&node, &Row::Cgroup("/b".into())), Some((set - Duration::from_secs(1), 1)));
}

/// Returns the on-CPU time of a row as scrapers get it.
fn scraped(node: &Node, row: &Row) -> Option<u64> {
    let snapshot = node.snapshot();
    snapshot.rows.iter().find(|found| found.row == *row).map(|found| on_cpu(&found.shown.of(&found.usage)))
}

#[test]
fn a_new_row_is_zero_in_its_first_scrape_and_one_that_comes_back_is_as_it_was() {
    let mut over = pod("web", &[("app", Some('a'))]);
    over.containers[0].ended = true;
    let mut node = Node::of_cluster(&[(21, &path('a'))], vec![over]);
    node.rules.zero_first = true;
    let app = Row::Container { namespace: "shop".into(), pod: "web".into(), container: "app".into() };
    node.read(0, &[(21, 5)]);
    assert_eq!(scraped(&node, &app), Some(0));
    node.read(1, &[]);
    assert_eq!(scraped(&node, &app), Some(0), "nobody has scraped");
    node.died(21, 1);
    // Its grace period is over, but its counts were not shown before.
    for (now_ns, shown) in [(2, 0), (3 + GRACE, 5), (4 + GRACE, 5)] {
        node.read(now_ns, &[]);
        assert_eq!(scraped(&node, &app), Some(shown), "at {now_ns}");
        node.ledger.exported();
        node.ledger.note_scrape();
    }
    node.read(13 + GRACE, &[]);
    assert_eq!(scraped(&node, &app), None);

    node.apply(PodChange::Applied(pod("web", &[("app", Some('b'))])), 2 * GRACE);
    node.born(22, &path('b'), 2 * GRACE);
    node.read(2 * GRACE, &[(22, 7)]);
    assert_eq!((scraped(&node, &app), node.container("web", "app")), (Some(5), Some(12)));
    node.ledger.note_scrape();
    node.read(2 * GRACE + 1, &[(22, 1)]);
    assert_eq!(scraped(&node, &app), Some(13));
}

#[test]
fn counts_that_another_agent_may_have_shown_do_not_become_zero() {
    let mut node = Node::new(&[(10, "/found"), (11, "/late")]);
    node.rules.zero_first = true;
    node.ledger.show_found_counts(0);
    let row = |path: &str| Row::Cgroup(path.into());
    node.read(1, &[(10, 5)]);
    assert_eq!(scraped(&node, &row("/found")), Some(5));
    node.read(FOUND_FOR_NS, &[(11, 7)]);
    assert_eq!(scraped(&node, &row("/late")), Some(0));
    node.rules.zero_first = false;
    node.read(FOUND_FOR_NS + 1, &[]);
    assert_eq!(scraped(&node, &row("/late")), Some(7), "it was turned off");
}

#[path = "ledger_pods_tests.rs"]
mod pods;
