//! Processes that make known numbers of system calls with known errnos, and go from CPU to CPU meanwhile.

#![expect(unsafe_code, reason = "calls that fail on purpose, without what a library adds to them")]

use std::{
    fs::File,
    os::fd::{AsRawFd as _, RawFd},
    path::PathBuf,
};

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use nix::{
    errno::Errno,
    sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, kill, sigaction},
    unistd::getpid,
};
use serde::{Deserialize, Serialize};

use crate::{
    cgroup,
    process::{self, Child},
    running,
};

/// The number of rounds between two changes of the CPU.
const ROUNDS_OF_A_CPU: u32 = 100;
/// The signal that a process sends to itself.
const SIGNAL: Signal = Signal::SIGUSR1;

/// `podperf-load calls`.
#[derive(Args, Clone, Debug)]
pub struct CallsArgs {
    /// Cgroup to join
    #[arg(long)]
    pub cgroup: PathBuf,
    /// Number of processes at once
    #[arg(long, default_value_t = 4)]
    pub processes: u32,
    /// Rounds of each process: five calls, of which three fail
    #[arg(long, default_value_t = 1000)]
    pub rounds: u32,
}

/// The calls of all processes. Each round is an `openat` (ENOENT), two `read` (one EBADF), an `fsync` (EINVAL) and a
/// `getppid`.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct CallsReport {
    /// Number of rounds.
    pub rounds: u32,
    /// Number of calls of `sched_setaffinity`: each moves a process to another CPU, if there is one. After each, a
    /// `kill` sends a signal, which ends an `rt_sigsuspend` (EINTR) and runs a handler.
    pub moves: u32,
}

/// Runs `calls`.
pub fn run(args: &CallsArgs) -> Result<CallsReport> {
    let zero = File::open("/dev/zero").context("failed to open `/dev/zero`")?;
    let cpus = running::cpus()?;
    let one = || {
        Child::fork(|| {
            handle_signal()?;
            cgroup::join(&args.cgroup)?;
            for round in 0..args.rounds {
                if round.is_multiple_of(ROUNDS_OF_A_CPU) {
                    process::pin((round / ROUNDS_OF_A_CPU) as usize % cpus)?;
                    take_signal()?;
                }
                make_calls(zero.as_raw_fd())?;
            }
            Ok(())
        })
    };
    let children = (0..args.processes).map(|_| one()).collect::<Result<Vec<_>>>()?;
    children.into_iter().try_for_each(Child::wait)?;
    let moves = args.rounds.div_ceil(ROUNDS_OF_A_CPU) * args.processes;
    Ok(CallsReport { rounds: args.rounds * args.processes, moves })
}

extern "C" fn do_nothing(_signal: libc::c_int) {}

/// Blocks the signal, and handles it once it is no longer blocked.
fn handle_signal() -> Result<()> {
    let action = SigAction::new(SigHandler::Handler(do_nothing), SaFlags::empty(), SigSet::empty());
    // SAFETY: the handler may run at any moment, since it does nothing.
    unsafe { sigaction(SIGNAL, &action) }.context("failed to handle a signal")?;
    SigSet::from(SIGNAL).thread_block().context("failed to block a signal")
}

/// Takes one signal. The handler interrupts the end of a call that failed, so the end of the handler returns an error.
fn take_signal() -> Result<()> {
    kill(getpid(), SIGNAL).context("failed to send a signal")?;
    SigSet::empty().suspend().context("failed to wait for a signal")
}

/// Makes the calls of a round.
fn make_calls(zero: RawFd) -> Result<()> {
    let mut byte = 0_u8;
    // SAFETY: each call gets the arguments that it takes; `read` writes at most one byte, to `byte`.
    let returned = unsafe {
        [
            (
                libc::syscall(libc::SYS_openat, libc::AT_FDCWD, c"/nowhere/at/all".as_ptr(), libc::O_RDONLY),
                Errno::last(),
            ),
            (libc::syscall(libc::SYS_read, -1, &raw mut byte, 1), Errno::last()),
            (libc::syscall(libc::SYS_fsync, zero), Errno::last()),
        ]
    };
    ensure!(returned == [(-1, Errno::ENOENT), (-1, Errno::EBADF), (-1, Errno::EINVAL)], "{returned:?}");
    // SAFETY: as above.
    let (read, parent) =
        unsafe { (libc::syscall(libc::SYS_read, zero, &raw mut byte, 1), libc::syscall(libc::SYS_getppid)) };
    ensure!(read == 1 && parent > 0, "`read` returned {read}, and `getppid` {parent}");
    Ok(())
}
