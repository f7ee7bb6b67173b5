//! A process with a known number of page faults and of voluntary switches.

#![expect(unsafe_code, reason = "anonymous memory without huge pages needs mmap and madvise")]

use std::path::PathBuf;
use std::ptr;
use std::thread;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::Args;
use serde::{Deserialize, Serialize};

use crate::cgroup;
use crate::process::Usage;

/// `podperf-load faults`.
#[derive(Args, Clone, Debug)]
pub struct FaultsArgs {
    /// Cgroup to join
    #[arg(long)]
    pub cgroup: Option<PathBuf>,
    /// New anonymous pages to touch: one minor fault each
    #[arg(long, default_value_t = 1000)]
    pub pages: usize,
    /// Sleeps of 50 us: one voluntary switch each
    #[arg(long, default_value_t = 1000)]
    pub switches: u32,
    /// Say `ready` on stderr before the work and `done` after it, and wait for a line on stdin each time: while it
    /// blocks, its counts stand still and can be read from outside
    #[arg(long)]
    pub wait: bool,
    /// Do the work again and again as long as this file exists
    #[arg(long)]
    pub while_exists: Option<PathBuf>,
}

/// The counts charged to the process. Work after the report (its printing, the exit) is in neither part.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct FaultsReport {
    /// The counts from the fork to the join.
    pub outside: Usage,
    /// The counts from the join to the report: the requested pages and switches, and one or two of the join itself.
    pub inside: Usage,
}

/// Touches the pages and sleeps.
pub fn run(args: &FaultsArgs) -> Result<FaultsReport> {
    if args.wait {
        super::pause("ready")?;
    }
    let outside = Usage::of_self()?;
    if let Some(cgroup) = &args.cgroup {
        cgroup::join(cgroup)?;
    }
    loop {
        touch(args.pages)?;
        for _ in 0..args.switches {
            thread::sleep(Duration::from_micros(50));
        }
        if args.while_exists.as_ref().is_none_or(|file| !file.exists()) {
            break;
        }
    }
    let inside = Usage::of_self()?.since(outside);
    if args.wait {
        super::pause("done")?;
    }
    Ok(FaultsReport { outside, inside })
}

/// Writes to `pages` new pages, one fault each, and unmaps them.
fn touch(pages: usize) -> Result<()> {
    if pages == 0 {
        return Ok(());
    }
    // SAFETY: a new anonymous mapping that no other code has; each write below is inside it, and it is unmapped once,
    // at the end.
    unsafe {
        let page = usize::try_from(libc::sysconf(libc::_SC_PAGESIZE))?;
        let length = pages * page;
        let memory = libc::mmap(
            ptr::null_mut(),
            length,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        );
        if memory == libc::MAP_FAILED {
            bail!("failed to map {pages} pages: {}", std::io::Error::last_os_error());
        }
        // One huge page would take one fault for hundreds of pages. A kernel without huge pages rejects the advice and
        // does not need it.
        libc::madvise(memory, length, libc::MADV_NOHUGEPAGE);
        for number in 0..pages {
            memory.cast::<u8>().add(number * page).write_volatile(1);
        }
        libc::munmap(memory, length);
    }
    Ok(())
}
