//! What is measured: podperf with facts or events, and perf's BPF counters with the same events.

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

use crate::{agent::sections, monitor::Process};

/// As many as are asked for, in this order; the first six are those of the other parts.
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

/// With a thousand cgroups, perf needs seconds.
const START_DEADLINE: Duration = Duration::from_secs(30);

/// Room for the largest ring and the machine's own cgroups.
const ROOM: &str = "cgroups: {max: 8192}\n";

/// One way to watch the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Watcher {
    /// None: what two stretches of the same ring differ by.
    Nobody,
    /// podperf, facts and times from task fields.
    Facts,
    /// podperf, that many events as perf counters and nothing else.
    Events(usize),
    /// podperf, facts and times and that many events.
    Both(usize),
    /// `perf stat --bpf-counters --for-each-cgroup` of that many events.
    Perf(usize),
}

/// All watchers for these numbers of events, in the order of the table.
pub fn all(event_counts: &[usize]) -> Vec<Watcher> {
    let counts = || event_counts.iter().copied().filter(|count| (1..=EVENTS.len()).contains(count));
    let mut watchers = vec![Watcher::Nobody, Watcher::Facts];
    watchers.extend(counts().map(Watcher::Events));
    watchers.extend(counts().filter(|count| *count == SIX).map(Watcher::Both));
    watchers.extend(counts().map(Watcher::Perf));
    watchers
}

/// The number of events that the goals are about.
pub const SIX: usize = 6;

/// What watchers are started with.
#[derive(Debug)]
pub struct Tools<'a> {
    /// perf with BPF skeletons.
    pub perf: &'a Path,
    /// The agent's program.
    pub agent: &'a Path,
    /// For what perf writes.
    pub scratch: &'a Path,
}

impl Watcher {
    /// Whether it is perf.
    pub const fn is_perf(self) -> bool {
        matches!(self, Self::Perf(_))
    }

    /// Its events, if perf counters are what it reads.
    pub const fn events(self) -> usize {
        match self {
            Self::Nobody | Self::Facts => 0,
            Self::Events(count) | Self::Both(count) | Self::Perf(count) => count,
        }
    }

    /// What the table calls it.
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

    /// Starts it on the cgroups inside `parent`, a path of the kernel, and waits until it is at work.
    pub fn start(self, tools: &Tools<'_>, parent: &str) -> Result<Started> {
        let groups = |count: usize| format!("[{}]", EVENTS[..count].join(", "));
        let agent = |facts: bool, groups: &str| {
            Ok(Started::Agent(Agent::start_program(tools.agent, &(sections(facts, false, groups) + ROOM))?))
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

/// Starts perf, and waits until it counts: it then answers a `ping`.
fn start_perf(tools: &Tools<'_>, parent: &str, events: &str) -> Result<Process> {
    let pipe = |name: &str| -> Result<(PathBuf, File)> {
        let path = tools.scratch.join(name);
        let _ = fs::remove_file(&path);
        mkfifo(&path, Mode::S_IRUSR | Mode::S_IWUSR).context("failed to make a pipe for perf")?;
        // For both directions, so that opening it waits for nobody.
        let file = OpenOptions::new().read(true).write(true).custom_flags(libc::O_NONBLOCK).open(&path)?;
        Ok((path, file))
    };
    let ((control, mut ask), (answer, mut hear)) = (pipe("control")?, pipe("answer")?);
    let log = tools.scratch.join("perf.log");
    let mut command = Command::new(tools.perf);
    command.args(["stat", "-a", "--bpf-counters", "-e", events]);
    // A pattern: the names of thousands would not fit into one argument.
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

/// A watcher at work; dropping it ends it.
#[derive(Debug)]
pub enum Started {
    /// There is none.
    Nobody,
    /// podperf.
    Agent(Agent),
    /// perf.
    Perf(Process),
}

impl Started {
    /// An error if it has ended by itself.
    pub fn check(&mut self) -> Result<()> {
        match self {
            Self::Nobody => Ok(()),
            Self::Agent(agent) => agent.check(),
            Self::Perf(perf) => perf.check(),
        }
    }

    /// The files that its process has open.
    pub fn fds(&self) -> Option<usize> {
        let pid = match self {
            Self::Nobody => return None,
            Self::Agent(agent) => agent.pid(),
            Self::Perf(perf) => perf.id(),
        };
        Some(fs::read_dir(format!("/proc/{pid}/fd")).ok()?.count())
    }
}
