//! Another user of the PMU: it takes counters of every CPU, pinned, so that no other program gets them.

#![expect(unsafe_code, reason = "perf_event_open has no safe form")]

use std::{
    io,
    os::fd::{FromRawFd as _, OwnedFd, RawFd},
};

use anyhow::{Context as _, Result};
use clap::Args;
use serde::{Deserialize, Serialize};

/// `PERF_TYPE_HARDWARE` and `PERF_COUNT_HW_INSTRUCTIONS`.
const HARDWARE: u32 = 0;
const INSTRUCTIONS: u64 = 1;
/// The third bit of the flags: the counter is always on the PMU, or in an error state.
const PINNED: u64 = 1 << 2;
/// `PERF_FLAG_FD_CLOEXEC`.
const CLOEXEC: libc::c_ulong = 8;

/// `podperf-load hog`.
#[derive(Args, Clone, Copy, Debug)]
pub struct HogArgs {
    /// Counters to take of each CPU
    #[arg(long, default_value_t = 1)]
    pub counters: usize,
}

/// The taken counters.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct HogReport {
    /// Number of counters of each CPU.
    pub counters: usize,
    /// Number of CPUs.
    pub cpus: usize,
}

/// The first version of `struct perf_event_attr`.
#[repr(C)]
#[derive(Default)]
struct Attr {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup: u32,
    breakpoint: u32,
    config1: u64,
}

/// Takes the counters for as long as the result lives.
pub fn take(args: HogArgs) -> Result<(Vec<OwnedFd>, HogReport)> {
    let cpus = std::thread::available_parallelism()?.get();
    let mut taken = Vec::new();
    for cpu in 0..cpus {
        for _ in 0..args.counters {
            taken.push(open(cpu).with_context(|| format!("failed to take a counter of CPU {cpu}"))?);
        }
    }
    Ok((taken, HogReport { counters: args.counters, cpus }))
}

fn open(cpu: usize) -> Result<OwnedFd> {
    let attr = Attr {
        kind: HARDWARE,
        size: u32::try_from(size_of::<Attr>())?,
        config: INSTRUCTIONS,
        flags: PINNED,
        ..Attr::default()
    };
    // SAFETY: an initialised attr of the size that it states, which outlives the call.
    let fd = unsafe {
        libc::syscall(libc::SYS_perf_event_open, &raw const attr, -1, libc::c_int::try_from(cpu)?, -1, CLOEXEC)
    };
    if fd < 0 {
        return Err(io::Error::last_os_error().into());
    }
    // SAFETY: the call has just returned this descriptor, and it has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(RawFd::try_from(fd)?) })
}
