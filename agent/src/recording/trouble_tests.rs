use super::{super::fixture::*, *};

const OWN: &str = "shop/checkout/app";

fn reason(reason: WaitReason) -> Cause {
    Cause::Reason(reason)
}

fn peer(name: &str) -> Cause {
    Cause::Peer(name.into())
}

fn judged(peers: &Peers, owner: &str, sample: &Sample) -> Judgement {
    peers.judge(&Wait::of(owner, sample).unwrap())
}

/// Each row is a wait of the pod `shop/checkout`, and its meaning while nothing else is known.
#[test]
fn a_wait_is_judged_by_its_state_its_reason_its_end_and_its_waker() {
    use Judgement::{Idle, Parked, Trouble, Unclear};
    use WaitReason::{
        Child, Disk, Futex, KernelLock, Network, Other, PageFault, Pipe, Poll, RunQueue, Sleep, Stopped, Throttled,
        Unknown,
    };
    use WaitState::Uninterruptible;
    let one = |reason| waits(reason, 1.0);
    let futex = |user: &[&str]| on_stack(stack(&["futex_wait", "do_futex"], user), one(Futex));
    let accept = || on_stack(stack(&["inet_csk_accept", "__sys_accept4"], &["accept"]), one(Network));
    let rust = |function: &str| futex(&["syscall", function, "podperf::work"]);
    let (lock, condition) = (&["__GI___lll_lock_wait", "add_item"], &["pthread_cond_wait@@GLIBC_2.3.2", "next_job"]);
    for (case, sample, expected) in [
        ("others have the CPUs", in_state(WaitState::RunQueue, one(RunQueue)), Trouble(reason(RunQueue))),
        ("its quota is used up", in_state(WaitState::Throttled, one(Throttled)), Trouble(reason(Throttled))),
        ("fsync", in_state(Uninterruptible, one(Disk)), Trouble(reason(Disk))),
        ("a disk that hangs", that_go_on(in_state(Uninterruptible, one(Disk))), Trouble(reason(Disk))),
        ("blocked without a stack", in_state(Uninterruptible, one(Unknown)), Trouble(Cause::Kernel)),
        ("a page is read", one(PageFault), Trouble(reason(PageFault))),
        ("a lock of the kernel", one(KernelLock), Trouble(reason(KernelLock))),
        ("stopped by a signal", that_go_on(one(Stopped)), Trouble(reason(Stopped))),
        ("a mutex", ended_by(OWN, futex(lock)), Trouble(Cause::Lock)),
        ("a deadlock with names", that_go_on(futex(lock)), Trouble(Cause::Lock)),
        ("a mutex of Rust", ended_by(OWN, rust("std::sync::poison::mutex::Mutex<T>::lock")), Trouble(Cause::Lock)),
        ("its slow path", rust("<std::sys::sync::mutex::futex::Mutex>::lock_contended"), Trouble(Cause::Lock)),
        ("a job in Rust", ended_by(OWN, rust("std::sync::poison::condvar::Condvar::wait")), Idle),
        ("its slow path", rust("<std::sys::sync::condvar::futex::Condvar>::wait_optional_timeout"), Idle),
        ("Python's lock", futex(&["pthread_cond_timedwait", "take_gil"]), Trouble(Cause::Lock)),
        ("a worker gets a job", ended_by(OWN, futex(condition)), Idle),
        ("a worker without a job", that_go_on(futex(condition)), Parked),
        ("a lock or a queue", ended_by(OWN, futex(&[])), Unclear(Cause::Lock)),
        ("a futex whose time is over", ended_by(Waker::INTERRUPT, futex(&[])), Idle),
        ("a futex that goes on", that_go_on(futex(&[])), Parked),
        ("memory of two pods", ended_by("shop/cache/app", futex(&[])), Unclear(peer("shop/cache"))),
        ("poll before recv", ended_by("shop/payments/app", one(Poll)), Unclear(peer("shop/payments"))),
        ("recv", ended_by("shop/payments/app", one(Network)), Unclear(peer("shop/payments"))),
        ("a service of the node", ended_by("/system.slice/dns", one(Network)), Unclear(peer("/system.slice/dns"))),
        ("a sidecar", ended_by("shop/checkout/log", one(Pipe)), Unclear(peer("shop/checkout/log"))),
        ("an event loop and its own threads", ended_by(OWN, one(Poll)), Idle),
        ("a packet from afar, or a timer", ended_by(Waker::INTERRUPT, one(Poll)), Unclear(Cause::Elsewhere)),
        ("a thread of the kernel", ended_by("/", one(Network)), Unclear(Cause::Elsewhere)),
        ("a cgroup without a name", ended_by(UNRESOLVED, one(Network)), Unclear(Cause::Elsewhere)),
        ("a futex and the kernel", ended_by("/", futex(&[])), Idle),
        ("too short for a waker", one(Network), Unclear(reason(Network))),
        ("a request that goes on", that_go_on(one(Network)), Parked),
        ("a client connects", ended_by("shop/front/app", accept()), Idle),
        ("no client connects", that_go_on(accept()), Parked),
        ("sleep", ended_by(Waker::INTERRUPT, one(Sleep)), Idle),
        ("a child that ends", ended_by(OWN, one(Child)), Idle),
        ("pause", that_go_on(one(Other)), Parked),
        ("a lost stack", one(Unknown), Unclear(reason(Unknown))),
        ("time without a sample", that_go_on(one(Unknown)), Unclear(reason(Unknown))),
    ] {
        assert_eq!(judged(&Peers::default(), OWN, &sample), expected, "{case}");
    }
}

