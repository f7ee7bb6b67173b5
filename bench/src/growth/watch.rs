//! The watchers: podperf with facts or events, and perf's BPF counters with the same events.

use std::{
    fs::{self, File, OpenOptions},
    io::{ErrorKind, Read as _, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use nix::{
    sys::{signal::Signal, stat::Mode},
    unistd::mkfifo,
};
use podperf_tests::agent::Agent;

use crate::{agent::without_stacks, monitor::Process};

/// The events. A watcher takes the first ones of this list; the first six are also the events of the other parts.
const EVENTS: [&str; 12] = [
    "cpu-clock",
    "task-clock",
    "context-switches",
    "cpu-migrations",
    "page-faults",
    "minor-faults",
    "cgroup-switches",
    "emulation-faults",
    "major-faults:u",
    "major-faults:k",
    "alignment-faults:u",
    "alignment-faults:k",
];

/// The longest wait for a start. With a thousand cgroups, perf needs seconds.
const START_DEADLINE: Duration = Duration::from_secs(30);

/// Room for the largest ring and the machine's own cgroups.
pub(crate) const ROOM: &str = "cgroups: {max: 8192}\n";

/// One way to watch the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Watcher {
    /// No watcher: the difference between two stretches of the same ring.
    Nobody,
    /// podperf, facts and times from task fields.
    Facts,
    /// podperf with this number of events as perf counters and nothing else.
    Events(usize),
    /// podperf with facts and times and this number of events.
    Both(usize),
    /// `perf stat --bpf-counters --for-each-cgroup` of this number of events.
    Perf(usize),
}

/// Returns all watchers for these numbers of events, in the order of the table.
pub fn all(event_counts: &[usize]) -> Vec<Watcher> {
    let counts = || event_counts.iter().copied().filter(|count| (1..=EVENTS.len()).contains(count));
    let mut watchers = vec![Watcher::Nobody, Watcher::Facts];
    watchers.extend(counts().map(Watcher::Events));
    watchers.extend(counts().filter(|count| *count == SIX).map(Watcher::Both));
    watchers.extend(counts().map(Watcher::Perf));
    watchers
}

/// The number of events in the goals.
pub const SIX: usize = 6;

/// The programs that watchers start, and a directory for them.
#[derive(Debug)]
pub struct Tools<'a> {
    /// perf with BPF skeletons.
    pub perf: &'a Path,
    /// The agent's program.
    pub agent: &'a Path,
    /// The directory for the files of perf.
    pub scratch: &'a Path,
}

impl Watcher {
    /// Returns whether the watcher is perf.
    pub const fn is_perf(self) -> bool {
        matches!(self, Self::Perf(_))
    }

    /// Returns the number of events that the watcher reads as perf counters.
    pub const fn events(self) -> usize {
        match self {
            Self::Nobody | Self::Facts => 0,
            Self::Events(count) | Self::Both(count) | Self::Perf(count) => count,
        }
    }

    /// Returns the watcher's name in the table.
    pub fn title(self) -> String {
        let events = |count: usize| if count == 1 { "1 event".to_owned() } else { format!("{count} events") };
        match self {
            Self::Nobody => "nobody (the noise)".to_owned(),
            Self::Facts => "podperf: facts and times".to_owned(),
            Self::Events(count) => format!("podperf: {}", events(count)),
            Self::Both(count) => format!("podperf: facts, times and {}", events(count)),
            Self::Perf(count) => format!("perf's BPF counters: {}", events(count)),
        }
    }

    /// Starts the watcher on the cgroups inside `parent`, a path of the kernel, and waits until the watcher counts.
    pub fn start(self, tools: &Tools<'_>, parent: &str) -> Result<Started> {
        let groups = |count: usize| format!("[{}]", EVENTS[..count].join(", "));
        let agent = |facts: bool, groups: &str| {
            Ok(Started::Agent(Agent::start_to_measure(tools.agent, &(without_stacks(facts, groups) + ROOM))?))
        };
        match self {
            Self::Nobody => Ok(Started::Nobody),
            Self::Facts => agent(true, ""),
            Self::Events(count) => agent(false, &groups(count)),
            Self::Both(count) => agent(true, &groups(count)),
            Self::Perf(count) => Ok(Started::Perf(start_perf(tools, parent, &EVENTS[..count].join(","))?)),
        }
    }
}

/// Starts perf, and waits until it counts: from then on it answers a `ping`.
fn start_perf(tools: &Tools<'_>, parent: &str, events: &str) -> Result<Process> {
    let pipe = |name: &str| -> Result<(PathBuf, File)> {
        let path = tools.scratch.join(name);
        let _ = fs::remove_file(&path);
        mkfifo(&path, Mode::S_IRUSR | Mode::S_IWUSR).context("failed to make a pipe for perf")?;
        // Opens the pipe for both directions, so that the open does not wait for the other end.
        let file = OpenOptions::new().read(true).write(true).custom_flags(libc::O_NONBLOCK).open(&path)?;
        Ok((path, file))
    };
    let ((control, mut ask), (answer, mut hear)) = (pipe("control")?, pipe("answer")?);
    let log = tools.scratch.join("perf.log");
    let mut command = Command::new(tools.perf);
    command.args(["stat", "-a", "--bpf-counters", "-e", events]);
    // This is a pattern: the names of thousands of cgroups would not fit into one argument.
    command.arg("--for-each-cgroup").arg(format!("^{}/", parent.trim_start_matches('/')));
    command.arg("--control").arg(format!("fifo:{},{}", control.display(), answer.display()));
    command.arg("-o").arg(tools.scratch.join("perf.stat"));
    command.stdout(Stdio::null()).stderr(File::create(&log)?);
    ask.write_all(b"ping\n")?;
    let mut perf = Process::spawn("perf-stat", &mut command, Signal::SIGINT, log)?;
    let start = Instant::now();
    loop {
        match hear.read(&mut [0; 8]) {
            Ok(_) => return Ok(perf),
            Err(error) if error.kind() != ErrorKind::WouldBlock => return Err(error.into()),
            Err(_) => {}
        }
        perf.check()?;
        ensure!(start.elapsed() < START_DEADLINE, "perf did not start in {START_DEADLINE:?}");
        thread::sleep(Duration::from_millis(20));
    }
}

/// A running watcher, which ends on drop.
#[derive(Debug)]
pub enum Started {
    /// No watcher.
    Nobody,
    /// podperf.
    Agent(Agent),
    /// perf.
    Perf(Process),
}

impl Started {
    /// Returns an error if the watcher has ended by itself.
    pub fn check(&mut self) -> Result<()> {
        match self {
            Self::Nobody => Ok(()),
            Self::Agent(agent) => agent.check(),
            Self::Perf(perf) => perf.check(),
        }
    }

    /// Returns the number of files that the watcher's process has open.
    pub fn fds(&self) -> Option<usize> {
        let pid = match self {
            Self::Nobody => return None,
            Self::Agent(agent) => agent.pid(),
            Self::Perf(perf) => perf.id(),
        };
        Some(fs::read_dir(format!("/proc/{pid}/fd")).ok()?.count())
    }
}
