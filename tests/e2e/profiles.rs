//! Off-CPU profiles at a real OpenTelemetry Collector and at receivers that misbehave.

use std::{
    collections::HashSet,
    fs::{self, File},
    io::{BufRead as _, BufReader, Write as _},
    os::fd::AsFd as _,
    process::{Child, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use nix::{
    fcntl::{FcntlArg, fcntl},
    sys::signal::Signal,
    unistd::pipe,
};
use podperf_tests::{
    agent::{Agent, Metrics, STOP_DEADLINE},
    cgroup::TestCgroup,
    collector::{self, Collector, Sample},
    command::{load_command, run_load},
    http,
    load::{blocked::BlockedReport, cpu::CpuReport, sleepers::SleepersReport},
    process,
    running::RAW,
    suite::{Need, Test, within},
    tests,
};

pub(crate) const TESTS: &[Test] = tests![
    #[land] #[beside] #[measures] a_wait_arrives_with_its_whole_stack_and_all_its_time: &[GO],
    #[beside] the_raw_tracepoint_gives_the_same_stacks: &[GO],
    #[beside] a_long_wait_arrives_once: &[GO],
    #[beside] a_deep_recursion_is_cut_off_and_told: &[GO],
    #[beside] an_uninterruptible_wait_arrives_as_such: &[GO],
    #[land] #[beside] #[measures] profiles_tell_the_reasons_that_metrics_tell: &[GO, DISK],
    #[land] #[measures] the_last_window_is_sent_before_the_end: &[GO],
    #[land] #[beside] a_receiver_that_is_down_does_no_harm,
];

/// The loads' files need a disk: a memory file system has no disk to wait for.
const DISK: Need = Need::Disk(env!("CARGO_TARGET_TMPDIR"));
/// The Collector's build needs Go.
pub(crate) const GO: Need = Need::Program("go");
/// The limit covers several windows of a second each, on a loaded machine.
pub(crate) const DEADLINE: Duration = Duration::from_secs(30);
pub(crate) const WAIT_STACK: [&str; 3] = ["podperf_wait_inner", "podperf_wait_middle", "podperf_wait_outer"];

/// A load that stays alive after its work: it writes its report into a full pipe, and the test reads the pipe later.
pub(crate) struct Held {
    child: Child,
    report: BufReader<File>,
}

impl Held {
    pub(crate) fn start(cgroup: &TestCgroup, arguments: &[&str]) -> Result<Self> {
        let (report, full) = pipe()?;
        let size = fcntl(full.as_fd(), FcntlArg::F_SETPIPE_SZ(4096))?;
        let mut full = File::from(full);
        full.write_all(&vec![b'\n'; usize::try_from(size)?])?;
        let mut command = load_command(cgroup.path(), arguments)?;
        process::bind_to_parent(&mut command);
        let child = command.stdin(Stdio::null()).stdout(full).spawn()?;
        Ok(Self { child, report: BufReader::new(File::from(report)) })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns whether the load's work is done, and does not read its report.
    pub(crate) fn is_done(&self) -> bool {
        fs::read_to_string(format!("/proc/{}/wchan", self.pid())).is_ok_and(|place| place.contains("pipe_write"))
    }

    pub(crate) fn finish<T: serde::de::DeserializeOwned>(mut self) -> Result<T> {
        let line = (&mut self.report).lines().find(|line| !line.as_ref().is_ok_and(String::is_empty));
        let report = serde_json::from_str(&line.context("the load ended without a report")??)?;
        self.child.wait()?;
        Ok(report)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// One run of the sleepers: their own report, the profiles, and the metrics.
struct Run {
    truth: SleepersReport,
    samples: Vec<Sample>,
    metrics: Metrics,
    cgroup: TestCgroup,
    collector: Collector,
}

impl Run {
    /// Runs the sleepers, for `expected` in all, under an agent with more configuration.
    fn new(yaml: &str, arguments: &[&str], expected: Duration) -> Result<Self> {
        let cgroup = TestCgroup::new("sleepers")?;
        let collector = Collector::start()?;
        let agent = Agent::start(&format!("otlp: {{endpoint: '{}', interval: 1s}}\n{yaml}", collector.endpoint()))?;
        let load = Held::start(&cgroup, arguments)?;
        let arrived = within(DEADLINE, "the waits are in profiles", || {
            let samples = collector.samples_of(cgroup.kernel_path())?;
            Ok((nanoseconds(samples.iter().filter(|it| is_wait(it))) >= expected.as_secs_f64() * 0.9e9).then_some(()))
        });
        arrived.with_context(|| {
            let (profiles, metrics) = (collector.profiles().unwrap_or_default(), agent.metrics().unwrap_or_default());
            let own = profiles.into_iter().filter(|it| it.is_of(cgroup.kernel_path())).collect::<Vec<_>>();
            format!("{}\n{}\n{}", agent.log(), collector.log(), collector::listed(&own, &metrics))
        })?;
        // After two windows the current window's samples have their names. Then all waits end.
        two_windows(&agent)?;
        let truth = load.finish()?;
        two_windows(&agent)?;
        let metrics = agent.fresh_metrics()?;
        let samples = collector.samples_of(cgroup.kernel_path())?;
        Ok(Self { truth, samples, metrics, cgroup, collector })
    }

    /// Returns the samples whose stack is the sleepers' own.
    fn waits(&self) -> Vec<&Sample> {
        self.samples.iter().filter(|it| is_wait(it)).collect()
    }

    /// Checks that the waits in `state` for `reason` are complete, with names and all their time. Then checks that the
    /// profiles have all other time of the metrics as well.
    fn check(&self, state: &str, reason: &str, syscall: &str) -> Result<()> {
        let waits = self.waits();
        let in_state = waits.iter().copied().filter(|it| it.state == state);
        ensure_near(nanoseconds(in_state.clone()), self.truth.blocked(), "the load's own account")?;
        for wait in in_state {
            let stack = wait.functions();
            ensure!(wait.reason == reason, "waited for `{}` instead of `{reason}`: {stack:#?}", wait.reason);
            let kernel = wait.frames.iter().take_while(|frame| frame.kind == "kernel").count();
            ensure!(
                stack.iter().position(|name| *name == WAIT_STACK[0]) == Some(kernel),
                "kernel frames lie amiss: {stack:#?}"
            );
            ensure!(stack[..kernel].iter().all(|name| !name.is_empty()), "kernel frames without names: {stack:#?}");
            ensure!(["__schedule", "schedule"].contains(&stack[0]), "not the scheduler is the leaf: {stack:#?}");
            let enters = stack[..kernel].iter().any(|name| name.contains(syscall));
            ensure!(enters, "no `{syscall}` among the kernel frames: {stack:#?}");
            ensure!(stack.contains(&"main"), "the stack is cut off: {stack:#?}");
        }
        self.profiles_have_what_metrics_have()
    }

    fn profiles_have_what_metrics_have(&self) -> Result<()> {
        for state in ["interruptible", "uninterruptible"] {
            let labels = [("cgroup", self.cgroup.kernel_path()), ("state", state)];
            let metric = self.metrics.get("podperf_cgroup_offcpu_seconds_total", &labels).context("no row")?;
            let sum = nanoseconds(self.samples.iter().filter(|sample| sample.state == state));
            ensure_near(sum, Duration::from_secs_f64(metric), &format!("the metric's `{state}`"))?;
        }
        Ok(())
    }
}

/// Waits until two more windows are sent.
fn two_windows(agent: &Agent) -> Result<()> {
    let exports = || Ok::<_, anyhow::Error>(agent.metrics()?.sum("podperf_otlp_exports_total", &[]));
    let before = exports()?;
    within(DEADLINE, "two more windows are sent", || Ok((exports()? >= before + 2.0).then_some(())))
}

/// A thread blocked on a futex, a thread blocked on a disk, and two threads that preempt each other.
fn profiles_tell_the_reasons_that_metrics_tell() -> Result<()> {
    let cgroup = TestCgroup::new("reasons")?;
    let collector = Collector::start()?;
    let otlp = format!("otlp: {{endpoint: '{}', interval: 1s}}", collector.endpoint());
    let agent = Agent::start(&format!("{otlp}\nstacks: {{maxWalks: 0}}"))?;
    for on in ["futex", "disk"] {
        let arguments = ["blocked", "--on", on, "--directory", env!("CARGO_TARGET_TMPDIR")];
        let _: BlockedReport = run_load(cgroup.path(), &arguments)?;
    }
    let burner = ["spin", "--seconds", "0.5", "--cpu", "0"];
    let burners = [Held::start(&cgroup, &burner)?, Held::start(&cgroup, &burner)?];
    for burner in burners {
        burner.finish::<CpuReport>()?;
    }
    two_windows(&agent)?;
    let metrics = agent.fresh_metrics()?;
    let compare = || -> Result<()> {
        let samples = collector.samples_of(cgroup.kernel_path())?;
        for reason in ["futex", "disk", "run_queue"] {
            let labels = [("cgroup", cgroup.kernel_path()), ("reason", reason)];
            let metric = metrics.get("podperf_cgroup_wait_seconds_total", &labels);
            let metric = metric.filter(|seconds| *seconds > 0.1).with_context(|| format!("no waits for `{reason}`"))?;
            let sum = nanoseconds(samples.iter().filter(|sample| sample.reason == reason));
            ensure_near(sum, Duration::from_secs_f64(metric), &format!("the metric of `{reason}`"))?;
        }
        Ok(())
    };
    // On a busy machine, windows of before may still be looked up.
    let same = within(DEADLINE, "profiles have what metrics have", || Ok(compare().ok()));
    same.or_else(|_late| compare())
}

/// Returns whether its stack has the three known functions, the innermost first and without a gap.
pub(crate) fn is_wait(sample: &Sample) -> bool {
    sample.functions().windows(WAIT_STACK.len()).any(|names| names == WAIT_STACK)
}

#[expect(clippy::cast_precision_loss, reason = "some seconds")]
pub(crate) fn nanoseconds<'a>(samples: impl Iterator<Item = &'a Sample>) -> f64 {
    samples.map(|sample| sample.value as f64).sum()
}

/// Checks that both are equal within 2 %, or within 0.1 ms where the time is nearly zero.
pub(crate) fn ensure_near(nanoseconds: f64, truth: Duration, whose: &str) -> Result<()> {
    let (found, truth) = (nanoseconds / 1e9, truth.as_secs_f64());
    ensure!((found - truth).abs() <= 0.02 * truth + 1e-4, "profiles hold {found} s, {whose} is {truth} s");
    Ok(())
}

fn a_wait_arrives_with_its_whole_stack_and_all_its_time() -> Result<()> {
    let run = Run::new("", &["sleepers"], Duration::from_secs(1))?;
    run.check("interruptible", "sleep", "nanosleep")?;
    let profiles = run.collector.profiles()?;
    ensure!(profiles.len() > 1 && profiles.iter().all(|profile| profile.id.len() == 32), "bad profile ids");
    let ids: HashSet<_> = profiles.iter().map(|profile| &profile.id).collect();
    ensure!(ids.len() == profiles.len(), "{} profiles have {} ids", profiles.len(), ids.len());
    Ok(())
}

fn the_raw_tracepoint_gives_the_same_stacks() -> Result<()> {
    Run::new(RAW, &["sleepers"], Duration::from_secs(1))?.check("interruptible", "sleep", "nanosleep")
}

fn a_long_wait_arrives_once() -> Result<()> {
    let arguments = ["sleepers", "--waits", "1", "--millis", "600"];
    let run = Run::new("stacks: {longWait: 500ms}", &arguments, Duration::from_millis(600))?;
    run.check("interruptible", "sleep", "nanosleep")?;
    ensure!(run.waits().len() == 1, "one wait became {} samples", run.waits().len());
    Ok(())
}

fn a_deep_recursion_is_cut_off_and_told() -> Result<()> {
    for unwind in ["frame-pointers", "tables"] {
        is_cut_off_and_told(unwind).with_context(|| format!("unwind: {unwind}"))?;
    }
    Ok(())
}

/// A copy may have only a part of the 127 frames: the agent then asks for other pages in the next one.
fn is_cut_off_and_told(unwind: &str) -> Result<()> {
    let stacks = format!("stacks: {{unwind: {unwind}}}");
    let run = Run::new(&stacks, &["sleepers", "--depth", "5000"], Duration::from_secs(1))?;
    let may_be_copied = unwind == "tables";
    for wait in run.waits() {
        let user: Vec<_> = wait.frames.iter().filter(|frame| frame.kind != "kernel").collect();
        ensure!(user.len() == 127 || may_be_copied && user.len() < 127, "{} frames: {user:#?}", user.len());
        ensure!(user[..3].iter().map(|frame| &*frame.function).eq(WAIT_STACK), "{user:#?}");
        ensure!(user.iter().skip(20).all(|frame| frame.function.contains("podperf_recurse")), "{user:#?}");
    }
    let labels = |cause| [("cgroup", run.cgroup.kernel_path()), ("cause", cause)];
    let told = |cause| run.metrics.sum("podperf_cgroup_incomplete_stack_seconds_total", &labels(cause));
    // The load's clock also has its time in the run queue. It ran little: five samples at most.
    let least = 0.99 * run.truth.blocked().as_secs_f64();
    let most = Duration::from_nanos(run.truth.waited_ns).as_secs_f64() + 0.1;
    let (truncated, cut) = (told("truncated"), told("cut"));
    let all = if may_be_copied { truncated + cut } else { truncated };
    let found = format!("{truncated} s are told as truncated, and {cut} s as cut");
    ensure!((least..most).contains(&all), "{found}, and {least} s to {most} s are");
    // The load writes its report in libc, which has no frame pointers, and waits there for a reader.
    ensure!(told("broken") == 0.0, "{} s are told as broken", told("broken"));
    run.profiles_have_what_metrics_have()
}

fn an_uninterruptible_wait_arrives_as_such() -> Result<()> {
    // The waits are long. The fork before each wait is in the load's report, but the load spends it on a CPU.
    let arguments = ["sleepers", "--uninterruptible", "--waits", "5", "--millis", "200"];
    Run::new("", &arguments, Duration::from_secs(1))?.check("uninterruptible", "child", "clone")
}

fn the_last_window_is_sent_before_the_end() -> Result<()> {
    let cgroup = TestCgroup::new("last")?;
    let collector = Collector::start()?;
    let mut agent = Agent::start(&format!("otlp: {{endpoint: '{}', interval: 5m}}", collector.endpoint()))?;
    let load = Held::start(&cgroup, &["sleepers"])?;
    within(DEADLINE, "the load has slept", || {
        let slept =
            agent.fresh_metrics()?.sum("podperf_cgroup_offcpu_seconds_total", &[("cgroup", cgroup.kernel_path())]);
        Ok((slept >= 0.98).then_some(()))
    })?;
    agent.signal(Signal::SIGTERM)?;
    let status = agent.wait(STOP_DEADLINE)?;
    ensure!(status.success(), "{status}: {}", agent.log());
    let samples = within(DEADLINE, "the profile arrives", || {
        Ok(Some(collector.samples_of(cgroup.kernel_path())?).filter(|samples| !samples.is_empty()))
    })?;
    let truth: SleepersReport = load.finish()?;
    let waits = samples.iter().filter(|it| is_wait(it));
    ensure_near(nanoseconds(waits), truth.blocked(), "the load's own account")
}

/// The agent counts failures and losses with their cause, shows the reason in `/status`, and does everything else as
/// usual. Unit tests of `agent/src/export/otlp` show the same of receivers that answer badly, late, or never.
fn a_receiver_that_is_down_does_no_harm() -> Result<()> {
    const QUEUE: f64 = 2.0;
    let endpoint = format!("http://{}", http::free_address()?);
    let keys = format!("endpoint: '{endpoint}', interval: 1s, timeout: 300ms, queue: {QUEUE}");
    let mut agent = Agent::start(&format!("otlp: {{{keys}}}"))?;
    within(DEADLINE, "profiles are dropped", || {
        let start = Instant::now();
        let metrics = agent.metrics()?;
        ensure!(start.elapsed() < DEADLINE / 2, "a scrape took {:?}", start.elapsed());
        let waiting = metrics.get("podperf_otlp_queue_length", &[]).context("no queue length")?;
        ensure!(waiting <= QUEUE, "{waiting} profiles wait");
        let failures = metrics.get("podperf_otlp_export_failures_total", &[("cause", "unavailable")]);
        let failures = failures.context("no failures")?;
        let dropped = metrics.get("podperf_otlp_dropped_total", &[]).context("no count of drops")?;
        Ok((failures >= 2.0 && dropped >= 1.0).then_some(()))
    })
    .with_context(|| agent.log())?;
    ensure!(agent.metrics()?.sum("podperf_otlp_exports_total", &[]) == 0.0, "something was exported");
    // On a busy machine, an attempt may fail for another reason.
    let mut line = String::new();
    within(DEADLINE, "the reason is told", || {
        let text = String::from_utf8(agent.get("/status", &[])?.2)?;
        line = text.lines().find(|line| line.starts_with("profile export")).context("no `profile export`")?.to_owned();
        Ok(["degraded", &*endpoint, "refused"].iter().all(|expected| line.contains(expected)).then_some(()))
    })
    .with_context(|| line.clone())?;
    agent.signal(Signal::SIGTERM)?;
    let status = agent.wait(STOP_DEADLINE)?;
    ensure!(status.success(), "{status}: {}", agent.log());
    Ok(())
}
