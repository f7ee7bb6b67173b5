//! One thread that burns and sleeps in turn.

use std::{
    path::PathBuf,
    thread,
    time::{Duration, Instant},
};

use anyhow::Result;
use clap::Args;
use serde::{Deserialize, Serialize};

use crate::{cgroup, process};

const BURN: Duration = Duration::from_millis(7);

/// `podperf-load mixed`.
#[derive(Args, Clone, Debug)]
pub struct MixedArgs {
    /// Cgroup to join
    #[arg(long)]
    pub cgroup: Option<PathBuf>,
    /// CPU to stay on
    #[arg(long)]
    pub cpu: Option<usize>,
    /// Length of the run, in seconds
    #[arg(long, default_value_t = 3)]
    pub seconds: u64,
    /// Sleep between two bursts, in milliseconds
    #[arg(long, default_value_t = 11)]
    pub sleep: u64,
}

/// The load's measurements of itself.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct MixedReport {
    /// Wall time from the join to the report.
    pub wall_ns: u64,
}

/// Burns and sleeps until the time is over.
pub fn run(args: &MixedArgs) -> Result<MixedReport> {
    if let Some(cpu) = args.cpu {
        process::pin(cpu)?;
    }
    if let Some(cgroup) = &args.cgroup {
        cgroup::join(cgroup)?;
    }
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(args.seconds) {
        process::burn(BURN)?;
        thread::sleep(Duration::from_millis(args.sleep));
    }
    Ok(MixedReport { wall_ns: process::nanos(start.elapsed()) })
}
