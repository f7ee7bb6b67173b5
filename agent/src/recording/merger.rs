//! Merges windows within a limit. Pure.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::{Duration, SystemTime},
};

use super::{
    Coverage, Merged, MergedSample, MergedSubject, Selector, Side, SubjectName,
    identity::{Number, Stacks, Wakers},
    weight::Weight,
};
use crate::{
    model::{
        lock::Lock,
        slot::Slot,
        wait::{Unwind, WaitReason, WaitState},
    },
    stacks::{
        SourceLines,
        profile::{Activity, Frame, FrameKind, Function, Profile, Sample, Stack, Waker},
    },
};

/// The largest number of distinct sums of a merger. Over this, or over [`MOST_BYTES`], the half with the least time
/// becomes a few sums.
const MOST_SUMS: usize = 50_000;
/// The most bytes that the stacks of a merger take.
const MOST_BYTES: usize = 24 << 20;

/// The state, the reason and the lock of a wait. The lock is `None` unless waits for locks are recorded: so the waits off
/// the CPU have the same sums with the sensor `locks` as without it.
type Wait = (WaitState, WaitReason, Option<Lock>);

/// The key of a sum: the stack, the wait, and the address of the waker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Key {
    stack: Number,
    wait: Option<Wait>,
    waker: Option<usize>,
}

#[derive(Debug)]
struct Sum {
    nanoseconds: u64,
    count: u64,
    /// Held so that no other waker gets its address.
    waker: Option<Arc<Waker>>,
}

/// The total of the sums that were too small to be kept one by one.
#[derive(Debug, Default)]
struct Smaller {
    sums: u64,
    nanoseconds: u64,
    count: u64,
}

/// The numbers of a state and a reason, and the lock.
type Order = (u8, u8, Option<Lock>);

/// The sums of one subject.
#[derive(Debug, Default)]
struct Sums {
    kept: HashMap<Key, Sum>,
    smaller: BTreeMap<Option<Order>, (Activity, Smaller)>,
}

/// Merges windows within a limit. If there are too many stacks, the ones with the least time become one, so that totals
/// stay exact.
#[derive(Debug)]
pub struct Merger {
    side: Side,
    selector: Selector,
    slot: Slot,
    subjects: BTreeMap<SubjectName, Sums>,
    stacks: Stacks,
    wakers: Wakers,
    sums: usize,
    start: Option<SystemTime>,
    duration: Duration,
    coverage: Coverage,
    of_node: u64,
    losses: BTreeMap<&'static str, u64>,
    sample_period: Option<Duration>,
    count: u64,
}

impl Merger {
    /// Returns an empty merger. It takes the samples that the filter of this slot passes.
    #[must_use]
    pub fn new(side: Side, selector: Selector, slot: Slot) -> Self {
        Self {
            side,
            selector,
            slot,
            subjects: BTreeMap::new(),
            stacks: Stacks::default(),
            wakers: Wakers::default(),
            sums: 0,
            start: None,
            duration: Duration::ZERO,
            coverage: Coverage::default(),
            of_node: 0,
            losses: BTreeMap::new(),
            sample_period: None,
            count: 0,
        }
    }

    /// Merges the samples of the selected subjects in these windows that the filter of the agent's own profiles passes.
    #[must_use]
    pub fn merge(windows: &[Arc<Profile>], side: Side, selector: Selector) -> Merged {
        let mut merger = Self::new(side, selector, Slot::OWN);
        windows.iter().for_each(|window| merger.add(window));
        merger.finish()
    }

    /// Adds the samples of a window.
    pub fn add(&mut self, profile: &Profile) {
        self.start = [self.start, profile.start].into_iter().flatten().min();
        self.duration += profile.duration;
        self.sample_period = profile.sample_period.or(self.sample_period);
        for (reason, count) in &profile.losses {
            *self.losses.entry(reason).or_default() += count;
        }
        let (side, slot) = (self.side, self.slot);
        for subject in &profile.subjects {
            let samples = || subject.samples.iter().filter(|sample| side.has(sample) && slot.let_pass(sample.passed));
            self.of_node = samples().fold(self.of_node, |sum, sample| sum.saturating_add(sample.count));
            if self.selector.takes(&subject.subject) {
                let name = SubjectName::from(&subject.subject);
                samples().for_each(|sample| self.add_sample(&name, sample));
            }
        }
        self.stacks.end_window();
        self.wakers.end_window();
    }

    fn add_sample(&mut self, name: &SubjectName, sample: &Sample) {
        if self.sums >= MOST_SUMS || self.stacks.bytes() >= MOST_BYTES {
            self.shrink();
        }
        let (wait, waker) = match &sample.activity {
            Activity::OnCpu => (None, None),
            Activity::OffCpu { state, reason, waker, lock } => {
                let lock = lock.filter(|_| self.side == Side::Locks);
                (Some((*state, *reason, lock)), waker.as_ref().map(|waker| self.wakers.same(waker)))
            }
        };
        let stack = self.stacks.number(&sample.stack);
        let key = Key { stack, wait, waker: waker.as_ref().map(|waker| Arc::as_ptr(waker).addr()) };
        if !self.subjects.contains_key(name) {
            self.subjects.insert(name.clone(), Sums::default());
        }
        let before = if self.side == Side::Locks { sample.so_far_ns } else { 0 };
        let Some(sums) = self.subjects.get_mut(name) else { return };
        let sum = sums.kept.entry(key).or_insert_with(|| {
            self.sums += 1;
            Sum { nanoseconds: 0, count: 0, waker }
        });
        let nanoseconds = sample.nanoseconds.saturating_add(before);
        sum.nanoseconds = sum.nanoseconds.saturating_add(nanoseconds);
        sum.count = sum.count.saturating_add(sample.count);
        self.count = self.count.saturating_add(sample.count);
        self.coverage.add(&sample.stack, &sample.activity, nanoseconds);
    }

