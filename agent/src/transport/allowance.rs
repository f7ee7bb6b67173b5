//! A limit on what a server may send in all. It covers the bytes that belong to no answer, which no other limit sees:
//! empty frames, interim answers, handshakes.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

/// Number of bytes that may still be read, on all connections that share it.
#[derive(Clone, Debug)]
pub(crate) struct Allowance {
    left: Arc<AtomicUsize>,
    most: usize,
}

impl Allowance {
    pub(crate) fn new(most: usize) -> Self {
        Self { left: Arc::new(AtomicUsize::new(most)), most }
    }

    /// Allows all bytes again, for the next request.
    pub(crate) fn renew(&self) {
        self.left.store(self.most, Ordering::Relaxed);
    }

    /// Notes that bytes were read.
    pub(super) fn spend(&self, bytes: usize) {
        self.left.update(Ordering::Relaxed, Ordering::Relaxed, |left| left.saturating_sub(bytes));
    }

    /// Returns an error if no byte may be read.
    pub(super) fn check(&self) -> io::Result<()> {
        if self.left.load(Ordering::Relaxed) == 0 {
            return Err(io::Error::other("the server sends far more than an answer"));
        }
        Ok(())
    }
}
