//! Short lives: a thread makes children that compute for some milliseconds, several at a time.

use std::{path::PathBuf, time::Duration};

use anyhow::{Context as _, Result};
use clap::Args;
use nix::{
    sys::wait::waitpid,
    unistd::{Pid, pipe},
};
use serde::{Deserialize, Serialize};

use super::cpu::set_scheduler;
use crate::{
    cgroup,
    process::{self, Child},
};

/// `podperf-load lives`.
#[derive(Args, Clone, Debug)]
pub struct LivesArgs {
    /// Cgroup to join
    #[arg(long)]
    pub cgroup: PathBuf,
    /// CPU to stay on
    #[arg(long)]
    pub cpu: usize,
    /// Number of rounds in which children are made
    #[arg(long, default_value_t = 50)]
    pub rounds: u32,
    /// Number of children at a time
    #[arg(long, default_value_t = 8)]
    pub children: u32,
    /// CPU time of each child, in milliseconds
    #[arg(long, default_value_t = 5)]
    pub millis: u64,
}

/// The load's own measurements.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct LivesReport {
    /// Number of children.
    pub children: u32,
    /// Time from the end of each child's fork to its last message, summed.
    pub least_ns: u64,
    /// Time from before each child's fork to after its end, summed.
    pub most_ns: u64,
    /// Wall time of the thread that made the children, from the join to the report.
    pub own_ns: u64,
}

/// Makes children and waits for their ends, round by round.
pub fn run(args: &LivesArgs) -> Result<LivesReport> {
    process::pin(args.cpu)?;
    cgroup::join(&args.cgroup)?;
    let start = process::monotonic_ns()?;
    // A thread that is preempted beside its read of the clock measures too much. Children do not inherit the scheduling
    // class.
    comes_first(libc::SCHED_RESET_ON_FORK)?;
    let mut report = LivesReport::default();
    for _ in 0..args.rounds {
        let (reader, writer) = pipe().context("failed to make a pipe")?;
        for _ in 0..args.children {
            report.most_ns = report.most_ns.wrapping_sub(process::monotonic_ns()?);
            Child::fork(|| {
                process::burn(Duration::from_millis(args.millis))?;
                comes_first(0)?;
                process::send(writer.try_clone()?, &process::monotonic_ns()?)
            })?;
            report.least_ns = report.least_ns.wrapping_sub(process::monotonic_ns()?);
            report.children += 1;
        }
        drop(writer);
        for _ in 0..args.children {
            waitpid(Pid::from_raw(-1), None).context("failed to wait for a child")?;
            report.most_ns = report.most_ns.wrapping_add(process::monotonic_ns()?);
        }
        let ends: Vec<u64> = process::receive(reader)?;
        report.least_ns = ends.into_iter().fold(report.least_ns, u64::wrapping_add);
    }
    report.own_ns = process::monotonic_ns()? - start;
    Ok(report)
}

fn comes_first(flags: i32) -> Result<()> {
    set_scheduler("SCHED_FIFO", libc::SCHED_FIFO | flags, 1)
}
