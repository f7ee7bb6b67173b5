//! What maps and programs cost. Memory is by the kernel's own account: `/proc/self/fdinfo`, which needs no capability;
//! run times are by the programs' own, since the kernel keeps them only for who may switch that on for the machine.

use std::{
    collections::HashMap,
    fs,
    os::fd::{AsRawFd, BorrowedFd},
};

use podperf_ebpf::abi;

use super::memory::thread_records;
use super::{memory::threads, programs::TASKS};

/// `BPF_MAP_TYPE_TASK_STORAGE`: a record for each task, which `memlock` leaves out.
const TASK_STORAGE: u64 = 29;

/// How full a map is, and what it costs.
#[derive(Clone, Debug)]
pub struct MapUse {
    /// Its name in the object.
    pub map: String,
    /// Its size in entries.
    pub max_entries: u64,
    /// Kernel memory that the map holds; records of tasks are estimated, one for each thread of the node.
    pub bytes: u64,
}

/// A loaded program.
#[derive(Clone, Debug)]
pub struct ProgramUse {
    /// Its name in the object.
    pub program: &'static str,
    /// Time in it, estimated from the runs that it times itself. The kernel's way into it is not in that.
    pub run_time_ns: u64,
    /// How often it ran.
    pub runs: u64,
    /// Runs that the kernel skipped to avoid recursion.
    pub misses: u64,
    /// Instructions that the verifier walked: all paths together, so a measure of the program's size. Since Linux 5.16.
    pub verified_instructions: Option<u64>,
}

impl MapUse {
    pub(super) fn read(name: &str, fd: BorrowedFd<'_>) -> Self {
        let info = fd_info(fd);
        let number = |key: &str| info.get(key).copied().unwrap_or(0);
        let of_tasks = number("map_type") == TASK_STORAGE && name == TASKS;
        let records = if of_tasks { thread_records(threads(), number("value_size")) } else { 0 };
        Self { map: name.to_owned(), max_entries: number("max_entries"), bytes: number("memlock") + records }
    }
}

impl ProgramUse {
    pub(super) fn read(name: &'static str, program: BorrowedFd<'_>, own: &abi::podperf_runs) -> Self {
        let kernels = fd_info(program);
        Self {
            program: name,
            run_time_ns: own.ns,
            runs: own.runs,
            misses: kernels.get("recursion_misses").copied().unwrap_or(0),
            verified_instructions: kernels.get("verified_insns").copied(),
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
