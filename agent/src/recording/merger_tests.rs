use super::*;
use crate::{
    attribution::Subject,
    recording::{
        Cause,
        fixture::{self, ended_by, on_stack, pod, that_go_on, waits},
    },
    stacks::profile::SubjectProfile,
};

fn sample(activity: Activity, nanoseconds: u64) -> Sample {
    Sample {
        stack: Arc::default(),
        activity,
        nanoseconds,
        so_far_ns: 0,
        count: 2,
        last: SystemTime::UNIX_EPOCH,
        passed: 1,
    }
}

fn wait(reason: WaitReason) -> Activity {
    Activity::OffCpu { state: WaitState::Interruptible, reason, waker: None, lock: None }
}

fn window(second: u64, path: &str, samples: Vec<Sample>) -> Profile {
    Profile {
        subjects: vec![SubjectProfile { subject: Subject::Cgroup(path.into()), samples }],
        start: Some(SystemTime::UNIX_EPOCH + Duration::from_secs(second)),
        duration: Duration::from_secs(1),
        losses: vec![("stack_walk", 3)],
        sample_period: None,
    }
}

#[test]
fn waits_for_locks_are_recorded_whole_and_by_kind() {
    let waits = |reason, number, nanoseconds, so_far_ns| {
        let activity =
            Activity::OffCpu { state: WaitState::Interruptible, reason, waker: None, lock: Lock::from_abi(number) };
        Sample { so_far_ns, ..sample(activity, nanoseconds) }
    };
    let samples = vec![
        waits(WaitReason::KernelLock, 8, 5, 0),
        waits(WaitReason::KernelLock, 7, 6, 100),
        waits(WaitReason::KernelLock, 8, 7, 0),
        waits(WaitReason::Sleep, 0, 1000, 0),
        sample(Activity::OnCpu, 1000),
    ];
    let windows = [Arc::new(window(1, "/a", samples))];
    let told = |side| {
        let merged = Merger::merge(&windows, side, Selector::All);
        let told = |sample: &MergedSample| match &sample.activity {
            Activity::OffCpu { lock, .. } => (lock.map(Lock::name), sample.nanoseconds),
            Activity::OnCpu => panic!(),
        };
        merged.samples().map(|(_, sample)| told(sample)).collect::<Vec<_>>()
    };
    assert_eq!(told(Side::Locks), [(Some("rwsem_write"), 106), (Some("mutex"), 12)]);
    assert_eq!(told(Side::OffCpu), [(None, 1000), (None, 18)]);
}

#[test]
fn equal_samples_of_windows_are_one_and_nothing_else_is_taken() {
    let mut merger = Merger::new(Side::OffCpu, "/a".parse().unwrap(), Slot::OWN);
    merger.add(&window(1, "/a", vec![sample(wait(WaitReason::Disk), 5), sample(Activity::OnCpu, 100)]));
    merger.add(&window(2, "/a", vec![sample(wait(WaitReason::Disk), 7), sample(wait(WaitReason::Pipe), 30)]));
    merger.add(&window(3, "/b", vec![sample(wait(WaitReason::Disk), 1000)]));
    assert_eq!(merger.count(), 6);
    let merged = merger.finish();
    assert_eq!(merged.of_node, 8);
    let sums: Vec<_> = merged.samples().map(|(_, sample)| (sample.nanoseconds, sample.count)).collect();
    assert_eq!(sums, [(30, 2), (12, 4)]);
    assert_eq!((merged.nanoseconds(), merged.duration), (42, Duration::from_secs(3)));
    assert_eq!(merged.start, Some(SystemTime::UNIX_EPOCH + Duration::from_secs(1)));
    assert_eq!(merged.losses, [("stack_walk", 9)]);
}

#[test]
fn the_other_side_is_a_recording_of_its_own() {
    let mut merger = Merger::new(Side::OnCpu, Selector::All, Slot::OWN);
    merger.add(&window(1, "/a", vec![sample(wait(WaitReason::Disk), 5), sample(Activity::OnCpu, 100)]));
    assert_eq!(merger.finish().nanoseconds(), 100);
}

/// Makes a new stack with these addresses at each call.
fn stack(addresses: std::ops::Range<u64>) -> Arc<Stack> {
    let frame = |address| Arc::new(Frame { address, kind: FrameKind::Native, mapping: None, functions: vec![] });
    Arc::new(Stack { frames: addresses.map(frame).collect(), unwind: Unwind::Whole })
}

