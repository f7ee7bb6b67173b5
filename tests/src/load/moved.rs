//! A process that another process moves between two cgroups while it runs.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::Args;
use serde::{Deserialize, Serialize};

use crate::cgroup;
use crate::process::{self, Child};

/// `podperf-load moved`.
#[derive(Args, Clone, Debug)]
pub struct MovedArgs {
    /// Cgroup in which the burner starts
    #[arg(long)]
    pub from: PathBuf,
    /// Cgroup to which it is moved
    #[arg(long)]
    pub to: PathBuf,
    /// CPU time to burn before each move, and after the last
    #[arg(long, default_value_t = 250)]
    pub part_millis: u64,
    /// Number of moves, to and fro
    #[arg(long, default_value_t = 1)]
    pub moves: u32,
}

/// CPU time in both cgroups.
///
/// The times are the growth of `usage_usec` of the two cgroups. Only the kernel knows when a move took effect: the
/// write to `cgroup.procs` may first wait for many milliseconds, while the burner continues. So nothing else may run in
/// the two cgroups.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct MovedReport {
    /// CPU time in the first cgroup, in nanoseconds.
    pub from_ns: u64,
    /// CPU time in the second cgroup, in nanoseconds.
    pub to_ns: u64,
}

/// Burns CPU time, and moves the burner meanwhile.
pub fn run(args: &MovedArgs) -> Result<MovedReport> {
    let part = Duration::from_millis(args.part_millis);
    let (from_before, to_before) = (cgroup::cpu_usage(&args.from)?, cgroup::cpu_usage(&args.to)?);
    let child = Child::fork(|| {
        cgroup::join(&args.from)?;
        process::burn(part * (args.moves + 1))
    })?;
    for (number, cgroup) in (1..=args.moves).zip([&args.to, &args.from].into_iter().cycle()) {
        while child.cpu_ns()? < process::nanos(part * number) {
            thread::sleep(Duration::from_millis(1));
        }
        let procs = cgroup.join("cgroup.procs");
        fs::write(&procs, child.pid().to_string())
            .with_context(|| format!("failed to move the burner to `{}`", procs.display()))?;
    }
    child.wait()?;
    let grown = |cgroup: &Path, before: Duration| -> Result<u64> {
        Ok(process::nanos(cgroup::cpu_usage(cgroup)?.saturating_sub(before)))
    };
    Ok(MovedReport { from_ns: grown(&args.from, from_before)?, to_ns: grown(&args.to, to_before)? })
}
