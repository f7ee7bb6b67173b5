//! The cost of maps and programs.
//!
//! Memory comes from the kernel's account in `/proc/self/fdinfo`, which needs no capability. Run times come from the
//! programs' own account: the kernel measures them only after a switch for the whole machine, which needs a
//! privilege.

use std::{
    collections::HashMap,
    fs,
    os::fd::{AsRawFd, BorrowedFd},
};

use podperf_ebpf::abi;

use super::{
    memory::{RECORDS_OF_TASK, record_bytes, threads},
    programs::TASKS,
};

/// `BPF_MAP_TYPE_TASK_STORAGE`: one record for each task; the kernel's `memlock` does not include the records.
const TASK_STORAGE: u64 = 29;

/// The size and the cost of a map.
#[derive(Clone, Debug)]
pub struct MapUse {
    /// Name of the map in the object.
    pub map: String,
    /// The largest number of entries.
    pub max_entries: u64,
    /// Kernel memory that the map holds, in bytes. The memory of task records is an estimate: one record for each
    /// thread of the node.
    pub bytes: u64,
}

/// The cost of a loaded program.
#[derive(Clone, Debug)]
pub struct ProgramUse {
    /// Name of the program in the object.
    pub program: &'static str,
    /// Time spent in the program, in nanoseconds: an estimate from the runs that the program times itself. It does
    /// not include the kernel's path into the program.
    pub run_time_ns: u64,
    /// Number of runs.
    pub runs: u64,
    /// Number of runs that the kernel skipped to avoid recursion.
    pub misses: u64,
    /// Number of instructions that the verifier walked on all paths together: a measure of the program's size. `None`
    /// before Linux 5.16.
    pub verified_instructions: Option<u64>,
}

impl MapUse {
    /// Reads the use of a map. If it keeps records of tasks, `has_records` says whether programs that run make any.
    pub(super) fn read(name: &str, fd: BorrowedFd<'_>, has_records: bool) -> Self {
        let info = fd_info(fd);
        let number = |key: &str| info.get(key).copied().unwrap_or(0);
        let mut bytes = number("memlock");
        if number("map_type") == TASK_STORAGE && has_records {
            // All programs make records of `tasks`, so that map also pays for what a task has once.
            let once = if name == TASKS { RECORDS_OF_TASK } else { 0 };
            bytes += threads() * (record_bytes(number("value_size")) + once);
        }
        Self { map: name.to_owned(), max_entries: number("max_entries"), bytes }
    }
}

impl ProgramUse {
    pub(super) fn read(name: &'static str, program: BorrowedFd<'_>, own: &abi::podperf_runs) -> Self {
        let kernels = fd_info(program);
        Self {
            program: name,
            run_time_ns: own.ns,
            runs: own.runs,
            misses: misses(&kernels),
            verified_instructions: kernels.get("verified_insns").copied(),
        }
    }
}

/// Returns the number of runs of a program that the kernel skipped to avoid recursion.
pub(super) fn recursion_misses(program: BorrowedFd<'_>) -> u64 {
    misses(&fd_info(program))
}

fn misses(info: &HashMap<String, u64>) -> u64 {
    info.get("recursion_misses").copied().unwrap_or(0)
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
