use super::*;
use crate::ids::Pid;

const NOW: u64 = 1_000_000_000;
const CGROUP: CgroupId = CgroupId(7);
const STACK: StackId = StackId(1);
const PLACE: StackId = StackId(2);

fn window() -> Window {
    let mut window = Window::new(2, 2);
    window.reasons = Reasons::new([(0x100, "do_wait"), (0x200, "other")].into_iter());
    window
}

fn stack(id: StackId) -> StackRecord {
    StackRecord::Stack(RawStack { id, process: Pid(1), user: vec![1], kernel: vec![0x110] })
}

fn sample(stack: Option<StackId>, ns: u64) -> RawSample {
    let key = SampleKey {
        stack,
        cgroup: CGROUP,
        waker: None,
        process: Pid(1),
        activity: RawActivity::Wait(WaitState::Interruptible),
        filters: 0,
    };
    RawSample { key, ns, count: 1, last_ns: ns }
}

fn profiled(window: &mut Window, reason: WaitReason) -> u64 {
    window.take_profiled().remove(&CGROUP).unwrap_or_default().waits_ns[reason as usize]
}

#[test]
fn samples_of_one_key_are_summed_and_long_waits_stay_alone() {
    let mut window = window();
    window.record(stack(STACK));
    window.record(StackRecord::LongWait(sample(Some(STACK), 500)));
    window.add(vec![sample(Some(STACK), 5)], NOW);
    window.add(vec![sample(Some(STACK), 6)], NOW);
    assert_eq!(profiled(&mut window, WaitReason::Child), 511);
    let mut found: Vec<_> = window.end(false).iter().map(|sample| (sample.ns, sample.count, sample.last_ns)).collect();
    found.sort_unstable();
    assert_eq!(found, [(11, 2, 6), (500, 1, 500)]);
    assert!(window.end(true).is_empty(), "told once");
}

#[test]
fn samples_of_a_place_wait_for_its_stack() {
    let mut window = window();
    window.record(stack(STACK));
    window.add(vec![sample(Some(PLACE), 5)], NOW);
    assert!(window.end(false).is_empty() && profiled(&mut window, WaitReason::Child) == 0);
    window.record(StackRecord::Place(PLACE, STACK));
    // A sample of the same place may have been in the other table then.
    window.add(vec![], NOW);
    window.add(vec![sample(Some(PLACE), 6)], NOW);
    assert_eq!(profiled(&mut window, WaitReason::Child), 11);
    let found = window.end(false);
    assert_eq!((found.len(), found[0].key.stack, found[0].ns), (1, Some(STACK), 11));
}

#[test]
fn what_has_waited_too_long_or_to_the_end_is_told_without_a_stack() {
    for (later, last) in [(PLACE_PATIENCE_NS, false), (0, true)] {
        let mut window = window();
        window.add(vec![sample(Some(PLACE), 5)], NOW);
        window.add(vec![], NOW + later);
        let found = window.end(last);
        assert_eq!((found.len(), found[0].key.stack, found[0].ns), (1, None, 5), "{later} {last}");
        assert_eq!(profiled(&mut window, WaitReason::Unknown), 5);
    }
}

#[test]
fn more_than_the_limit_do_not_wait() {
    let mut window = window();
    window.add((0..3).map(|n| sample(Some(StackId(2 + 2 * n)), 1)).collect(), NOW);
    assert_eq!(window.end(false).len(), 1);
    assert_eq!(window.end(true).len(), 1, "the same key, without its stack");
}

#[test]
fn long_waits_over_the_limit_are_summed_and_none_is_lost() {
    let mut window = window();
    window.record(stack(STACK));
    for _ in 0..5 {
        window.record(StackRecord::LongWait(sample(Some(STACK), 500)));
    }
    window.add(vec![], NOW);
    assert_eq!(profiled(&mut window, WaitReason::Child), 2_500);
    let mut found: Vec<_> = window.end(false).iter().map(|sample| (sample.ns, sample.count)).collect();
    found.sort_unstable();
    assert_eq!(found, [(500, 1), (500, 1), (1_500, 3)]);
}

#[test]
fn stacks_that_nobody_uses_are_forgotten_only_when_there_are_too_many() {
    let mut window = window();
    window.record(stack(STACK));
    window.record(stack(StackId(3)));
    window.end(false);
    assert!(window.forget().is_empty());
    window.record(stack(StackId(5)));
    assert!(window.stack(STACK).is_some());
    assert_eq!(window.forget(), [3]);
    assert!(window.stack(StackId(3)).is_none() && window.stack(STACK).is_some());
}

#[test]
fn who_was_preempted_or_throttled_needs_no_stack_for_its_reason() {
    let window = window();
    let reason = |activity| window.reason(&SampleKey { activity, ..sample(None, 0).key });
    assert_eq!(reason(RawActivity::Throttled), WaitReason::Throttled);
    assert_eq!(reason(RawActivity::Wait(WaitState::Preempted)), WaitReason::Preempted);
    assert_eq!(reason(RawActivity::Wait(WaitState::Uninterruptible)), WaitReason::Unknown);
}

#[test]
fn time_that_only_a_row_has_is_unknown_but_for_who_was_preempted() {
    let mut window = window();
    window.add_unprofiled(&[(CGROUP, [5, 0, 7])], NOW, true);
    window.add_unprofiled(&[(CGROUP, [1, 2, 0])], NOW, false);
    let profiled = window.take_profiled().remove(&CGROUP).unwrap();
    let of = |reason: WaitReason| profiled.waits_ns[reason as usize];
    assert_eq!((of(WaitReason::Unknown), of(WaitReason::Preempted), profiled.waits), (8, 7, 0));
    let mut found: Vec<_> =
        window.end(false).iter().map(|sample| (sample.ns, sample.key.stack, sample.count)).collect();
    found.sort_unstable_by_key(|found| found.0);
    assert_eq!(found, [(5, None, 0), (7, None, 0)], "what is left out is in no profile");
}