    /// Keeps the sums with the most time, up to half of the limit, and merges the rest.
    fn shrink(&mut self) {
        let sums = self.subjects.values().flat_map(|sums| &sums.kept);
        let mut order: Vec<_> = sums.map(|(key, sum)| (sum.nanoseconds, key.stack)).collect();
        order.sort_unstable_by(|a, b| b.cmp(a));
        let mut weight = Weight::default();
        let fits = |(_, number): &&(u64, Number)| {
            let fits = weight.bytes() < MOST_BYTES / 2;
            self.stacks.get(*number).into_iter().for_each(|stack| weight.add(stack));
            fits
        };
        let kept = order.iter().take(MOST_SUMS / 2).take_while(fits).count();
        let least = kept.checked_sub(1).and_then(|last| order.get(last)).map_or(u64::MAX, |(time, _)| *time);
        let mut ties = order.iter().take(kept).filter(|(time, _)| *time == least).count();
        let stacks = std::mem::take(&mut self.stacks);
        self.sums = kept;
        for sums in self.subjects.values_mut() {
            for (key, sum) in std::mem::take(&mut sums.kept) {
                let is_tie = sum.nanoseconds == least && ties > 0;
                ties -= usize::from(is_tie);
                match stacks.get(key.stack).filter(|_| sum.nanoseconds > least || is_tie) {
                    Some(stack) => drop(sums.kept.insert(Key { stack: self.stacks.number(stack), ..key }, sum)),
                    None => sums.merge(key, &sum),
                }
            }
        }
        self.wakers.forget_unused();
    }

    /// Counts a loss for this reason.
    pub fn lost(&mut self, reason: &'static str) {
        *self.losses.entry(reason).or_default() += 1;
    }

    /// Returns the number of waits or samples so far.
    #[must_use]
    pub const fn count(&self) -> u64 {
        self.count
    }

    /// Returns the merged recording.
    #[must_use]
    pub fn finish(self) -> Merged {
        let Self { stacks, subjects, .. } = self;
        let bytes = stacks.bytes();
        let mut merged = 0;
        let subjects = subjects.into_iter().map(|(name, sums)| {
            let mut samples: Vec<_> = sums
                .kept
                .into_iter()
                .filter_map(|(key, Sum { nanoseconds, count, waker })| {
                    let stack = Arc::clone(stacks.get(key.stack)?);
                    Some(MergedSample { stack, activity: activity(key.wait, waker), nanoseconds, count })
                })
                .collect();
            for (activity, Smaller { sums, nanoseconds, count }) in sums.smaller.into_values() {
                merged += sums;
                samples.push(MergedSample { stack: nameless(sums), activity, nanoseconds, count });
            }
            samples.sort_by_key(|sample| std::cmp::Reverse(sample.nanoseconds));
            MergedSubject { name, samples }
        });
        let subjects = subjects.collect();
        Merged {
            side: self.side,
            title: self.selector.to_string(),
            subjects,
            start: self.start,
            duration: self.duration,
            coverage: self.coverage,
            user_frames_off: None,
            of_node: self.of_node,
            losses: self.losses.into_iter().collect(),
            sample_period: self.sample_period,
            merged,
            bytes,
            lines: SourceLines::default(),
        }
    }
}

impl Sums {
    fn merge(&mut self, key: Key, sum: &Sum) {
        let order = key.wait.map(|(state, reason, lock)| (state as u8, reason as u8, lock));
        let (_, smaller) = self.smaller.entry(order).or_insert_with(|| (activity(key.wait, None), Smaller::default()));
        smaller.sums += 1;
        smaller.nanoseconds = smaller.nanoseconds.saturating_add(sum.nanoseconds);
        smaller.count = smaller.count.saturating_add(sum.count);
    }
}

fn activity(wait: Option<Wait>, waker: Option<Arc<Waker>>) -> Activity {
    wait.map_or(Activity::OnCpu, |(state, reason, lock)| Activity::OffCpu { state, reason, waker, lock })
}

/// Returns the name of a frame that stands for `count` stacks or branches.
#[must_use]
pub fn smaller(count: u64) -> String {
    format!("({count} smaller)")
}

/// Returns the stack that stands for `count` stacks.
fn nameless(count: u64) -> Arc<Stack> {
    let function = Function { name: smaller(count).into(), file: "".into(), line: 0 };
    let frame = Frame { address: 0, kind: FrameKind::Native, mapping: None, functions: vec![function] };
    Arc::new(Stack { frames: vec![Arc::new(frame)], unwind: Unwind::Whole })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{attribution::Subject, stacks::profile::SubjectProfile};

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
}
