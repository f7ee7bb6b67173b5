//! The privileges that the agent drops before it reads anything: capabilities that its mode does not need, and system
//! calls that it never makes. The thread that reads other processes' files has a far shorter list of calls
//! (`syscalls`).
//!
//! Capabilities and filters belong to threads, and new threads inherit them. So [`enter`] comes before the first thread
//! is made, and returns an error later. Landlock is not used: a process in a Landlock domain may not inspect processes
//! outside of the domain, and profiles need the mappings and files of those processes.

mod capabilities;
mod syscalls;

use serde::{Deserialize, Serialize};
use std::fs;

use anyhow::Context;
use caps::Capability;

use crate::kernel::host::Host;
pub(crate) use syscalls::confine_reader;

/// `sandbox:`
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase", expecting = "a mapping of keys")]
#[expect(missing_docs, reason = "documented where users read it: config/podperf.yaml")]
pub struct Sandbox {
    pub capabilities: bool,
    pub syscalls: bool,
}

impl Default for Sandbox {
    fn default() -> Self {
        Self { capabilities: true, syscalls: true }
    }
}

/// Drops privileges that the agent does not need, and returns the remaining ones as text. Must be called while the
/// process has one thread. The process can run programs afterwards only if `programs` is true.
///
/// # Errors
///
/// When the process has more than one thread, or the kernel refuses.
pub fn enter(config: &Sandbox, profiles: bool, host: &Host, programs: bool) -> anyhow::Result<String> {
    let threads = fs::read_dir("/proc/self/task").map(Iterator::count).unwrap_or(1);
    anyhow::ensure!(threads == 1, "failed to drop privileges: there are {threads} threads already");
    let mut says = Vec::new();
    if config.capabilities {
        let left = capabilities::keep(profiles, host.perf_event_paranoid);
        let left = left.context("failed to drop capabilities (set `sandbox.capabilities: false`)")?;
        let mut names: Vec<_> = left.into_iter().map(short).collect();
        names.sort();
        says.push(format!("capabilities {}", names.join(", ")));
    } else {
        says.push("all capabilities kept: `sandbox.capabilities` is false".into());
    }
    if config.syscalls {
        syscalls::confine_process(programs)
            .context("failed to give up system calls (set `sandbox.syscalls: false`)")?;
        says.push("no system calls that it never makes".into());
    } else {
        says.push("all system calls kept: `sandbox.syscalls` is false".into());
    }
    Ok(says.join("; "))
}

/// Returns the name as charts write it.
fn short(capability: Capability) -> String {
    capability.to_string().trim_start_matches("CAP_").to_owned()
}
