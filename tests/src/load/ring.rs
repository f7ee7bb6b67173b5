//! A ring of processes on one CPU, for the cost of a context switch.
//!
//! A byte goes round a ring of pipes. One hop is a write, a read and a context switch, so a monitor's work at each
//! switch shows as CPU time per hop. The load reads the workers' CPU clocks and not the wall clock: they exclude time
//! in which another process had the CPU.

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

/// The byte that goes round, and the byte that ends the run.
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
    /// Directory of cgroups 0, 1, 2 ...; worker i joins the one of its number
    #[arg(long, conflicts_with = "cgroups")]
    pub cgroups_below: Option<PathBuf>,
    /// Hops in one slice, rounded down to whole rounds
    #[arg(long, default_value_t = 30_000)]
    pub hops: usize,
    /// Slices that are timed, one figure each
    #[arg(long, default_value_t = 9)]
    pub slices: usize,
    /// Hops before the first slice
    #[arg(long, default_value_t = 3_000)]
    pub warmup: usize,
    /// Pause before each round, in microseconds: leaves time to other threads of the CPU
    #[arg(long, default_value_t = 0)]
    pub pause_micros: u64,
    /// Say `joined` on stderr when all workers block, and wait for a line on stdin
    #[arg(long)]
    pub wait: bool,
    /// For each line on stdin go round for the warm-up and one slice, and answer with its figures, until there are no
    /// more lines
    #[arg(long, conflicts_with = "wait")]
    pub on_demand: bool,
}

/// One timed stretch of hops.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Slice {
    /// CPU time of all workers per hop.
    pub cpu_ns: f64,
    /// Wall time per hop.
    pub wall_ns: f64,
}

/// The ring's measurements of itself.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RingReport {
    /// Number of all hops, the warm-up included.
    pub hops: u64,
    /// CPU time of all workers per hop, over the slices.
    pub cpu_ns: Spread,
    /// Wall time per hop, over the slices.
    pub wall_ns: Spread,
    /// Context switches per hop: 1.0 between two workers if the method is valid. The number is higher in larger rings,
    /// where a writer may be preempted before it blocks.
    pub switches_per_hop: f64,
    /// The counts charged to each worker, from the start of the warm-up to the worker's end.
    pub workers: Vec<Usage>,
}

/// The least, the median and the greatest of some figures.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// The least.
    pub min: f64,
    /// The median; for an even number of figures, the upper of the two in the middle.
    pub median: f64,
    /// The greatest.
    pub max: f64,
}

impl Spread {
    /// Returns the spread; `None` without figures.
    pub fn of(mut figures: Vec<f64>) -> Option<Self> {
        figures.sort_by(f64::total_cmp);
        Some(Self { min: *figures.first()?, median: *figures.get(figures.len() / 2)?, max: *figures.last()? })
    }
}

/// The message of a worker to the parent at its end.
#[derive(Serialize, Deserialize)]
struct WorkerReport {
    worker: usize,
    usage: Usage,
    slices: Vec<Slice>,
}

/// Runs the ring to its end.
pub fn run(args: &RingArgs) -> Result<RingReport> {
    ensure!(args.processes >= 2, "`--processes` must be 2 or more");
    ensure!(args.slices >= 1, "`--slices` must be 1 or more");
    ensure!(args.hops >= args.processes, "`--hops` must be `--processes` or more");
    let (ready_reader, ready_writer) = pipe().context("failed to make a pipe")?;
    let (report_reader, report_writer) = pipe().context("failed to make a pipe")?;

    // Worker 0 is forked last: it knows all other workers, and may read their clocks. Each worker gets only the pipes
    // that it needs. Otherwise each of thousands of workers would hold the pipes of all.
    let (first, mut to) = pipe().context("failed to make a pipe")?;
    let mut children: Vec<Child> = Vec::new();
    for worker in (1..args.processes).rev() {
        let (from, next) = pipe().context("failed to make a pipe")?;
        let seat = Seat { from, to };
        children.push(Child::fork(|| {
            args.sit_down(worker)?;
            write(&ready_writer, &[TOKEN])?;
            process::send(report_writer.try_clone()?, &follow(&seat, worker)?)
        })?);
        to = next;
    }
    let others: Vec<Pid> = children.iter().map(Child::pid).collect();
    let seat = Seat { from: first, to };
    children.push(Child::fork(|| {
        args.sit_down(0)?;
        process::send(report_writer.try_clone()?, &lead(args, &seat, &others, &ready_reader)?)
    })?);
    drop((seat, ready_reader, ready_writer, report_writer));
    let reports: Vec<WorkerReport> = process::receive(report_reader)?;
    for child in children {
        child.wait()?;
    }
    summarize(args, reports)
}

