//! A load as a process, and comparisons of its truth with a scrape.

use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    ops::Range,
    process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, Stdio},
    thread,
    time::{Duration, Instant, SystemTime},
};

use anyhow::{Context as _, Result, ensure};
use nix::unistd::Pid;
use serde::de::DeserializeOwned;

use crate::{
    agent::{Agent, Metrics},
    cgroup::TestCgroup,
    deadline::Deadline,
    load, process,
};

/// The agent's default: the BTF-typed tracepoint, if the kernel supports it.
pub const BTF: &str = "";
/// The raw tracepoint, for other kernels: a line as that of [`crate::agent::testing`].
pub const RAW: &str = "# --testing tracepoint=raw\n";
/// Returns a configuration with page faults, which are not among the default series.
pub fn with_faults(configuration: &str) -> String {
    format!("metrics: {{facts: [oncpu, context_switches, page_faults]}}\n{configuration}")
}

/// On-CPU time of a row.
pub const ONCPU: &str = "podperf_cgroup_oncpu_seconds_total";
/// The time of the CPU's own clock in a row, as an event counts it.
pub const CPU_CLOCK: &str = "podperf_cgroup_cpu_clock_seconds_total";
/// Off-CPU time of a row, by state.
pub const OFFCPU: &str = "podperf_cgroup_offcpu_seconds_total";

/// Unix time of the reading behind a scrape.
const READ_AT: &str = "podperf_reading_timestamp_seconds";
/// The smallest tolerance of a time. The tolerance is 2 % or this value, whichever is larger.
const LEAST_TOLERANCE: Duration = Duration::from_millis(2);
/// No load of this ring runs longer than this.
const DEADLINE: Duration = Duration::from_secs(60);

/// Returns whether the first thread of a process sleeps. The kernel sets the state before the switch, and a task that is
/// preempted between them still waits for a CPU; it reports the blocking function (`wchan`) only after the switch.
pub(crate) fn is_blocked(pid: u32) -> Result<bool> {
    Ok(Counts::of(pid)?.state == "S" && fs::read_to_string(format!("/proc/{pid}/wchan"))? != "0")
}

/// A running `podperf-load`, which is killed on drop.
#[derive(Debug)]
pub struct Load {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
    stderr: BufReader<ChildStderr>,
}

impl Load {
    /// Starts `podperf-load` with these arguments, separated by blanks.
    pub fn start(arguments: &str) -> Result<Self> {
        let mut command = Command::new(load::binary()?);
        process::bind_to_parent(&mut command);
        let mut child = command
            .args(arguments.split_whitespace())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("failed to start podperf-load")?;
        let stdin = child.stdin.take();
        let stdout = BufReader::new(child.stdout.take().context("no stdout")?);
        let stderr = BufReader::new(child.stderr.take().context("no stderr")?);
        Ok(Self { child, stdin, stdout, stderr })
    }

    /// Returns the load's process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns the CPU time that the load has used until now, to the nanosecond, even while it runs.
    pub fn cpu_time(&self) -> Result<Duration> {
        Ok(Duration::from_nanos(process::cpu_ns_of(Pid::from_raw(i32::try_from(self.pid())?))?))
    }

    /// Waits for the line `word` on the load's stderr.
    pub fn wait_for_word(&mut self, word: &str) -> Result<()> {
        let mut line = String::new();
        self.stderr.read_line(&mut line)?;
        ensure!(line.trim() == word, "the load said `{}` instead of `{word}`", line.trim());
        Ok(())
    }

    /// Continues a load that waits for a line on stdin.
    pub fn go_on(&mut self) -> Result<()> {
        self.stdin.as_mut().context("no stdin")?.write_all(b"\n").context("failed to write to the load")
    }

    /// Waits until the load blocks: from then on its counts do not change.
    pub fn wait_until_blocked(&self) -> Result<()> {
        let deadline = Deadline::begin(DEADLINE);
        while !is_blocked(self.pid())? {
            deadline.check(|| "the load blocks".into())?;
            thread::sleep(Duration::from_millis(1));
        }
        // The task leaves the run queue a moment before the switch is counted.
        thread::sleep(Duration::from_millis(10));
        Ok(())
    }

