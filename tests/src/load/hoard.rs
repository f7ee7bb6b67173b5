//! A process that touches more and more memory, until its cgroup's limit slows it down.

use std::{
    hint::black_box,
    path::PathBuf,
    time::{Duration, Instant},
};

use anyhow::Result;
use clap::Args;
use serde::{Deserialize, Serialize};

use crate::{
    cgroup,
    process::{self, Usage},
};

/// The size of a page: no supported machine has a smaller one.
const PAGE: usize = 4096;

/// `podperf-load hoard`.
#[derive(Args, Clone, Debug)]
pub struct HoardArgs {
    /// Cgroup to join
    #[arg(long)]
    pub cgroup: PathBuf,
    /// Memory to touch at most, in MiB
    #[arg(long, default_value_t = 64)]
    pub mib: usize,
    /// Seconds, at most
    #[arg(long, default_value_t = 4)]
    pub seconds: u64,
}

/// The load's own measurements, from the join on.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct HoardReport {
    /// Wall time.
    pub wall_ns: u64,
    /// CPU time.
    pub cpu_ns: u64,
}

/// Touches page after page until the time is over.
pub fn run(args: &HoardArgs) -> Result<HoardReport> {
    // The memory is reserved, but its pages are not yet allocated.
    let mut memory: Vec<u8> = Vec::with_capacity(args.mib << 20);
    cgroup::join(&args.cgroup)?;
    let (start, before) = (Instant::now(), Usage::of_self()?);
    while memory.len() + PAGE <= memory.capacity() && start.elapsed() < Duration::from_secs(args.seconds) {
        memory.resize(memory.len() + PAGE, 1);
        black_box(&memory);
    }
    Ok(HoardReport { wall_ns: process::nanos(start.elapsed()), cpu_ns: Usage::of_self()?.since(before).cpu_ns })
}
