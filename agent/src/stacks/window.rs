//! The samples between two profiles. Pure, except that it reads the kernel's functions.
//!
//! The kernel side refers to stacks, wakers and call sites by ids, and sends the record of each id once. This module
//! keeps the records while they are used. Samples of a call site whose stack is not known yet wait for it.

mod copies;

pub use copies::Proofs;

use crate::model::usage::SeenTime;
use std::{
    collections::{HashMap, hash_map::Entry},
    sync::Arc,
};

use super::{CutSamples, functions::KnownFunctions, reason::Reasons};
use crate::model::wait::{Unwind, WaitReason, WaitState};
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

/// The longest time that samples wait for the stack of their call site, in nanoseconds.
const STACK_PATIENCE_NS: u64 = 60_000_000_000;

/// A stack, and the reason of a wait with this stack.
#[derive(Clone, Debug)]
struct KnownStack {
    stack: Arc<RawStack>,
    reason: WaitReason,
}

/// The samples of the current window, see the module.
#[derive(Debug)]
pub struct Window {
    functions: KnownFunctions,
    reasons: Reasons,
    /// The stacks, with the number of the window that last used each of them.
    stacks: HashMap<StackId, (KnownStack, u64)>,
    /// The stack of waits whose stack was not taken ([`StackId::NOT_TAKEN`]).
    not_taken: Arc<RawStack>,
    wakers: HashMap<WakerId, (Arc<RawWaker>, u64)>,
    /// The stacks of call sites, with the number of the reading in which each arrived: samples may arrive one reading
    /// later.
    call_sites: HashMap<StackId, (StackId, u64)>,
    /// The stacks of copies, with the number of the reading that last used each of them.
    copies: HashMap<StackId, (StackId, u64)>,
    sums: HashMap<SampleKey, RawSample>,
    long_waits: Vec<RawSample>,
    /// Long waits that arrived since the last reading.
    new_long_waits: Vec<RawSample>,
    /// Samples of call sites without a stack, with the time since when they wait.
    stackless: Vec<(u64, RawSample)>,
    /// The profiled times since the last call of [`Window::take_profiled`].
    profiled: HashMap<CgroupId, Facts>,
    seen: SeenTime,
    proofs: Proofs,
    cut_samples: CutSamples,
    takes: u64,
    number: u64,
    max_stacks: usize,
    max_samples: usize,
}

impl Window {
    /// Creates a window without samples. `seen` is the total of previous agents. The window remembers `max_stacks`
    /// stacks and `max_stacks` wakers, and up to `max_samples` samples that wait for the stack of their call site; up
    /// to `max_samples` long waits are stored one by one.
    #[must_use]
    pub fn new(max_stacks: usize, max_samples: usize, seen: SeenTime) -> Self {
        Self {
            functions: KnownFunctions::default(),
            reasons: Reasons::default(),
            stacks: HashMap::new(),
            not_taken: Arc::new(not_taken()),
            wakers: HashMap::new(),
            call_sites: HashMap::new(),
            copies: HashMap::new(),
            sums: HashMap::new(),
            long_waits: Vec::new(),
            new_long_waits: Vec::new(),
            stackless: Vec::new(),
            profiled: HashMap::new(),
            seen,
            proofs: Proofs::default(),
            cut_samples: CutSamples::default(),
            takes: 0,
            number: 0,
            max_stacks,
            max_samples,
        }
    }

    /// Returns the functions of the kernel, read again if they may have changed.
    pub fn learn_functions(&mut self) -> Arc<KernelFunctions> {
        if self.functions.learn() {
            self.set_reasons(Reasons::new(self.functions.table().iter()));
        }
        Arc::clone(self.functions.table())
    }

    fn set_reasons(&mut self, reasons: Reasons) {
        let were_hidden = self.reasons.is_empty();
        self.reasons = reasons;
        let known = self.stacks.values_mut().map(|(known, _)| known);
        // Without a kernel part, it is lost or there is none.
        for known in known.filter(|known| were_hidden && !known.stack.kernel.is_empty()) {
            known.reason = self.reasons.of(&known.stack.kernel);
        }
    }

