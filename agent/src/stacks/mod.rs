//! Stacks: from the addresses that the kernel side remembered to a [`profile::Profile`] with names.
//!
//! Pure but for the symbolizer, which reads the kernel's symbols and the files that processes have mapped.

pub mod profile;
pub mod reason;
mod resource;
mod symbolizer;
mod symbols;

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use crate::{
    attribution::Subject,
    kernel::records::{RawStack, RawWait},
};

pub use symbolizer::{SymbolCounts, SymbolStats, start};

/// The waits of one window, with addresses.
#[derive(Debug)]
pub struct RawProfile {
    /// When the window began.
    pub start: SystemTime,
    /// How long it was.
    pub duration: Duration,
    /// What waited.
    pub waits: Vec<ProfileWait>,
    /// What was lost in it, by reason.
    pub losses: Vec<(&'static str, u64)>,
}

/// One wait of a window.
#[derive(Debug)]
pub struct ProfileWait {
    /// Whose it is.
    pub subject: Subject,
    /// `None` when its frames were lost on the way.
    pub stack: Option<Arc<RawStack>>,
    /// Whose and how long.
    pub wait: RawWait,
}
