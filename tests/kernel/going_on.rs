//! Waits that have not ended, and the run-queue part of a wait. All loads here have one thread: the times of its cgroup
//! are its life.

use std::{
    thread,
    time::{Duration, Instant, SystemTime},
};

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::Signal;
use podperf_tests::{
    agent::{self, Agent, Metrics},
    bpffs::Bpffs,
    cgroup::TestCgroup,
    load::{cpu::CpuReport, sleepers::SleepersReport},
    process,
    running::{Counts, Load, OFFCPU, ONCPU, is_close, time},
    suite::Test,
    tests,
};

use crate::kills::PROGRAMS;

pub(crate) const TESTS: &[Test] = tests![
    #[land] #[measures] a_wait_is_counted_up_to_each_reading => || is_counted_up_to_each_reading(WITH_STACKS),
    a_wait_is_counted_up_to_each_reading_without_stacks => || is_counted_up_to_each_reading(WITHOUT_STACKS),
    #[land] #[measures] a_thread_that_hangs_before_the_agent_starts_counts_from_its_start,
    a_blocked_thread_that_is_moved_leaves_its_time_behind,
    a_thread_that_hangs_uninterruptibly_before_the_agent_starts,
    #[exact] a_wait_goes_on_over_restarts_and_upgrades,
    a_blocked_thread_that_is_moved_twice_leaves_its_time_where_it_was,
    a_running_thread_that_is_moved_hangs_in_its_new_cgroup,
    what_waits_for_a_cpu_after_it_slept_is_told_apart,
];

/// Without a limit of walks, every wait has a stack.
const WITH_STACKS: &str = "stacks: {maxWalks: 0}";
/// The agent's default in a cluster.
const WITHOUT_STACKS: &str = "stacks: {enabled: false}";
/// The kernel charges a task's run time at the beginning of a switch. The agent's timestamp is after the kernel has
/// chosen the next task.
const A_SWITCH: Duration = Duration::from_micros(10);
/// The agent charges an unfinished wait after this time.
pub(crate) const CHARGED_AFTER: Duration = Duration::from_millis(100);

/// Starts a thread that hangs, and does nothing else.
fn hanging(cgroup: &TestCgroup) -> Result<Load> {
    let mut load = Load::start(&format!("spin --seconds 0.01 --hold --cgroup {}", cgroup.path().display()))?;
    let _: CpuReport = load.report()?;
    load.wait_until_blocked()?;
    thread::sleep(CHARGED_AFTER);
    Ok(load)
}

/// One reading of a cgroup.
struct Read {
    metrics: Metrics,
    /// The time of the reading since the epoch, and its duration.
    at: Duration,
    took: Duration,
    blocked: Duration,
    /// The sum of `blocked`, the run queue and the time on a CPU.
    all: Duration,
}

impl Read {
    /// Each wait is charged up to the reading, also a wait that a reading or a move has just charged.
    fn new(agent: &Agent, cgroup: &TestCgroup) -> Result<Self> {
        thread::sleep(CHARGED_AFTER);
        let metrics = agent.fresh_metrics()?;
        let seconds = |name| Duration::try_from_secs_f64(metrics.get(name, &[]).context(name)?).context(name);
        let (at, took) = (seconds("podperf_reading_timestamp_seconds")?, seconds("podperf_scrape_duration_seconds")?);
        let blocked = time(&metrics, OFFCPU, cgroup, &[("state", "interruptible")])?;
        let all = time(&metrics, OFFCPU, cgroup, &[])? + time(&metrics, ONCPU, cgroup, &[])?;
        Ok(Self { metrics, at, took, blocked, all })
    }

    fn grew_with_the_clock(&self, before: &Self, grown: Duration) -> Result<()> {
        self.grew_but_for(before, grown, Duration::ZERO)
    }

