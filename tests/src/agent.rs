//! The agent in tests: a separate process with its own lock and a port that it picks.

use std::{
    cell::Cell,
    collections::BTreeMap,
    fs,
    io::{BufRead as _, BufReader, Write as _},
    net::{SocketAddr, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context as _, Result, bail, ensure};
use nix::{
    sys::{
        signal::{Signal, kill},
        wait::{Id, WaitPidFlag, WaitStatus, waitid},
    },
    unistd::Pid,
};
use tempfile::TempDir;

use crate::{
    deadline::Late,
    http, load, process,
    suite::{has_own_machine, within},
    waited::Waited,
};

/// The agent logs this text on stderr when it answers.
const READY: &str = "listening on http";
/// The longest wait for a start. Loading the programs takes well below a second; a loaded machine gets more, and a
/// guest that is emulated takes 20 times as long.
fn start_deadline() -> Duration {
    Duration::from_secs(if has_own_machine() { 120 } else { 30 })
}

/// The longest time in which the agent may end after SIGTERM. [`Agent::wait`] adds exactly the time in which the
/// machine had no CPU for the agent.
pub const STOP_DEADLINE: Duration = Duration::from_secs(5);
/// The time after which a dropped agent is killed.
const KILL_DEADLINE: Duration = Duration::from_secs(15);
/// The time for which an agent returns a reading again, by its default.
const COALESCE_BY_DEFAULT: Duration = Duration::from_secs(1);
/// The time for which an agent in tests returns a reading again, see [`SHARES_READINGS`].
const COALESCE: Duration = Duration::from_millis(10);
/// Readings take less than this. A reading that ends this long after a call began after the call.
const READING: Duration = Duration::from_millis(100);
/// Longer than an agent returns a reading again by its default: a scrape after this pause gets a new reading, or one
/// made during the pause.
pub const COALESCED_FOR: Duration = COALESCE_BY_DEFAULT.saturating_add(READING);

/// A line for the configuration of an agent that returns a reading for a second, as in production. The agent itself
/// reads the line as a comment. Without this line, nearly each request in a test makes a reading of its own.
pub const SHARES_READINGS: &str = "# readings are shared\n";

/// A line for the configuration of an agent whose test is not about stacks. Such an agent starts in half of the time.
pub const NO_STACKS: &str = "stacks: {enabled: false}\n";

/// A line for the configuration of an agent that has the series of its own that the configuration asks for, and no
/// more.
const OWN_AS_ASKED: &str = "# own series as asked\n";

/// The start of a line of the configuration that is an option of the agent, see [`testing`].
const TESTING: &str = "# --testing ";

/// The header that Prometheus sends.
pub const SCRAPE_TIMEOUT: (&str, &str) = ("X-Prometheus-Scrape-Timeout-Seconds", "10");

/// A running agent, which ends on drop.
#[derive(Debug)]
pub struct Agent {
    child: Child,
    /// The test wants the child to end, or knows that it has.
    may_end: AtomicBool,
    /// The test expects that the agent may panic.
    may_panic: bool,
    address: SocketAddr,
    log: Arc<Mutex<String>>,
    directory: TempDir,
    program: PathBuf,
    shares_readings: bool,
}

/// The text about an agent that ended before the test wanted it to.
pub(crate) const ENDED_EARLY: &str = "podperf ended early";
/// The text of a panic in a log. An optimized agent aborts; one of a debug build goes on without the thread.
pub(crate) const PANICKED: &str = "panicked at";

thread_local! {
    static ENDED: Cell<Option<String>> = const { Cell::new(None) };
}

/// Returns what is known about an [`Agent`] of this thread that ended unasked, once.
pub(crate) fn take_ended() -> Option<String> {
    ENDED.take()
}

/// One scrape.
#[derive(Clone, Debug, Default)]
pub struct Metrics(Vec<Sample>);

/// One series of a scrape.
#[derive(Clone, Debug)]
pub struct Sample {
    /// The metric's name.
    pub name: String,
    /// The labels of the series.
    pub labels: BTreeMap<String, String>,
    /// The value of the series.
    pub value: f64,
}

/// Returns the path of `podperf`, which cargo puts beside the tests' own programs.
pub fn binary() -> Result<PathBuf> {
    let path = load::binary()?.with_file_name("podperf");
    ensure!(path.exists(), "no `{}` (build it: `cargo build -p podperf`)", path.display());
    Ok(path)
}

/// Returns the path of the same agent with another layout of its maps, like a version with such a layout.
pub fn other_layout() -> Result<PathBuf> {
    let path = binary()?.with_file_name("podperf-other-layout");
    ensure!(path.exists(), "no `{}` (build it: tests/other-layout.sh)", path.display());
    Ok(path)
}

/// Returns a command line of the agent with a configuration file of its own, in which `listen` and `runDir` are set. If
/// `yaml` has no `overhead`, the agent has no cap, because loads that only switch would exceed it. Without a `server`
/// key the agent answers at any rate and price, and without a `restart` key it pins nothing. It has all series of its
/// own. Each line of [`testing`] becomes an option. Without [`SHARES_READINGS`] the agent hardly shares a reading.
pub fn command(directory: &Path, yaml: &str) -> Result<Command> {
    command_of(&binary()?, directory, yaml)
}

fn command_of(program: &Path, directory: &Path, yaml: &str) -> Result<Command> {
    command_at(program, directory, yaml, SocketAddr::from(([127, 0, 0, 1], 0)))
}

fn command_at(program: &Path, directory: &Path, yaml: &str, listen: SocketAddr) -> Result<Command> {
    let config = directory.join("podperf.yaml");
    let cap = if yaml.contains("overhead:") { "" } else { "overhead: {maxPercent: 0}\n" };
    let rate = if yaml.contains("server:") { "" } else { "server: {limits: {requestsPerSecond: 0, maxPercent: 0}}\n" };
    let pins = if yaml.contains("restart:") { "" } else { "restart: {pin: false}\n" };
    let own = with_all_of_its_own(yaml);
    let text = format!("listen: {listen}\nrunDir: {}\n{own}\n{cap}{rate}{pins}", directory.display());
    replace_config(directory, &text)?;
    let mut command = Command::new(program);
    command.args(["agent", "--config"]).arg(config);
    if !yaml.contains(SHARES_READINGS) {
        command.arg("--testing").arg(format!("coalesce={}ms", COALESCE.as_millis()));
    }
    for setting in yaml.lines().filter_map(|line| line.strip_prefix(TESTING)) {
        command.args(["--testing", setting]);
    }
    Ok(command)
}

/// Returns the configuration with `metrics.own: all`, unless it chooses. Tests look at series that no alert needs.
fn with_all_of_its_own(yaml: &str) -> String {
    let key = |line: &str| line.starts_with("metrics:");
    match yaml.lines().find(|line| key(line)) {
        _ if yaml.contains(OWN_AS_ASKED) || yaml.contains("own: ") => yaml.to_owned(),
        None => format!("{yaml}\nmetrics: {{own: all}}"),
        Some(line) => yaml.replacen(line, &line.replacen("metrics: {", "metrics: {own: all, ", 1), 1),
    }
}

/// Replaces an agent's configuration file at once, as the kubelet does. An agent that reads a file while it is written
/// may find it empty, which is a valid configuration.
pub fn replace_config(directory: &Path, text: &str) -> Result<()> {
    let new = directory.join("new.yaml");
    fs::write(&new, text)?;
    Ok(fs::rename(new, directory.join("podperf.yaml"))?)
}

/// Returns a line for a configuration that stands for the agent's option `--testing KEY=VALUE`. The agent itself reads
/// the line as a comment.
#[must_use]
pub fn testing(setting: &str) -> String {
    format!("{TESTING}{setting}\n")
}

fn spawn(command: &mut Command) -> Result<(Child, Arc<Mutex<String>>)> {
    process::bind_to_parent(command);
    let mut child = command.stdin(Stdio::null()).stderr(Stdio::piped()).spawn().context("failed to start podperf")?;
    let log = Arc::new(Mutex::new(String::new()));
    let lines = BufReader::new(child.stderr.take().context("no stderr")?);
    let sink = Arc::clone(&log);
    thread::spawn(move || {
        for line in lines.lines().map_while(Result::ok) {
            let mut log = sink.lock().unwrap_or_else(PoisonError::into_inner);
            log.push_str(&line);
            log.push('\n');
        }
    });
    Ok((child, log))
}

impl Agent {
    /// Starts the agent with further configuration beside `listen` and `runDir`, and waits until it answers.
    pub fn start(yaml: &str) -> Result<Self> {
        Self::start_program(&binary()?, yaml)
    }

    /// Starts another build of the agent in the same way.
    pub fn start_program(program: &Path, yaml: &str) -> Result<Self> {
        Self::start_changed(program, yaml, |_| ())
    }

    /// Starts any build of the agent that shares readings as in production. The agent gets no option that an older
    /// build may not know.
    pub fn start_to_measure(program: &Path, yaml: &str) -> Result<Self> {
        Self::start_program(program, &format!("{yaml}\n{SHARES_READINGS}{OWN_AS_ASKED}"))
    }

    /// Starts an agent in the same way, with a changed command line or environment.
    pub fn start_changed(program: &Path, yaml: &str, change: impl FnOnce(&mut Command)) -> Result<Self> {
        let directory = TempDir::new()?;
        let mut command = command_of(program, directory.path(), yaml)?;
        change(&mut command);
        let (child, log) = spawn(&mut command)?;
        let unknown = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut agent = Self {
            child,
            may_end: AtomicBool::new(false),
            may_panic: false,
            address: unknown,
            log,
            directory,
            program: program.to_owned(),
            shares_readings: yaml.contains(SHARES_READINGS),
        };
        agent.wait_until_ready()?;
        Ok(agent)
    }

    /// Ends the agent with this signal, and starts another one in its directory and at its address.
    pub fn restart(&mut self, signal: Signal, yaml: &str) -> Result<()> {
        self.replace(signal, yaml)?;
        self.wait_until_ready()
    }

    /// Restarts the agent in the same way, as another build.
    pub fn restart_as(&mut self, program: &Path, signal: Signal, yaml: &str) -> Result<()> {
        program.clone_into(&mut self.program);
        self.restart(signal, yaml)
    }

    /// Restarts the agent in the same way, and kills the new agent as soon as `when` is true, ready or not.
    pub fn restart_and_kill(&mut self, program: &Path, yaml: &str, when: impl Fn() -> bool) -> Result<()> {
        program.clone_into(&mut self.program);
        self.replace(Signal::SIGKILL, yaml)?;
        let start = Instant::now();
        while !when() {
            self.check()?;
            ensure!(start.elapsed() < start_deadline(), "it has not come that far:\n{}", self.log());
            thread::sleep(Duration::from_micros(200));
        }
        self.signal(Signal::SIGKILL)
    }

    /// Kills the agent, ready or not.
    pub fn kill(&mut self) -> Result<()> {
        self.end(Signal::SIGKILL)
    }

    fn end(&mut self, signal: Signal) -> Result<()> {
        // An agent that was killed before it was ready may already have ended.
        if self.child.try_wait()?.is_none() {
            self.signal(signal)?;
            // The CPUs of a guest are emulated. The guest cannot measure how long they wait for the host's CPUs.
            let status = self.wait(if has_own_machine() { KILL_DEADLINE } else { STOP_DEADLINE })?;
            ensure!(signal == Signal::SIGKILL || status.success(), "podperf ended with {status}:\n{}", self.log());
        }
        Ok(())
    }

    /// Starts another agent in its directory and at its address, once this one was told to end. Does not wait until the
    /// new agent is ready.
    pub fn begin_again(&mut self, program: &Path, yaml: &str) -> Result<()> {
        program.clone_into(&mut self.program);
        let mut command = command_at(&self.program, self.directory.path(), yaml, self.address)?;
        self.note_end();
        self.note_panic();
        (self.child, self.log) = spawn(&mut command)?;
        self.may_end = AtomicBool::new(false);
        self.shares_readings = yaml.contains(SHARES_READINGS);
        Ok(())
    }

    fn replace(&mut self, signal: Signal, yaml: &str) -> Result<()> {
        self.end(signal)?;
        let program = self.program.clone();
        self.begin_again(&program, yaml)
    }

    /// Waits until the agent answers.
    pub fn wait_until_ready(&mut self) -> Result<()> {
        let line = self.wait_for_log(READY, start_deadline())?;
        // The scheme may be `http://` or `https://`.
        let url = line.split(READY).nth(1).and_then(|rest| rest.split("://").nth(1));
        let address = url.and_then(|rest| rest.split([' ', '/']).next());
        self.address = address.and_then(|address| address.parse().ok()).context("no address in the log")?;
        Ok(())
    }

    /// Returns the address of the agent's server.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the agent's process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns the directory of the agent's lock and its configuration file, `podperf.yaml`.
    #[must_use]
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Returns the agent's log up to now.
    #[must_use]
    pub fn log(&self) -> String {
        self.log.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits for a line of the log that contains `text`, and returns the first such line. The deadline is extended as
    /// that of [`Self::wait`].
    pub fn wait_for_log(&mut self, text: &str, deadline: Duration) -> Result<String> {
        let start = Instant::now();
        let mut waited = Waited::begin(&[self.pid()]);
        loop {
            let log = self.log();
            if let Some(line) = log.lines().find(|line| line.contains(text)) {
                return Ok(line.to_owned());
            }
            self.check()?;
            let (took, without_cpu) = (start.elapsed(), waited.total());
            if took > deadline + without_cpu {
                let text = format!("podperf did not say `{text}` in {deadline:?}");
                bail!(Late(format!("{text}: it took {took:?}, {without_cpu:?} of it without a CPU:\n{log}")));
            }
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// Notes an end that the test did not want, for [`take_ended`].
    fn note_end(&mut self) {
        if !self.may_end.load(Ordering::Relaxed)
            && let Ok(Some(status)) = self.child.try_wait()
        {
            ENDED.set(Some(format!("{ENDED_EARLY} ({status}):\n{}", self.log())));
        }
    }

    /// Notes a panic of any thread, for [`take_ended`].
    fn note_panic(&self) {
        if !self.may_panic && self.log().contains(PANICKED) {
            ENDED.set(Some(format!("a thread of podperf {PANICKED} some line:\n{}", self.log())));
        }
    }

    /// Says that the agent may panic, as one without memory may.
    pub fn expect_panics(&mut self) {
        self.may_panic = true;
    }

    /// Returns an error with the agent's log, if the agent has ended.
    pub fn check(&mut self) -> Result<()> {
        if let Some(status) = self.child.try_wait()? {
            self.may_end.store(true, Ordering::Relaxed);
            bail!("{ENDED_EARLY} ({status}):\n{}", self.log());
        }
        Ok(())
    }

    /// Sends `GET path` with more headers, and returns the status code, the headers and the body.
    pub fn get(&self, path: &str, headers: &[(&str, &str)]) -> Result<(u16, String, Vec<u8>)> {
        http::get(self.address, path, headers)
    }

    /// Scrapes the agent; the reading may be as old as the agent returns it again.
    pub fn metrics(&self) -> Result<Metrics> {
        self.metrics_with(&[])
    }

    /// Scrapes the agent as Prometheus does: new series start at zero.
    pub fn metrics_for_prometheus(&self) -> Result<Metrics> {
        self.metrics_with(&[SCRAPE_TIMEOUT])
    }

    fn metrics_with(&self, headers: &[(&str, &str)]) -> Result<Metrics> {
        let (status, _, body) = self.get("/metrics", headers)?;
        let body = String::from_utf8(body)?;
        ensure!(status == 200, "/metrics answered {status}: {body}");
        Ok(Metrics::parse(&body))
    }

    /// Requests metrics, and does not wait for the answer, which arrives on the returned connection.
    pub fn begin_scrape(&self) -> Result<TcpStream> {
        let mut stream = TcpStream::connect(self.address)?;
        stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n")?;
        Ok(stream)
    }

    /// Returns the pause after which a scrape gets a reading that began after the pause did.
    #[must_use]
    pub const fn coalesced_for(&self) -> Duration {
        if self.shares_readings { COALESCED_FOR } else { COALESCE.saturating_add(READING) }
    }

    /// Scrapes a reading that began after this call. A reading on a busy machine may have begun long ago.
    pub fn fresh_metrics(&self) -> Result<Metrics> {
        let called = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs_f64();
        within(start_deadline(), "a reading begins and ends", || {
            thread::sleep(self.coalesced_for());
            let metrics = self.metrics()?;
            let time = |name: &str| metrics.get(name, &[]).with_context(|| format!("no `{name}`"));
            let began = time("podperf_reading_timestamp_seconds")? - time("podperf_scrape_duration_seconds")?;
            Ok((began >= called).then_some(metrics))
        })
    }

    /// Waits until the agent has given up the sensors for its cap on CPU time, or has given none of them up.
    pub fn wait_until_sensors_are_shed(&self, are_shed: bool) -> Result<()> {
        within(Duration::from_secs(120), "the sensors are given up, or come back", || {
            thread::sleep(Duration::from_millis(500));
            let shed = self.metrics()?.sum("podperf_overhead_shed", &[("cap", "cpu"), ("feature", "sensors")]);
            Ok((shed == f64::from(u8::from(are_shed))).then_some(()))
        })
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        // An agent that has ended already accepts signals, too.
        let runs = waitid(
            Id::Pid(Pid::from_raw(i32::try_from(self.pid())?)),
            WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT,
        );
        if matches!(signal, Signal::SIGTERM | Signal::SIGINT | Signal::SIGKILL) && runs == Ok(WaitStatus::StillAlive) {
            self.may_end.store(true, Ordering::Relaxed);
        }
        Ok(kill(Pid::from_raw(i32::try_from(self.pid())?), signal)?)
    }

    /// Waits until the agent has ended. The deadline is extended by the time in which a thread was ready to run and had
    /// no CPU: this thread, and the agent's thread that waited for the longest time.
    pub fn wait(&mut self, deadline: Duration) -> Result<ExitStatus> {
        let start = Instant::now();
        let mut waited = Waited::begin(&[self.pid()]);
        loop {
            let ended = self.child.try_wait()?;
            let (took, without_cpu) = (start.elapsed(), waited.total());
            ensure!(
                took <= deadline + without_cpu,
                "podperf did not end in {deadline:?}: it took {took:?}, {without_cpu:?} of it without a CPU{}:\n{}",
                if ended.is_some() { "" } else { ", and still runs" },
                self.log()
            );
            if let Some(status) = ended {
                self.may_end.store(true, Ordering::Relaxed);
                return Ok(status);
            }
            thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.note_end();
        process::end(&mut self.child, Signal::SIGTERM, KILL_DEADLINE);
        self.note_panic();
    }
}

impl Metrics {
    /// Parses Prometheus text 0.0.4.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        Self(text.lines().filter(|line| !line.starts_with('#')).filter_map(Sample::parse).collect())
    }

    /// Returns all series.
    #[must_use]
    pub fn samples(&self) -> &[Sample] {
        &self.0
    }

    /// Returns the sum of a metric's series that have these labels; `None` if there is no such series.
    #[must_use]
    pub fn get(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let matches = |sample: &&Sample| {
            sample.name == name
                && labels.iter().all(|(label, value)| sample.labels.get(*label).is_some_and(|found| found == value))
        };
        self.0.iter().filter(matches).map(|sample| sample.value).reduce(|a, b| a + b)
    }

    /// Returns the same sum, or 0 if there is no such series.
    #[must_use]
    pub fn sum(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        self.get(name, labels).unwrap_or(0.0)
    }

    /// Checks that the part of a cgroup's off-CPU time that has a stack is 0.98 to 1.02 of the time that the hook
    /// counted.
    pub fn ensure_profiles_cover(&self, cgroup: &str) -> Result<()> {
        const WAIT: &str = "podperf_cgroup_wait_seconds_total";
        let labels = [("cgroup", cgroup)];
        let profiled = self.sum(WAIT, &labels) - self.sum(WAIT, &[labels[0], ("reason", "unknown")]);
        let counted = self.sum("podperf_cgroup_offcpu_seconds_total", &labels);
        ensure!((0.98..=1.02).contains(&(profiled / counted)), "{profiled} s of {counted} s are in profiles");
        Ok(())
    }
}

impl Sample {
    fn parse(line: &str) -> Option<Self> {
        let (series, value) = line.rsplit_once(' ')?;
        let (name, labels) = series.split_once('{').unwrap_or((series, "}"));
        let mut rest = labels.strip_suffix('}')?;
        let mut parsed = BTreeMap::new();
        while let Some((label, after)) = rest.split_once("=\"") {
            let (mut text, mut escaped, mut end) = (String::new(), false, after.len());
            for (at, c) in after.char_indices() {
                match (escaped, c) {
                    (true, 'n') => text.push('\n'),
                    (true, c) => text.push(c),
                    (false, '\\') => {}
                    (false, '"') => {
                        end = at;
                        break;
                    }
                    (false, c) => text.push(c),
                }
                escaped = !escaped && c == '\\';
            }
            parsed.insert(label.trim_start_matches(',').to_owned(), text);
            rest = after.get(end + 1..).unwrap_or_default();
        }
        Some(Self { name: name.to_owned(), labels: parsed, value: value.parse().ok()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escaped_labels_are_read_back() {
        let metrics = Metrics::parse("# TYPE x counter\nx{a=\"/s\\\\x2d\\\"q\\n\",b=\"c\"} 1.5\nx{b=\"c\"} 2\ny 3\n");
        assert_eq!(metrics.get("x", &[("a", "/s\\x2d\"q\n")]), Some(1.5));
        assert_eq!(metrics.get("x", &[("b", "c")]), Some(3.5));
        assert_eq!(metrics.get("y", &[]), Some(3.0));
        assert_eq!(metrics.get("x", &[("b", "d")]), None);
    }
}
