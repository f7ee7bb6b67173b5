//! The memory of stacks. A stack that several samples share counts once. Pure.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use crate::stacks::profile::{Activity, Frame, Profile, Sample, Stack};

/// The size of a stack without its frames, with its entries in tables.
const STACK_BYTES: usize = 96;
/// The size of a frame without its functions, with its entries in tables.
const FRAME_BYTES: usize = 128;
/// The size of a function without its name.
const FUNCTION_BYTES: usize = 40;
/// The size of a waker without its names.
const WAKER_BYTES: usize = 96;

/// The stacks that have a holder. Stacks are identified by address, so each must live until it is removed.
#[derive(Debug, Default)]
pub(super) struct Weight {
    /// The number of holders of each stack, by the stack's address.
    stacks: HashMap<usize, u32>,
    frames: HashMap<usize, u32>,
    bytes: usize,
}

impl Weight {
    /// Returns the bytes of all stacks.
    pub(super) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Adds a holder of this stack.
    pub(super) fn add(&mut self, stack: &Arc<Stack>) {
        let holders = self.stacks.entry(Arc::as_ptr(stack).addr()).or_default();
        *holders += 1;
        if *holders > 1 {
            return;
        }
        self.bytes += stack_bytes(stack);
        for frame in &stack.frames {
            let holders = self.frames.entry(Arc::as_ptr(frame).addr()).or_default();
            *holders += 1;
            self.bytes += if *holders == 1 { frame_bytes(frame) } else { 0 };
        }
    }

    /// Removes a holder of this stack.
    pub(super) fn remove(&mut self, stack: &Arc<Stack>) {
        if !release(&mut self.stacks, Arc::as_ptr(stack).addr()) {
            return;
        }
        self.bytes -= stack_bytes(stack);
        for frame in &stack.frames {
            if release(&mut self.frames, Arc::as_ptr(frame).addr()) {
                self.bytes -= frame_bytes(frame);
            }
        }
    }
}

/// Removes a holder; returns whether it was the last one.
fn release(holders: &mut HashMap<usize, u32>, address: usize) -> bool {
    let Some(left) = holders.get_mut(&address) else { return false };
    *left -= 1;
    let last = *left == 0;
    if last {
        holders.remove(&address);
    }
    last
}

fn stack_bytes(stack: &Stack) -> usize {
    STACK_BYTES + size_of_val(&*stack.frames)
}

fn frame_bytes(frame: &Frame) -> usize {
    FRAME_BYTES + frame.functions.iter().map(|function| FUNCTION_BYTES + function.name.len()).sum::<usize>()
}

/// Returns the bytes of a window without its stacks.
pub(super) fn own_bytes(profile: &Profile) -> usize {
    let mut wakers = HashSet::new();
    let mut bytes = 0;
    for sample in profile.subjects.iter().flat_map(|subject| &subject.samples) {
        bytes += size_of::<Sample>();
        if let Activity::OffCpu { waker: Some(waker), .. } = &sample.activity
            && wakers.insert(Arc::as_ptr(waker))
        {
            let stack = waker.stack.as_ref().map_or(0, String::len);
            bytes += WAKER_BYTES + waker.thread.len() + waker.subject.len() + stack;
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{model::wait::Unwind, stacks::profile::FrameKind};

    #[test]
    fn what_is_shared_weighs_once_and_nothing_is_left() {
        let frame = |address| Arc::new(Frame { address, kind: FrameKind::Native, mapping: None, functions: vec![] });
        let (shared, other) = (frame(1), frame(2));
        let stack = |frames: &[&Arc<Frame>]| {
            Arc::new(Stack { frames: frames.iter().map(|frame| Arc::clone(frame)).collect(), unwind: Unwind::Whole })
        };
        let (first, second) = (stack(&[&shared]), stack(&[&shared, &other]));
        let mut weight = Weight::default();
        weight.add(&first);
        let one = weight.bytes();
        weight.add(&first);
        assert_eq!(weight.bytes(), one);
        weight.add(&second);
        assert_eq!(weight.bytes(), one + STACK_BYTES + 16 + FRAME_BYTES);
        weight.remove(&first);
        weight.remove(&second);
        assert_eq!(weight.bytes(), one);
        weight.remove(&first);
        assert!(weight.bytes() == 0 && weight.stacks.is_empty() && weight.frames.is_empty());
    }
}
