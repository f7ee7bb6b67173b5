//! How much of a recording's time has a stack. Pure.

use crate::{
    model::wait::{Unwind, WaitState},
    stacks::profile::{Activity, Stack},
};

/// The time of a recording by how far its stacks reach, in nanoseconds. The time in run queues and of throttled threads
/// is left out: a stack does not show its cause, so none is taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Coverage {
    /// The time of stacks with user frames, and of stacks that were shed, in the order of [`Unwind::ALL`].
    ends: [u64; Unwind::ALL.len()],
    /// The time of stacks without user frames: kernel threads, and threads that slept before the agent started.
    pub kernel_only: u64,
    /// The time without a stack.
    pub none: u64,
}

impl Coverage {
    /// Adds the time of one stack.
    pub fn add(&mut self, stack: &Stack, activity: &Activity, nanoseconds: u64) {
        if let Activity::OffCpu { state: WaitState::RunQueue | WaitState::Throttled, .. } = activity {
            return;
        }
        let kernel_only = stack.frames.iter().all(|frame| frame.kind.is_kernel());
        let at = Unwind::ALL.iter().position(|end| *end == stack.unwind);
        let sum = match at.and_then(|at| self.ends.get_mut(at)) {
            Some(sum) if !kernel_only || stack.unwind != Unwind::Whole => sum,
            _ if stack.frames.is_empty() => &mut self.none,
            _ => &mut self.kernel_only,
        };
        *sum = sum.saturating_add(nanoseconds);
    }

    /// Returns the time of stacks with this end. They have user frames, or were shed.
    #[must_use]
    pub fn of(&self, end: Unwind) -> u64 {
        Unwind::ALL.iter().zip(self.ends).find(|(of, _)| **of == end).map_or(0, |(_, time)| time)
    }

    /// Returns the time of stacks whose outermost callers are missing.
    #[must_use]
    pub fn incomplete(&self) -> u64 {
        let is_incomplete = |end: &Unwind| !matches!(end, Unwind::Whole | Unwind::Guessed);
        Unwind::ALL.iter().zip(self.ends).filter(|(end, _)| is_incomplete(end)).map(|(_, time)| time).sum()
    }

    /// Returns all time for which a stack is looked for.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.ends.iter().sum::<u64>() + self.kernel_only + self.none
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{
        model::wait::WaitReason,
        stacks::profile::{Frame, FrameKind},
    };

    #[test]
    fn each_time_is_in_one_part_and_run_queues_are_in_none() {
        let stack = |kinds: &[FrameKind], unwind| {
            let frame = |kind: &FrameKind| Frame { address: 1, kind: *kind, mapping: None, functions: vec![] };
            Stack { frames: kinds.iter().map(|kind| Arc::new(frame(kind))).collect(), unwind }
        };
        let off_cpu = |state| Activity::OffCpu { state, reason: WaitReason::Other, waker: None, lock: None };
        let wait = off_cpu(WaitState::Interruptible);
        let mut coverage = Coverage::default();
        let whole = [FrameKind::Kernel, FrameKind::Native];
        coverage.add(&stack(&whole, Unwind::Whole), &wait, 1);
        coverage.add(&stack(&whole, Unwind::Guessed), &Activity::OnCpu, 2);
        coverage.add(&stack(&whole, Unwind::Cut), &wait, 4);
        coverage.add(&stack(&[FrameKind::Kernel], Unwind::Shed), &wait, 8);
        coverage.add(&stack(&[], Unwind::Shed), &wait, 16);
        coverage.add(&stack(&[FrameKind::Kernel], Unwind::Whole), &wait, 32);
        coverage.add(&stack(&[], Unwind::Whole), &wait, 64);
        coverage.add(&stack(&[], Unwind::Whole), &off_cpu(WaitState::RunQueue), 128);
        coverage.add(&stack(&[], Unwind::Whole), &off_cpu(WaitState::Throttled), 256);
        assert_eq!(
            [Unwind::Whole, Unwind::Guessed, Unwind::Cut, Unwind::Shed].map(|end| coverage.of(end)),
            [1, 2, 4, 24]
        );
        assert_eq!((coverage.incomplete(), coverage.kernel_only, coverage.none), (28, 32, 64));
        assert_eq!(coverage.total(), 127);
    }
}
