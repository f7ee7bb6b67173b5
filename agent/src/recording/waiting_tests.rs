use super::{super::fixture::*, *};
use crate::stacks::profile::Waker;

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
    assert!(is_near(threads(&waiting, &payments, true), 0.4) && waiting.idle() == 0.0, "{waiting:?}");
}

#[test]
fn no_more_than_the_time_in_the_windows_is_taken_from_the_parked_threads() {
    let mut ended = ended_by("shop/payments/app", waits(WaitReason::Poll, 0.1));
    (ended.count, ended.so_far_ns) = (1, 600 * SECOND);
    let waiting = of(vec![that_go_on(waits(WaitReason::Poll, 10.9)), ended]);
    assert!(is_near(waiting.parked(), 10.0), "{waiting:?}");
}

#[test]
fn threads_do_not_wait_for_a_lock_while_no_thread_does_anything() {
    let futex = |threads| ended_by("shop/checkout/app", waits(WaitReason::Futex, threads));
    // Jobs come now and then: the pool waits for them.
    let pool = of(vec![futex(16.0), on_cpu(0.1)]);
    assert!(is_near(threads(&pool, &Cause::Lock, false), 1.6) && is_near(pool.idle(), 14.4), "{pool:?}");
    assert!(is_near(pool.asleep(), 0.8), "half of what may be idleness: {pool:?}");
    // The holder of the lock sleeps for 20 ms at a time.
    let convoy = of(vec![futex(6.8), waits(WaitReason::Sleep, 1.0)]);
    assert!(is_near(threads(&convoy, &Cause::Lock, false), 6.8), "{convoy:?}");
    let mut slow = waits(WaitReason::Sleep, 1.0);
    slow.count = 1;
    let timer = of(vec![futex(6.8), slow, ended_by(Waker::INTERRUPT, waits(WaitReason::Poll, 1.0))]);
    assert!(is_near(timer.asleep(), 0.0) && timer.idle_for() == Some(WaitReason::Futex), "{timer:?}");
}

#[test]
fn a_pod_that_does_nothing_keeps_nobody_waiting() {
    let wakes = |other: &str, threads| ended_by(other, waits(WaitReason::Network, threads));
    let of_server = |client: Vec<Sample>| {
        let client = [client, vec![wakes("web/server/app", 0.1)]].concat();
        let server = pod("web/server", vec![wakes("web/client/app", 8.0)]);
        Waiting::by_name(&[window(vec![server, pod("web/client", client)])])["web/server"].clone()
    };
    let (peer, asks_rarely) = (Cause::Peer("web/client".into()), of_server(vec![on_cpu(0.05)]));
    assert!(is_near(threads(&asks_rarely, &peer, false), 0.4) && is_near(asks_rarely.idle(), 7.6), "{asks_rarely:?}");
    let is_busy = of_server(vec![waits(WaitReason::Sleep, 2.0)]);
    assert!(is_near(threads(&is_busy, &peer, false), 8.0), "{is_busy:?}");
    let waits_for_other = of_server(vec![wakes("web/other/app", 0.5)]);
    assert!(is_near(threads(&waits_for_other, &peer, false), 4.0), "{waits_for_other:?}");
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
    assert_eq!(told, ["shop/payments", "a CPU", "storage", "another node, or a timer"]);
    assert!(is_near(waiting.asleep(), 2.3), "without what the states tell: {waiting:?}");
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