    /// Waits for the load's report.
    pub fn report<T: DeserializeOwned>(&mut self) -> Result<T> {
        let mut line = String::new();
        self.stdout.read_line(&mut line)?;
        serde_json::from_str(&line).with_context(|| {
            let mut errors = String::new();
            self.stderr.read_to_string(&mut errors).ok();
            format!("no report of the load: `{}` {}", line.trim(), errors.trim())
        })
    }

    /// Waits for the load's end.
    pub fn end(mut self) -> Result<()> {
        self.stdin.take();
        let status = self.child.wait()?;
        ensure!(status.success(), "the load ended badly: {status}");
        Ok(())
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// Runs a load to its end, and returns its report.
pub fn run<T: DeserializeOwned>(arguments: &str) -> Result<T> {
    let mut load = Load::start(arguments)?;
    let report = load.report()?;
    load.end()?;
    Ok(report)
}

/// Starts a SCHED_IDLE spinner on each CPU, for tests of counters that must not count idleness as load.
///
/// On virtual machines a tracepoint sometimes misses the switch from idle to a task. Times then come from the run time,
/// but a counter has no record of the task's start.
pub fn keep_cpus_awake() -> Result<Vec<Load>> {
    keep_awake(0..cpus()?)
}

/// Starts such spinners on some CPUs.
pub fn keep_awake(cpus: Range<usize>) -> Result<Vec<Load>> {
    cpus.map(|cpu| Load::start(&format!("spin --idle --cpu {cpu} --seconds 60"))).collect()
}

/// Returns the number of CPUs of the machine.
pub fn cpus() -> Result<usize> {
    Ok(thread::available_parallelism()?.get())
}

/// The counts of a process in `/proc`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counts {
    /// The state, as in `ps`.
    pub state: String,
    /// Voluntary context switches.
    pub voluntary: u64,
    /// Involuntary context switches.
    pub involuntary: u64,
    /// Page faults that needed no I/O.
    pub minor_faults: u64,
    /// Page faults that needed I/O.
    pub major_faults: u64,
    /// The first field of `schedstat`; exact while the process does not run.
    pub run: Duration,
    /// The second field of `schedstat`.
    pub runqueue: Duration,
}

impl Counts {
    /// Reads the counts of a process.
    pub fn of(pid: u32) -> Result<Self> {
        let read = |file: &str| {
            fs::read_to_string(format!("/proc/{pid}/{file}"))
                .with_context(|| format!("failed to read `{file}` of {pid}"))
        };
        let (stat, status, schedstat) = (read("stat")?, read("status")?, read("schedstat")?);
        // The command's name may contain any character; the fields after it begin with the third.
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
        let field = |number: usize| fields.get(number - 3).context("a short `stat`");
        let line = |key: &str| -> Result<u64> {
            let line = status.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
            Ok(line.with_context(|| format!("no `{key}` in `status`"))?.trim().parse()?)
        };
        let mut times = schedstat.split_whitespace().map(|time| Ok(Duration::from_nanos(time.parse()?)));
        let mut time = || times.next().unwrap_or_else(|| Ok::<_, anyhow::Error>(Duration::ZERO));
        Ok(Self {
            state: (*field(3)?).to_owned(),
            voluntary: line("voluntary_ctxt_switches")?,
            involuntary: line("nonvoluntary_ctxt_switches")?,
            minor_faults: field(10)?.parse()?,
            major_faults: field(12)?.parse()?,
            run: time()?,
            runqueue: time()?,
        })
    }

    /// Returns the counts between `earlier` and this.
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            state: self.state.clone(),
            voluntary: self.voluntary - earlier.voluntary,
            involuntary: self.involuntary - earlier.involuntary,
            minor_faults: self.minor_faults - earlier.minor_faults,
            major_faults: self.major_faults - earlier.major_faults,
            run: self.run - earlier.run,
            runqueue: self.runqueue - earlier.runqueue,
        }
    }
}

/// Returns a time in a cgroup's row; a missing row is an error.
pub fn time(metrics: &Metrics, family: &str, cgroup: &TestCgroup, labels: &[(&str, &str)]) -> Result<Duration> {
    let labels: Vec<_> = [("cgroup", cgroup.kernel_path())].into_iter().chain(labels.iter().copied()).collect();
    let seconds = metrics.get(family, &labels).with_context(|| format!("no series {family}{labels:?}"))?;
    Ok(Duration::try_from_secs_f64(seconds)?)
}

