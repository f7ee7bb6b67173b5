//! The samples between two profiles. Pure, but for the look at the kernel's functions.
//!
//! The kernel side names stacks, wakers and places by ids, and tells once what they are: what it told is kept here, as
//! long as it is used. Samples of a place whose stack is not known yet wait for it.

use crate::model::usage::SeenTime;
use std::{
    collections::{HashMap, hash_map::Entry},
    sync::Arc,
};

use super::{functions::KnownFunctions, reason::Reasons};
use crate::model::wait::{WaitReason, WaitState};
use crate::{
    kernel::{
        records::{RawActivity, RawSample, RawStack, RawWaker, SampleKey, StackRecord},
        symbols::KernelFunctions,
    },
    model::{
        facts::{Fact, Facts},
        ids::{CgroupId, Pid, StackId, WakerId},
    },
};

/// How long samples wait for the stack of their place, in nanoseconds.
const PLACE_PATIENCE_NS: u64 = 60_000_000_000;

/// What is known of a stack, and what a wait there is for.
#[derive(Clone, Debug)]
struct KnownStack {
    stack: Arc<RawStack>,
    reason: WaitReason,
}

/// See the module.
#[derive(Debug)]
pub struct Window {
    functions: KnownFunctions,
    reasons: Reasons,
    /// With the number of the window that last used each.
    stacks: HashMap<StackId, (KnownStack, u64)>,
    wakers: HashMap<WakerId, (Arc<RawWaker>, u64)>,
    /// The stacks of places, and in which take they were told: samples may be one take late.
    places: HashMap<StackId, (StackId, u64)>,
    sums: HashMap<SampleKey, RawSample>,
    long_waits: Vec<RawSample>,
    /// Long waits that were told since the last take.
    new_long_waits: Vec<RawSample>,
    /// Samples of places without a stack, and since when they wait.
    placeless: Vec<(u64, RawSample)>,
    /// What was profiled since it was last asked for.
    profiled: HashMap<CgroupId, Facts>,
    seen: SeenTime,
    takes: u64,
    number: u64,
    max_stacks: usize,
    max_samples: usize,
}

impl Window {
    /// Has no samples yet. Agents before this one have `seen` so much. `max_stacks` are remembered, and `max_samples` are kept
    /// for the stack of their place; as many long waits are kept one by one.
    #[must_use]
    pub fn new(max_stacks: usize, max_samples: usize, seen: SeenTime) -> Self {
        Self {
            functions: KnownFunctions::default(),
            reasons: Reasons::default(),
            stacks: HashMap::new(),
            wakers: HashMap::new(),
            places: HashMap::new(),
            sums: HashMap::new(),
            long_waits: Vec::new(),
            new_long_waits: Vec::new(),
            placeless: Vec::new(),
            profiled: HashMap::new(),
            seen,
            takes: 0,
            number: 0,
            max_stacks,
            max_samples,
        }
    }

    /// The functions of the kernel, read again if they may have changed.
    pub fn learn_functions(&mut self) -> Arc<KernelFunctions> {
        if self.functions.learn() {
            self.reasons = Reasons::new(self.functions.table().iter());
        }
        Arc::clone(self.functions.table())
    }

    /// Takes in one record.
    pub fn record(&mut self, record: StackRecord) {
        match record {
            StackRecord::Stack(stack) => {
                let reason = self.reasons.of(&stack.kernel);
                self.functions.meet(&stack.kernel);
                let known = KnownStack { reason, stack: Arc::new(stack) };
                self.stacks.insert(known.stack.id, (known, self.number));
            }
            StackRecord::Place(place, stack) => {
                self.places.insert(place, (stack, self.takes));
            }
            // Its place may be told next; of very many, some do not wait for that.
            StackRecord::LongWait(wait) if self.new_long_waits.len() >= self.max_samples => {
                self.place_and_keep(wait, wait.last_ns, true);
            }
            StackRecord::LongWait(wait) => self.new_long_waits.push(wait),
            StackRecord::Waker(waker) => {
                self.wakers.insert(waker.id, (Arc::new(waker), self.number));
            }
        }
    }

