use podperf_ebpf::abi;

use super::*;
use crate::kernel::copies::CopyOf;
use crate::model::facts::Fact;
use crate::model::ids::Pid;
use crate::model::lock::Lock;
use crate::stacks::{CutCause, Unwound};

const NOW: u64 = 1_000_000_000;
const CGROUP: CgroupId = CgroupId(7);
const STACK: StackId = StackId(1);
const SITE: StackId = StackId(2);

fn window() -> Window {
    let mut window = Window::new(2, 2, SeenTime::default());
    window.reasons = Reasons::new([(0x100, "do_wait"), (0x200, "other")].into_iter());
    window
}

fn stack(id: StackId) -> StackRecord {
    StackRecord::Stack(RawStack { id, process: Pid(1), user: vec![1], kernel: vec![0x110], end: None })
}

fn sample(stack: Option<StackId>, ns: u64) -> RawSample {
    let key = SampleKey {
        stack,
        seen: None,
        cgroup: CGROUP,
        waker: None,
        process: Pid(1),
        activity: RawActivity::Wait(WaitState::Interruptible),
        lock: None,
        filters: 0,
    };
    RawSample { key, ns, queued_ns: 0, so_far_ns: 0, count: 1, last_ns: ns }
}

fn profiled(window: &mut Window, reason: WaitReason) -> u128 {
    window.take_profiled().remove(&CGROUP).unwrap_or_default()[Fact::wait(reason)]
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

/// Their keys also differ in `seen`, but the window takes it away.
#[test]
fn a_part_of_a_wait_that_goes_on_stays_apart_from_short_waits_of_its_stack() {
    let mut window = window();
    window.record(stack(STACK));
    let goes_on = WakerId(u64::from(abi::PODPERF_GOES_ON));
    let mut part = sample(Some(STACK), 500);
    (part.key.seen, part.key.waker, part.count) = (Some(STACK), Some(goes_on), 0);
    window.add(vec![part, sample(Some(STACK), 5), sample(Some(STACK), 6)], NOW);
    let mut found: Vec<_> = window.end(false).iter().map(|sample| (sample.ns, sample.count, sample.key.seen)).collect();
    found.sort_unstable();
    assert_eq!(found, [(11, 2, None), (500, 0, None)]);
    assert!(window.waker(goes_on).is_none(), "nobody has ended it");
}

#[test]
fn a_lock_is_that_of_the_wait_and_not_of_the_queue_after_it() {
    let mut window = window();
    window.record(stack(STACK));
    let user = Lock::from_abi(12);
    let mut wait = sample(Some(STACK), 40);
    (wait.key.lock, wait.queued_ns, wait.so_far_ns) = (user, 3, 100);
    window.add(vec![wait, RawSample { so_far_ns: 200, ..wait }, sample(Some(STACK), 5)], NOW);
    let told = |it: &RawSample| (it.ns, it.so_far_ns, it.key.lock, it.key.activity);
    let mut found: Vec<_> = window.end(false).iter().map(told).collect();
    found.sort_unstable_by_key(|(ns, ..)| *ns);
    let [asleep, queued] = [WaitState::Interruptible, WaitState::RunQueue].map(RawActivity::Wait);
    assert_eq!(found, [(5, 0, None, asleep), (6, 0, None, queued), (80, 300, user, asleep)]);
}

#[test]
fn samples_of_a_call_site_wait_for_its_stack() {
    let mut window = window();
    window.record(stack(STACK));
    window.add(vec![sample(Some(SITE), 5)], NOW);
    assert!(window.end(false).is_empty() && profiled(&mut window, WaitReason::Child) == 0);
    window.record(StackRecord::CallSite(SITE, STACK));
    // A sample of the same call site may have been in the other table then.
    window.add(vec![], NOW);
    window.add(vec![sample(Some(SITE), 6)], NOW);
    assert_eq!(profiled(&mut window, WaitReason::Child), 11);
    let found = window.end(false);
    assert_eq!((found.len(), found[0].key.stack, found[0].ns), (1, Some(STACK), 11));
}

#[test]
fn a_sample_that_waited_too_long_or_to_the_end_is_sent_without_a_stack() {
    for (later, last) in [(STACK_PATIENCE_NS, false), (0, true)] {
        let mut window = window();
        window.add(vec![sample(Some(SITE), 5)], NOW);
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
fn the_reason_is_unknown_while_the_kernel_hides_its_functions() {
    let mut window = Window::new(2, 2, SeenTime::default());
    window.record(stack(STACK));
    window.add(vec![sample(Some(STACK), 5)], NOW);
    assert_eq!(profiled(&mut window, WaitReason::Unknown), 5);
    window.set_reasons(Reasons::new([(0x100, "do_wait")].into_iter()));
    window.add(vec![sample(Some(STACK), 6)], NOW);
    assert_eq!(profiled(&mut window, WaitReason::Child), 6);
}

#[test]
fn who_waited_for_a_cpu_needs_no_stack_for_its_reason() {
    let window = window();
    let reason = |activity| window.reason(&SampleKey { activity, ..sample(None, 0).key });
    assert_eq!(reason(RawActivity::Wait(WaitState::Throttled)), WaitReason::Throttled);
    assert_eq!(reason(RawActivity::Wait(WaitState::RunQueue)), WaitReason::RunQueue);
    assert_eq!(reason(RawActivity::Wait(WaitState::Uninterruptible)), WaitReason::Unknown);
}

#[test]
fn time_that_only_a_row_has_is_unknown_but_for_the_run_queue() {
    let mut window = window();
    window.add_unprofiled(&[(CGROUP, [5, 0, 7, 0])], NOW, true);
    window.add_unprofiled(&[(CGROUP, [1, 2, 0, 0])], NOW, false);
    let profiled = window.take_profiled().remove(&CGROUP).unwrap();
    let of = |reason: WaitReason| profiled[Fact::wait(reason)];
    assert_eq!((of(WaitReason::Unknown), of(WaitReason::RunQueue), profiled[Fact::WAITS]), (8, 7, 0));
    assert_eq!(profiled[Fact::unwound(Unwind::Shed)], 3, "of what is left out");
    let mut found: Vec<_> =
        window.end(false).iter().map(|sample| (sample.ns, sample.key.stack, sample.count)).collect();
    found.sort_unstable_by_key(|found| found.0);
    assert_eq!(found, [(5, None, 0), (7, None, 0)], "what is left out is in no profile");
}

#[test]
fn a_wait_is_distinguished_from_the_run_queue_after_it() {
    let mut window = window();
    window.record(stack(STACK));
    let mut wait = sample(Some(STACK), 30);
    (wait.queued_ns, wait.count) = (12, 3);
    let mut alone = wait;
    (alone.ns, alone.queued_ns, alone.count) = (100, 1, 1);
    window.record(StackRecord::LongWait(alone));
    window.add(vec![wait], NOW);
    let profiled = window.take_profiled().remove(&CGROUP).unwrap();
    assert_eq!((profiled[Fact::wait(WaitReason::RunQueue)], profiled[Fact::WAITS]), (13, 4));
    assert_eq!(WaitReason::ALL.iter().map(|reason| profiled[Fact::wait(*reason)]).sum::<u128>(), 143);
    // A thread that queued after its wait did not wait twice.
    let waits: u128 = WaitReason::ALL.iter().map(|reason| profiled[Fact::waits_for(*reason)]).sum();
    assert_eq!((profiled[Fact::waits_for(WaitReason::RunQueue)], waits), (0, 4));
    let mut found: Vec<_> = window.end(false).iter().map(|it| (it.ns, it.key.stack, it.key.activity)).collect();
    found.sort_unstable_by_key(|found| found.0);
    let queued = RawActivity::Wait(WaitState::RunQueue);
    let of = sample(None, 0).key.activity;
    assert_eq!(found, [(13, None, queued), (30, Some(STACK), of), (100, Some(STACK), of)]);
}

/// The cached stack is two functions of the scheduler and `do_wait`; the seen stack begins below the scheduler.
#[test]
fn what_was_seen_wins_over_what_is_remembered() {
    let mut window = window();
    let [right, wrong] = [StackId(11), StackId(13)];
    let raw = |id, user, kernel| StackRecord::Stack(RawStack { id, process: Pid(1), user, kernel, end: None });
    window.record(raw(STACK, vec![1, 2], vec![0x900, 0x901, 0x110]));
    window.record(raw(right, vec![], vec![0x110]));
    window.record(raw(wrong, vec![], vec![0x210]));
    let seen = |seen, ns| {
        let mut sample = sample(Some(STACK), ns);
        sample.key.seen = Some(seen);
        sample
    };
    // The last stack was never sent.
    window.add(vec![seen(right, 5), seen(wrong, 7), seen(StackId(15), 11)], NOW);
    assert_eq!(window.seen(), SeenTime { all_ns: 12, wrong_ns: 7 });
    let profiled = window.take_profiled().remove(&CGROUP).unwrap();
    let of = |reason: WaitReason| profiled[Fact::wait(reason)];
    assert_eq!((of(WaitReason::Child), of(WaitReason::Other)), (16, 7));
    let mut found: Vec<_> = window.end(false);
    found.sort_unstable_by_key(|sample| sample.ns);
    let [other, remembered] = &found[..] else { panic!("{found:?}") };
    assert_eq!((remembered.ns, remembered.key.stack, remembered.key.seen), (16, Some(STACK), None));
    let stack = window.stack(other.key.stack.unwrap()).unwrap();
    assert_eq!((&*stack.user, &*stack.kernel), (&[1, 2][..], &[0x210][..]));
}

#[test]
fn a_call_site_whose_stack_stays_unknown_has_at_least_what_was_seen() {
    let mut window = window();
    let mut sample = sample(Some(SITE), 5);
    sample.key.seen = Some(STACK);
    window.record(stack(STACK));
    window.add(vec![sample], NOW);
    assert_eq!(window.seen(), SeenTime::default(), "it waits for the call site");
    window.add(vec![], NOW + STACK_PATIENCE_NS);
    assert_eq!((profiled(&mut window, WaitReason::Child), window.seen()), (5, SeenTime::default()));
    assert_eq!(window.end(false)[0].key.stack, Some(STACK));
}

#[test]
fn the_kernel_part_of_a_copied_stack_may_arrive_after_it() {
    let mut window = window();
    let (id, copy, part) = (StackId(21), StackId(20), StackId(15));
    let of = CopyOf::Wait { id: copy, site: SITE, path: SITE, is_named: false };
    let (user, end) = (vec![1, 2], Unwind::Whole);
    let unwound = Unwound { of, id, process: Pid(1), kernel: Some(part), user, end, cut: None };
    assert!(!window.add_unwound(unwound.clone()));
    window.add(vec![sample(Some(copy), 5)], NOW);
    assert_eq!(profiled(&mut window, WaitReason::Unknown), 5);
    window.record(StackRecord::Stack(RawStack {
        id: part,
        process: Pid(1),
        user: vec![],
        kernel: vec![0x110],
        end: None,
    }));
    assert!(window.add_unwound(unwound));
    window.add(vec![sample(Some(copy), 7)], NOW);
    assert_eq!(profiled(&mut window, WaitReason::Child), 7);
    let stack = window.stack(id).unwrap();
    assert_eq!((&*stack.user, &*stack.kernel), (&[1, 2][..], &[0x110][..]));
}

/// A copy may be kept until its owner has time again.
#[test]
fn a_stack_that_is_unwound_after_the_end_of_a_window_still_names_its_samples() {
    let mut window = window();
    let (id, copy) = (StackId(21), StackId(20));
    let unwound = |of| {
        let (user, end, cut) = (vec![1, 2], Unwind::Whole, Some(CutCause::NoTime));
        Unwound { of, id, process: Pid(1), kernel: Some(STACK), user, end, cut }
    };
    window.record(stack(STACK));
    window.add(vec![sample(Some(copy), 5)], NOW);
    assert!(window.end(false).is_empty() && window.forget().is_empty());
    let mut on_cpu = sample(None, 7);
    on_cpu.key.activity = RawActivity::OnCpu;
    let wait = CopyOf::Wait { id: copy, site: SITE, path: SITE, is_named: false };
    assert!(window.add_unwound(unwound(wait)) && window.add_unwound(unwound(CopyOf::Sample(on_cpu))));
    window.add(vec![], NOW + 1);
    let mut found: Vec<_> = window.end(false).iter().map(|sample| (sample.ns, sample.key.stack)).collect();
    found.sort_unstable_by_key(|(ns, _)| *ns);
    assert_eq!(found, [(5, Some(id)), (7, Some(id))]);
    let stack = window.stack(id).unwrap();
    assert_eq!((&*stack.user, &*stack.kernel), (&[1, 2][..], &[0x110][..]));
    assert_eq!(window.cut_samples(), [0, 1, 0, 0, 0, 0], "the wait is not a sample on the CPU");
}

/// In shadow mode, a stack that a recipe has proved is unwound as well.
#[test]
fn a_proof_is_wrong_if_another_whole_stack_was_unwound() {
    let mut window = window();
    let mut unwound = |of, id, end| {
        let user = vec![id];
        let id = StackId(id);
        assert!(window.add_unwound(Unwound { of, id, process: Pid(1), kernel: None, user, end, cut: None }));
        (window.proofs().all, window.proofs().wrong)
    };
    let proved = |id| CopyOf::Proved(StackId(id));
    unwound(CopyOf::Wait { id: StackId(20), site: SITE, path: SITE, is_named: false }, 21, Unwind::Whole);
    assert_eq!(unwound(proved(21), 21, Unwind::Whole), (1, 0));
    assert_eq!(unwound(proved(21), 23, Unwind::Guessed), (2, 1));
    assert_eq!(unwound(proved(21), 25, Unwind::Cut), (2, 1), "it may be the same stack");
    assert_eq!(unwound(proved(25), 21, Unwind::Whole), (2, 1), "only a part was proved");
}

/// The kernel side takes no stacks of waits, but the iterator looks at long ones.
#[test]
fn a_wait_whose_stack_was_not_taken_is_shed_and_has_the_reason_that_was_seen() {
    let mut window = window();
    let seen = RawStack { id: STACK, process: Pid(1), user: vec![], kernel: vec![0x110], end: None };
    window.record(StackRecord::Stack(seen));
    let short = sample(Some(StackId::NOT_TAKEN), 5);
    let mut long = sample(Some(StackId::NOT_TAKEN), 7);
    long.key.seen = Some(STACK);
    window.add(vec![short, long], NOW);
    let profiled = window.take_profiled().remove(&CGROUP).unwrap();
    assert_eq!((profiled[Fact::wait(WaitReason::Unknown)], profiled[Fact::wait(WaitReason::Child)]), (5, 7));
    assert_eq!(window.seen(), SeenTime::default(), "no cached stack was checked");
    let mut found = window.end(false);
    found.sort_unstable_by_key(|sample| sample.ns);
    let stacks = found.iter().map(|sample| window.stack(sample.key.stack.unwrap()).unwrap());
    let stacks: Vec<_> = stacks.map(|stack| (stack.kernel.clone(), stack.end)).collect();
    assert_eq!(stacks, [(vec![], Some(Unwind::Shed)), (vec![0x110], Some(Unwind::Shed))]);
    window.forget_all();
    assert!(window.stack(StackId::NOT_TAKEN).is_some(), "it is not sent again");
}