    /// Checks that `grown` is the time between both readings, or at most `less` below it. The agent charges unfinished
    /// waits before it notes the time of the reading, so the length of a reading is allowed, too.
    fn grew_but_for(&self, before: &Self, grown: Duration, less: Duration) -> Result<()> {
        let clock = self.at - before.at;
        let (least, most) = (clock.saturating_sub(self.took + less), clock + before.took);
        ensure!(least <= grown && grown <= most, "{grown:?} more, and {least:?} to {most:?} have passed");
        Ok(())
    }
}

fn is_counted_up_to_each_reading(configuration: &str) -> Result<()> {
    let agent = Agent::start(configuration)?;
    let cgroup = TestCgroup::new("hangs")?;
    let mut load = hanging(&cgroup)?;
    let first = Read::new(&agent, &cgroup)?;
    let reason = |read: &Read| time(&read.metrics, "podperf_cgroup_wait_seconds_total", &cgroup, &[("reason", "pipe")]);
    let mut last = Read::new(&agent, &cgroup)?;
    for _ in 0..3 {
        last = Read::new(&agent, &cgroup)?;
        last.grew_with_the_clock(&first, last.blocked - first.blocked)?;
        if configuration == WITH_STACKS {
            let (told, grown) = (reason(&last)? - reason(&first)?, last.blocked - first.blocked);
            ensure!(told == grown, "{told:?} for a pipe, and it was blocked for {grown:?}");
        }
    }
    load.go_on()?;
    load.end()?;
    let ended = Read::new(&agent, &cgroup)?;
    ensure!(ended.blocked >= last.blocked, "{:?}, and {:?} when it was over", last.blocked, ended.blocked);
    let most = ended.at - first.at + first.took;
    ensure!(ended.all - first.all <= most, "{:?} more when it was over, in {most:?}", ended.all - first.all);
    // No wait is unfinished any more.
    let later = Read::new(&agent, &cgroup)?;
    ensure!(later.all == ended.all, "{:?} when all had ended, and then {:?}", ended.all, later.all);
    if configuration == WITH_STACKS {
        later.metrics.ensure_profiles_cover(cgroup.kernel_path())?;
    }
    Ok(())
}

fn a_thread_that_hangs_before_the_agent_starts_counts_from_its_start() -> Result<()> {
    let cgroup = TestCgroup::new("hung")?;
    let load = hanging(&cgroup)?;
    let agent = Agent::start("")?;
    let first = Read::new(&agent, &cgroup)?;
    let second = Read::new(&agent, &cgroup)?;
    second.grew_with_the_clock(&first, second.blocked - first.blocked)?;
    drop(load);
    let ended = Read::new(&agent, &cgroup)?;
    ensure!(ended.blocked >= second.blocked, "{:?}, and {:?} when it was over", second.blocked, ended.blocked);
    let most = ended.at - first.at + first.took;
    ensure!(ended.all - first.all <= most, "{:?} more when it was over, in {most:?}", ended.all - first.all);
    Ok(())
}

/// The thread's child, whose end it waits for, is in the same cgroup.
fn a_thread_that_hangs_uninterruptibly_before_the_agent_starts() -> Result<()> {
    let cgroup = TestCgroup::new("hung-d")?;
    let _load = Load::start(&format!(
        "sleepers --waits 1 --millis 20000 --uninterruptible --cgroup {}",
        cgroup.path().display()
    ))?;
    thread::sleep(10 * CHARGED_AFTER);
    let agent = Agent::start("")?;
    let (first, second) = (Read::new(&agent, &cgroup)?, Read::new(&agent, &cgroup)?);
    let hung = |read: &Read| time(&read.metrics, OFFCPU, &cgroup, &[("state", "uninterruptible")]);
    second.grew_with_the_clock(&first, hung(&second)? - hung(&first)?)
}