    /// Takes in samples, after the records that were sent before them.
    pub fn add(&mut self, samples: Vec<RawSample>, now_ns: u64) {
        for wait in std::mem::take(&mut self.new_long_waits) {
            self.place_and_keep(wait, now_ns, true);
        }
        for sample in samples {
            self.place_and_keep(sample, now_ns, false);
        }
        for (since_ns, mut sample) in std::mem::take(&mut self.placeless) {
            let stack = sample.key.stack.and_then(|place| self.places.get(&place)).map(|(stack, _)| *stack);
            if stack.is_none() && now_ns.saturating_sub(since_ns) < PLACE_PATIENCE_NS {
                self.placeless.push((since_ns, sample));
                continue;
            }
            sample.key.stack = stack;
            self.keep(sample, false);
        }
        let takes = self.takes;
        self.places.retain(|_, (_, told)| *told + 1 >= takes);
        self.takes += 1;
    }

    /// Adds time off the CPU that a cgroup's row has and no sample, in nanoseconds by [`WaitState`]. Its stacks and
    /// processes are unknown. If `sampled` is false, the time is in no profile.
    pub fn add_unprofiled(&mut self, times: &[(CgroupId, [u64; WaitState::ALL.len()])], now_ns: u64, sampled: bool) {
        for (cgroup, by_state) in times {
            self.profiled.entry(*cgroup).or_default().add(&Facts::of_waits_without_samples(by_state));
            for (state, ns) in WaitState::ALL.into_iter().zip(*by_state).filter(|(_, ns)| *ns > 0) {
                let key = SampleKey {
                    stack: None,
                    seen: None,
                    cgroup: *cgroup,
                    waker: None,
                    process: Pid(0),
                    activity: RawActivity::Wait(state),
                    filters: 0,
                };
                if sampled {
                    self.sum(RawSample { key, ns, queued_ns: 0, so_far_ns: 0, count: 0, last_ns: now_ns });
                }
            }
        }
    }

    /// How much time was looked at so far.
    #[must_use]
    pub fn seen(&self) -> SeenTime {
        self.seen
    }

    /// Gives a sample the stack that was seen, if that is another one than the remembered one. The kernel's part is what was
    /// seen, and the user's what is remembered: it was entered from the same place.
    fn correct(&mut self, sample: &mut RawSample) {
        let Some(id) = sample.key.seen.take() else { return };
        let stack_of = |id: StackId| self.stacks.get(&id).map(|(known, _)| Arc::clone(&known.stack));
        let Some(seen) = stack_of(id) else { return };
        let remembered = sample.key.stack.and_then(stack_of);
        let number = self.number;
        let Some(stack) = remembered else {
            self.stacks.entry(id).and_modify(|(_, used)| *used = number);
            sample.key.stack = Some(id);
            return;
        };
        self.seen.all_ns += sample.ns;
        if stack.kernel.ends_with(&seen.kernel) {
            return;
        }
        self.seen.wrong_ns += sample.ns;
        let id = stack.id.with(seen.id);
        sample.key.stack = Some(id);
        let known = self.stacks.entry(id).or_insert_with(|| {
            let stack = RawStack { id, kernel: seen.kernel.clone(), ..RawStack::clone(&stack) };
            (KnownStack { reason: self.reasons.of(&stack.kernel), stack: Arc::new(stack) }, number)
        });
        known.1 = number;
    }

    fn place_and_keep(&mut self, mut sample: RawSample, now_ns: u64, alone: bool) {
        if let Some(place) = sample.key.stack.filter(|id| id.is_place()) {
            match self.places.get(&place) {
                Some((stack, _)) => sample.key.stack = Some(*stack),
                None if self.placeless.len() < self.max_samples => {
                    self.placeless.push((now_ns, sample));
                    return;
                }
                None => sample.key.stack = None,
            }
        }
        self.keep(sample, alone);
    }

