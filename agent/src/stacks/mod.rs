//! Stacks: from the addresses that the kernel side remembered to a [`profile::Profile`] with names.
//!
//! What reads the kernel's symbols is `functions`, and what reads the files that processes have mapped is `symbols`, `user`,
//! `process`, `files`, `objects` and `vdso`, on the threads of `reader`; all else is pure. Those files are strangers': `read_at`, `elf`, `elf_symbols`,
//! `go_functions`, `perf_map`, `maps` and `demangle` take any bytes.

mod counts;
mod demangle;
mod elf;
mod elf_symbols;
mod files;
mod functions;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod go_functions;
mod maps;
mod nearest;
mod objects;
mod perf_map;
mod process;
pub mod profile;
mod read_at;
mod reader;
pub mod reason;
mod remembered;
mod resource;
mod shares;
mod symbolizer;
mod symbols;
mod unread;
mod unwind;
mod user;
mod vdso;
mod window;

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use crate::{
    attribution::Subject,
    kernel::{
        records::{RawSample, RawStack},
        symbols::KernelFunctions,
    },
};

use crate::model::wait::WaitReason;
pub use counts::{Cause, SymbolCounts, SymbolStats};
pub use symbolizer::start;
pub use unread::{FrameOwner, UnreadFrames};

pub use window::Window;

/// The samples of one window, with addresses.
#[derive(Debug)]
pub struct RawProfile {
    /// When the window began.
    pub start: SystemTime,
    /// How long it was.
    pub duration: Duration,
    /// Where time went.
    pub samples: Vec<ProfileSample>,
    /// What was lost in it, by reason.
    pub losses: Vec<(&'static str, u64)>,
    /// What one sample on the CPU stands for; `None` where none are taken.
    pub sample_period: Option<Duration>,
    /// The names of addresses in the kernel.
    pub functions: Arc<KernelFunctions>,
    /// Held by all windows that have not been worked off.
    pub on_its_way: Arc<()>,
}

/// Who ended waits.
#[derive(Debug)]
pub struct RawProfileWaker {
    /// The name of the thread.
    pub thread: String,
    /// Whose it is.
    pub subject: String,
    /// From where it woke, where that was taken.
    pub stack: Option<Arc<RawStack>>,
}

/// Time of one window with one key.
#[derive(Debug)]
pub struct ProfileSample {
    /// Whose it is.
    pub subject: Subject,
    /// `None` when its frames were lost on the way.
    pub stack: Option<Arc<RawStack>>,
    /// What a wait was for.
    pub reason: WaitReason,
    /// Who ended it, where that is known.
    pub waker: Option<Arc<RawProfileWaker>>,
    /// Which filters let it pass.
    pub passed: u8,
    /// Whose and how long.
    pub sample: RawSample,
}
