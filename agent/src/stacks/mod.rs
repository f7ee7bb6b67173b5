//! Stacks: turns the addresses that the kernel side cached into a [`profile::Profile`] with names.
//!
//! `functions` reads the kernel's symbols. `symbols`, `user`, `process`, `files`, `objects`, `lines`, `vdso` and `code`
//! read the files that processes have mapped, on the threads of `reader`. `debuginfod` asks servers for debug files.
//! `finding` finds the functions that the configuration or a recording names on such a thread, and `probing` and
//! `lending` probe them.
//! `unwinder` reads the ring of copies, and `turns` unwinds them. All other modules are pure. Mapped files are
//! untrusted: `read_at`, `elf`, `elf_symbols`, `named_functions`, `go_functions`, `go_module`, `line_table`,
//! `debug_section`, `perf_map`, `maps`, `demangle`, `hotspot`, `copied` and `dwarf` accept any bytes.

mod allowances;
mod asking;
mod bpf_programs;
mod clock;
mod code;
mod copied;
mod counts;
mod cut_cause;
mod debug_section;
pub mod debuginfod;
mod demangle;
mod dwarf;
mod elf;
mod elf_symbols;
mod files;
mod finding;
mod functions;
pub mod fuzzing;
mod go_functions;
mod go_module;
mod hotspot;
mod kept;
pub mod lending;
mod line_table;
mod lines;
mod maps;
mod named_functions;
mod nearest;
mod objects;
mod packed_symbols;
mod perf_map;
pub mod probing;
mod process;
pub mod profile;
mod read_at;
mod reader;
pub mod reason;
#[cfg(test)]
mod recorded_tests;
mod relatives;
mod remembered;
mod shares;
mod space;
mod symbolizer;
mod symbols;
mod turns;
mod unread;
mod unwind;
pub mod unwinder;
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
pub use bpf_programs::BpfProgram;
pub use counts::{Cause, SymbolCounts, SymbolStats};
pub use cut_cause::{CutCause, CutSamples};
pub use finding::Whom;
pub use line_table::SourceLine;
pub use lines::{FilesRequest, LineFinder, SourceLines, WantedLines};
pub use reader::Blocked;
pub use shares::LONGEST_NAMING;
pub use symbolizer::{Naming, start};
pub use unread::FrameOwner;
pub use unwinder::Unwound;

pub use window::{Proofs, Window};

/// The samples of one window, with addresses.
#[derive(Debug)]
pub struct RawProfile {
    /// The start of the window.
    pub start: SystemTime,
    /// The length of the window.
    pub duration: Duration,
    /// The samples by owner and stack.
    pub samples: Vec<ProfileSample>,
    /// Samples that were lost in the window, by reason.
    pub losses: Vec<(&'static str, u64)>,
    /// The time that one sample on the CPU stands for; `None` if such samples are not taken.
    pub sample_period: Option<Duration>,
    /// The names of addresses in the kernel.
    pub functions: Arc<KernelFunctions>,
    /// A reference that each window holds until it is processed.
    pub on_its_way: Arc<()>,
}

/// A thread that ended waits.
#[derive(Debug)]
pub struct RawProfileWaker {
    /// The name of the thread.
    pub thread: String,
    /// The owner of the thread.
    pub subject: String,
    /// The stack from which it woke the other thread; `None` if the stack was not taken.
    pub stack: Option<Arc<RawStack>>,
}

/// The time of one window with the same key.
#[derive(Debug)]
pub struct ProfileSample {
    /// The owner of the sample.
    pub subject: Subject,
    /// `None` if the frames were lost on the way.
    pub stack: Option<Arc<RawStack>>,
    /// The reason of the wait.
    pub reason: WaitReason,
    /// The thread that ended the wait, if it is known.
    pub waker: Option<Arc<RawProfileWaker>>,
    /// The filters that the sample passed: bit n stands for slot n.
    pub passed: u8,
    /// The key and the time of the sample.
    pub sample: RawSample,
}
