//! The start page of an invented node whose truth is known: three CPUs, one pod that takes most of them, four pods that
//! suffer, and pods that have nothing to do.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, SystemTime},
};

use super::{
    View,
    lines::{self, Column, Line, tell},
    write,
};
use crate::{
    attribution::{Row, RowUsage, Shown as ShownUsage, Snapshot},
    config::Runner,
    http::pages::modes::Shown,
    model::{
        facts::{Fact, Facts},
        mode::Mode,
        wait::{WaitReason, WaitState},
    },
    recording::{
        Cause, Waiting,
        fixture::{each_of, ended_by, in_state, on_cpu, on_stack, pod, stack, that_go_on, waits, window},
    },
    stacks::profile::Sample,
};

/// A pod: its name, its CPUs, its threads in the run queue and in uninterruptible waits for a disk, its other waits.
type Pod = (&'static str, f64, f64, f64, Vec<Sample>);

/// The threads that truly wait for a lock or another pod, by the loads' own account.
const TRUTH: [(&str, f64); 4] =
    [("shop/inventory/app", 6.8), ("shop/checkout/app", 2.3), ("web/browser/app", 0.04), ("web/poller/app", 0.03)];

/// Returns the pods that suffer, in the order of their trouble, each with the words of its row. Without names the
/// threads behind a lock may as well be idle workers.
fn suffer(with_names: bool) -> [(&'static str, &'static str); 4] {
    let [checkout, search, ledger] = [
        ("shop/checkout/app", "2.3 threads for shop/payments</span>"),
        ("shop/search/app", "0.90 threads for a CPU (batch/nightly-report has 1.5)</span>"),
        ("shop/ledger-db/app", "0.75 threads for storage</span>"),
    ];
    if with_names {
        [("shop/inventory/app", "6.8 threads for a lock of its own</span>"), checkout, search, ledger]
    } else {
        [checkout, search, ledger, ("shop/inventory/app", "1.2 threads for a lock or a queue of its own</span>")]
    }
}

/// Returns the pods. Without names the functions of programs are unknown, as in the mode that has no user frames.
fn pods(with_names: bool) -> Vec<Pod> {
    let by = |name: &str, reason, threads| ended_by(&format!("{name}/app"), waits(reason, threads));
    let timer = |threads| ended_by("(interrupt)", waits(WaitReason::Poll, threads));
    let accept = |sample: Sample| on_stack(stack(&["inet_csk_accept", "__sys_accept4"], &[]), sample);
    let user = |names: &'static [&'static str]| stack(&["futex_wait"], if with_names { names } else { &[] });
    let (mutex, queue) = (user(&["__lll_lock_wait", "add_item"]), user(&["pthread_cond_wait@@GLIBC_2.3.2", "next"]));
    let go_queue = user(&["runtime.futex", "runtime.futexsleep", "runtime.notesleep", "runtime.mPark"]);
    let parked = |threads| that_go_on(waits(WaitReason::Futex, threads));
    let long_sleep = Sample { count: 7, ..waits(WaitReason::Sleep, 7.5) };
    let mut pods = vec![
        // Eight threads want one lock, which its holder has for 4 ms.
        (
            "shop/inventory",
            0.03,
            0.14,
            0.0,
            vec![on_stack(mutex, by("shop/inventory", WaitReason::Futex, 6.8)), waits(WaitReason::Sleep, 1.0)],
        ),
        // It calls a slow service, by poll and recv, and serves what it is asked for.
        (
            "shop/checkout",
            0.08,
            0.4,
            0.02,
            vec![by("shop/payments", WaitReason::Poll, 2.2), by("shop/payments", WaitReason::Network, 0.1), timer(1.0)],
        ),
        (
            "shop/payments",
            0.02,
            0.05,
            0.0,
            vec![
                waits(WaitReason::Sleep, 2.3),
                accept(by("shop/checkout", WaitReason::Network, 0.7)),
                by("shop/checkout", WaitReason::Network, 0.2),
            ],
        ),
        ("shop/search", 0.1, 0.9, 0.0, vec![timer(1.0)]),
        ("batch/nightly-report", 1.5, 1.3, 0.0, vec![parked(1.0)]),
        ("shop/ledger-db", 0.05, 0.08, 0.75, vec![]),
        // A server with keep-alive connections, and its client, which asks once a second.
        (
            "web/gateway",
            0.05,
            0.03,
            0.0,
            vec![by("web/browser", WaitReason::Network, 7.9), accept(by("web/browser", WaitReason::Network, 0.1))],
        ),
        ("web/browser", 0.03, 0.02, 0.0, vec![by("web/gateway", WaitReason::Network, 0.04), long_sleep.clone()]),
        // The same, with connections that are older than the windows.
        ("web/api", 0.04, 0.01, 0.0, vec![by("web/poller", WaitReason::Network, 6.0)]),
        ("web/poller", 0.02, 0.01, 0.0, vec![by("web/api", WaitReason::Network, 0.03), long_sleep]),
        // A pool that gets a job now and then, and one that gets none.
        ("ops/pool", 0.02, 0.01, 0.0, vec![on_stack(queue, by("ops/pool", WaitReason::Futex, 15.9))]),
        ("ops/session-cache", 0.0, 0.0, 0.0, vec![parked(60.0)]),
        // A busy pool: a Go program, whose runtime sleeps for 10 ms at a time.
        (
            "ops/go",
            0.2,
            0.02,
            0.0,
            vec![on_stack(go_queue, by("ops/go", WaitReason::Futex, 8.0)), each_of(10, waits(WaitReason::Sleep, 1.0))],
        ),
        // A database of a hundred connections, and its client. Answers come after 3 ms: these waits have no waker.
        ("shop/orders-db", 0.05, 0.02, 0.0, vec![by("shop/orders", WaitReason::Network, 100.0)]),
        ("shop/orders", 0.3, 0.01, 0.0, vec![each_of(3, waits(WaitReason::Network, 0.5))]),
        // It receives messages, and never answers.
        (
            "ops/statsd",
            0.01,
            0.0,
            0.0,
            vec![by("web/gateway", WaitReason::Network, 0.5), by("web/api", WaitReason::Network, 0.5)],
        ),
    ];
    for name in ["ops/idle-0", "ops/idle-1", "ops/idle-2", "ops/idle-3"] {
        pods.push((name, 0.001, 0.0, 0.0, vec![parked(12.0), timer(1.0)]));
    }
    pods
}