/// Adopted programs, other programs of the same layout, and programs of another layout continue the wait.
fn a_wait_goes_on_over_restarts_and_upgrades() -> Result<()> {
    let bpffs = Bpffs::mount()?;
    let yaml = |programs: usize| format!("{}\n{}", bpffs.yaml(), PROGRAMS[programs]);
    let [ours, other] = [agent::binary()?, agent::other_layout()?];
    let mut agent = Agent::start(&yaml(0))?;
    let cgroup = TestCgroup::new("over")?;
    let mut load = hanging(&cgroup)?;
    let first = Read::new(&agent, &cgroup)?;
    for (build, programs) in [(&ours, 0), (&ours, 1), (&other, 1), (&ours, 0)] {
        agent.restart_as(build, Signal::SIGKILL, &yaml(programs))?;
        let read = Read::new(&agent, &cgroup)?;
        read.grew_with_the_clock(&first, read.blocked - first.blocked)?;
    }
    load.go_on()?;
    load.end()?;
    let ended = Read::new(&agent, &cgroup)?;
    let most = ended.at - first.at + first.took;
    ensure!(ended.all - first.all <= most, "{:?} more when it was over, in {most:?}", ended.all - first.all);
    Ok(())
}

/// Container runtimes move a process through more than one cgroup.
fn a_blocked_thread_that_is_moved_twice_leaves_its_time_where_it_was() -> Result<()> {
    let agent = Agent::start("")?;
    let cgroups = [TestCgroup::new("first")?, TestCgroup::new("second")?, TestCgroup::new("third")?];
    let load = hanging(&cgroups[0])?;
    let first = Read::new(&agent, &cgroups[0])?;
    let start = Instant::now();
    cgroups[1].add(load.pid())?;
    thread::sleep(10 * CHARGED_AFTER);
    cgroups[2].add(load.pid())?;
    let between = start.elapsed();
    let last = Read::new(&agent, &cgroups[2])?;
    let of = |cgroup| time(&last.metrics, OFFCPU, cgroup, &[("state", "interruptible")]);
    let [old, middle, new] = [of(&cgroups[0])? - first.blocked, of(&cgroups[1])?, of(&cgroups[2])?];
    // A move charges a wait only if it has lasted this long.
    ensure!(middle <= between + CHARGED_AFTER && middle + CHARGED_AFTER >= between, "{middle:?} of {between:?}");
    last.grew_with_the_clock(&first, old + middle + new)
}

fn a_blocked_thread_that_is_moved_leaves_its_time_behind() -> Result<()> {
    let agent = Agent::start("")?;
    let (from, to) = (TestCgroup::new("from")?, TestCgroup::new("to")?);
    let mut load = hanging(&from)?;
    let first = Read::new(&agent, &from)?;
    thread::sleep(3 * CHARGED_AFTER);
    let since_epoch = || SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let before = since_epoch()?;
    to.add(load.pid())?;
    let after = since_epoch()?;
    let left = Read::new(&agent, &from)?;
    let (least, most) = (before - first.at, after - first.at + first.took);
    let grown = left.blocked - first.blocked;
    ensure!(least <= grown && grown <= most, "{grown:?} more in the old one, and it left after {least:?} to {most:?}");
    let new = Read::new(&agent, &to)?;
    new.grew_with_the_clock(&first, grown + new.blocked)?;
    load.go_on()?;
    load.end()?;
    let (old, new) = (Read::new(&agent, &from)?, Read::new(&agent, &to)?);
    ensure!(old.all == left.all, "{:?} in the old one, and then {:?}", left.all, old.all);
    for read in [(&old, &from), (&new, &to)] {
        read.0.metrics.ensure_profiles_cover(read.1.kernel_path())?;
    }
    Ok(())
}

