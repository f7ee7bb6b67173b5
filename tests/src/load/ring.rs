//! A ring of processes on one CPU: what a context switch costs.
//!
//! A byte goes round a ring of pipes. One hop is a write, a read and a context
//! switch, so what a monitor does at each switch shows as CPU time per hop.
//! The CPU clocks of the workers are read rather than the wall: time in which
//! somebody else had the CPU is not in them.

use std::io::{BufRead as _, Write as _};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use clap::Args;
use nix::errno::Errno;
use nix::unistd::{Pid, getpid, pipe, read, write};
use serde::{Deserialize, Serialize};

use crate::cgroup;
use crate::process::{self, Child, Usage};

/// The byte that goes round, and the one that ends the run.
const TOKEN: u8 = b'.';
const LAST: u8 = b'!';

/// `podperf-load ring`.
#[derive(Args, Clone, Debug)]
pub struct RingArgs {
    /// CPU that all workers are pinned to
    #[arg(long, default_value_t = 0)]
    pub cpu: usize,
    /// Number of workers, two or more
    #[arg(long, default_value_t = 2)]
    pub processes: usize,
    /// Cgroup directories; worker i joins the (i mod n)th
    #[arg(long, value_delimiter = ',')]
    pub cgroups: Vec<PathBuf>,
    /// Hops in one slice, rounded down to whole rounds
    #[arg(long, default_value_t = 30_000)]
    pub hops: usize,
    /// Slices that are timed, one figure each
    #[arg(long, default_value_t = 9)]
    pub slices: usize,
    /// Hops before the first slice
    #[arg(long, default_value_t = 3_000)]
    pub warmup: usize,
    /// Say `joined` on stderr when all workers block, and wait for a line on stdin
    #[arg(long)]
    pub wait: bool,
}

/// What the ring measured of itself.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RingReport {
    /// All hops, the warm-up included.
    pub hops: u64,
    /// CPU time of all workers per hop, over the slices.
    pub cpu_ns: Spread,
    /// Wall time per hop, over the slices.
    pub wall_ns: Spread,
    /// Context switches per hop: 1.0 between two workers if the method holds;
    /// more in larger rings, where a writer may be preempted before it blocks.
    pub switches_per_hop: f64,
    /// What each worker was charged from the start of the warm-up to its end.
    pub workers: Vec<Usage>,
}

/// The least, the middle and the greatest of some figures.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// The least.
    pub min: f64,
    /// The middle; of an even number, the upper of the two.
    pub median: f64,
    /// The greatest.
    pub max: f64,
}

impl Spread {
    /// Of no figures there is no spread.
    pub fn of(mut figures: Vec<f64>) -> Option<Self> {
        figures.sort_by(f64::total_cmp);
        Some(Self { min: *figures.first()?, median: *figures.get(figures.len() / 2)?, max: *figures.last()? })
    }
}

/// What a worker tells the parent at its end.
#[derive(Serialize, Deserialize)]
struct WorkerReport {
    worker: usize,
    usage: Usage,
    cpu_ns: Vec<f64>,
    wall_ns: Vec<f64>,
}

/// Runs the ring to its end.
pub fn run(args: &RingArgs) -> Result<RingReport> {
    ensure!(args.processes >= 2, "`--processes` must be 2 or more");
    ensure!(args.slices >= 1, "`--slices` must be 1 or more");
    ensure!(args.hops >= args.processes, "`--hops` must be `--processes` or more");
    let pipes = (0..args.processes).map(|_| pipe().context("failed to make a pipe")).collect::<Result<Vec<_>>>()?;
    let (ready_reader, ready_writer) = pipe().context("failed to make a pipe")?;
    let (report_reader, report_writer) = pipe().context("failed to make a pipe")?;

    // Worker 0 is forked last: it knows all others, and may read their clocks.
    let mut children: Vec<Child> = Vec::new();
    for worker in (0..args.processes).rev() {
        let others: Vec<Pid> = children.iter().map(Child::pid).collect();
        let seat = Seat::take(&pipes, worker)?;
        let (ready_reader, ready_writer) = (ready_reader.try_clone()?, ready_writer.try_clone()?);
        let report_writer = report_writer.try_clone()?;
        children.push(Child::fork(|| {
            process::pin(args.cpu)?;
            if !args.cgroups.is_empty() {
                cgroup::join(&args.cgroups[worker % args.cgroups.len()])?;
            }
            let report = if worker == 0 {
                lead(args, &seat, &others, &ready_reader)?
            } else {
                write(&ready_writer, &[TOKEN])?;
                follow(&seat, worker)?
            };
            process::send(report_writer, &report)
        })?);
    }
    drop((pipes, ready_reader, ready_writer, report_writer));
    let reports: Vec<WorkerReport> = process::receive(report_reader)?;
    for child in children {
        child.wait()?;
    }
    summarize(args, reports)
}

