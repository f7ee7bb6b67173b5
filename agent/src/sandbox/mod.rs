//! The privileges that the agent drops before it reads anything: capabilities that its mode does not need, and system
//! calls that it never makes. The thread that reads other processes' files has a far shorter list of calls
//! (`syscalls`).
//!
//! Capabilities and filters belong to threads, and new threads inherit them. So [`enter`] comes before the first thread
//! is made, and returns an error later. Landlock is not used: a process in a Landlock domain may not inspect processes
//! outside of the domain, and profiles need the mappings and files of those processes.

mod capabilities;
mod syscalls;

use std::fs;

use anyhow::Context;
use caps::Capability;

use crate::{kernel::host::Host, model::mode::Mode};
pub(crate) use syscalls::confine_reader;

/// Privileges that only some configurations need.
#[derive(Clone, Copy, Debug)]
pub struct Extras {
    /// The process may run programs.
    pub programs: bool,
    /// The process keeps `CAP_SYS_ADMIN` if it has it, for probes in programs.
    pub probes: bool,
}

/// Drops privileges that the agent does not need, and returns the remaining ones as text. Must be called while the
/// process has one thread. Drops nothing if `is_on` is false.
///
/// # Errors
///
/// When the process has more than one thread, or the kernel refuses.
pub fn enter(is_on: bool, mode: Mode, host: &Host, extras: Extras) -> anyhow::Result<String> {
    let threads = fs::read_dir("/proc/self/task").map(Iterator::count).unwrap_or(1);
    anyhow::ensure!(threads == 1, "failed to drop privileges: there are {threads} threads already");
    if !is_on {
        return Ok("all privileges kept: `--testing sandbox=false`".into());
    }
    let left = capabilities::keep(mode, host.perf_event_paranoid, extras.probes);
    let left =
        left.context("failed to drop capabilities (use a seccomp profile that allows capset(2) and prctl(2))")?;
    let mut names: Vec<_> = left.into_iter().map(short).collect();
    names.sort();
    syscalls::confine_process(extras.programs).context(
        "failed to give up system calls (use a kernel with CONFIG_SECCOMP_FILTER=y, and a seccomp profile that allows \
         seccomp(2) and prctl(2))",
    )?;
    Ok(format!("capabilities {}; no system calls that it never makes", names.join(", ")))
}

/// Returns the name as charts write it.
fn short(capability: Capability) -> String {
    capability.to_string().trim_start_matches("CAP_").to_owned()
}
