//! Wake-ups at a rate that is kept: pairs of threads, each woken by a timer or by the other.
//!
//! The first of a pair sleeps until its next moment and then writes a byte, for which the second waits: two waits and two
//! wake-ups. Each pair waits at a call depth of its own, so there are as many pairs of stacks as pairs of threads.

use std::{
    hint::black_box,
    io::{Read as _, Write as _},
    path::PathBuf,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, anyhow, ensure};
use clap::Args;
use serde::{Deserialize, Serialize};

use crate::{
    cgroup,
    process::{self, Usage},
};

/// Of each thread; far more than its frames need.
const STACK_BYTES: usize = 256 << 10;

/// `podperf-load wakeups`.
#[derive(Args, Clone, Debug)]
pub struct WakeupsArgs {
    /// Cgroup to join
    #[arg(long)]
    pub cgroup: Option<PathBuf>,
    /// Pairs of threads
    #[arg(long, default_value_t = 50)]
    pub pairs: u32,
    /// Wake-ups of all threads together in a second
    #[arg(long, default_value_t = 10_000)]
    pub per_second: u32,
    /// How long
    #[arg(long, default_value_t = 30.0)]
    pub seconds: f64,
}

/// What the threads were charged.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct WakeupsReport {
    /// Waits that ended, in a second, by the kernel's count of voluntary switches.
    pub per_second: f64,
    /// From the first wait to the last.
    pub wall_ns: u64,
    /// Of the process.
    pub usage: Usage,
}

/// Wakes at the rate, as far as the machine can.
pub fn run(args: &WakeupsArgs) -> Result<WakeupsReport> {
    ensure!(args.pairs >= 1 && args.per_second >= 1, "`--pairs` and `--per-second` must be 1 or more");
    if let Some(cgroup) = &args.cgroup {
        cgroup::join(cgroup)?;
    }
    let period = Duration::from_secs(2) * args.pairs / args.per_second;
    let (before, start) = (Usage::of_self()?, Instant::now());
    let end = start + Duration::from_secs_f64(args.seconds);
    let mut threads = Vec::new();
    for pair in 0..args.pairs {
        let (mut reader, mut writer) = std::io::pipe().context("failed to make a pipe")?;
        // The pairs take turns in a period.
        let first = start + period * pair / args.pairs;
        threads.push(spawn(pair, move || wake(&mut writer, first, period, end))?);
        threads.push(spawn(pair, move || wait(&mut reader))?);
    }
    for thread in threads {
        thread.join().map_err(|_panic| anyhow!("a thread panicked"))??;
    }
    let (usage, wall) = (Usage::of_self()?.since(before), start.elapsed());
    #[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
    let waits = usage.voluntary_switches as f64;
    Ok(WakeupsReport { per_second: waits / wall.as_secs_f64(), wall_ns: process::nanos(wall), usage })
}

fn spawn(depth: u32, mut work: impl FnMut() -> Result<()> + Send + 'static) -> Result<thread::JoinHandle<Result<()>>> {
    let work = move || below(depth, &mut work);
    thread::Builder::new().stack_size(STACK_BYTES).spawn(work).context("failed to start a thread")
}

/// Works that many calls further down.
#[inline(never)]
fn below(depth: u32, work: &mut dyn FnMut() -> Result<()>) -> Result<()> {
    let done = if depth == 0 { work() } else { below(depth - 1, work) };
    // No tail call.
    black_box(done)
}

/// Moments are counted from the first, so a late wake-up delays no other.
fn wake(writer: &mut std::io::PipeWriter, first: Instant, period: Duration, end: Instant) -> Result<()> {
    let mut next = first;
    while next < end {
        thread::sleep(next.saturating_duration_since(Instant::now()));
        writer.write_all(b".").context("failed to wake the other")?;
        next += period;
    }
    Ok(())
}

fn wait(reader: &mut std::io::PipeReader) -> Result<()> {
    // One byte at a time: bytes that have piled up are no wake-ups, and are not counted as such.
    while reader.read(&mut [0]).context("failed to wait for the other")? == 1 {}
    Ok(())
}
