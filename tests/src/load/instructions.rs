//! A process that retires a known number of instructions in user space: `loop`.

#![expect(unsafe_code, reason = "only assembly has a known number of instructions")]

use std::path::PathBuf;

use anyhow::{Result, ensure};
use clap::Args;
use serde::{Deserialize, Serialize};

use crate::cgroup;

/// Instructions of one turn of the loop.
const PER_TURN: u64 = 2;

/// `podperf-load loop`.
#[derive(Args, Clone, Debug)]
pub struct LoopArgs {
    /// Instructions in the loop; rounded down to whole turns of two
    #[arg(long)]
    pub instructions: u64,
    /// Cgroup to join before the loop
    #[arg(long)]
    pub cgroup: Option<PathBuf>,
}

/// The work of the loop, without the process's start, report and exit. A loop without turns has the
/// same start, report and exit.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct LoopReport {
    /// Number of instructions that retired in the loop.
    pub instructions: u64,
}

/// Runs `loop`.
pub fn run(args: &LoopArgs) -> Result<LoopReport> {
    if let Some(cgroup) = &args.cgroup {
        cgroup::join(cgroup)?;
    }
    let turns = args.instructions / PER_TURN;
    if turns > 0 {
        let left = turn(turns);
        ensure!(left == 0, "the loop ended with {left} turns to go");
    }
    Ok(LoopReport { instructions: turns * PER_TURN })
}

/// Runs this number of turns, and returns the turns left.
#[cfg(target_arch = "x86_64")]
fn turn(mut turns: u64) -> u64 {
    // SAFETY: one register is counted down.
    unsafe { std::arch::asm!("2: dec {0}", "jnz 2b", inout(reg) turns, options(nomem, nostack)) };
    turns
}

/// Runs this number of turns, and returns the turns left.
#[cfg(target_arch = "aarch64")]
fn turn(mut turns: u64) -> u64 {
    // SAFETY: one register is counted down.
    unsafe { std::arch::asm!("2: subs {0}, {0}, #1", "b.ne 2b", inout(reg) turns, options(nomem, nostack)) };
    turns
}
