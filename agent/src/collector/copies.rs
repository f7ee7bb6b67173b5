//! The collector's part of copied stacks: takes them from the thread that unwinds them.

use std::{
    sync::mpsc,
    time::{Duration, Instant},
};

use super::Collector;
use crate::{
    model::{ids::StackId, status::State},
    stacks::{Unwound, unwinder::Order},
};

/// The longest time that a window waits for copies that are still to be unwound.
const PATIENCE: Duration = Duration::from_millis(500);

/// The channels from and to the thread that unwinds copied stacks.
#[derive(Debug)]
pub struct UnwinderChannels {
    /// The unwound stacks.
    pub unwound: mpsc::Receiver<Vec<Unwound>>,
    /// The orders to the thread.
    pub orders: mpsc::Sender<Order>,
}

impl Collector {
    /// Returns the stacks that were unwound since the last call. They are added to the window after the records of the
    /// stack ring have been read: those hold the kernel's parts of these stacks.
    pub(super) fn unwound(&mut self) -> Vec<Unwound> {
        let Some(unwinder) = &self.settings.unwinder else { return Vec::new() };
        let mut stacks = Vec::new();
        loop {
            match unwinder.unwound.try_recv() {
                Ok(some) => stacks.extend(some),
                Err(mpsc::TryRecvError::Empty) => return stacks,
                Err(mpsc::TryRecvError::Disconnected) => break,
            }
        }
        let detail = "the thread that unwinds stacks has ended: most waits have no user stacks (restart the agent)";
        self.settings.status.set("stacks", State::Degraded, detail);
        self.settings.unwinder = None;
        self.settings.stacks = None;
        stacks
    }

    /// Adds unwound stacks to the window.
    pub(super) fn add_unwound(&mut self, stacks: Vec<Unwound>) {
        let mut incomplete = Vec::new();
        for stack in stacks {
            let process = (stack.process, stack.user.last().copied());
            if self.seen_processes.len() < self.settings.max_stacks && self.seen_processes.insert(process) {
                self.settings.new_processes.try_send(stack.process).ok();
            }
            let id = stack.id.0;
            if !self.samples.add_unwound(stack) {
                incomplete.push(id);
            }
        }
        // They are copied once more, with their kernel part.
        self.forget_recipes(&incomplete);
    }

    /// Waits until the copies that were made so far are unwound or given up, or for a moment if that takes longer. A stack
    /// that comes later than that names samples of the next window.
    pub(super) fn catch_up(&mut self) {
        let Some(unwinder) = &self.settings.unwinder else { return };
        let (answer, answered) = mpsc::sync_channel(1);
        if unwinder.orders.send(Order::CatchUp(answer)).is_err() {
            return self.drain();
        }
        let until = Instant::now() + PATIENCE;
        // The thread may wait until its results are taken.
        while answered.recv_timeout(Duration::from_millis(10)) == Err(mpsc::RecvTimeoutError::Timeout)
            && Instant::now() < until
        {
            self.drain();
        }
        self.drain();
    }

    /// Makes the kernel side forget how to recognize these stacks.
    pub(super) fn forget_recipes(&self, stacks: &[u64]) {
        if let Some(unwinder) = self.settings.unwinder.as_ref().filter(|_| !stacks.is_empty()) {
            unwinder.orders.send(Order::Forget(stacks.iter().copied().map(StackId).collect())).ok();
        }
    }
}