/// The thread burns while another task moves it, and hangs after that.
fn a_running_thread_that_is_moved_hangs_in_its_new_cgroup() -> Result<()> {
    let agent = Agent::start("")?;
    let (from, to) = (TestCgroup::new("from")?, TestCgroup::new("to")?);
    let mut load = Load::start(&format!("spin --seconds 1 --hold --cgroup {}", from.path().display()))?;
    thread::sleep(Duration::from_millis(300));
    to.add(load.pid())?;
    let moved = from.cpu_usage()?;
    let _: CpuReport = load.report()?;
    load.wait_until_blocked()?;
    thread::sleep(CHARGED_AFTER);
    let (old, new) = (Read::new(&agent, &from)?, Read::new(&agent, &to)?);
    let later = Read::new(&agent, &to)?;
    later.grew_with_the_clock(&new, later.blocked - new.blocked)?;
    is_close("what it ran before", time(&old.metrics, ONCPU, &from, &[])?, moved)?;
    load.go_on()?;
    load.end()?;
    let (ended, still) = (Read::new(&agent, &from)?, Read::new(&agent, &from)?);
    ensure!(old.all == ended.all && ended.all == still.all, "{:?}, {:?}, {:?}", old.all, ended.all, still.all);
    let (ended, still) = (Read::new(&agent, &to)?, Read::new(&agent, &to)?);
    ensure!(ended.all == still.all, "{:?} when all had ended, and then {:?}", ended.all, still.all);
    Ok(())
}

/// The load's sleeps are short. After nearly each sleep it waits for the CPU, on which a realtime task computes for 8 of
/// 10 ms: whatever else runs on the machine, the load has to wait for it.
fn what_waits_for_a_cpu_after_it_slept_is_told_apart() -> Result<()> {
    const WAITS: u32 = 300;
    const MILLIS: u32 = 2;
    let agent = Agent::start("stacks: {maxWalks: 0}")?;
    let (realtime, cgroup) = (TestCgroup::new("realtime")?, TestCgroup::new("nice")?);
    let _bursts = Load::start(&format!(
        "fifo --seconds 0.008 --times 3000 --pause-millis 2 --cpu 0 --cgroup {}",
        realtime.path().display()
    ))?;
    let mut load = Load::start(&format!(
        "sleepers --waits {WAITS} --millis {MILLIS} --nice 19 --cpu 0 --wait --cgroup {}",
        cgroup.path().display()
    ))?;
    load.wait_for_word("ready")?;
    load.wait_until_blocked()?;
    thread::sleep(CHARGED_AFTER);
    let (before, counts, stolen) = (Read::new(&agent, &cgroup)?, Counts::of(load.pid())?, process::stolen()?);
    load.go_on()?;
    load.wait_for_word("done")?;
    load.wait_until_blocked()?;
    thread::sleep(CHARGED_AFTER);
    let after = Read::new(&agent, &cgroup)?;
    let (counts, stolen) = (Counts::of(load.pid())?.since(&counts), process::stolen()?.saturating_sub(stolen));
    load.go_on()?;
    let report: SleepersReport = load.report()?;
    load.end()?;
    let switches = u32::try_from(counts.voluntary + counts.involuntary)?;
    after.grew_but_for(&before, after.all - before.all, A_SWITCH * switches + stolen).context("a life")?;
    let grown = |family, label| -> Result<Duration> {
        // A reason has a series only after the first wait for it.
        let then = time(&before.metrics, family, &cgroup, &[label]).unwrap_or_default();
        Ok(time(&after.metrics, family, &cgroup, &[label])? - then)
    };
    let slept = grown("podperf_cgroup_wait_seconds_total", ("reason", "sleep"))?;
    let queued = grown(OFFCPU, ("state", "run_queue"))?;
    let (least, whole) = (Duration::from_millis((WAITS * MILLIS).into()), Duration::from_nanos(report.waited_ns));
    ensure!(queued > least / 2, "it waited for a CPU for only {queued:?}");
    // A timer may be late by its slack, 50 us, and a virtual CPU may be away when it is due.
    ensure!(slept >= least && slept < least * 3 / 2, "{slept:?} of sleep, and it slept for {least:?} of {whole:?}");
    after.metrics.ensure_profiles_cover(cgroup.kernel_path())
}
