//! What the monitors are started with: tools, cgroups and a scratch directory.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result};
use nix::sys::signal::Signal;
use tempfile::TempDir;

use super::BenchArgs;
use super::monitor::{EVENTS, Process};
use super::programs::succeed;
use crate::cgroup::TestCgroup;

const EMPTY_PROGRAM: &str = include_str!("../../bench/empty.bpf.c");

/// What the monitors need to start: tools, cgroups and a scratch directory.
#[derive(Debug)]
pub struct Setup {
    /// The two cgroups of the ring.
    pub cgroups: Vec<TestCgroup>,
    /// The agent's program.
    pub agent: PathBuf,
    /// Gone with this value.
    pub scratch: TempDir,
    /// How long to wait after a start.
    pub settle: Duration,
    perf: PathBuf,
}

impl Setup {
    /// Makes the cgroups and finds the tools. A missing tool is an error only
    /// of the monitor that wants it.
    pub fn new(args: &BenchArgs, agent: PathBuf) -> Result<Self> {
        Ok(Self {
            cgroups: vec![TestCgroup::new("bench-a")?, TestCgroup::new("bench-b")?],
            agent,
            scratch: tempfile::tempdir().context("failed to make a scratch directory")?,
            perf: args.perf.clone(),
            settle: Duration::from_millis(args.settle_millis),
        })
    }

    /// `perf stat` of the events in the two cgroups.
    pub fn perf_stat(&self, name: &'static str, extra: &[&str]) -> Result<Process> {
        let cgroups: Vec<&str> =
            self.cgroups.iter().map(|cgroup| cgroup.kernel_path().trim_start_matches('/')).collect();
        let mut command = Command::new(&self.perf);
        command.args(["stat", "-a", "-e", &EVENTS.join(","), "--for-each-cgroup"]);
        command.arg(cgroups.join(",")).args(extra).arg("-o").arg(self.scratch.path().join("stat"));
        self.spawn(name, &mut command, Signal::SIGINT)
    }

    /// `perf record` of every wait on the machine.
    pub fn perf_off_cpu(&self) -> Result<Process> {
        let mut command = Command::new(&self.perf);
        command.args(["record", "-a", "-e", "dummy", "--off-cpu", "-o"]);
        command.arg(self.scratch.path().join("record"));
        self.spawn("perf-record", &mut command, Signal::SIGINT)
    }

    /// Starts one process of a monitor, its stderr in the scratch directory.
    pub fn spawn(&self, name: &'static str, command: &mut Command, stop: Signal) -> Result<Process> {
        let log = self.scratch.path().join(format!("{name}.log"));
        command.stdout(Stdio::null()).stderr(File::create(&log)?);
        Process::spawn(name, command, stop, log)
    }

    /// The object with the empty program, compiled on first use.
    pub fn empty_object(&self) -> Result<PathBuf> {
        let source = self.scratch.path().join("empty.bpf.c");
        let object = self.scratch.path().join("empty.bpf.o");
        if !object.exists() {
            fs::write(&source, EMPTY_PROGRAM)?;
            let mut clang = Command::new("clang");
            // Debian keeps <asm/types.h> in the directory of the architecture.
            clang.arg(format!("-I/usr/include/{}-linux-gnu", std::env::consts::ARCH));
            clang.args(["-O2", "-g", "-Wall", "-target", "bpf", "-c"]);
            succeed(clang.arg(&source).arg("-o").arg(&object))?;
        }
        Ok(object)
    }
}