/// Returns the rows of the pods and of the node itself, and the waits by which they are judged.
fn rows_of(pods: Vec<Pod>) -> (Vec<Line>, HashMap<String, Waiting>) {
    let (mut lines, mut subjects) = (Vec::new(), Vec::new());
    for (name, cpus, queued, blocked, mut samples) in pods {
        let (namespace, own_name) = name.split_once('/').unwrap();
        let row = Row::Container { namespace: namespace.into(), pod: own_name.into(), container: "app".into() };
        let asleep: f64 =
            samples.iter().map(|sample| Duration::from_nanos(sample.nanoseconds).as_secs_f64() / 10.0).sum();
        let mut line = Line::of(&row);
        (line.oncpu, line.offcpu) = (cpus, [asleep, blocked, queued, 0.0]);
        lines.push(line);
        samples.push(on_cpu(cpus));
        samples.push(in_state(WaitState::RunQueue, waits(WaitReason::RunQueue, queued)));
        samples.push(in_state(WaitState::Uninterruptible, waits(WaitReason::Disk, blocked)));
        subjects.push(pod(name, samples));
    }
    lines.push(Line { oncpu: 0.04, ..Line::of(&Row::Cgroup("/".into())) });
    let waiting = Waiting::by_name(&[window(subjects)]);
    tell(&mut lines, &waiting, &Cause::of_run_queue(None));
    (lines, waiting)
}