impl RingArgs {
    /// Moves the calling process to its CPU and its cgroup.
    fn sit_down(&self, worker: usize) -> Result<()> {
        process::pin(self.cpu)?;
        match &self.cgroups_below {
            Some(parent) => cgroup::join(&parent.join(worker.to_string())),
            None if self.cgroups.is_empty() => Ok(()),
            None => cgroup::join(&self.cgroups[worker % self.cgroups.len()]),
        }
    }
}

/// The two pipe ends of one worker.
struct Seat {
    from: OwnedFd,
    to: OwnedFd,
}

impl Seat {
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
            return Ok(WorkerReport { worker, usage, slices: Vec::new() });
        }
        seat.pass(byte)?;
    }
}

fn lead(args: &RingArgs, seat: &Seat, others: &[Pid], ready: &OwnedFd) -> Result<WorkerReport> {
    for _ in others {
        ensure!(read(ready, &mut [0])? == 1, "a worker failed before the start");
    }
    // Waits until the last worker blocks in its first read.
    thread::sleep(Duration::from_millis(20));
    if args.wait {
        writeln!(std::io::stderr(), "joined")?;
        std::io::stdin().lock().read_line(&mut String::new())?;
    }
    let before = Usage::of_self()?;
    let mut slices = Vec::new();
    if args.on_demand {
        for line in std::io::stdin().lock().lines() {
            line?;
            rounds(args, seat, args.warmup.div_ceil(args.processes))?;
            let slice = time_slice(args, seat, others)?;
            slices.push(slice);
            answer(&slice)?;
        }
    } else {
        rounds(args, seat, args.warmup.div_ceil(args.processes))?;
        for _ in 0..args.slices {
            slices.push(time_slice(args, seat, others)?);
        }
    }
    let usage = Usage::of_self()?.since(before);
    seat.pass(LAST)?;
    seat.receive()?;
    Ok(WorkerReport { worker: 0, usage, slices })
}

fn time_slice(args: &RingArgs, seat: &Seat, others: &[Pid]) -> Result<Slice> {
    let cpu_ns_of_others =
        || others.iter().try_fold(0, |sum, other| Ok::<u64, anyhow::Error>(sum + process::cpu_ns_of(*other)?));
    // Reads the worker's own clock last before and first after the hops: reading thousands of clocks is no part of the
    // hops.
    let (others_before, own_before) = (cpu_ns_of_others()?, process::cpu_ns_of(getpid())?);
    let wall_before = process::monotonic_ns()?;
    rounds(args, seat, args.hops / args.processes)?;
    let wall_after = process::monotonic_ns()?;
    let (own_after, others_after) = (process::cpu_ns_of(getpid())?, cpu_ns_of_others()?);
    let hops = args.hops / args.processes * args.processes;
    Ok(Slice {
        cpu_ns: per_hop(own_after - own_before + others_after - others_before, hops),
        wall_ns: per_hop(wall_after - wall_before, hops),
    })
}

fn answer(slice: &Slice) -> Result<()> {
    let mut line = serde_json::to_vec(slice)?;
    line.push(b'\n');
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(&line)?;
    Ok(stdout.flush()?)
}

fn rounds(args: &RingArgs, seat: &Seat, count: usize) -> Result<()> {
    for _ in 0..count {
        if args.pause_micros > 0 {
            thread::sleep(Duration::from_micros(args.pause_micros));
        }
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
    let warmup = args.warmup.next_multiple_of(args.processes);
    let workers: Vec<Usage> = reports.iter().map(|report| report.usage).collect();
    let switches = workers.iter().map(|w| w.voluntary_switches + w.involuntary_switches).sum();
    let slices = reports.swap_remove(0).slices;
    let warmups = if args.on_demand { slices.len() } else { 1 };
    let hops = per_slice * slices.len() + warmup * warmups;
    Ok(RingReport {
        hops: u64::try_from(hops)?,
        cpu_ns: Spread::of(slices.iter().map(|slice| slice.cpu_ns).collect()).context("no slice was timed")?,
        wall_ns: Spread::of(slices.iter().map(|slice| slice.wall_ns).collect()).context("no slice was timed")?,
        switches_per_hop: per_hop(switches, hops),
        workers,
    })
}
