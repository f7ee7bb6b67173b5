//! The stacks of copies in a window.

use std::sync::Arc;

use super::{KnownStack, Window};
use crate::{
    kernel::{copies::CopyOf, records::RawStack},
    model::{
        ids::StackId,
        wait::{Unwind, WaitReason},
    },
    stacks::Unwound,
};

/// The stacks that recipes had proved and that were unwound all the same, in shadow mode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Proofs {
    /// Their number.
    pub all: u64,
    /// Those that were other stacks.
    pub wrong: u64,
}

impl Window {
    /// Adds an unwound stack. A sample on the CPU comes with its stack. The time of a wait is in samples, which have the
    /// id of the copy: they may come now or later. Returns `false` if the kernel's part of the stack is not known.
    pub fn add_unwound(&mut self, unwound: Unwound) -> bool {
        let Unwound { of, id, process, kernel: of_kernel, user, end, cut } = unwound;
        let number = self.number;
        // The record of the kernel's part may have been lost, and arrive later.
        let is_complete = |known: &KnownStack| of_kernel.is_none() || !known.stack.kernel.is_empty();
        let complete = match self.stacks.get_mut(&id) {
            Some((known, used)) if is_complete(known) => {
                *used = number;
                if known.stack.end.is_none() {
                    known.stack = Arc::new(RawStack { end: Some(end), ..RawStack::clone(&known.stack) });
                }
                true
            }
            _ => {
                let kernel = of_kernel.and_then(|kernel| self.stacks.get_mut(&kernel)).map(|(known, used)| {
                    *used = number;
                    known.stack.kernel.clone()
                });
                let stack = RawStack { id, process, user, kernel: kernel.unwrap_or_default(), end: Some(end) };
                let is_lost = of_kernel.is_some() && stack.kernel.is_empty();
                let reason = if is_lost { WaitReason::Unknown } else { self.reasons.of(&stack.kernel) };
                self.stacks.insert(id, (KnownStack { reason, stack: Arc::new(stack) }, number));
                !is_lost
            }
        };
        match of {
            CopyOf::Wait { id: copy, site, is_named, .. } => {
                if is_named {
                    self.call_sites.insert(site, (id, self.takes));
                }
                if self.copies.len() < self.most_copies() {
                    self.copies.insert(copy, (id, self.takes));
                }
            }
            CopyOf::Sample(mut sample) => {
                if let Some(cut) = cut {
                    self.cut_samples[cut as usize] += 1;
                }
                sample.key.stack = Some(id);
                self.keep(sample, false);
            }
            CopyOf::Proved(proved) => self.compare(proved, id),
        }
        complete
    }

    /// Compares the stack that a recipe has proved with the one that was unwound. Nothing is proved of the missing callers
    /// of a stack.
    fn compare(&mut self, proved: StackId, found: StackId) {
        let is_whole = |id: StackId| {
            let end = self.stacks.get(&id).and_then(|(known, _)| known.stack.end);
            matches!(end, Some(Unwind::Whole | Unwind::Guessed))
        };
        if is_whole(proved) && is_whole(found) {
            self.proofs.all += 1;
            self.proofs.wrong += u64::from(found != proved);
        }
    }

    /// Returns the stack of a call site or of a copy, if it is known.
    pub(super) fn stack_of(&mut self, id: StackId) -> Option<StackId> {
        if let Some((stack, used)) = self.copies.get_mut(&id) {
            *used = self.takes;
            return Some(*stack);
        }
        self.call_sites.get(&id).map(|(stack, _)| *stack)
    }

    /// Forgets copies that no sample has named lately, once there are many: their waits have ended.
    pub(super) fn forget_copies(&mut self) {
        if self.copies.len() > self.max_stacks {
            let takes = self.takes;
            self.copies.retain(|_, (_, used)| *used + 1 >= takes);
        }
    }

    /// Returns the most copies that are known at a time.
    fn most_copies(&self) -> usize {
        self.max_stacks.saturating_mul(4)
    }
}