    /// Adds one record.
    pub fn record(&mut self, record: StackRecord) {
        match record {
            StackRecord::Stack(mut stack) => {
                // The same frames may have been unwound: then their end is known.
                let known_end = self.stacks.get(&stack.id).and_then(|(known, _)| known.stack.end);
                stack.end = stack.end.or(known_end);
                let reason = self.reasons.of(&stack.kernel);
                self.functions.note(&stack.kernel);
                let known = KnownStack { reason, stack: Arc::new(stack) };
                self.stacks.insert(known.stack.id, (known, self.number));
            }
            StackRecord::CallSite(site, stack) => {
                self.call_sites.insert(site, (stack, self.takes));
            }
            // The stack of the call site may arrive next. Beyond the limit, long waits do not wait for it.
            StackRecord::LongWait(wait) if self.new_long_waits.len() >= self.max_samples => {
                self.find_and_keep(wait, wait.last_ns, true);
            }
            StackRecord::LongWait(wait) => self.new_long_waits.push(wait),
            StackRecord::Waker(waker) => {
                self.wakers.insert(waker.id, (Arc::new(waker), self.number));
            }
        }
    }

    /// Adds samples. Records that were sent before them must be added first.
    pub fn add(&mut self, samples: Vec<RawSample>, now_ns: u64) {
        for wait in std::mem::take(&mut self.new_long_waits) {
            self.find_and_keep(wait, now_ns, true);
        }
        for sample in samples {
            self.find_and_keep(sample, now_ns, false);
        }
        for (since_ns, mut sample) in std::mem::take(&mut self.stackless) {
            let stack = sample.key.stack.and_then(|site| self.stack_of(site));
            if stack.is_none() && now_ns.saturating_sub(since_ns) < STACK_PATIENCE_NS {
                self.stackless.push((since_ns, sample));
                continue;
            }
            sample.key.stack = stack;
            self.keep(sample, false);
        }
        let takes = self.takes;
        self.call_sites.retain(|_, (_, told)| *told + 1 >= takes);
        self.forget_copies();
        self.takes += 1;
    }

    /// Adds time off the CPU that is in a cgroup's row but in no sample, in nanoseconds by [`WaitState`]. Its stacks
    /// and processes are unknown. If `sampled` is false, the time is in no profile, because no stacks are taken.
    pub fn add_unprofiled(&mut self, times: &[(CgroupId, [u64; WaitState::ALL.len()])], now_ns: u64, sampled: bool) {
        for (cgroup, by_state) in times {
            let mut facts = Facts::of_waits_without_samples(by_state);
            if !sampled {
                facts[Fact::unwound(Unwind::Shed)] = facts[Fact::wait(WaitReason::Unknown)];
            }
            self.profiled.entry(*cgroup).or_default().add(&facts);
            for (state, ns) in WaitState::ALL.into_iter().zip(*by_state).filter(|(_, ns)| *ns > 0) {
                let key = SampleKey {
                    stack: None,
                    seen: None,
                    cgroup: *cgroup,
                    waker: None,
                    process: Pid(0),
                    activity: RawActivity::Wait(state),
                    lock: None,
                    filters: 0,
                };
                if sampled {
                    self.sum(RawSample { key, ns, queued_ns: 0, so_far_ns: 0, count: 0, last_ns: now_ns });
                }
            }
        }
    }

    /// Returns the time whose cached stacks have been checked so far.
    #[must_use]
    pub fn seen(&self) -> SeenTime {
        self.seen
    }

    /// Returns the stacks that were unwound to compare them with those that recipes had proved.
    #[must_use]
    pub fn proofs(&self) -> Proofs {
        self.proofs
    }

    /// Returns the number of samples on the CPU whose stack is cut.
    #[must_use]
    pub fn cut_samples(&self) -> CutSamples {
        self.cut_samples
    }

    /// Replaces the cached stack of a sample by the stack that was seen, if they differ. The new stack has the kernel
    /// part of the seen stack and the user part of the cached stack, because both entered the kernel from the same
    /// place. If the stack of the wait was not taken, it has only the part that was seen.
    fn correct(&mut self, sample: &mut RawSample) {
        let Some(id) = sample.key.seen.take() else { return };
        let stack_of = |id: StackId| self.stacks.get(&id).map(|(known, _)| Arc::clone(&known.stack));
        let Some(seen) = stack_of(id) else { return };
        let not_taken = sample.key.stack == Some(StackId::NOT_TAKEN);
        let remembered =
            if not_taken { Some(Arc::clone(&self.not_taken)) } else { sample.key.stack.and_then(stack_of) };
        let number = self.number;
        let Some(stack) = remembered else {
            self.stacks.entry(id).and_modify(|(_, used)| *used = number);
            sample.key.stack = Some(id);
            return;
        };
        if !not_taken {
            self.seen.all_ns += sample.ns;
            if stack.kernel.ends_with(&seen.kernel) {
                return;
            }
            self.seen.wrong_ns += sample.ns;
        }
        let id = stack.id.with(seen.id);
        sample.key.stack = Some(id);
        let known = self.stacks.entry(id).or_insert_with(|| {
            let stack = RawStack { id, kernel: seen.kernel.clone(), ..RawStack::clone(&stack) };
            (KnownStack { reason: self.reasons.of(&stack.kernel), stack: Arc::new(stack) }, number)
        });
        known.1 = number;
    }

