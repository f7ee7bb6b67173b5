//! One call site for two descriptors: a pipe that often has data soon, and a socket that seldom has data, and late.

use std::{
    io::Write as _,
    os::{
        fd::{AsFd as _, BorrowedFd},
        unix::net::UnixStream,
    },
    path::PathBuf,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use clap::Args;
use nix::unistd::{pipe, read};
use serde::{Deserialize, Serialize};

use crate::{
    cgroup,
    process::{self, Child},
};

/// The time between two bytes of the pipe.
const SOON: Duration = Duration::from_millis(1);

/// `podperf-load descriptors`.
#[derive(Args, Clone, Debug)]
pub struct DescriptorsArgs {
    /// Cgroup to join
    #[arg(long)]
    pub cgroup: Option<PathBuf>,
    /// Number of reads from the pipe before each read from the socket
    #[arg(long, default_value_t = 400)]
    pub often: u32,
    /// Time until a byte of the socket comes
    #[arg(long, default_value_t = 1000)]
    pub late_millis: u64,
    /// Number of rounds
    #[arg(long, default_value_t = 3)]
    pub rounds: u32,
}

/// The load's measurements of itself.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct DescriptorsReport {
    /// Wall time in reads from the pipe, summed.
    pub pipe_ns: u64,
    /// Wall time in reads from the socket, summed.
    pub socket_ns: u64,
}

/// Reads the data of a child, which is not in the cgroup.
pub fn run(args: &DescriptorsArgs) -> Result<DescriptorsReport> {
    let (from_pipe, to_pipe) = pipe()?;
    let (from_socket, mut to_socket) = UnixStream::pair()?;
    let (often, rounds, late) = (args.often, args.rounds, Duration::from_millis(args.late_millis));
    let writer = Child::fork(move || {
        let mut to_pipe = std::fs::File::from(to_pipe);
        for _ in 0..rounds {
            for _ in 0..often {
                thread::sleep(SOON);
                to_pipe.write_all(&[0])?;
            }
            thread::sleep(late);
            to_socket.write_all(&[0])?;
        }
        Ok(())
    })?;
    if let Some(cgroup) = &args.cgroup {
        cgroup::join(cgroup)?;
    }
    let (mut in_pipe, mut in_socket) = (Duration::ZERO, Duration::ZERO);
    for _ in 0..rounds {
        for turn in 0..=often {
            let last = turn == often;
            let took = read_one(if last { from_socket.as_fd() } else { from_pipe.as_fd() })?;
            *(if last { &mut in_socket } else { &mut in_pipe }) += took;
        }
    }
    writer.wait()?;
    Ok(DescriptorsReport { pipe_ns: process::nanos(in_pipe), socket_ns: process::nanos(in_socket) })
}

/// The one call site: two waits here differ only in the descriptor.
#[inline(never)]
fn read_one(from: BorrowedFd<'_>) -> Result<Duration> {
    let start = Instant::now();
    ensure!(read(from, &mut [0])? == 1, "the writer has ended");
    Ok(start.elapsed())
}
