//! The BPF programs of the machine, as bpftool sees them, or of one process:
//! loading those of ours, and the kernel's own statistics of what each run costs.

use std::collections::HashMap;
use std::fs;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use serde::Deserialize;

use crate::bpf;

/// All loaded programs at one moment, with the kernel's run statistics, which
/// it keeps only while they are on. They cost time themselves (the empty
/// program reads some 55 ns), so they are off while the pairs are measured.
#[derive(Debug)]
pub struct Programs {
    by_id: HashMap<u32, Runs>,
}

/// What the kernel has measured of a program.
#[derive(Clone, Copy, Debug, Default)]
pub struct Runs {
    /// Time in it.
    pub time_ns: u64,
    /// How often it ran.
    pub count: u64,
}

/// One program in `bpftool prog show -j`.
#[derive(Deserialize)]
struct Shown {
    id: u32,
    #[serde(default)]
    run_time_ns: u64,
    #[serde(default)]
    run_cnt: u64,
}

impl Programs {
    /// Asks bpftool.
    pub fn list() -> Result<Self> {
        let json = succeed(Command::new("bpftool").args(["prog", "show", "-j"]))?;
        let shown: Vec<Shown> = serde_json::from_slice(&json).context("failed to understand bpftool")?;
        let by_id =
            shown.into_iter().map(|one| (one.id, Runs { time_ns: one.run_time_ns, count: one.run_cnt })).collect();
        Ok(Self { by_id })
    }

    /// Those that a process has open, by `/proc/PID/fdinfo`.
    pub fn of_process(pid: u32) -> Result<Self> {
        let mut by_id = HashMap::new();
        let directory = format!("/proc/{pid}/fdinfo");
        for entry in fs::read_dir(&directory).with_context(|| format!("failed to read `{directory}`"))? {
            // Closed in the meantime.
            let Ok(text) = fs::read_to_string(entry?.path()) else { continue };
            let number = |key: &str| -> Option<u64> {
                text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?.trim().parse().ok()
            };
            // Links name their program, too, but not its runs.
            if let (Some(id), Some(time_ns), Some(count)) =
                (number("prog_id"), number("run_time_ns"), number("run_cnt"))
            {
                by_id.insert(u32::try_from(id)?, Runs { time_ns, count });
            }
        }
        Ok(Self { by_id })
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    /// All runs of all programs since `before`.
    #[must_use]
    pub fn runs_since(&self, before: &Self) -> Runs {
        let mut sum = Runs::default();
        for (id, runs) in &self.by_id {
            let old = before.by_id.get(id).copied().unwrap_or_default();
            sum.time_ns += runs.time_ns.saturating_sub(old.time_ns);
            sum.count += runs.count.saturating_sub(old.count);
        }
        sum
    }

    /// Those that were not there `earlier`.
    #[must_use]
    pub fn new_since(mut self, earlier: &Self) -> Self {
        self.by_id.retain(|id, _| !earlier.by_id.contains_key(id));
        self
    }

    /// The program that ran most.
    #[must_use]
    pub fn busiest(&self) -> Option<Runs> {
        self.by_id.values().copied().max_by_key(|runs| runs.count)
    }

    /// Mean ns per run since `before`, summed over the programs that ran about
    /// as often as the ring switched; none if no program did.
    #[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
    pub fn ns_per_switch(&self, before: &Self, switches: u64) -> Option<f64> {
        let mut sum = None;
        for (id, runs) in &self.by_id {
            let old = before.by_id.get(id).copied().unwrap_or_default();
            let count = runs.count.saturating_sub(old.count);
            if count > switches / 2 {
                let mean = runs.time_ns.saturating_sub(old.time_ns) as f64 / count as f64;
                sum = Some(sum.unwrap_or(0.0) + mean);
            }
        }
        sum
    }
}

/// Loads the one program of an object and attaches it to a raw tracepoint for
/// as long as the result is open.
///
/// bpftool hands a program over by pinning it, so there is a BPF file system
/// of our own for a moment; the machine need not have one.
pub fn load_and_attach(object: &Path, tracepoint: &str) -> Result<OwnedFd> {
    let directory = tempfile::tempdir()?;
    mount(Some("bpf"), directory.path(), Some("bpf"), MsFlags::empty(), None::<&str>)
        .context("failed to mount a BPF file system (needs CAP_SYS_ADMIN)")?;
    let pin = directory.path().join("program");
    let mut bpftool = Command::new("bpftool");
    let program = succeed(bpftool.args(["prog", "load"]).arg(object).arg(&pin)).and_then(|_| bpf::pinned(&pin));
    umount2(directory.path(), MntFlags::MNT_DETACH).context("failed to unmount our BPF file system")?;
    bpf::attach_raw_tracepoint(tracepoint, &program?)
}

/// Runs a command to its end and returns what it wrote.
pub fn succeed(command: &mut Command) -> Result<Vec<u8>> {
    let name = command.get_program().to_owned();
    let output =
        command.stdin(Stdio::null()).output().with_context(|| format!("failed to run `{}`", name.display()))?;
    let words = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "`{}` failed: {}", name.display(), words.trim());
    Ok(output.stdout)
}
