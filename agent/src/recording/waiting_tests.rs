use super::{super::fixture::*, *};
use crate::{
    model::lock::Lock,
    stacks::profile::{Activity, Waker},
};

const SECOND: u64 = 1_000_000_000;

fn of(samples: Vec<Sample>) -> Waiting {
    let all = Waiting::by_name(&[window(vec![pod("shop/checkout", samples)])]);
    assert_eq!(all.len(), 2, "the pod and its container");
    all["shop/checkout"].clone()
}

fn is_near(a: f64, b: f64) -> bool {
    (a - b).abs() < 0.001
}

fn threads(waiting: &Waiting, cause: &Cause, sure: bool) -> f64 {
    let parts = waiting.parts();
    parts.iter().find(|part| part.cause == *cause && part.sure == sure).map_or(0.0, |part| part.threads)
}

#[test]
fn parked_threads_are_apart_and_a_long_wait_is_judged_as_a_whole_when_it_ends() {
    let payments = Cause::Peer("shop/payments".into());
    let mut ended = ended_by("shop/payments/app", waits(WaitReason::Poll, 0.1));
    (ended.count, ended.so_far_ns) = (1, 3 * SECOND);
    let waiting = of(vec![
        that_go_on(waits(WaitReason::Futex, 60.0)),
        that_go_on(waits(WaitReason::Poll, 0.3)),
        that_go_on(waits(WaitReason::Poll, 2.0)),
        ended,
    ]);
    assert!(is_near(waiting.parked(), 62.0), "{waiting:?}");
    assert!(is_near(threads(&waiting, &payments, false), 0.4) && waiting.idle() == 0.0, "{waiting:?}");
}

#[test]
fn no_more_than_the_time_in_the_windows_is_taken_from_the_parked_threads() {
    let mut ended = ended_by("shop/payments/app", waits(WaitReason::Poll, 0.1));
    (ended.count, ended.so_far_ns) = (1, 600 * SECOND);
    let waiting = of(vec![that_go_on(waits(WaitReason::Poll, 10.9)), ended]);
    assert!(is_near(waiting.parked(), 10.0), "{waiting:?}");
}

/// Only the end of such a wait has the lock.
#[test]
fn a_long_wait_for_a_lock_that_the_sensor_saw_is_trouble_as_a_whole_when_it_ends() {
    let mut ended = ended_by("shop/checkout/app", waits(WaitReason::Futex, 0.1));
    (ended.count, ended.so_far_ns) = (1, 3 * SECOND);
    if let Activity::OffCpu { lock, .. } = &mut ended.activity {
        *lock = Lock::from_abi(12);
    }
    let waiting = of(vec![that_go_on(waits(WaitReason::Futex, 0.3)), ended]);
    assert!(is_near(threads(&waiting, &Cause::Lock, true), 0.4) && is_near(waiting.parked(), 0.0), "{waiting:?}");
}

#[test]
fn no_more_threads_wait_for_a_lock_than_do_anything() {
    let futex = |threads| ended_by("shop/checkout/app", waits(WaitReason::Futex, threads));
    // Jobs come now and then: the pool waits for them.
    let pool = of(vec![futex(16.0), on_cpu(0.1)]);
    assert!(is_near(threads(&pool, &Cause::Lock, false), 0.1) && is_near(pool.idle(), 15.9), "{pool:?}");
    assert!(is_near(pool.asleep(), 0.05), "half of what may be idleness: {pool:?}");
    // A thread of the runtime sleeps for up to 10 ms at a time, while other threads work.
    let go = of(vec![futex(8.0), on_cpu(0.3), each_of(10, waits(WaitReason::Sleep, 1.0))]);
    assert!(is_near(threads(&go, &Cause::Lock, false), 0.3) && is_near(go.idle(), 8.7), "{go:?}");
    // The holder of the lock sleeps for 20 ms at a time. Without the names of functions it may as well be a pool.
    let convoy = of(vec![futex(6.8), each_of(20, waits(WaitReason::Sleep, 1.0))]);
    assert!(is_near(threads(&convoy, &Cause::Lock, false), 1.0), "{convoy:?}");
    let slow = each_of(1000, waits(WaitReason::Sleep, 1.0));
    let timer = of(vec![futex(6.8), slow, ended_by(Waker::INTERRUPT, waits(WaitReason::Poll, 1.0))]);
    assert!(is_near(timer.asleep(), 0.0) && timer.idle_for() == Some(WaitReason::Futex), "{timer:?}");
}

