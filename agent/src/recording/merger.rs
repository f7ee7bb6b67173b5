//! Merges windows within a limit, and judges the merged waits. Pure.
//!
//! Waits off the CPU are judged at the end, when all windows have shown which pod opened connections to which. A wait
//! that lasted over several windows is judged as its end is, if its parts have the same stack.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
    time::{Duration, SystemTime},
};

use super::{
    Coverage, Judgement, Merged, MergedSample, MergedSubject, Peers, Selector, Side, SubjectName, Wait,
    identity::{Number, Stacks, Wakers},
    waiting::earlier,
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

/// The state, the reason and the lock of a wait. The lock is `None` unless waits for locks are recorded, so the kinds
/// of locks do not split the waits off the CPU.
type Kind = (WaitState, WaitReason, Option<Lock>);

/// The key of a sum: the stack, the kind of wait, and all by which waits of one kind are judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Key {
    stack: Number,
    kind: Option<Kind>,
    /// False for parts of interruptible waits that go on. All other waits mean the same before their end.
    ended: bool,
    /// The lock that the sensor `locks` saw in a wait off the CPU for a futex.
    seen: Option<Lock>,
    /// The address of the waker; 0 without one.
    waker: usize,
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

/// The numbers of a state and a reason, the lock, and the judgement without names.
type Order = (Option<(u8, u8, Option<Lock>)>, Option<Judgement>);

/// The sums of one subject.
#[derive(Debug, Default)]
struct Sums {
    kept: HashMap<Key, Sum>,
    /// The time of the earlier parts of waits that ended, which is in the sums of parts. Few waits are that long.
    earlier: HashMap<Key, u64>,
    smaller: BTreeMap<Order, (Activity, Smaller)>,
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
    peers: Peers,
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
            peers: Peers::default(),
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
        if side == Side::OffCpu {
            self.peers.add(profile);
        }
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
        let is_off_cpu = self.side == Side::OffCpu;
        let stack = self.stacks.number(&sample.stack);
        let mut key = Key { stack, kind: None, ended: true, seen: None, waker: 0 };
        let mut waker = None;
        if let Activity::OffCpu { state, reason, waker: by, lock } = &sample.activity {
            waker = by.as_ref().map(|by| self.wakers.same(by));
            key.kind = Some((*state, *reason, lock.filter(|_| !is_off_cpu)));
            key.ended = !is_off_cpu || *state != WaitState::Interruptible || sample.count > 0;
            key.seen = lock.filter(|_| is_off_cpu && *reason == WaitReason::Futex);
            key.waker = waker.as_ref().map_or(0, |by| Arc::as_ptr(by).addr());
        }
        if !self.subjects.contains_key(name) {
            self.subjects.insert(name.clone(), Sums::default());
        }
        let before = if self.side == Side::Locks { sample.so_far_ns } else { 0 };
        let parts = if is_off_cpu && sample.count > 0 { earlier(sample, self.start) } else { 0 };
        let Some(sums) = self.subjects.get_mut(name) else { return };
        let sum = sums.kept.entry(key).or_insert_with(|| {
            self.sums += 1;
            Sum { nanoseconds: 0, count: 0, waker }
        });
        let nanoseconds = sample.nanoseconds.saturating_add(before);
        sum.nanoseconds = sum.nanoseconds.saturating_add(nanoseconds);
        sum.count = sum.count.saturating_add(sample.count);
        if parts > 0 {
            *sums.earlier.entry(key).or_default() += parts;
        }
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
        for (name, sums) in &mut self.subjects {
            let (owner, earlier) = (name.to_string(), std::mem::take(&mut sums.earlier));
            for (key, sum) in std::mem::take(&mut sums.kept) {
                let is_tie = sum.nanoseconds == least && ties > 0;
                ties -= usize::from(is_tie);
                let Some(stack) = stacks.get(key.stack) else { continue };
                if sum.nanoseconds > least || is_tie {
                    let new = Key { stack: self.stacks.number(stack), ..key };
                    sums.earlier.extend(earlier.get(&key).map(|parts| (new, *parts)));
                    sums.kept.insert(new, sum);
                } else {
                    sums.merge(&key, &sum, judge(self.side, &self.peers, &owner, &key, &sum, stack));
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
        let Self { side, peers, stacks, subjects, .. } = self;
        let bytes = stacks.bytes();
        let mut merged = 0;
        let mut judgements = HashSet::new();
        let subjects = subjects.into_iter().map(|(name, mut sums)| {
            sums.join_parts();
            let owner = name.to_string();
            let mut samples = Vec::with_capacity(sums.kept.len() + sums.smaller.len());
            for (key, sum) in sums.kept {
                let Some(stack) = stacks.get(key.stack) else { continue };
                let judgement = judge(side, &peers, &owner, &key, &sum, stack).map(|it| shared(&mut judgements, it));
                let Sum { nanoseconds, count, waker } = sum;
                let (stack, activity) = (Arc::clone(stack), activity(key.kind, waker));
                samples.push(MergedSample { stack, activity, judgement, nanoseconds, count });
            }
            for ((_, judgement), (activity, Smaller { sums, nanoseconds, count })) in sums.smaller {
                merged += sums;
                let judgement = judgement.map(|it| shared(&mut judgements, it));
                samples.push(MergedSample { stack: nameless(sums), activity, judgement, nanoseconds, count });
            }
            samples.sort_by_key(|sample| Reverse(sample.nanoseconds));
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
    /// Adds a sum to those that were too small. Their judgements have no names, so they are few.
    fn merge(&mut self, key: &Key, sum: &Sum, judgement: Option<Judgement>) {
        let kind = key.kind.map(|(state, reason, lock)| (state as u8, reason as u8, lock));
        let order = (kind, judgement.map(Judgement::without_name));
        let (_, smaller) = self.smaller.entry(order).or_insert_with(|| (activity(key.kind, None), Smaller::default()));
        smaller.sums += 1;
        smaller.nanoseconds = smaller.nanoseconds.saturating_add(sum.nanoseconds);
        smaller.count = smaller.count.saturating_add(sum.count);
    }

    /// Moves the earlier parts of waits that ended to their ends, as far as both have the same stack.
    fn join_parts(&mut self) {
        let mut ended: Vec<(Key, u64)> = self.earlier.drain().collect();
        ended.sort_by_key(|(key, earlier)| (Reverse(*earlier), key.stack));
        for (key, earlier) in ended {
            let of_parts = Key { ended: false, seen: None, waker: 0, ..key };
            let Some(parts) = self.kept.get_mut(&of_parts) else { continue };
            let moved = earlier.min(parts.nanoseconds);
            parts.nanoseconds -= moved;
            if let Some(sum) = self.kept.get_mut(&key) {
                sum.nanoseconds = sum.nanoseconds.saturating_add(moved);
            }
        }
        self.kept.retain(|_, sum| sum.nanoseconds > 0 || sum.count > 0);
    }
}

fn activity(kind: Option<Kind>, waker: Option<Arc<Waker>>) -> Activity {
    kind.map_or(Activity::OnCpu, |(state, reason, lock)| Activity::OffCpu { state, reason, waker, lock })
}

/// Returns the meaning of a sum of waits off the CPU of this owner.
fn judge(side: Side, peers: &Peers, owner: &str, key: &Key, sum: &Sum, stack: &Stack) -> Option<Judgement> {
    let (state, reason, _) = key.kind.filter(|_| side == Side::OffCpu)?;
    let (ended, lock, waker) = (key.ended, key.seen, sum.waker.as_deref());
    Some(peers.judge(&Wait { owner, state, reason, ended, lock, waker, stack }))
}

/// Returns the entry that stands for all equal judgements.
fn shared(known: &mut HashSet<Arc<Judgement>>, judgement: Judgement) -> Arc<Judgement> {
    if let Some(known) = known.get(&judgement) {
        return Arc::clone(known);
    }
    let new = Arc::new(judgement);
    known.insert(Arc::clone(&new));
    new
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
#[path = "merger_tests.rs"]
mod tests;