/// Returns a count in a cgroup's row; a missing row is an error.
pub fn count(metrics: &Metrics, family: &str, cgroup: &TestCgroup, labels: &[(&str, &str)]) -> Result<f64> {
    let labels: Vec<_> = [("cgroup", cgroup.kernel_path())].into_iter().chain(labels.iter().copied()).collect();
    metrics.get(family, &labels).with_context(|| format!("no series {family}{labels:?}"))
}

/// Compares a row's on-CPU time with the growth of the cgroup's `usage_usec` since it was made.
pub fn oncpu_is_cpu_stat(metrics: &Metrics, cgroup: &TestCgroup) -> Result<()> {
    is_close(
        &format!("on-CPU time of {}", cgroup.kernel_path()),
        time(metrics, ONCPU, cgroup, &[])?,
        cgroup.cpu_usage()?,
    )
}

/// Scrapes a new reading, and returns it with its moment, as the agent reports it. The counts belong to that moment,
/// even if the scrape takes long, as in an emulated machine. The wall clock may be set between two readings, so the
/// function converts each moment to the monotonic clock.
pub fn timed_reading(agent: &Agent) -> Result<(Instant, Metrics)> {
    let metrics = agent.fresh_metrics()?;
    let (now, wall) = (Instant::now(), SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?);
    let read = Duration::try_from_secs_f64(metrics.get(READ_AT, &[]).context("no time of the reading")?)?;
    let at = wall.checked_sub(read).and_then(|ago| now.checked_sub(ago));
    Ok((at.context("the reading is not older than its scrape")?, metrics))
}

/// Law 1, for an event that counts time itself: between two readings all rows and the idle time grow by every CPU's
/// wall time. The agent must count `cpu-clock`.
pub fn all_rows_are_the_cpus(before: &(Instant, Metrics), after: &(Instant, Metrics)) -> Result<()> {
    let sum = |metrics: &Metrics| metrics.get(CPU_CLOCK, &[]).context("no cpu-clock");
    let grown = sum(&after.1)? - sum(&before.1)?;
    let truth = (after.0 - before.0).as_secs_f64() * f64::from(u32::try_from(cpus()?)?);
    let error = grown / truth - 1.0;
    ensure!(error.abs() <= 0.001, "grew by {grown} s, and the truth is {truth} s ({:+.3} %)", error * 100.0);
    Ok(())
}

/// Checks that both times differ by at most 2 % or 2 ms, whichever is larger.
pub fn is_close(what: &str, found: Duration, truth: Duration) -> Result<()> {
    is_within(LEAST_TOLERANCE.max(truth / 50), what, found, truth)
}

/// Compares a counter in the same way, with a larger tolerance for time that was charged to other tasks or came from
/// them. `before` is the amount of such time before the load.
pub fn counter_is_close(
    what: &str,
    (metrics, before): (&Metrics, Duration),
    found: Duration,
    truth: Duration,
) -> Result<()> {
    let astray = astray(metrics)?.saturating_sub(before);
    is_within(LEAST_TOLERANCE.max(truth / 50) + astray, what, found, truth)
        .with_context(|| format!("{astray:?} that nobody reported, or that the machine was not given"))
}

/// Returns the time since boot that a CPU's counter may have charged to other tasks than the scheduler did. The first
/// part is the time before switches that the kernel did not report, by the agent's own metric. The second part is the
/// time in which the host ran something else: the scheduler subtracts it, but a clock does not.
pub fn astray(metrics: &Metrics) -> Result<Duration> {
    let unreported = metrics.get("podperf_switches_recovered_seconds_total", &[]).context("no unreported time")?;
    Ok(Duration::try_from_secs_f64(unreported)? + process::stolen()?)
}

fn is_within(tolerance: Duration, what: &str, found: Duration, truth: Duration) -> Result<()> {
    ensure!(found.abs_diff(truth) <= tolerance, "{what}: {found:?}, and the truth is {truth:?} (+-{tolerance:?})");
    Ok(())
}
