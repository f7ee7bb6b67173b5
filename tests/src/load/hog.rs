//! Another user of the PMU: it takes counters of every CPU, pinned, so that no other program gets them.

use std::os::fd::OwnedFd;

use anyhow::{Context as _, Result};
use clap::Args;
use serde::{Deserialize, Serialize};

use crate::bpf::{EventAttr, open_event};

/// `PERF_TYPE_HARDWARE` and `PERF_COUNT_HW_INSTRUCTIONS`.
const HARDWARE: u32 = 0;
const INSTRUCTIONS: u64 = 1;
/// The third bit of the flags: the counter is always on the PMU, or in an error state.
const PINNED: u64 = 1 << 2;

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

/// Takes the counters for as long as the result lives.
pub fn take(args: HogArgs) -> Result<(Vec<OwnedFd>, HogReport)> {
    let cpus = std::thread::available_parallelism()?.get();
    let attr = EventAttr { kind: HARDWARE, config: INSTRUCTIONS, flags: PINNED, ..EventAttr::default() };
    let mut taken = Vec::new();
    for cpu in 0..cpus {
        for _ in 0..args.counters {
            taken.push(open_event(attr, cpu).with_context(|| format!("failed to take a counter of CPU {cpu}"))?);
        }
    }
    Ok((taken, HogReport { counters: args.counters, cpus }))
}
