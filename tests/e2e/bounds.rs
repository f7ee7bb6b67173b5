//! The agent's open files and threads do not grow with the number of cgroups, nor with the number of earlier requests.

use std::{
    fs,
    io::Write as _,
    net::TcpStream,
    process::{ChildStdin, Stdio},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use podperf_tests::{
    agent::Agent,
    cgroup::TestCgroup,
    load::{self, crowd::CrowdReport},
    process,
    suite::{Test, within},
    tests,
};

pub(crate) const TESTS: &[Test] = tests![files_and_threads_are_as_many_with_ten_cgroups_as_with_three_hundred,];

const FEW: usize = 10;
const MANY: usize = 300;
const SCRAPES: usize = 50;
const CONNECTIONS: usize = 40;
/// The time in which the server sees that a connection was closed.
const AT_REST: Duration = Duration::from_secs(10);

fn files_and_threads_are_as_many_with_ten_cgroups_as_with_three_hundred() -> Result<()> {
    let agent = Agent::start("stacks: {onCpuEvent: cpu-clock}")?;
    // The agent has not answered any request yet.
    let listening = sockets(&agent)?;
    let parent = TestCgroup::new("bounds")?;
    let few = Crowd::start(&parent, FEW)?;
    ask(&agent)?;
    let before = at_rest(&agent, listening)?;
    let _many = Crowd::start(&parent, MANY - FEW)?;
    ask(&agent)?;
    let tracked = agent.fresh_metrics()?.sum("podperf_cgroups_tracked", &[]);
    ensure!(tracked >= 300.0, "only {tracked} cgroups");
    let now = at_rest(&agent, listening)?;
    ensure!(now == before, "{before:?} files and threads with {FEW} cgroups, {now:?} with {MANY}");
    drop(few);
    Ok(())
}

/// Returns the agent's numbers of files and threads, once it has `listening` sockets again. It does not count the
/// runtimes' threads for blocking work: a request starts them, and they end when they are idle.
fn at_rest(agent: &Agent, listening: usize) -> Result<(usize, Vec<String>)> {
    within(AT_REST, "no connection is open", || Ok((sockets(agent)? == listening).then_some(())))?;
    let names = directory(agent, "task")?.filter_map(|entry| fs::read_to_string(entry.ok()?.path().join("comm")).ok());
    let at_work = ["tokio-rt-worker", "podperf-http-bg"];
    let mut names: Vec<_> = names.filter(|name| !at_work.contains(&name.trim())).collect();
    names.sort_unstable();
    Ok((directory(agent, "fd")?.count(), names))
}

fn sockets(agent: &Agent) -> Result<usize> {
    let links = directory(agent, "fd")?.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
    Ok(links.filter(|link| link.to_string_lossy().starts_with("socket:")).count())
}

fn directory(agent: &Agent, name: &str) -> Result<fs::ReadDir> {
    Ok(fs::read_dir(format!("/proc/{}/{name}", agent.pid()))?)
}

/// Requests scrapes, pages and a recording, and opens connections that it then drops.
fn ask(agent: &Agent) -> Result<()> {
    for _ in 0..SCRAPES {
        agent.metrics()?;
    }
    for path in ["/", "/flamegraph", "/status", "/debug/profile?seconds=1&format=folded"] {
        agent.get(path, &[("Accept", "text/html")])?;
    }
    let mut connections = Vec::new();
    for _ in 0..CONNECTIONS {
        let mut stream = TcpStream::connect(agent.address())?;
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n")?;
        connections.push(stream);
    }
    agent.metrics()?;
    Ok(())
}

/// One small task in each of several cgroups. Drop kills them.
pub(crate) struct Crowd {
    child: std::process::Child,
    _stdin: Option<ChildStdin>,
    _cgroups: Vec<TestCgroup>,
}

impl Crowd {
    pub(crate) fn start(parent: &TestCgroup, count: usize) -> Result<Self> {
        let cgroups = (0..count).map(|_| parent.child("one")).collect::<Result<Vec<_>>>()?;
        let mut command = std::process::Command::new(load::binary()?);
        process::bind_to_parent(&mut command);
        let mut child = command.arg("crowd").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let mut stdin = child.stdin.take();
        let list: String = cgroups.iter().map(|cgroup| format!("{}\n", cgroup.path().display())).collect();
        stdin.as_mut().context("no stdin")?.write_all((list + "\n").as_bytes())?;
        let mut line = String::new();
        let stdout = child.stdout.take().context("no stdout")?;
        std::io::BufRead::read_line(&mut std::io::BufReader::new(stdout), &mut line)?;
        let report: CrowdReport = serde_json::from_str(&line)?;
        ensure!(report.tasks == count, "{report:?}");
        Ok(Self { child, _stdin: stdin, _cgroups: cgroups })
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}
