//! The tools, cgroups and scratch directory of the monitors.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::Signal;
use podperf_tests::{
    cgroup::TestCgroup,
    programs::{Programs, succeed},
};
use tempfile::TempDir;

use super::BenchArgs;
use super::monitor::{EVENTS, Process};

const OFF_CPU_SCRIPT: &str = include_str!("../programs/offcpu.bt");

/// The longest wait for a tool that loads BPF programs, which starts more slowly than other tools.
const LOAD_DEADLINE: Duration = Duration::from_secs(20);
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Some tools look for tracepoints in the old file system, which a container may lack. The script mounts that file
/// system in a mount namespace of its own, and so changes nothing on the machine.
const WITH_TRACEFS: &str = r#"
[ -d /sys/kernel/debug/tracing/events ] || mount -t debugfs none /sys/kernel/debug
[ -d /sys/kernel/debug/tracing/events ] || mount -t tracefs none /sys/kernel/debug/tracing
exec "$@"
"#;

/// The tools, cgroups and scratch directory of the monitors.
#[derive(Debug)]
pub struct Setup {
    /// The two cgroups of the ring.
    pub cgroups: Vec<TestCgroup>,
    /// The agent's program.
    pub agent: PathBuf,
    /// The scratch directory, which is removed on drop.
    pub scratch: TempDir,
    /// The wait after a start.
    pub settle: Duration,
    perf: PathBuf,
}

impl Setup {
    /// Makes the cgroups and finds the tools. A missing tool is an error only for the monitor that needs it.
    pub fn new(args: &BenchArgs, agent: PathBuf) -> Result<Self> {
        Ok(Self {
            cgroups: vec![TestCgroup::new("bench-a")?, TestCgroup::new("bench-b")?],
            agent,
            scratch: tempfile::tempdir().context("failed to make a scratch directory")?,
            perf: args.perf.clone(),
            settle: Duration::from_millis(args.settle_millis),
        })
    }

    /// Starts `perf stat` of the events in the two cgroups.
    pub fn perf_stat(&self, name: &'static str, extra: &[&str]) -> Result<Process> {
        let cgroups: Vec<&str> =
            self.cgroups.iter().map(|cgroup| cgroup.kernel_path().trim_start_matches('/')).collect();
        let mut command = Command::new(&self.perf);
        command.args(["stat", "-a", "-e", &EVENTS.join(","), "--for-each-cgroup"]);
        command.arg(cgroups.join(",")).args(extra).arg("-o").arg(self.scratch.path().join("stat"));
        self.spawn(name, &mut command, Signal::SIGINT)
    }

    /// Starts `perf record` of every wait on the machine.
    pub fn perf_off_cpu(&self) -> Result<Process> {
        let mut command = Command::new(&self.perf);
        command.args(["record", "-a", "-e", "dummy", "--off-cpu", "-o"]);
        command.arg(self.scratch.path().join("record"));
        self.spawn("perf-record", &mut command, Signal::SIGINT)
    }

    /// Starts `offcputime` of libbpf-tools: both stacks of every wait on the machine.
    pub fn off_cpu_time(&self) -> Result<Process> {
        let mut command = Command::new(tool("offcputime", "libbpf-tools")?);
        let mut process = self.spawn("offcputime", &mut command, Signal::SIGINT)?;
        wait_for_programs(&mut process)?;
        Ok(process)
    }

    /// Starts bpftrace with our own script: time off the CPU by both stacks and the command.
    pub fn bpftrace(&self) -> Result<Process> {
        let bpftrace = tool("bpftrace", "bpftrace")?;
        let script = self.scratch.path().join("offcpu.bt");
        fs::write(&script, OFF_CPU_SCRIPT)?;
        let mut process = self.spawn("bpftrace", with_tracefs(&bpftrace)?.arg(script), Signal::SIGINT)?;
        wait_for_programs(&mut process)?;
        Ok(process)
    }

    /// Starts one process of a monitor. Its stderr is a file in the scratch directory.
    pub fn spawn(&self, name: &'static str, command: &mut Command, stop: Signal) -> Result<Process> {
        let log = self.scratch.path().join(format!("{name}.log"));
        command.stdout(Stdio::null()).stderr(File::create(&log)?);
        Process::spawn(name, command, stop, log)
    }
}

/// Returns the command of a tool that looks for tracepoints.
pub(super) fn with_tracefs(program: &Path) -> Result<Command> {
    let mut command = Command::new(tool("unshare", "util-linux")?);
    // Each program in the chain executes the next one, so the process is the tool in the end.
    command.args(["--mount", "sh", "-c", WITH_TRACEFS, "sh"]).arg(program);
    Ok(command)
}

/// Returns the object of one of our programs, which is compiled on first use.
pub(super) fn object(scratch: &Path, name: &str, program: &str) -> Result<PathBuf> {
    let source = scratch.join(format!("{name}.bpf.c"));
    let object = scratch.join(format!("{name}.bpf.o"));
    if !object.exists() {
        fs::write(&source, program)?;
        let mut clang = Command::new("clang");
        // Debian keeps <asm/types.h> in the directory of the architecture.
        clang.arg(format!("-I/usr/include/{}-linux-gnu", std::env::consts::ARCH));
        clang.args(["-O2", "-g", "-Wall", "-target", "bpf", "-c"]);
        succeed(clang.arg(&source).arg("-o").arg(&object))?;
    }
    Ok(object)
}

/// Returns the path of a program: in `PATH`, or in Debian's directories for root.
pub(super) fn tool(name: &str, package: &str) -> Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let directories = std::env::split_paths(&path).chain(["/usr/sbin", "/sbin"].map(PathBuf::from));
    directories
        .map(|directory| directory.join(name))
        .find(|program| Path::is_file(program))
        .with_context(|| format!("no `{name}` (Debian package `{package}`)"))
}

/// Waits until a tool has loaded a program, because before that it does no work.
pub(super) fn wait_for_programs(process: &mut Process) -> Result<()> {
    let start = Instant::now();
    while Programs::of_process(process.id())?.is_empty() {
        process.check()?;
        ensure!(start.elapsed() < LOAD_DEADLINE, "no BPF program in {LOAD_DEADLINE:?}: {}", process.words().trim());
        thread::sleep(LOOK_EVERY);
    }
    Ok(())
}
