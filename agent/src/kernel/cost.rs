//! What maps and programs cost, by the kernel's own account: `/proc/self/fdinfo`, which needs no capability.

use std::{
    collections::HashMap,
    fs,
    os::fd::{AsRawFd, BorrowedFd},
};

/// How full a map is, and what it costs.
#[derive(Clone, Debug)]
pub struct MapUse {
    /// Its name in the object.
    pub map: String,
    /// Its size in entries.
    pub max_entries: u64,
    /// Kernel memory that it holds.
    pub bytes: u64,
}

/// A loaded program.
#[derive(Clone, Debug)]
pub struct ProgramUse {
    /// Its name in the object.
    pub program: &'static str,
    /// Time in it and how often it ran; only counted while `kernel.bpf_stats_enabled` is 1.
    pub run_time_ns: u64,
    /// See `run_time_ns`.
    pub runs: u64,
    /// Runs that the kernel skipped to avoid recursion.
    pub misses: u64,
}

impl MapUse {
    pub(super) fn read(name: &str, fd: BorrowedFd<'_>) -> Self {
        let info = fd_info(fd);
        let number = |key: &str| info.get(key).copied().unwrap_or(0);
        Self { map: name.to_owned(), max_entries: number("max_entries"), bytes: number("memlock") }
    }
}

impl ProgramUse {
    pub(super) fn read(program: &'static str, fd: BorrowedFd<'_>) -> Self {
        let info = fd_info(fd);
        let number = |key: &str| info.get(key).copied().unwrap_or(0);
        Self {
            program,
            run_time_ns: number("run_time_ns"),
            runs: number("run_cnt"),
            misses: number("recursion_misses"),
        }
    }
}

fn fd_info(fd: BorrowedFd<'_>) -> HashMap<String, u64> {
    let text = fs::read_to_string(format!("/proc/self/fdinfo/{}", fd.as_raw_fd())).unwrap_or_default();
    text.lines()
        .filter_map(|line| {
            let (key, value) = line.split_once(':')?;
            Some((key.to_owned(), value.trim().parse().ok()?))
        })
        .collect()
}