    fn find_and_keep(&mut self, mut sample: RawSample, now_ns: u64, alone: bool) {
        if let Some(site) = sample.key.stack.filter(|id| id.is_call_site()) {
            match self.stack_of(site) {
                Some(stack) => sample.key.stack = Some(stack),
                None if self.stackless.len() < self.max_samples => {
                    self.stackless.push((now_ns, sample));
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
            // Time in the run queue has no stack and no lock: they belong to the wait before it.
            let activity = RawActivity::Wait(WaitState::RunQueue);
            let key = SampleKey { stack: None, waker: None, activity, lock: None, ..sample.key };
            self.profiled.entry(key.cgroup).or_default()[Fact::wait(WaitReason::RunQueue)] += u128::from(queued_ns);
            self.sum(RawSample { key, ns: queued_ns, so_far_ns: 0, count: 0, ..sample });
        }
        let profiled = self.profiled.entry(sample.key.cgroup).or_default();
        match sample.key.activity {
            RawActivity::OnCpu => profiled[Fact::ON_CPU_SAMPLES] += u128::from(sample.count),
            _ => {
                let reason = reason(&self.stacks, &sample.key);
                profiled[Fact::WAITS] += u128::from(sample.count);
                profiled[Fact::waits_for(reason)] += u128::from(sample.count);
                profiled[Fact::wait(reason)] += u128::from(sample.ns);
            }
        }
        // Long waits beyond the limit are summed like other samples.
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
                sum.so_far_ns += sample.so_far_ns;
                sum.count += sample.count;
                sum.last_ns = sum.last_ns.max(sample.last_ns);
            }
        }
    }

    /// Returns the number of samples.
    #[must_use]
    pub fn len(&self) -> usize {
        self.sums.len() + self.long_waits.len()
    }

    /// Returns whether there are no samples.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the profiled times since the last call, by cgroup.
    pub fn take_profiled(&mut self) -> HashMap<CgroupId, Facts> {
        std::mem::take(&mut self.profiled)
    }

    /// Ends the window and returns its samples, long waits one by one. With `last`, samples whose call site has no
    /// stack yet are included, too.
    pub fn end(&mut self, last: bool) -> Vec<RawSample> {
        if last {
            for (_, mut sample) in std::mem::take(&mut self.stackless) {
                sample.key.stack = None;
                self.keep(sample, false);
            }
        }
        self.number += 1;
        let sums = std::mem::take(&mut self.sums).into_values();
        sums.chain(std::mem::take(&mut self.long_waits)).collect()
    }

    /// Returns the reason of a sample's wait.
    #[must_use]
    pub fn reason(&self, key: &SampleKey) -> WaitReason {
        reason(&self.stacks, key)
    }

    /// Returns a stack and marks it as used; `None` if it was lost on the way.
    pub fn stack(&mut self, id: StackId) -> Option<Arc<RawStack>> {
        if id == StackId::NOT_TAKEN {
            return Some(Arc::clone(&self.not_taken));
        }
        let (known, used) = self.stacks.get_mut(&id)?;
        *used = self.number;
        Some(Arc::clone(&known.stack))
    }

    /// Returns a waker and marks it as used; `None` if it was lost on the way.
    pub fn waker(&mut self, id: WakerId) -> Option<Arc<RawWaker>> {
        let (waker, used) = self.wakers.get_mut(&id)?;
        *used = self.number;
        Some(Arc::clone(waker))
    }

    /// Forgets all stacks and wakers. Returns their ids, so that the kernel side sends their records again.
    pub fn forget_all(&mut self) -> Vec<u64> {
        let stacks = std::mem::take(&mut self.stacks).into_keys().map(|id| id.0);
        stacks.chain(std::mem::take(&mut self.wakers).into_keys().map(|id| id.0)).collect()
    }

    /// Limits the numbers of stacks and wakers: entries that the last window did not use are dropped. Returns their
    /// ids, so that the kernel side sends their records again.
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

/// Returns the stack of waits whose stack was not taken: it has no frames.
const fn not_taken() -> RawStack {
    RawStack { id: StackId::NOT_TAKEN, process: Pid(0), user: Vec::new(), kernel: Vec::new(), end: Some(Unwind::Shed) }
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
