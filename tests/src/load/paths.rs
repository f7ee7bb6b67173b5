//! Functions without frame pointers. They note themselves which of them are on the stack while the program waits or
//! spins.
//!
//! The functions are C, as most code without frame pointers is: `tests/build.rs` compiles them with `-O2`. Their own
//! list is the truth for unwinders. The frames between them and the begin of the program are ordinary Rust and C.

#![expect(unsafe_code, reason = "functions of C")]

use std::{
    ffi::{CStr, c_char, c_int, c_uint, c_void},
    io,
    path::PathBuf,
};

use anyhow::{Context as _, Result};
use clap::Args;
use serde::{Deserialize, Serialize};

use crate::cgroup;

/// `podperf-load paths`.
#[derive(Args, Clone, Debug)]
pub struct PathsArgs {
    /// Cgroup to join
    #[arg(long)]
    pub cgroup: Option<PathBuf>,
    /// Number of visits of each path. In a round, each of two threads goes 20 paths, of 2 ms to 12 ms
    #[arg(long, default_value_t = 60)]
    pub rounds: u32,
    /// Spin at the end of each path instead of waiting there
    #[arg(long)]
    pub on_cpu: bool,
    /// After the report, block until stdin ends
    #[arg(long)]
    pub hold: bool,
}

/// The program's own record of its stacks.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct PathsReport {
    /// The paths that the program went.
    pub paths: Vec<NotedPath>,
    /// All functions that a path may have.
    pub functions: Vec<FunctionPlace>,
}

/// One path, with the waits or spins at its end.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct NotedPath {
    /// The names of its functions, outermost first, with semicolons in between.
    pub path: String,
    /// The number of waits, by the kernel's count of voluntary switches, or of spins.
    pub count: u64,
    /// The time of all waits by `CLOCK_MONOTONIC`, or of all spins by the thread's CPU clock, in nanoseconds.
    pub ns: u64,
    /// The part of `ns` in which the thread was ready to run and had no CPU, by the kernel's count. 0 for spins.
    pub queued_ns: u64,
    /// Size of the whole stack at the end of the path, in bytes.
    pub stack_bytes: u64,
}

/// The addresses of a function, as the ELF file counts them.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FunctionPlace {
    /// The function's name.
    pub name: String,
    /// The first address.
    pub begin: u64,
    /// The address after the last one.
    pub end: u64,
}

type PathTaker = unsafe extern "C" fn(*mut c_void, *const c_char, u64, u64, u64, u64);
type PlaceTaker = unsafe extern "C" fn(*mut c_void, *const c_char, u64, u64);

unsafe extern "C" {
    fn podperf_paths_run(rounds: c_uint, on_cpu: c_int) -> c_int;
    fn podperf_paths_each(take: PathTaker, to: *mut c_void);
    fn podperf_paths_places(take: PlaceTaker, to: *mut c_void);
}

/// Goes all paths in the given number of rounds.
pub fn run(args: &PathsArgs) -> Result<PathsReport> {
    if let Some(cgroup) = &args.cgroup {
        cgroup::join(cgroup)?;
    }
    // SAFETY: it takes numbers. No other thread calls it, and its own threads end before it returns.
    let error = unsafe { podperf_paths_run(args.rounds, args.on_cpu.into()) };
    if error != 0 {
        return Err(io::Error::from_raw_os_error(error)).context("failed to go the paths");
    }
    let mut report = PathsReport::default();
    let to = (&raw mut report).cast();
    // SAFETY: both pass `to` to the given function only, during the call. `report` outlives both calls.
    unsafe {
        podperf_paths_each(take_path, to);
        podperf_paths_places(take_place, to);
    }
    Ok(report)
}

/// Adds a path to a report.
///
/// # Safety
///
/// `to` must point to a [`PathsReport`] that nothing else uses, and `path` to a text that ends with a zero byte.
unsafe extern "C" fn take_path(
    to: *mut c_void,
    path: *const c_char,
    count: u64,
    ns: u64,
    queued_ns: u64,
    stack_bytes: u64,
) {
    // SAFETY: the caller meets these conditions.
    let (report, path) = unsafe { (&mut *to.cast::<PathsReport>(), CStr::from_ptr(path)) };
    let path = path.to_string_lossy().into_owned();
    report.paths.push(NotedPath { path, count, ns, queued_ns, stack_bytes });
}

/// Adds the place of a function to a report.
///
/// # Safety
///
/// The conditions of [`take_path`] apply.
unsafe extern "C" fn take_place(to: *mut c_void, name: *const c_char, begin: u64, end: u64) {
    // SAFETY: the caller meets these conditions.
    let (report, name) = unsafe { (&mut *to.cast::<PathsReport>(), CStr::from_ptr(name)) };
    report.functions.push(FunctionPlace { name: name.to_string_lossy().into_owned(), begin, end });
}