#[test]
fn the_same_stack_of_other_processes_and_windows_is_one_and_each_is_looked_into_once() {
    let samples = || {
        let (same, again) = (stack(0..9), stack(0..9));
        let of = |stack: &Arc<Stack>| Sample { stack: Arc::clone(stack), ..sample(wait(WaitReason::Disk), 1) };
        (0..500).flat_map(|_| [of(&same), of(&again)]).collect::<Vec<_>>()
    };
    let mut merger = Merger::new(Side::OffCpu, Selector::All, Slot::OWN);
    merger.add(&window(1, "/a", samples()));
    assert_eq!(merger.stacks.looks(), 2);
    merger.add(&window(2, "/a", samples()));
    assert_eq!(merger.stacks.looks(), 4);
    let merged = merger.finish();
    let sums: Vec<_> = merged.samples().map(|(_, sample)| (sample.nanoseconds, sample.count)).collect();
    assert_eq!((sums, merged.merged), (vec![(2000, 4000)], 0));
}

#[test]
fn an_address_that_another_stack_comes_to_lie_at_is_that_one() {
    let mut merger = Merger::new(Side::OffCpu, Selector::All, Slot::OWN);
    // Each stack is freed before the next one is made: the allocator returns the same addresses.
    for depth in 1..200 {
        let sample = Sample { stack: stack(0..depth), ..sample(wait(WaitReason::Disk), depth) };
        merger.add(&window(depth, "/a", vec![sample.clone(), sample]));
        let same = Sample { stack: stack(0..depth), ..self::sample(wait(WaitReason::Disk), depth) };
        merger.add(&window(depth, "/a", vec![same]));
    }
    let merged = merger.finish();
    assert_eq!(merged.samples().count(), 199);
    for (_, sample) in merged.samples() {
        assert_eq!(sample.nanoseconds, 3 * sample.stack.frames.len() as u64);
    }
}

#[test]
fn of_too_many_stacks_the_longest_stay_and_no_time_is_lost() {
    let mut merger = Merger::new(Side::OffCpu, Selector::All, Slot::OWN);
    let (mut time, mut count) = (0, 0);
    for second in 0..20 {
        let samples: Vec<_> = (0..10_000)
            .map(|at| {
                let address = second * 10_000 + at + 1;
                let nanoseconds = if at == 0 { 1_000_000 } else { 1 + at % 7 };
                Sample { stack: stack(address..address + 1), ..sample(wait(WaitReason::Disk), nanoseconds) }
            })
            .collect();
        time += samples.iter().map(|sample| sample.nanoseconds).sum::<u64>();
        count += samples.iter().map(|sample| sample.count).sum::<u64>();
        merger.add(&window(second, "/a", samples));
        assert!(merger.sums <= MOST_SUMS && merger.stacks.bytes() <= 2 * MOST_BYTES, "{}", merger.sums);
    }
    let merged = merger.finish();
    assert_eq!((merged.nanoseconds(), merged.count()), (time, count));
    assert_eq!(merged.samples().filter(|(_, sample)| sample.nanoseconds == 1_000_000).count(), 20);
    let name = smaller(merged.merged);
    let kept = merged.samples().count() - 1;
    let rest = merged.samples().find(|(_, sample)| sample.stack.frames[0].name() == *name);
    assert!(rest.is_some_and(|(_, sample)| sample.nanoseconds >= merged.merged), "no `{name}`");
    assert!(kept <= MOST_SUMS && kept as u64 + merged.merged == 200_000, "{kept} and {}", merged.merged);
}

#[test]
fn stacks_that_take_too_much_are_merged_before_they_are_too_many() {
    let mut merger = Merger::new(Side::OffCpu, Selector::All, Slot::OWN);
    for second in 0..10 {
        let deep = |at: u64| {
            let first = (second * 1000 + at) << 8;
            Sample { stack: stack(first..first + 127), ..sample(wait(WaitReason::Disk), 1 + at) }
        };
        merger.add(&window(second, "/a", (0..1000).map(deep).collect()));
        assert!(merger.stacks.bytes() <= MOST_BYTES + (64 << 10), "{}", merger.stacks.bytes());
    }
    let merged = merger.finish();
    assert_eq!((merged.nanoseconds(), merged.count()), (10 * 500_500, 20_000));
    assert_eq!(merged.coverage.of(Unwind::Whole), 10 * 500_500, "of the merged ones, too");
    assert!(merged.merged > 5000, "{}", merged.merged);
}