/// The two pipe ends of one worker.
struct Seat {
    from: OwnedFd,
    to: OwnedFd,
}

impl Seat {
    fn take(pipes: &[(OwnedFd, OwnedFd)], worker: usize) -> Result<Self> {
        Ok(Self { from: pipes[worker].0.try_clone()?, to: pipes[(worker + 1) % pipes.len()].1.try_clone()? })
    }

    fn pass(&self, byte: u8) -> Result<()> {
        loop {
            match write(&self.to, &[byte]) {
                Err(Errno::EINTR) => {}
                Err(error) => return Err(error).context("failed to pass the byte on"),
                Ok(_) => return Ok(()),
            }
        }
    }

    fn receive(&self) -> Result<u8> {
        let mut byte = [0];
        loop {
            match read(&self.from, &mut byte) {
                Err(Errno::EINTR) => {}
                Err(error) => return Err(error).context("failed to receive the byte"),
                Ok(0) => bail!("the ring is broken"),
                Ok(_) => return Ok(byte[0]),
            }
        }
    }
}

fn follow(seat: &Seat, worker: usize) -> Result<WorkerReport> {
    let before = Usage::of_self()?;
    loop {
        let byte = seat.receive()?;
        if byte == LAST {
            let usage = Usage::of_self()?.since(before);
            seat.pass(LAST)?;
            return Ok(WorkerReport { worker, usage, cpu_ns: Vec::new(), wall_ns: Vec::new() });
        }
        seat.pass(byte)?;
    }
}

fn lead(args: &RingArgs, seat: &Seat, others: &[Pid], ready: &OwnedFd) -> Result<WorkerReport> {
    for _ in others {
        ensure!(read(ready, &mut [0])? == 1, "a worker failed before the start");
    }
    // Let the last of them block in its first read.
    thread::sleep(Duration::from_millis(20));
    if args.wait {
        writeln!(std::io::stderr(), "joined")?;
        std::io::stdin().lock().read_line(&mut String::new())?;
    }
    let cpu_ns_of_all = || -> Result<u64> {
        let mut sum = process::cpu_ns_of(getpid())?;
        for other in others {
            sum += process::cpu_ns_of(*other)?;
        }
        Ok(sum)
    };
    let before = Usage::of_self()?;
    rounds(seat, args.warmup.div_ceil(args.processes))?;
    let (mut cpu_ns, mut wall_ns) = (Vec::new(), Vec::new());
    for _ in 0..args.slices {
        let (cpu_before, wall_before) = (cpu_ns_of_all()?, process::monotonic_ns()?);
        rounds(seat, args.hops / args.processes)?;
        let (wall_after, cpu_after) = (process::monotonic_ns()?, cpu_ns_of_all()?);
        let hops = args.hops / args.processes * args.processes;
        cpu_ns.push(per_hop(cpu_after - cpu_before, hops));
        wall_ns.push(per_hop(wall_after - wall_before, hops));
    }
    let usage = Usage::of_self()?.since(before);
    seat.pass(LAST)?;
    seat.receive()?;
    Ok(WorkerReport { worker: 0, usage, cpu_ns, wall_ns })
}

fn rounds(seat: &Seat, count: usize) -> Result<()> {
    for _ in 0..count {
        seat.pass(TOKEN)?;
        seat.receive()?;
    }
    Ok(())
}

#[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
fn per_hop(ns: u64, hops: usize) -> f64 {
    ns as f64 / hops as f64
}

fn summarize(args: &RingArgs, mut reports: Vec<WorkerReport>) -> Result<RingReport> {
    ensure!(reports.len() == args.processes, "a worker ended without a report");
    reports.sort_by_key(|report| report.worker);
    let per_slice = args.hops / args.processes * args.processes;
    let hops = per_slice * args.slices + args.warmup.next_multiple_of(args.processes);
    let workers: Vec<Usage> = reports.iter().map(|report| report.usage).collect();
    let switches = workers.iter().map(|w| w.voluntary_switches + w.involuntary_switches).sum();
    let leader = reports.swap_remove(0);
    Ok(RingReport {
        hops: u64::try_from(hops)?,
        cpu_ns: Spread::of(leader.cpu_ns).context("no slice was timed")?,
        wall_ns: Spread::of(leader.wall_ns).context("no slice was timed")?,
        switches_per_hop: per_hop(switches, hops),
        workers,
    })
}