/// Returns the rows of the page in its own order: name and text.
fn rows(lines: Vec<Line>) -> Vec<(String, String)> {
    let shown = Shown { mode: Mode::Profiles, runner: Runner::Chart };
    let view = View { sort: Column::Trouble, namespace: None, text: None, all: false };
    let page = write::page("node-1", lines, &view, Duration::from_secs(10), shown, "n");
    let rows = page.split("<tr><td>").skip(1);
    let name = |row: &str| row.split('>').nth(1).unwrap().split('<').next().unwrap().to_owned();
    rows.map(|row| (name(row), row.to_owned())).collect()
}

#[test]
fn the_pods_that_suffer_are_the_first_rows_each_with_its_cause() {
    for with_names in [true, false] {
        let rows = rows(rows_of(pods(with_names)).0);
        let first: Vec<&str> = rows.iter().take(4).map(|(name, _)| name.as_str()).collect();
        assert_eq!(first, suffer(with_names).map(|(name, _)| name), "{with_names}");
        for ((name, says), (_, row)) in suffer(with_names).iter().zip(&rows) {
            assert!(row.contains(says), "{name}: {row}");
        }
        assert_eq!(rows[4].0, "batch/nightly-report/app", "it waits for itself, mostly");
        assert!(!rows[4].1.contains(" has 1.5"), "{}", rows[4].1);
        assert_eq!(rows.last().map(|(name, _)| name.as_str()), Some("/"), "the node itself is below all pods");
    }
}

#[test]
fn idleness_that_counts_as_trouble_is_at_most_a_twentieth_of_the_trouble() {
    let truth = |name: &str| TRUTH.iter().find(|(pod, _)| *pod == name).map_or(0.0, |(_, threads)| *threads);
    let all: f64 = TRUTH.iter().map(|(_, threads)| threads).sum();
    for with_names in [true, false] {
        let (lines, waiting) = rows_of(pods(with_names));
        let told = |line: &Line| waiting.get(&line.name).map_or(0.0, Waiting::asleep);
        let beyond = |line: &Line| (told(line) - truth(&line.name)).max(0.0);
        let wrong: f64 = lines.iter().map(beyond).sum();
        assert!(wrong < 0.05 * all, "{wrong} of {all}, with names: {with_names}");
        let missed: f64 = lines.iter().map(|line| (truth(&line.name) - told(line)).max(0.0)).sum();
        assert!(!with_names || missed < 0.05 * all, "{missed} of {all}");
        let pool = lines.iter().find(|line| line.name.starts_with("ops/session-cache")).unwrap();
        assert_eq!((pool.parked, pool.trouble), (Some(60.0), 0.0));
    }
}

#[test]
fn the_counts_of_previous_agents_are_no_rates() {
    let day_ns = 86_400_000_000_000;
    let at = |ns: u128| {
        let facts = Facts::from([(Fact::ON_CPU, ns), (Fact::off_cpu(WaitState::Uninterruptible), ns)]);
        let (row, started) = (Row::Cgroup("/a".into()), SystemTime::UNIX_EPOCH);
        let row = RowUsage { row, started, container: None, usage: facts.into(), shown: ShownUsage::ALL };
        Snapshot::of_rows(started, vec![row])
    };
    let rates = |now: &Snapshot, before: Option<&Snapshot>, seconds| {
        let (over, queue) = (Duration::from_secs(seconds), Cause::of_run_queue(None));
        let lines = lines::of(now, &Arc::default(), before, over, &HashMap::new(), &queue);
        (lines[0].oncpu, lines[0].trouble)
    };
    assert_eq!(rates(&at(day_ns), None, 0), (0.0, 0.0));
    assert_eq!(rates(&at(day_ns + 5_000_000_000), Some(&at(day_ns)), 10), (0.5, 0.5));
}