/// The sides of two pods that wake each other.
fn sides(server_accepts: Option<Sample>) -> [Judgement; 2] {
    let client = ended_by("shop/payments/app", waits(WaitReason::Poll, 1.0));
    let server = ended_by("shop/checkout/app", waits(WaitReason::Network, 2.0));
    let of_server = [Some(server.clone()), server_accepts].into_iter().flatten().collect();
    let subjects = vec![pod("shop/checkout", vec![client.clone()]), pod("shop/payments", of_server)];
    let peers = Peers::of(&[window(subjects)]);
    [judged(&peers, OWN, &client), judged(&peers, "shop/payments/app", &server)]
}

#[test]
fn pods_that_wake_each_other_are_client_and_server_where_a_connection_shows_it() {
    use Judgement::{Idle, Trouble, Unclear};
    assert_eq!(sides(None), [Unclear(peer("shop/payments")), Unclear(peer("shop/checkout"))]);
    let accept = on_stack(stack(&["__sys_accept4"], &[]), waits(WaitReason::Network, 0.1));
    assert_eq!(sides(Some(ended_by("shop/checkout/app", accept.clone()))), [Trouble(peer("shop/payments")), Idle]);
    // Connections of others show nothing.
    let of_other = sides(Some(ended_by("shop/other/app", accept)));
    assert_eq!(of_other, [Unclear(peer("shop/payments")), Unclear(peer("shop/checkout"))]);
    let mut connects = ended_by("shop/checkout/app", waits(WaitReason::Poll, 0.1));
    if let Activity::OffCpu { waker: Some(waker), .. } = &mut connects.activity {
        Arc::make_mut(waker).stack = Some("main;connect;__x64_sys_connect;__sys_connect;tcp_v4_connect".into());
    }
    assert_eq!(sides(Some(connects)), [Trouble(peer("shop/payments")), Idle]);
}

#[test]
fn two_containers_of_a_pod_have_their_own_names_and_other_pods_theirs() {
    assert_eq!(parties("shop/a/x", "shop/a/y"), ("shop/a/x", "shop/a/y"));
    assert_eq!(parties("shop/a/x", "shop/b/x"), ("shop/a", "shop/b"));
    assert_eq!(parties("shop/a/x", "/system.slice/dns"), ("shop/a", "/system.slice/dns"));
    assert_eq!(pod_of("(unresolved)"), "(unresolved)");
}

#[test]
fn pairs_of_peers_have_a_limit_and_the_first_ones_stay() {
    let accept = || on_stack(stack(&["inet_csk_accept"], &["main"]), waits(WaitReason::Network, 0.1));
    let server = |at: usize| pod(&format!("shop/server-{at}"), vec![ended_by("shop/front/app", accept())]);
    let mut peers = Peers::of(&[window((0..=MOST_PAIRS).map(server).collect())]);
    peers.add(&window(vec![server(0)]));
    assert_eq!(peers.pairs, MOST_PAIRS);
    assert!(peers.calls("shop/front", "shop/server-0"));
    assert!(!peers.calls("shop/front", &format!("shop/server-{MOST_PAIRS}")));
}
