//! The compared monitors: one row of [`MONITORS`] each.

use std::fs;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use nix::sys::signal::Signal;
use podperf_tests::{agent::Agent, bpf, process, programs::Loaded};

use super::agent::Configuration;
use super::setup::{Setup, object};

/// The events that every counting monitor counts.
pub const EVENTS: [&str; 6] =
    ["cpu-clock", "task-clock", "context-switches", "cpu-migrations", "page-faults", "minor-faults"];

pub(super) const EMPTY_PROGRAM: &str = include_str!("../programs/empty.bpf.c");
const BARE_PROGRAM: &str = include_str!("../programs/bare.bpf.c");

/// The longest time for a monitor to write its results and end.
const STOP_DEADLINE: Duration = Duration::from_secs(15);

/// One way to watch a machine.
#[derive(Debug)]
pub struct Monitor {
    /// The monitor's name in `--only`.
    pub key: &'static str,
    /// The monitor's name in the table.
    pub title: &'static str,
    parts: &'static [Part],
}

/// All monitors, in the order of the table.
pub static MONITORS: [Monitor; 16] = [
    Monitor { key: "none", title: "none (the noise)", parts: &[] },
    Monitor { key: "empty", title: "empty program", parts: &[Part::EmptyProgram] },
    Monitor { key: "bare", title: "bare time per cgroup", parts: &[Part::Bare] },
    Monitor { key: "perf-cgroup", title: "perf stat, cgroup events", parts: &[Part::PerfStat] },
    Monitor { key: "perf-bpf", title: "perf stat --bpf-counters", parts: &[Part::PerfStatBpf] },
    Monitor { key: "perf-off-cpu", title: "perf record --off-cpu", parts: &[Part::PerfOffCpu] },
    Monitor { key: "perf-both", title: "both perf BPF tools", parts: &[Part::PerfStatBpf, Part::PerfOffCpu] },
    Monitor { key: "offcputime", title: "offcputime (libbpf-tools)", parts: &[Part::OffCpuTime] },
    Monitor { key: "bpftrace", title: "bpftrace, both stacks", parts: &[Part::Bpftrace] },
    Monitor { key: "podperf-times", title: "podperf: facts, times", parts: &[Part::Agent(Configuration::Times)] },
    Monitor {
        key: "podperf-histograms",
        title: "podperf: facts, times, histograms",
        parts: &[Part::Agent(Configuration::Sensor("histograms"))],
    },
    Monitor {
        key: "podperf-syscalls",
        title: "podperf: facts, times, system calls",
        parts: &[Part::Agent(Configuration::Sensor("syscalls"))],
    },
    Monitor {
        key: "podperf-stacks",
        title: "podperf: facts, times, stacks",
        parts: &[Part::Agent(Configuration::Stacks)],
    },
    Monitor {
        key: "podperf-tables",
        title: "podperf: facts, times, tables",
        parts: &[Part::Agent(Configuration::Tables)],
    },
    Monitor { key: "podperf-default", title: "podperf: as shipped", parts: &[Part::Agent(Configuration::Default)] },
    Monitor {
        key: "podperf-counters",
        title: "podperf: 6 perf counters",
        parts: &[Part::Agent(Configuration::Counters)],
    },
];

/// A part of a monitor.
#[derive(Clone, Copy, Debug)]
enum Part {
    EmptyProgram,
    Bare,
    PerfStat,
    PerfStatBpf,
    PerfOffCpu,
    OffCpuTime,
    Bpftrace,
    Agent(Configuration),
}

impl Monitor {
    /// Returns whether the monitor is podperf.
    pub fn is_agent(&self) -> bool {
        self.parts.iter().any(|part| matches!(part, Part::Agent(_)))
    }

    /// Starts all parts and gives them time to settle.
    pub fn start(&self, setup: &Setup) -> Result<Running> {
        let mut running = Running::default();
        for part in self.parts {
            part.start(setup, &mut running)?;
        }
        thread::sleep(setup.settle);
        running.check()?;
        Ok(running)
    }
}

impl Part {
    fn start(self, setup: &Setup, running: &mut Running) -> Result<()> {
        match self {
            Self::EmptyProgram => running.attached.push(attach_to_switch(setup, "empty", EMPTY_PROGRAM)?),
            Self::Bare => running.attached.push(attach_to_switch(setup, "bare", BARE_PROGRAM)?),
            Self::PerfStat => running.processes.push(setup.perf_stat("perf-stat", &[])?),
            Self::PerfStatBpf => {
                running.processes.push(setup.perf_stat("perf-stat-bpf", &["--bpf-counters"])?);
            }
            Self::PerfOffCpu => running.processes.push(setup.perf_off_cpu()?),
            Self::OffCpuTime => running.processes.push(setup.off_cpu_time()?),
            Self::Bpftrace => running.processes.push(setup.bpftrace()?),
            Self::Agent(configuration) => {
                running.agents.push(configuration.start(&setup.agent)?);
            }
        }
        Ok(())
    }
}

fn attach_to_switch(setup: &Setup, name: &str, program: &str) -> Result<OwnedFd> {
    let loaded = Loaded::load(&object(setup.scratch.path(), name, program)?)?;
    bpf::attach_raw_tracepoint("sched_switch", loaded.program(&format!("podperf_{name}"))?)
}

/// A running monitor, which ends on drop.
#[derive(Debug, Default)]
pub struct Running {
    processes: Vec<Process>,
    agents: Vec<Agent>,
    attached: Vec<OwnedFd>,
}

impl Running {
    /// Returns an error if a part of the monitor has ended by itself.
    pub fn check(&mut self) -> Result<()> {
        self.processes.iter_mut().try_for_each(Process::check)?;
        self.agents.iter_mut().try_for_each(Agent::check)
    }
}

/// One process of a monitor, which is stopped on drop.
#[derive(Debug)]
pub struct Process {
    name: &'static str,
    child: Child,
    stop: Signal,
    log: PathBuf,
}

impl Process {
    /// Starts `command`. Its stderr is the file `log`, and it ends on the signal `stop`.
    pub fn spawn(name: &'static str, command: &mut Command, stop: Signal, log: PathBuf) -> Result<Self> {
        let program = command.get_program().to_owned();
        let child = process::bind_to_parent(command)
            .stdin(Stdio::null())
            .spawn()
            .with_context(|| format!("failed to start `{}`", program.display()))?;
        Ok(Self { name, child, stop, log })
    }

    /// Returns the process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns an error with the last line of stderr, if the process has ended.
    pub fn check(&mut self) -> Result<()> {
        if let Some(status) = self.child.try_wait()? {
            let words = self.words();
            let last = words.lines().rev().find(|line| !line.trim().is_empty());
            bail!("`{}` ended early ({status}): {}", self.name, last.unwrap_or("no words").trim());
        }
        Ok(())
    }

    /// Returns the text that the process has written to stderr.
    pub fn words(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        process::end(&mut self.child, self.stop, STOP_DEADLINE);
    }
}