/// Returns the judgements of the waits of a container with their milliseconds.
fn judged(windows: &[Arc<Profile>], container: &str) -> Vec<(Judgement, u64)> {
    let merged = Merger::merge(windows, Side::OffCpu, container.parse().unwrap());
    let judgement = |sample: &MergedSample| sample.judgement.as_deref().unwrap().clone();
    let mut judged: Vec<_> =
        merged.samples().map(|(_, sample)| (judgement(sample), sample.nanoseconds / 1_000_000)).collect();
    judged.sort();
    judged
}

#[test]
fn waits_are_judged_by_who_opened_a_connection_in_any_of_the_windows() {
    let accepted = |client: &str| {
        let accept = fixture::stack(&["inet_csk_accept"], &["main"]);
        on_stack(accept, ended_by(client, waits(WaitReason::Network, 0.1)))
    };
    let of_checkout = vec![
        ended_by("shop/payments/app", waits(WaitReason::Poll, 1.0)),
        ended_by("shop/front/app", waits(WaitReason::Network, 1.0)),
        that_go_on(waits(WaitReason::Network, 1.0)),
    ];
    let first = fixture::window(vec![pod("shop/checkout", of_checkout)]);
    let of_servers = vec![
        pod("shop/checkout", vec![accepted("shop/front/app")]),
        pod("shop/payments", vec![accepted("shop/checkout/app")]),
    ];
    let payments = Judgement::Trouble(Cause::Peer("shop/payments".into()));
    let expected =
        [(payments, 10_000), (Judgement::Idle, 1000), (Judgement::Idle, 10_000), (Judgement::Parked, 10_000)];
    assert_eq!(judged(&[first, fixture::window(of_servers)], "shop/checkout/app"), expected);
}

#[test]
fn the_parts_of_a_wait_are_judged_as_its_end_and_those_of_other_stacks_are_not() {
    let mut ended = ended_by("shop/payments/app", waits(WaitReason::Poll, 0.1));
    (ended.count, ended.so_far_ns) = (1, 3_000_000_000);
    let other = on_stack(fixture::stack(&["ep_poll"], &["main"]), that_go_on(waits(WaitReason::Poll, 2.0)));
    let samples = vec![that_go_on(waits(WaitReason::Poll, 0.3)), ended, other];
    let payments = Judgement::Unclear(Cause::Peer("shop/payments".into()));
    let windows = [fixture::window(vec![pod("shop/checkout", samples)])];
    assert_eq!(judged(&windows, "shop/checkout/app"), [(payments, 4000), (Judgement::Parked, 20_000)]);
}

/// Without it, the picture would say less than the text of the same page.
#[test]
fn a_futex_whose_lock_the_sensor_saw_is_trouble_off_the_cpu_too() {
    let mut locked = waits(WaitReason::Futex, 1.0);
    if let Activity::OffCpu { lock, .. } = &mut locked.activity {
        *lock = Lock::from_abi(12);
    }
    let windows = [fixture::window(vec![pod("shop/checkout", vec![locked, waits(WaitReason::Futex, 2.0)])])];
    let (sure, unsure) = (Judgement::Trouble(Cause::Lock), Judgement::Unclear(Cause::Lock));
    assert_eq!(judged(&windows, "shop/checkout/app"), [(sure, 10_000), (unsure, 20_000)]);
}

#[test]
fn small_waits_for_many_pods_are_one_sum_without_their_names() {
    let samples = (0..=MOST_SUMS as u64).map(|at| {
        let wait = ended_by(&format!("shop/pod-{}/app", at % 7), waits(WaitReason::Network, 1.0));
        Sample { stack: stack(at..at + 1), nanoseconds: 1 + at % 5, ..wait }
    });
    let merged = Merger::merge(&[Arc::new(window(1, "/a", samples.collect()))], Side::OffCpu, Selector::All);
    let small = merged.samples().filter(|(_, sample)| sample.stack.frames[0].name().ends_with("smaller)"));
    let judgements: Vec<_> = small.map(|(_, sample)| sample.judgement.as_deref().cloned()).collect();
    assert_eq!(judgements, [Some(Judgement::Unclear(Cause::Peer("other pods".into())))]);
}
