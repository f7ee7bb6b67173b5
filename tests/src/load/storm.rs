//! A storm of processes; each waits once and ends. They share the memory of the process that makes them, so
//! that each costs next to nothing to make. Each process has its own keys in the tables of samples, so a storm fills
//! these tables.

#![expect(unsafe_code, reason = "clone with CLONE_VM needs a stack for each child")]

use std::{
    path::PathBuf,
    ptr,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use clap::Args;
use nix::errno::Errno;
use serde::{Deserialize, Serialize};

use crate::cgroup;

/// The stack of each child, which needs a few hundred bytes.
const STACK_BYTES: usize = 16 << 10;

/// `podperf-load storm`.
#[derive(Args, Clone, Debug)]
pub struct StormArgs {
    /// Cgroup to join
    #[arg(long)]
    pub cgroup: Option<PathBuf>,
    /// Length of the storm, in seconds
    #[arg(long, default_value_t = 10.0)]
    pub seconds: f64,
    /// Children in all, at most
    #[arg(long, default_value_t = 1_000_000)]
    pub count: u64,
    /// Children at once, at most
    #[arg(long, default_value_t = 128)]
    pub alive: usize,
    /// Wait of each child, in microseconds: with 128 at once, 9 ms make 14,000 a second
    #[arg(long, default_value_t = 9000)]
    pub micros: u64,
}

/// The report of a storm.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct StormReport {
    /// Number of children. All have ended.
    pub children: u64,
    /// Duration of the storm, in seconds.
    pub seconds: f64,
    /// Children a second.
    pub rate: f64,
}

/// The stack of one child at a time.
struct Place {
    stack: Box<[u128]>,
    child: libc::pid_t,
}

/// Makes children until the time is over or their number is reached, and waits for the last child.
pub fn run(args: &StormArgs) -> Result<StormReport> {
    if let Some(cgroup) = &args.cgroup {
        cgroup::join(cgroup)?;
    }
    let wait = Duration::from_micros(args.micros);
    // `tv_nsec` of a wait below a second.
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: i64::from(wait.subsec_nanos()) };
    let empty = || Place { stack: vec![0; STACK_BYTES / size_of::<u128>()].into_boxed_slice(), child: 0 };
    let mut places: Vec<Place> = std::iter::repeat_with(empty).take(args.alive.max(1)).collect();
    let mut free: Vec<usize> = (0..places.len()).collect();
    let start = Instant::now();
    let mut children = 0;
    while children < args.count && start.elapsed().as_secs_f64() < args.seconds {
        let Some(index) = free.pop() else {
            free.push(next_ended(&mut places)?);
            continue;
        };
        let place = &mut places[index];
        // The stack grows down. The end of a boxed slice of 16-byte words has the alignment that the ABI needs.
        let top = place.stack.as_mut_ptr_range().end.cast();
        // SAFETY: the stack belongs to this child alone until it is waited for, and both the stack and the time outlive
        // the child. The child makes one system call and returns, which ends it; it touches nothing of this process but
        // `errno`.
        let child = unsafe { libc::clone(wait_once, top, libc::CLONE_VM | libc::SIGCHLD, (&raw mut time).cast()) };
        Errno::result(child).context("failed to clone")?;
        place.child = child;
        children += 1;
    }
    while free.len() < places.len() {
        free.push(next_ended(&mut places)?);
    }
    let seconds = start.elapsed().as_secs_f64();
    #[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
    let rate = children as f64 / seconds;
    Ok(StormReport { children, seconds, rate })
}

/// Waits for a child, and returns the index of its stack.
fn next_ended(places: &mut [Place]) -> Result<usize> {
    // SAFETY: the null pointer requests no status.
    let child = unsafe { libc::waitpid(-1, ptr::null_mut(), 0) };
    Errno::result(child).context("failed to wait for a child")?;
    let Some(index) = places.iter().position(|place| place.child == child) else { bail!("{child} is no child") };
    places[index].child = 0;
    Ok(index)
}

/// Runs as a process of its own, in this process's memory.
extern "C" fn wait_once(time: *mut libc::c_void) -> libc::c_int {
    // SAFETY: nanosleep reads one timespec, which outlives this process, and writes nothing to a null pointer.
    unsafe { libc::syscall(libc::SYS_nanosleep, time, ptr::null_mut::<libc::timespec>()) };
    0
}
