//! The BPF programs of the machine, as bpftool lists them, or of one process. This module also loads the tests' own
//! programs, and reads the kernel's statistics of the cost of each run.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use serde::Deserialize;

use crate::bpf;

/// All loaded programs at one moment, with the kernel's run statistics, which the kernel counts only while they are
/// enabled. The statistics cost time themselves (the empty program takes some 55 ns with them), so they are off while
/// pairs are measured.
#[derive(Debug)]
pub struct Programs {
    by_id: HashMap<u32, Program>,
}

/// One loaded program.
#[derive(Debug)]
struct Program {
    /// The name, which the kernel cuts at 15 bytes; empty where only the runs were read.
    name: String,
    runs: Runs,
}

/// The kernel's measurements of a program.
#[derive(Clone, Copy, Debug, Default)]
pub struct Runs {
    /// Time in the program, in nanoseconds.
    pub time_ns: u64,
    /// Number of runs.
    pub count: u64,
}

/// One program in `bpftool prog show -j`.
#[derive(Deserialize)]
struct Shown {
    id: u32,
    #[serde(default)]
    name: String,
    #[serde(default)]
    run_time_ns: u64,
    #[serde(default)]
    run_cnt: u64,
}

impl Programs {
    /// Reads the programs from bpftool.
    pub fn list() -> Result<Self> {
        let json = succeed(Command::new("bpftool").args(["prog", "show", "-j"]))?;
        let shown: Vec<Shown> = serde_json::from_slice(&json).context("failed to understand bpftool")?;
        let by_id = shown.into_iter().map(|one| {
            let runs = Runs { time_ns: one.run_time_ns, count: one.run_cnt };
            (one.id, Program { name: one.name, runs })
        });
        Ok(Self { by_id: by_id.collect() })
    }

    /// Reads the programs that a process has open, from `/proc/PID/fdinfo`.
    pub fn of_process(pid: u32) -> Result<Self> {
        let mut by_id = HashMap::new();
        let directory = format!("/proc/{pid}/fdinfo");
        for entry in fs::read_dir(&directory).with_context(|| format!("failed to read `{directory}`"))? {
            // The descriptor was closed in the meantime.
            let Ok(text) = fs::read_to_string(entry?.path()) else { continue };
            let number = |key: &str| -> Option<u64> {
                text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?.trim().parse().ok()
            };
            // A link's file also has a program's id, but not its runs.
            if let (Some(id), Some(time_ns), Some(count)) =
                (number("prog_id"), number("run_time_ns"), number("run_cnt"))
            {
                by_id.insert(u32::try_from(id)?, Program { name: String::new(), runs: Runs { time_ns, count } });
            }
        }
        Ok(Self { by_id })
    }

    /// Returns whether there are no programs.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    /// Returns the sum of the runs of all programs since `before`.
    #[must_use]
    pub fn runs_since(&self, before: &Self) -> Runs {
        let mut sum = Runs::default();
        for runs in self.each_since(before) {
            sum.time_ns += runs.time_ns;
            sum.count += runs.count;
        }
        sum
    }

    /// Returns the programs that did not exist in `earlier`.
    #[must_use]
    pub fn new_since(mut self, earlier: &Self) -> Self {
        self.by_id.retain(|id, _| !earlier.by_id.contains_key(id));
        self
    }

    /// Returns the programs whose names contain `part`.
    #[must_use]
    pub fn named(mut self, part: &str) -> Self {
        self.by_id.retain(|_, program| program.name.contains(part));
        self
    }

    /// Returns the runs of the program that ran most often.
    #[must_use]
    pub fn busiest(&self) -> Option<Runs> {
        self.by_id.values().map(|program| program.runs).max_by_key(|runs| runs.count)
    }

    /// Returns the mean ns per run since `before`, summed over the programs that ran about as often as the ring
    /// switched; `None` if no program did.
    #[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
    pub fn ns_per_switch(&self, before: &Self, switches: u64) -> Option<f64> {
        let mut sum = None;
        for runs in self.each_since(before).filter(|runs| runs.count > switches / 2) {
            sum = Some(sum.unwrap_or(0.0) + runs.time_ns as f64 / runs.count as f64);
        }
        sum
    }

    /// Returns the runs of each program since `before`.
    fn each_since(&self, before: &Self) -> impl Iterator<Item = Runs> {
        self.by_id.iter().map(|(id, program)| {
            let old = before.by_id.get(id).map_or_else(Runs::default, |program| program.runs);
            Runs {
                time_ns: program.runs.time_ns.saturating_sub(old.time_ns),
                count: program.runs.count.saturating_sub(old.count),
            }
        })
    }
}

/// The programs of an object. They are loaded for as long as this lives, or as they are attached.
#[derive(Debug)]
pub struct Loaded(HashMap<String, OwnedFd>);

impl Loaded {
    /// Loads the programs.
    ///
    /// bpftool passes programs on by pinning them, so this mounts a BPF file system for a moment. The machine need not
    /// have one.
    pub fn load(object: &Path) -> Result<Self> {
        let directory = tempfile::tempdir()?;
        mount(Some("bpf"), directory.path(), Some("bpf"), MsFlags::empty(), None::<&str>)
            .context("failed to mount a BPF file system (needs CAP_SYS_ADMIN)")?;
        let pins = directory.path().join("programs");
        let mut bpftool = Command::new("bpftool");
        let programs = succeed(bpftool.args(["prog", "loadall"]).arg(object).arg(&pins)).and_then(|_| opened(&pins));
        umount2(directory.path(), MntFlags::MNT_DETACH).context("failed to unmount our BPF file system")?;
        programs.map(Self)
    }

    /// Returns the program of this name.
    pub fn program(&self, name: &str) -> Result<&OwnedFd> {
        self.0.get(name).with_context(|| format!("the object has no program `{name}`"))
    }
}

/// Opens the programs that are pinned in a directory.
fn opened(pins: &Path) -> Result<HashMap<String, OwnedFd>> {
    let pinned = |entry: io::Result<fs::DirEntry>| -> Result<(String, OwnedFd)> {
        let entry = entry?;
        Ok((entry.file_name().to_string_lossy().into_owned(), bpf::pinned(&entry.path())?))
    };
    fs::read_dir(pins)?.map(pinned).collect()
}

/// Runs a command to its end, and returns its stdout.
pub fn succeed(command: &mut Command) -> Result<Vec<u8>> {
    let name = command.get_program().to_owned();
    let output =
        command.stdin(Stdio::null()).output().with_context(|| format!("failed to run `{}`", name.display()))?;
    let words = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "`{}` failed: {}", name.display(), words.trim());
    Ok(output.stdout)
}
