//! Identifies stacks and wakers by their content and not by their address: equal ones of several windows or processes
//! get one entry. Pure.
//!
//! Within a window each address belongs to one stack, so the content of a stack is compared once a window, and not with
//! each sample.

use std::{
    collections::{HashMap, HashSet},
    hash::{BuildHasher, Hash, Hasher, RandomState},
    sync::Arc,
};

use super::weight::Weight;
use crate::stacks::profile::{Frame, Stack, Waker};

/// The index of a known stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Number(u32);

/// A table of stacks that holds each stack once.
#[derive(Debug, Default)]
pub(super) struct Stacks {
    all: Vec<Arc<Stack>>,
    weight: Weight,
    hasher: RandomState,
    by_content: HashMap<u64, Vec<Number>>,
    /// The stacks by address: the known ones, and stacks of this window that are equal to a known one.
    by_address: HashMap<usize, Number>,
    /// The hashes of this window's frames, by address.
    frames: HashMap<usize, u64>,
    /// Number of stacks that were hashed.
    looks: usize,
}

/// A table of wakers that holds each waker once.
#[derive(Debug, Default)]
pub(super) struct Wakers {
    all: HashSet<Arc<Waker>>,
    by_address: HashMap<usize, Arc<Waker>>,
}

impl Stacks {
    /// Returns the number of a stack. The stack must live until [`Self::end_window`].
    pub(super) fn number(&mut self, stack: &Arc<Stack>) -> Number {
        let address = Arc::as_ptr(stack).addr();
        if let Some(number) = self.by_address.get(&address) {
            return *number;
        }
        let hash = self.hash(stack);
        let same = self.by_content.entry(hash).or_default();
        let known = same.iter().find(|number| self.all.get(number.index()).is_some_and(|known| known == stack));
        let number = known.copied().unwrap_or_else(|| {
            let number = Number(u32::try_from(self.all.len()).unwrap_or(u32::MAX));
            same.push(number);
            self.weight.add(stack);
            self.all.push(Arc::clone(stack));
            number
        });
        self.by_address.insert(address, number);
        number
    }

    fn hash(&mut self, stack: &Stack) -> u64 {
        self.looks += 1;
        let mut state = self.hasher.build_hasher();
        stack.unwind.hash(&mut state);
        for frame in &stack.frames {
            let of_frame = |frame: &Frame| self.hasher.hash_one(frame);
            state.write_u64(*self.frames.entry(Arc::as_ptr(frame).addr()).or_insert_with(|| of_frame(frame)));
        }
        state.finish()
    }

    /// Returns the stack of a number.
    pub(super) fn get(&self, number: Number) -> Option<&Arc<Stack>> {
        self.all.get(number.index())
    }

    /// Returns the bytes of all stacks.
    pub(super) const fn bytes(&self) -> usize {
        self.weight.bytes()
    }

    /// Drops the addresses of this window's stacks, since new stacks may get the same addresses.
    pub(super) fn end_window(&mut self) {
        let all = &self.all;
        self.by_address.retain(|address, number| {
            all.get(number.index()).is_some_and(|stack| Arc::as_ptr(stack).addr() == *address)
        });
        self.frames = HashMap::new();
    }

    #[cfg(test)]
    pub(super) const fn looks(&self) -> usize {
        self.looks
    }
}

impl Number {
    const fn index(self) -> usize {
        self.0 as usize
    }
}

impl Wakers {
    /// Returns the entry that stands for all equal wakers. `waker` must live until [`Self::end_window`].
    pub(super) fn same(&mut self, waker: &Arc<Waker>) -> Arc<Waker> {
        let address = Arc::as_ptr(waker).addr();
        if let Some(known) = self.by_address.get(&address) {
            return Arc::clone(known);
        }
        let known = self.all.get(waker).cloned().unwrap_or_else(|| {
            self.all.insert(Arc::clone(waker));
            Arc::clone(waker)
        });
        self.by_address.insert(address, Arc::clone(&known));
        known
    }

    /// Drops the addresses of this window's wakers, as [`Stacks::end_window`] does.
    pub(super) fn end_window(&mut self) {
        self.by_address = HashMap::new();
    }

    /// Drops wakers that have no other holder.
    pub(super) fn forget_unused(&mut self) {
        self.by_address = HashMap::new();
        self.all.retain(|waker| Arc::strong_count(waker) > 1);
    }
}
