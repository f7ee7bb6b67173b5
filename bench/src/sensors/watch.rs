//! The ways to watch events: podperf, programs of our own, and strace.

use std::{
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Result, ensure};
use podperf_tests::{
    agent::Agent,
    bpf::{self, Probed},
    cluster,
    load::{
        self,
        repeat::{FUNCTION, RepeatReport},
    },
    programs::Loaded,
    running, suite,
};

use crate::{
    agent::{Configuration, without_stacks},
    monitor::EMPTY_PROGRAM,
    setup::{object, tool},
};

/// The longest time until podperf has found a function: it looks each 10 s.
const FOUND: Duration = Duration::from_secs(60);
/// The function of the kernel that the load calls.
const GETPPID: &str = if cfg!(target_arch = "aarch64") { "__arm64_sys_getppid" } else { "__x64_sys_getppid" };
/// The least with user frames, without which the agent reads no files of programs.
const STACKS: &str = "stacks: {unwind: frame-pointers, wakerAfter: 0s, onCpuHertz: 0}\ncounters: {groups: []}\n";

/// The source of our own programs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Source {
    name: &'static str,
    text: &'static str,
}

pub(super) const EMPTY: Source = Source { name: "empty", text: EMPTY_PROGRAM };
pub(super) const KWORK: Source = Source { name: "kwork", text: include_str!("../../programs/kwork.bpf.c") };
pub(super) const SUMMARY: Source = Source { name: "summary", text: include_str!("../../programs/summary.bpf.c") };
pub(super) const LATENCY: Source = Source { name: "latency", text: include_str!("../../programs/latency.bpf.c") };

/// A row of a table.
#[derive(Clone, Copy, Debug)]
pub(super) struct Watcher {
    pub(super) title: &'static str,
    pub(super) way: Way,
    /// Runs of its programs for each event.
    pub(super) runs: f64,
}

/// A way to watch events.
#[derive(Clone, Copy, Debug)]
pub(super) enum Way {
    /// Our own programs, each with a raw tracepoint.
    Tracepoints(Source, &'static [(&'static str, &'static str)]),
    /// Our own programs at the begin and at the return of the function.
    Probes(Source, [&'static str; 2], Function),
    /// podperf with the sensor of this name.
    Sensor(&'static str),
    /// podperf with the sensor `functions`.
    Functions(Function),
    /// strace, which runs the load itself.
    Strace,
}

/// A function that is measured.
#[derive(Clone, Copy, Debug)]
pub(super) enum Function {
    /// [`FUNCTION`] of the load.
    Program,
    /// [`GETPPID`].
    Kernel,
}

impl Function {
    /// Returns the configuration that measures this function and little else.
    pub(super) fn yaml(self, binary: &Path) -> String {
        let others = match self {
            Self::Program => STACKS.to_owned(),
            Self::Kernel => without_stacks(true, ""),
        };
        format!("{others}sensors: {{functions: {{enabled: true}}}}\nfunctions: [{}]\n", self.keys(binary))
    }

    /// Returns the item of the key `functions`.
    pub(super) fn keys(self, binary: &Path) -> String {
        match self {
            Self::Program => format!("{{name: {FUNCTION}, binary: {}, symbol: {FUNCTION}}}", binary.display()),
            Self::Kernel => format!("{{name: {GETPPID}, kernel: {GETPPID}}}"),
        }
    }

    /// Starts an agent, and waits until it measures the function.
    fn start(self, agent: &Path) -> Result<Agent> {
        let agent = Agent::start_to_measure(agent, &self.yaml(&load::binary()?))?;
        suite::within(FOUND, "podperf measures the function", || {
            let (_, detail) = cluster::part(&agent, "functions")?;
            ensure!(!detail.contains("is not measured"), "{detail}");
            Ok((detail.contains("in 1 file") || detail.contains("in the kernel")).then_some(()))
        })?;
        Ok(agent)
    }

    /// Attaches programs to the begin and to the return of the function.
    fn attach(self, loaded: &Loaded, [begin, end]: [&str; 2]) -> Result<Vec<OwnedFd>> {
        let binary = load::binary()?;
        let function = match self {
            Self::Program => {
                let report: RepeatReport = running::run("repeat --what function --times 1")?;
                Probed::Program(&binary, report.place)
            }
            Self::Kernel => Probed::Kernel(GETPPID),
        };
        let attach = |name, at_return| bpf::attach_probe(function, at_return, loaded.program(name)?);
        Ok(vec![attach(end, true)?, attach(begin, false)?])
    }
}

impl Way {
    /// Returns a part of the names that the watcher's programs have, among all that it loads; `None` if there are none.
    pub(super) const fn programs(self) -> Option<&'static str> {
        match self {
            Self::Tracepoints(..) | Self::Probes(..) => Some(""),
            Self::Sensor(name) => Some(name),
            Self::Functions(_) => Some("functions"),
            Self::Strace => None,
        }
    }

    /// Starts the watcher.
    pub(super) fn start(self, agent: &Path, scratch: &Path) -> Result<Started> {
        let load = |Source { name, text }| Loaded::load(&object(scratch, name, text)?);
        let mut started = Started::default();
        match self {
            Self::Tracepoints(source, places) => {
                let loaded = load(source)?;
                for (program, tracepoint) in places {
                    started.attached.push(bpf::attach_raw_tracepoint(tracepoint, loaded.program(program)?)?);
                }
            }
            Self::Probes(source, programs, function) => {
                started.attached = function.attach(&load(source)?, programs)?;
            }
            Self::Sensor(name) => started.agent = Some(Configuration::Sensor(name).start(agent)?),
            Self::Functions(function) => started.agent = Some(function.start(agent)?),
            Self::Strace => started.strace = Some(tool("strace", "strace")?),
        }
        Ok(started)
    }
}

/// A running watcher, which ends on drop.
#[derive(Debug, Default)]
pub(super) struct Started {
    agent: Option<Agent>,
    attached: Vec<OwnedFd>,
    strace: Option<PathBuf>,
}

impl Started {
    /// Returns an error if the watcher has ended by itself.
    pub(super) fn check(&mut self) -> Result<()> {
        self.agent.iter_mut().try_for_each(Agent::check)
    }

    /// Returns the program that runs the load.
    pub(super) fn strace(&self) -> Option<&Path> {
        self.strace.as_deref()
    }
}

#[cfg(test)]
mod tests {
    use podperf::config::{Config, Settings};

    use super::*;

    #[test]
    fn the_agent_takes_both_functions() {
        for function in [Function::Program, Function::Kernel] {
            let config = Config::parse(&function.yaml(Path::new("/bin/true"))).unwrap();
            assert!(Settings::try_from(config).is_ok(), "{function:?}");
        }
    }
}
