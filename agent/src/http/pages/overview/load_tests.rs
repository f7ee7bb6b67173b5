//! The start page of an invented node whose truth is known: two CPUs, one pod that takes them, four pods that suffer,
//! and pods that have nothing to do.

use std::time::Duration;

use super::{
    View,
    lines::{Column, Line, tell},
    write,
};
use crate::{
    attribution::Row,
    config::Runner,
    http::pages::modes::Shown,
    model::{
        mode::Mode,
        wait::{WaitReason, WaitState},
    },
    recording::{
        Waiting,
        fixture::{ended_by, in_state, on_cpu, on_stack, pod, stack, that_go_on, waits, window},
    },
    stacks::profile::Sample,
};

/// A pod: its name, its CPUs, its threads in the run queue and in uninterruptible waits for a disk, its other waits.
type Pod = (&'static str, f64, f64, f64, Vec<Sample>);

/// The pods that suffer, in the order of their trouble, each with the words of its row.
const SUFFER: [(&str, &str); 4] = [
    ("shop/inventory/app", "6.8 threads for a lock"),
    ("shop/checkout/app", "2.3 threads for shop/payments</span>"),
    ("shop/search/app", "0.90 threads for a CPU (batch/nightly-report has 1.5)</span>"),
    ("shop/ledger-db/app", "0.75 threads for storage</span>"),
];

/// Returns the pods. Without names the functions of programs are unknown, as in the mode that has no user frames.
fn pods(with_names: bool) -> Vec<Pod> {
    let by = |name: &str, reason, threads| ended_by(&format!("{name}/app"), waits(reason, threads));
    let timer = |threads| ended_by("(interrupt)", waits(WaitReason::Poll, threads));
    let accept = |sample: Sample| on_stack(stack(&["inet_csk_accept", "__sys_accept4"], &[]), sample);
    let user = |names: &'static [&'static str]| stack(&["futex_wait"], if with_names { names } else { &[] });
    let (mutex, queue) = (user(&["__lll_lock_wait", "add_item"]), user(&["pthread_cond_wait@@GLIBC_2.3.2", "next"]));
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
    ];
    for name in ["ops/idle-0", "ops/idle-1", "ops/idle-2", "ops/idle-3"] {
        pods.push((name, 0.001, 0.0, 0.0, vec![parked(12.0), timer(1.0)]));
    }
    pods
}

fn lines(pods: Vec<Pod>) -> Vec<Line> {
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
    tell(&mut lines, &Waiting::by_name(&[window(subjects)]));
    lines
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
        let rows = rows(lines(pods(with_names)));
        let first: Vec<&str> = rows.iter().take(4).map(|(name, _)| name.as_str()).collect();
        assert_eq!(first, SUFFER.map(|(name, _)| name), "{with_names}");
        for ((name, says), (_, row)) in SUFFER.iter().zip(&rows) {
            assert!(row.contains(says), "{name}: {row}");
        }
        assert_eq!(rows[4].0, "batch/nightly-report/app", "it waits for itself, mostly");
        assert!(!rows[4].1.contains(" has 1.5"), "{}", rows[4].1);
        assert_eq!(rows.last().map(|(name, _)| name.as_str()), Some("/"), "the node itself is below all pods");
    }
}

#[test]
fn at_most_a_twentieth_of_the_waiting_time_is_on_the_wrong_side() {
    for with_names in [true, false] {
        let lines = lines(pods(with_names));
        let suffers = |line: &&Line| SUFFER.iter().any(|(name, _)| *name == line.name);
        let all: f64 = lines.iter().flat_map(|line| line.offcpu).sum();
        let trouble: f64 = lines.iter().map(|line| line.trouble).sum();
        let of_sufferers: f64 = lines.iter().filter(suffers).map(|line| line.trouble).sum();
        assert!(trouble - of_sufferers < 0.05 * all, "{} of {all}", trouble - of_sufferers);
        let pool = lines.iter().find(|line| line.name.starts_with("ops/session-cache")).unwrap();
        assert_eq!((pool.parked, pool.trouble), (Some(60.0), 0.0));
    }
}
