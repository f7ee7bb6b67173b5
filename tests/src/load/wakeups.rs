//! Wake-ups at a constant rate: pairs of threads, in which a timer wakes the first thread and the first wakes the
//! second.
//!
//! The first thread of a pair sleeps until its next moment and then writes a byte, for which the second thread waits:
//! two waits and two wake-ups. Each pair waits at a call depth of its own, so the number of pairs of stacks is the
//! number of pairs of threads.

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

/// Stack size of each thread: far more than its frames need.
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
    /// Length of the run, in seconds
    #[arg(long, default_value_t = 30.0)]
    pub seconds: f64,
}

/// The counts charged to the threads.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct WakeupsReport {
    /// Waits that ended, in a second, by the kernel's count of voluntary switches.
    pub per_second: f64,
    /// Wall time from the first wait to the last.
    pub wall_ns: u64,
    /// The counts of the process.
    pub usage: Usage,
}

/// Wakes the threads at the rate, or as fast as the machine can.
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
        // The pairs take turns within a period.
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

/// Runs the work after this number of further calls.
#[inline(never)]
fn below(depth: u32, work: &mut dyn FnMut() -> Result<()>) -> Result<()> {
    let done = if depth == 0 { work() } else { below(depth - 1, work) };
    // This prevents a tail call.
    black_box(done)
}

/// Wakes the second thread. Moments are computed from the first one, so a late wake-up does not delay later ones.
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
    // Reads one byte at a time: bytes that have piled up cause no wake-ups, and are not counted as wake-ups.
    while reader.read(&mut [0]).context("failed to wait for the other")? == 1 {}
    Ok(())
}
