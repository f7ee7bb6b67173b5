//! A process that blocks again and again in the wanted way.

#![expect(unsafe_code, reason = "mapping a file has no safe form")]

use std::{
    fs::File,
    hint::black_box,
    io::{Read as _, Write as _},
    net::UdpSocket,
    num::NonZeroUsize,
    os::fd::AsFd as _,
    path::PathBuf,
    sync::{Condvar, Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use clap::{Args, ValueEnum};
use nix::{
    fcntl::{PosixFadviseAdvice, posix_fadvise},
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::mman::{MapFlags, ProtFlags, mmap, munmap},
    unistd::pipe,
};
use serde::{Deserialize, Serialize};

use crate::{
    cgroup,
    process::{self, Child},
};

/// The length of one wait where the load can choose it.
const EACH: Duration = Duration::from_millis(20);
/// Number of bytes that each wait for the disk writes or reads.
const BLOCK: usize = 4096;
/// Number of blocks of the file whose pages are touched.
const FILE_BLOCKS: usize = 256;

/// `podperf-load blocked`.
#[derive(Args, Clone, Debug)]
pub struct BlockedArgs {
    /// The kind of wait
    #[arg(long)]
    pub on: On,
    /// Cgroup to join
    #[arg(long)]
    pub cgroup: Option<PathBuf>,
    /// Length of the run, in milliseconds
    #[arg(long, default_value_t = 1000)]
    pub millis: u64,
    /// Directory of the file for `disk` and `page-fault`
    #[arg(long, default_value = ".")]
    pub directory: PathBuf,
}

/// The kind of wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum On {
    /// Data that must be on the disk.
    Disk,
    /// A page of a file that is not in memory.
    PageFault,
    /// A condition that does not come.
    Futex,
    /// A socket that gets no data.
    Network,
    /// The reading end of a pipe.
    Pipe,
    /// Files that do not become ready.
    Poll,
    /// Time.
    Sleep,
}

/// The process's measurements of itself.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct BlockedReport {
    /// Number of waits.
    pub waits: u32,
    /// Wall time from before each wait to after it, summed.
    pub waited_ns: u64,
}

/// Waits until the time is over.
pub fn run(args: &BlockedArgs) -> Result<BlockedReport> {
    let mut wait = waiter(args)?;
    if let Some(cgroup) = &args.cgroup {
        cgroup::join(cgroup)?;
    }
    let start = Instant::now();
    let mut report = BlockedReport { waits: 0, waited_ns: 0 };
    while start.elapsed() < Duration::from_millis(args.millis) {
        report.waits += 1;
        report.waited_ns += process::nanos(wait()?);
    }
    Ok(report)
}

/// Returns a closure that waits once and returns the length of the wait.
fn waiter(args: &BlockedArgs) -> Result<Box<dyn FnMut() -> Result<Duration>>> {
    Ok(match args.on {
        On::Sleep => timed(|| {
            thread::sleep(EACH);
            Ok(())
        }),
        On::Futex => {
            let (lock, never) = (Mutex::new(()), Condvar::new());
            timed(move || {
                let guard = lock.lock().unwrap_or_else(PoisonError::into_inner);
                drop(never.wait_timeout(guard, EACH));
                Ok(())
            })
        }
        On::Network => {
            let socket = UdpSocket::bind(("127.0.0.1", 0)).context("failed to make a socket")?;
            socket.set_read_timeout(Some(EACH))?;
            timed(move || {
                // The receive ends by its timeout.
                socket.recv(&mut [0]).ok();
                Ok(())
            })
        }
        On::Pipe => pipe_waiter()?,
        On::Poll => {
            let (reader, writer) = pipe()?;
            let timeout = PollTimeout::try_from(EACH).context("too long")?;
            timed(move || {
                let _open = &writer;
                poll(&mut [PollFd::new(reader.as_fd(), PollFlags::POLLIN)], timeout)?;
                Ok(())
            })
        }
        On::Disk => {
            let mut file = tempfile::tempfile_in(&args.directory).context("failed to make a file")?;
            timed(move || {
                file.write_all(&[0; BLOCK])?;
                Ok(file.sync_data()?)
            })
        }
        On::PageFault => page_waiter(args)?,
    })
}

fn timed(mut wait: impl FnMut() -> Result<()> + 'static) -> Box<dyn FnMut() -> Result<Duration>> {
    Box::new(move || {
        let start = Instant::now();
        wait()?;
        Ok(start.elapsed())
    })
}

/// Starts another process that writes at intervals. It stays in the cgroup that this process had at its start.
fn pipe_waiter() -> Result<Box<dyn FnMut() -> Result<Duration>>> {
    let (reader, writer) = pipe()?;
    let (mut reader, mut writer) = (File::from(reader), File::from(writer));
    // The writer ends with this process.
    Child::fork(|| {
        loop {
            thread::sleep(EACH);
            writer.write_all(b"x")?;
        }
    })?;
    Ok(timed(move || Ok(reader.read_exact(&mut [0])?)))
}

/// Reads mapped pages of a file after asking the kernel to drop them from memory, so that a fault reads them.
fn page_waiter(args: &BlockedArgs) -> Result<Box<dyn FnMut() -> Result<Duration>>> {
    let mut file = tempfile::tempfile_in(&args.directory).context("failed to make a file")?;
    file.write_all(&vec![1; FILE_BLOCKS * BLOCK])?;
    file.sync_all()?;
    let mut next = 0;
    Ok(Box::new(move || {
        let page = (next * 37) % FILE_BLOCKS;
        next += 1;
        let offset = i64::try_from(page * BLOCK)?;
        posix_fadvise(file.as_fd(), 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED)?;
        posix_fadvise(file.as_fd(), 0, 0, PosixFadviseAdvice::POSIX_FADV_RANDOM)?;
        let start = Instant::now();
        touch(&file, offset)?;
        Ok(start.elapsed())
    }))
}

/// Maps one page of a file and reads from it.
fn touch(file: &File, offset: i64) -> Result<()> {
    let length = NonZeroUsize::new(BLOCK).context("no block")?;
    // SAFETY: a new mapping of a file that no other code has; it is read within its length and then unmapped.
    unsafe {
        let page = mmap(None, length, ProtFlags::PROT_READ, MapFlags::MAP_SHARED, file, offset)?;
        black_box(page.cast::<u8>().read_volatile());
        munmap(page, BLOCK)?;
    }
    Ok(())
}