#[test]
fn a_pod_keeps_no_more_threads_waiting_than_it_has_that_do_anything() {
    let wakes = |other: &str, threads| ended_by(other, waits(WaitReason::Network, threads));
    // The client opens a connection to the other one.
    let other = pod("web/other", vec![on_stack(stack(&["__sys_accept4"], &[]), wakes("web/client/app", 0.1))]);
    let of_server = |client: Vec<Sample>| {
        let client = [client, vec![wakes("web/server/app", 0.1)]].concat();
        let server = pod("web/server", vec![wakes("web/client/app", 100.0)]);
        let windows = [window(vec![server, pod("web/client", client), other.clone()])];
        Waiting::by_name(&windows)["web/server"].clone()
    };
    let (peer, rare) = (Cause::Peer("web/client".into()), of_server(vec![on_cpu(0.05)]));
    assert!(is_near(threads(&rare, &peer, false), 0.05) && is_near(rare.idle(), 99.95), "{rare:?}");
    let is_busy = of_server(vec![on_cpu(1.0), each_of(20, waits(WaitReason::Sleep, 2.0))]);
    assert!(is_near(threads(&is_busy, &peer, false), 3.0), "{is_busy:?}");
    let waits_for_other = of_server(vec![wakes("web/other/app", 0.5)]);
    assert!(is_near(threads(&waits_for_other, &peer, false), 0.5), "{waits_for_other:?}");
}

#[test]
fn two_containers_that_wait_for_each_other_do_nothing() {
    let (x, y) = ("shop/checkout/x", "shop/checkout/y");
    // `y` calls `x`, and ends waits of `x` in memory that they share.
    let accept = on_stack(stack(&["__sys_accept4"], &[]), ended_by(y, waits(WaitReason::Network, 0.1)));
    let of_x = vec![accept, ended_by(y, waits(WaitReason::Futex, 4.0))];
    let of_y = vec![ended_by(x, waits(WaitReason::Poll, 3.0))];
    let subjects = vec![container("shop/checkout", "x", of_x), container("shop/checkout", "y", of_y)];
    let all = Waiting::by_name(&[window(subjects)]);
    assert!(is_near(threads(&all[y], &Cause::Peer(x.into()), true), 3.0), "{all:?}");
    for name in [x, "shop/checkout"] {
        assert!(is_near(threads(&all[name], &Cause::Peer(y.into()), false), 0.0), "{name}: {all:?}");
    }
}

#[test]
fn trouble_comes_first_and_what_nobody_can_tell_last() {
    let held = |state, reason, threads| in_state(state, waits(reason, threads));
    let waiting = of(vec![
        ended_by(Waker::INTERRUPT, waits(WaitReason::Poll, 9.0)),
        held(WaitState::RunQueue, WaitReason::RunQueue, 0.9),
        held(WaitState::Uninterruptible, WaitReason::Disk, 0.2),
        ended_by("shop/payments/app", waits(WaitReason::Poll, 1.3)),
        ended_by("shop/payments/app", waits(WaitReason::Network, 1.0)),
        on_cpu(0.5),
    ]);
    let told: Vec<_> = waiting.parts().iter().map(|part| part.cause.words(part.sure).into_owned()).collect();
    let payments = "shop/payments, or for its next request";
    assert_eq!(told, [payments, "a CPU", "storage", "another node, or a timer"]);
    assert!(is_near(waiting.asleep(), 1.15), "without what the states tell: {waiting:?}");
    assert!(is_near(waiting.on_cpu(), 0.5) && waiting.parked() == 0.0, "{waiting:?}");
}

#[test]
fn only_samples_of_the_agents_own_filter_count() {
    let other = Sample { passed: 2, ..waits(WaitReason::Disk, 1.0) };
    assert!(of(vec![other]).parts().is_empty());
}

#[test]
fn who_has_most_of_the_cpus_is_named_to_others_only() {
    let on_cpu = HashMap::from([("batch/report", 1.5), ("shop/checkout", 0.1)]);
    assert_eq!(holder(&on_cpu, "shop/checkout"), Some(("batch/report", 1.5)));
    assert_eq!(holder(&on_cpu, "batch/report"), None);
    assert_eq!(holder(&HashMap::from([("batch/report", 0.2)]), "shop/checkout"), None);
}