    fn keep(&mut self, mut sample: RawSample, alone: bool) {
        self.correct(&mut sample);
        let queued_ns = std::mem::take(&mut sample.queued_ns);
        if queued_ns > 0 {
            // Its stack says what it waited for before.
            let activity = RawActivity::Wait(WaitState::RunQueue);
            let key = SampleKey { stack: None, waker: None, activity, ..sample.key };
            self.profiled.entry(key.cgroup).or_default()[Fact::wait(WaitReason::RunQueue)] += queued_ns;
            self.sum(RawSample { key, ns: queued_ns, so_far_ns: 0, count: 0, ..sample });
        }
        let profiled = self.profiled.entry(sample.key.cgroup).or_default();
        match sample.key.activity {
            RawActivity::OnCpu => profiled[Fact::ON_CPU_SAMPLES] += sample.count,
            _ => {
                let reason = reason(&self.stacks, &sample.key);
                profiled[Fact::WAITS] += sample.count;
                profiled[Fact::waits_for(reason)] += sample.count;
                profiled[Fact::wait(reason)] += sample.ns;
            }
        }
        // More than the limit are summed as others are.
        if alone && self.long_waits.len() < self.max_samples {
            self.long_waits.push(sample);
            return;
        }
        self.sum(sample);
    }

    fn sum(&mut self, sample: RawSample) {
        match self.sums.entry(sample.key) {
            Entry::Vacant(place) => {
                place.insert(sample);
            }
            Entry::Occupied(mut sum) => {
                let sum = sum.get_mut();
                sum.ns += sample.ns;
                sum.count += sample.count;
                sum.last_ns = sum.last_ns.max(sample.last_ns);
            }
        }
    }

    /// How many samples it has.
    #[must_use]
    pub fn len(&self) -> usize {
        self.sums.len() + self.long_waits.len()
    }

    /// Whether it has none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What was profiled since the last call, by cgroup.
    pub fn take_profiled(&mut self) -> HashMap<CgroupId, Facts> {
        std::mem::take(&mut self.profiled)
    }

    /// Ends the window: its samples, long waits one by one. `last` has those too whose place has no stack yet.
    pub fn end(&mut self, last: bool) -> Vec<RawSample> {
        if last {
            for (_, mut sample) in std::mem::take(&mut self.placeless) {
                sample.key.stack = None;
                self.keep(sample, false);
            }
        }
        self.number += 1;
        let sums = std::mem::take(&mut self.sums).into_values();
        sums.chain(std::mem::take(&mut self.long_waits)).collect()
    }

    /// What a sample was for.
    #[must_use]
    pub fn reason(&self, key: &SampleKey) -> WaitReason {
        reason(&self.stacks, key)
    }

    /// A stack, which is used now; `None` when it was lost on the way.
    pub fn stack(&mut self, id: StackId) -> Option<Arc<RawStack>> {
        let (known, used) = self.stacks.get_mut(&id)?;
        *used = self.number;
        Some(Arc::clone(&known.stack))
    }

    /// A waker, which is used now; `None` when it was lost on the way.
    pub fn waker(&mut self, id: WakerId) -> Option<Arc<RawWaker>> {
        let (waker, used) = self.wakers.get_mut(&id)?;
        *used = self.number;
        Some(Arc::clone(waker))
    }

    /// Forgets all stacks and wakers. Gives back their ids, for the kernel side to tell them again.
    pub fn forget_all(&mut self) -> Vec<u64> {
        let stacks = std::mem::take(&mut self.stacks).into_keys().map(|id| id.0);
        stacks.chain(std::mem::take(&mut self.wakers).into_keys().map(|id| id.0)).collect()
    }

    /// Keeps stacks and wakers within their number: those that the last window did not use go. Gives back their ids,
    /// for the kernel side to tell them again.
    pub fn forget(&mut self) -> Vec<u64> {
        let mut forgotten = Vec::new();
        let number = self.number;
        if self.stacks.len() > self.max_stacks {
            self.stacks.retain(|id, (_, used)| {
                *used == number || {
                    forgotten.push(id.0);
                    false
                }
            });
        }
        if self.wakers.len() > self.max_stacks {
            self.wakers.retain(|id, (_, used)| {
                *used == number || {
                    forgotten.push(id.0);
                    false
                }
            });
        }
        forgotten
    }
}

fn reason(stacks: &HashMap<StackId, (KnownStack, u64)>, key: &SampleKey) -> WaitReason {
    match key.activity {
        RawActivity::Wait(WaitState::Throttled) => WaitReason::Throttled,
        RawActivity::Wait(WaitState::RunQueue) => WaitReason::RunQueue,
        _ => key.stack.and_then(|id| stacks.get(&id)).map_or(WaitReason::Unknown, |(known, _)| known.reason),
    }
}

#[cfg(test)]
#[path = "window_tests.rs"]
mod tests;
