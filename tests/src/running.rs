//! A load as a process, and how its truth is held against a scrape.

use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    ops::Range,
    process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use nix::unistd::Pid;
use serde::de::DeserializeOwned;

use crate::{agent::Metrics, cgroup::TestCgroup, load, process};

/// The agent's default: the BTF-typed tracepoint, where the kernel takes it.
pub const BTF: &str = "";
/// Its twin for other kernels.
pub const RAW: &str = "scheduling: {tracepoint: raw}\n";
/// A configuration with page faults, which are not among the default series.
pub fn with_faults(configuration: &str) -> String {
    format!("metrics: {{facts: [oncpu, context_switches, page_faults]}}\n{configuration}")
}

/// On-CPU time of a row.
pub const ONCPU: &str = "podperf_cgroup_oncpu_seconds_total";
/// The CPU's own time of a row, by an event that counts it.
pub const CPU_CLOCK: &str = "podperf_cgroup_cpu_clock_seconds_total";
/// Off-CPU time of a row, by state.
pub const OFFCPU: &str = "podperf_cgroup_offcpu_seconds_total";

/// What a time may differ by: 2 %, or this where that is less.
const LEAST_TOLERANCE: Duration = Duration::from_millis(2);
/// No load of this ring runs longer.
const DEADLINE: Duration = Duration::from_secs(60);

/// A running `podperf-load`; killed on drop.
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

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The CPU time that it has used until now, to the nanosecond, even while it runs.
    pub fn cpu_time(&self) -> Result<Duration> {
        Ok(Duration::from_nanos(process::cpu_ns_of(Pid::from_raw(i32::try_from(self.pid())?))?))
    }

    /// Waits until it has said `word` on stderr.
    pub fn wait_for_word(&mut self, word: &str) -> Result<()> {
        let mut line = String::new();
        self.stderr.read_line(&mut line)?;
        ensure!(line.trim() == word, "the load said `{}` instead of `{word}`", line.trim());
        Ok(())
    }

    /// Lets a load go on that waits for a line on stdin.
    pub fn go_on(&mut self) -> Result<()> {
        self.stdin.as_mut().context("no stdin")?.write_all(b"\n").context("failed to write to the load")
    }

    /// Waits until it blocks: from then on its counts stand still.
    pub fn wait_until_blocked(&self) -> Result<()> {
        let start = Instant::now();
        // The state is set before the switch, and who is preempted between them still has a CPU to wait for. What it
        // blocks in, the kernel says after that.
        let wchan = format!("/proc/{}/wchan", self.pid());
        while Counts::of(self.pid())?.state != "S" || fs::read_to_string(&wchan)? == "0" {
            ensure!(start.elapsed() < DEADLINE, "the load does not block");
            thread::sleep(Duration::from_millis(1));
        }
        // It is taken from the run queue a moment before the switch is counted.
        thread::sleep(Duration::from_millis(10));
        Ok(())
    }

    /// Waits for its report.
    pub fn report<T: DeserializeOwned>(&mut self) -> Result<T> {
        let mut line = String::new();
        self.stdout.read_line(&mut line)?;
        serde_json::from_str(&line).with_context(|| {
            let mut errors = String::new();
            self.stderr.read_to_string(&mut errors).ok();
            format!("no report of the load: `{}` {}", line.trim(), errors.trim())
        })
    }

    /// Waits for its end.
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

/// Runs a load to its end.
pub fn run<T: DeserializeOwned>(arguments: &str) -> Result<T> {
    let mut load = Load::start(arguments)?;
    let report = load.report()?;
    load.end()?;
    Ok(report)
}

/// A SCHED_IDLE spinner on each CPU, for tests of counters that must not mistake idleness for the load.
///
/// On virtual machines the switch from idle to a task is at times not reported to a tracepoint. Times are told by the
/// run time then, but a counter does not know when the task came on.
pub fn keep_cpus_awake() -> Result<Vec<Load>> {
    keep_awake(0..cpus()?)
}

/// The same on some CPUs.
pub fn keep_awake(cpus: Range<usize>) -> Result<Vec<Load>> {
    cpus.map(|cpu| Load::start(&format!("spin --idle --cpu {cpu} --seconds 60"))).collect()
}

/// CPUs of the machine.
pub fn cpus() -> Result<usize> {
    Ok(thread::available_parallelism()?.get())
}

/// What `/proc` says of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counts {
    /// As in `ps`.
    pub state: String,
    /// Voluntary context switches.
    pub voluntary: u64,
    /// Involuntary context switches.
    pub involuntary: u64,
    /// Page faults that needed no I/O.
    pub minor_faults: u64,
    /// Page faults that needed I/O.
    pub major_faults: u64,
    /// `schedstat`, first field; exact while it does not run.
    pub run: Duration,
    /// `schedstat`, second field.
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
        // The command's name may hold anything; the fields after it begin with the third.
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

    /// What was counted between `earlier` and this.
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

/// A time of a cgroup's row; a row that is not there is an error.
pub fn time(metrics: &Metrics, family: &str, cgroup: &TestCgroup, labels: &[(&str, &str)]) -> Result<Duration> {
    let labels: Vec<_> = [("cgroup", cgroup.kernel_path())].into_iter().chain(labels.iter().copied()).collect();
    let seconds = metrics.get(family, &labels).with_context(|| format!("no series {family}{labels:?}"))?;
    Ok(Duration::try_from_secs_f64(seconds)?)
}

/// The same of a count.
pub fn count(metrics: &Metrics, family: &str, cgroup: &TestCgroup, labels: &[(&str, &str)]) -> Result<f64> {
    let labels: Vec<_> = [("cgroup", cgroup.kernel_path())].into_iter().chain(labels.iter().copied()).collect();
    metrics.get(family, &labels).with_context(|| format!("no series {family}{labels:?}"))
}

/// Holds a row's on-CPU time against the growth of the cgroup's `usage_usec` since it was made.
pub fn oncpu_is_cpu_stat(metrics: &Metrics, cgroup: &TestCgroup) -> Result<()> {
    is_close(
        &format!("on-CPU time of {}", cgroup.kernel_path()),
        time(metrics, ONCPU, cgroup, &[])?,
        cgroup.cpu_usage()?,
    )
}

/// Within 2 % or 2 ms, whichever is larger.
pub fn is_close(what: &str, found: Duration, truth: Duration) -> Result<()> {
    is_within(LEAST_TOLERANCE.max(truth / 50), what, found, truth)
}

/// The same of a counter, which besides may have gone to others, or have come from them: `before` is how long that could
/// have been before the load.
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

/// Time that a CPU's counter may have charged to others than the scheduler did, since boot: up to switches that the kernel
/// kept to itself, as the agent says, and while the host ran somebody else, which the scheduler takes off and a clock
/// does not.
pub fn astray(metrics: &Metrics) -> Result<Duration> {
    let unreported = metrics.get("podperf_switches_recovered_seconds_total", &[]).context("no unreported time")?;
    Ok(Duration::try_from_secs_f64(unreported)? + process::stolen()?)
}

fn is_within(tolerance: Duration, what: &str, found: Duration, truth: Duration) -> Result<()> {
    ensure!(found.abs_diff(truth) <= tolerance, "{what}: {found:?}, and the truth is {truth:?} (+-{tolerance:?})");
    Ok(())
}
