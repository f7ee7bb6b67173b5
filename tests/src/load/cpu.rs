//! Processes that only use a CPU, and differ in the way they join their cgroup: `spin`, `fifo` and `forkjoin`.

#![expect(unsafe_code, reason = "sched_setscheduler has no safe form")]

use std::io::Read as _;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use clap::Args;
use nix::unistd::pipe;
use serde::{Deserialize, Serialize};

use crate::cgroup;
use crate::process::{self, Child, Usage};

/// The work of a late joiner inside the cgroup, small beside its work before the join.
const LATE_WORK: Duration = Duration::from_millis(17);

/// `podperf-load spin`.
#[derive(Args, Clone, Debug)]
pub struct SpinArgs {
    /// CPU seconds to burn in the cgroup; with `--late`, before joining it
    #[arg(long, default_value_t = 1.0)]
    pub seconds: f64,
    /// Cgroup to join before burning
    #[arg(long)]
    pub cgroup: Option<PathBuf>,
    /// CPU to stay on
    #[arg(long)]
    pub cpu: Option<usize>,
    /// Fork, burn outside the cgroup, join it then, and do 17 ms of work inside
    #[arg(long, requires = "cgroup", conflicts_with = "move_to")]
    pub late: bool,
    /// Burn `--spin-before` seconds in `--cgroup`, move here, and exit at once
    #[arg(long, requires = "cgroup")]
    pub move_to: Option<PathBuf>,
    /// CPU seconds before `--move-to`; `--seconds` if absent
    #[arg(long, requires = "move_to")]
    pub spin_before: Option<f64>,
    /// Burn under SCHED_IDLE: the CPU never idles, and all others have it when they want it
    #[arg(long)]
    pub idle: bool,
    /// After the report, block until stdin ends
    #[arg(long, conflicts_with_all = ["late", "move_to"])]
    pub hold: bool,
}

/// `podperf-load fifo`.
#[derive(Args, Clone, Debug)]
pub struct FifoArgs {
    /// Cgroup to enter
    #[arg(long)]
    pub cgroup: PathBuf,
    /// CPU seconds to burn without a switch; keep it below `sched_rt_runtime_us`
    #[arg(long, default_value_t = 0.4)]
    pub seconds: f64,
    /// Number of times to burn
    #[arg(long, default_value_t = 1)]
    pub times: u32,
    /// Pause after each time but the last
    #[arg(long, default_value_t = 0)]
    pub pause_millis: u64,
    /// CPU to stay on
    #[arg(long)]
    pub cpu: Option<usize>,
    /// After the report, block until stdin ends
    #[arg(long)]
    pub hold: bool,
}

/// `podperf-load forkjoin`.
#[derive(Args, Clone, Debug)]
pub struct ForkJoinArgs {
    /// Cgroup that the child joins
    #[arg(long)]
    pub cgroup: PathBuf,
    /// CPU seconds that the child burns after joining
    #[arg(long, default_value_t = 1.0)]
    pub seconds: f64,
}

/// The CPU time charged to a burner, split at the join of its cgroup. Work after the report (its printing, the exit) is
/// in neither part.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct CpuReport {
    /// The counts from the fork to the join.
    pub outside: Usage,
    /// The counts from the join to the report.
    pub inside: Usage,
    /// The part of `inside` in the last burning of `spin`, in which it never blocks: 0 for other loads.
    pub burning: Usage,
}

impl CpuReport {
    fn measure(outside: Usage) -> Result<Self> {
        Ok(Self { outside, inside: Usage::of_self()?.since(outside), burning: Usage::default() })
    }
}

/// Runs `spin`. With `--move-to`, the caller prints the report and then calls
/// [`finish_spin`].
pub fn spin(args: &SpinArgs) -> Result<CpuReport> {
    if let Some(cpu) = args.cpu {
        process::pin(cpu)?;
    }
    if args.idle {
        set_scheduler("SCHED_IDLE", libc::SCHED_IDLE, 0)?;
    }
    if args.late {
        let cgroup = args.cgroup.clone().context("`--late` needs `--cgroup`")?;
        return in_child(|| {
            process::burn(seconds(args.seconds)?)?;
            let mut outside = Usage::of_self()?;
            cgroup::join(&cgroup)?;
            // The join itself causes faults before it takes effect.
            outside.minor_faults = Usage::of_self()?.minor_faults;
            process::burn(LATE_WORK)?;
            CpuReport::measure(outside)
        });
    }
    let outside = Usage::of_self()?;
    if let Some(cgroup) = &args.cgroup {
        cgroup::join(cgroup)?;
    }
    let before = Usage::of_self()?;
    process::burn(seconds(args.spin_before.unwrap_or(args.seconds))?)?;
    let burning = Usage::of_self()?.since(before);
    Ok(CpuReport { burning, ..CpuReport::measure(outside)? })
}

/// Runs the end of `spin`: the move to another cgroup, with nothing after it, or the wait.
pub fn finish_spin(args: &SpinArgs) -> Result<()> {
    if args.hold {
        return hold();
    }
    if let Some(cgroup) = &args.move_to {
        cgroup::join(cgroup)?;
        process::exit_now(0);
    }
    Ok(())
}

/// Runs `fifo` up to the report; the caller prints it and calls [`hold`].
pub fn fifo(args: &FifoArgs) -> Result<CpuReport> {
    if let Some(cpu) = args.cpu {
        process::pin(cpu)?;
    }
    // The lowest real-time priority is enough: only the kernel's own threads can preempt the load.
    set_scheduler("SCHED_FIFO", libc::SCHED_FIFO, 1)?;
    let outside = Usage::of_self()?;
    cgroup::join(&args.cgroup)?;
    for time in 0..args.times {
        if time > 0 {
            thread::sleep(Duration::from_millis(args.pause_millis));
        }
        process::burn(seconds(args.seconds)?)?;
    }
    CpuReport::measure(outside)
}

/// Blocks until stdin ends.
pub fn hold() -> Result<()> {
    std::io::stdin().lock().read_to_end(&mut Vec::new()).context("failed to read stdin")?;
    Ok(())
}

/// Runs `forkjoin`.
pub fn fork_join(args: &ForkJoinArgs) -> Result<CpuReport> {
    in_child(|| {
        let outside = Usage::of_self()?;
        cgroup::join(&args.cgroup)?;
        process::burn(seconds(args.seconds)?)?;
        CpuReport::measure(outside)
    })
}

fn in_child(body: impl FnOnce() -> Result<CpuReport>) -> Result<CpuReport> {
    let (reader, writer) = pipe().context("failed to make a pipe")?;
    let child = Child::fork(|| process::send(writer.try_clone()?, &body()?))?;
    drop(writer);
    let report = process::receive(reader)?.pop();
    child.wait()?;
    report.context("the child ended without a report")
}

fn seconds(value: f64) -> Result<Duration> {
    Duration::try_from_secs_f64(value).with_context(|| format!("`{value}` is not a number of seconds"))
}

pub(super) fn set_scheduler(name: &str, policy: i32, priority: i32) -> Result<()> {
    let parameters = libc::sched_param { sched_priority: priority };
    // SAFETY: the pointer is to a whole sched_param for the time of the call.
    if unsafe { libc::sched_setscheduler(0, policy, &raw const parameters) } != 0 {
        bail!("failed to become {name}: {} (needs CAP_SYS_NICE)", std::io::Error::last_os_error());
    }
    Ok(())
}
