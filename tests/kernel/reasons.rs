//! Wait reasons from stacks, and a check that the times with all reasons are complete.

use std::{
    fs,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use podperf_tests::{
    agent::{Agent, Metrics},
    cgroup::{self, TestCgroup},
    load::{
        blocked::BlockedReport, cpu::CpuReport, descriptors::DescriptorsReport, hoard::HoardReport, lives::LivesReport,
        mixed::MixedReport,
    },
    process,
    running::{Load, OFFCPU, ONCPU, count, is_close, run, time},
    suite::{Need, tell, within},
};

/// No limit of walks: walks of other processes must not turn these waits into a sample.
const WITHOUT_BUDGET: &str = "stacks: {maxWalks: 0}";
/// The same with counts of waits.
const COUNTED: &str = "stacks: {maxWalks: 0}\nmetrics: {facts: [oncpu, offcpu, wait_reasons, wait_counts]}";
/// Off-CPU time of a row, by reason.
const WAIT: &str = "podperf_cgroup_wait_seconds_total";
/// The number of these waits.
const WAITS: &str = "podperf_cgroup_waits_total";
/// The loads' files need a disk: a memory file system has no disk to wait for.
pub(crate) const DISK: Need = Need::Disk(env!("CARGO_TARGET_TMPDIR"));
/// The controller of CPU quotas.
pub(crate) const CPU_CONTROLLER: Need = Need::Controller("cpu");
/// The controller of memory limits.
pub(crate) const MEMORY_CONTROLLER: Need = Need::Controller("memory");

/// A load `blocked` that has ended.
pub(crate) struct Blocked {
    pub(crate) cgroup: TestCgroup,
    pub(crate) metrics: Metrics,
    report: BlockedReport,
    stolen: Duration,
}

impl Blocked {
    /// Runs the load in a cgroup of its own, in the kind of wait `on`.
    pub(crate) fn run(agent: &Agent, on: &str) -> Result<Self> {
        let cgroup = TestCgroup::new(on)?;
        let (path, directory) = (cgroup.path().display(), env!("CARGO_TARGET_TMPDIR"));
        let stolen = process::stolen()?;
        let report = run(&format!("blocked --on {on} --cgroup {path} --directory {directory}"))?;
        let stolen = process::stolen()?.saturating_sub(stolen);
        Ok(Self { metrics: agent.fresh_metrics()?, cgroup, report, stolen })
    }

    /// Compares the time that a metric has for these waits with the load's own. In the rest of the time, the load was on
    /// a CPU or waited for one. Time that a hypervisor took from a CPU is in no row: a virtual disk may take much of it.
    pub(crate) fn is_found(&self, what: &str, found: Duration) -> Result<()> {
        let Self { cgroup, metrics, report, stolen } = self;
        let truth = Duration::from_nanos(report.waited_ns);
        let elsewhere = time(metrics, ONCPU, cgroup, &[])? + time(metrics, OFFCPU, cgroup, &[("state", "run_queue")])?;
        let least = truth.saturating_sub(elsewhere + *stolen).mul_f64(0.9);
        ensure!(
            found >= least && found <= truth,
            "{what}: {found:?}, and the load waited {truth:?}, with {stolen:?} stolen"
        );
        Ok(())
    }
}

/// Checks that all waits of a load have this reason, and that their time is the metrics' time by state.
pub(crate) fn blocked(cases: &[(&str, &str)]) -> Result<()> {
    /// The largest number of waits of the same kind that the load's process makes as it starts and before it ends.
    const OTHERS: f64 = 5.0;
    let agent = Agent::start(COUNTED)?;
    for (on, reason) in cases {
        let load = Blocked::run(&agent, on)?;
        let Blocked { cgroup, metrics, report, .. } = &load;
        load.is_found(&format!("{on}: waits for `{reason}`"), waited(metrics, cgroup, reason)?)?;
        let (waits, times) = (count(metrics, WAITS, cgroup, &[("reason", reason)])?, f64::from(report.waits));
        // A file read waits in several steps, or not at all if the file is in memory. A byte in a pipe may have come
        // while its reader queued for a CPU. All other loads wait once each time.
        let (least, most) = match *on {
            "disk" | "page-fault" => (1.0, f64::INFINITY),
            "pipe" => (times * 0.8, times + OTHERS),
            _ => (times, times + OTHERS),
        };
        ensure!(
            (least..=most).contains(&waits),
            "{on}: {waits} waits for `{reason}`, and the load waited {times} times"
        );
        metrics.ensure_profiles_cover(cgroup.kernel_path())?;
    }
    Ok(())
}

/// Another CPU often wakes a thread that waits for a disk before the thread has left its own CPU. The task no longer
/// has its state then.
pub(crate) fn a_disk_is_waited_for_uninterruptibly() -> Result<()> {
    let agent = Agent::start("")?;
    let cgroup = TestCgroup::new("state")?;
    let (path, directory) = (cgroup.path().display(), env!("CARGO_TARGET_TMPDIR"));
    let _: BlockedReport = run(&format!("blocked --on disk --cgroup {path} --directory {directory}"))?;
    let metrics = agent.fresh_metrics()?;
    let of = |state| time(&metrics, OFFCPU, &cgroup, &[("state", state)]);
    let (interruptible, uninterruptible) = (of("interruptible")?, of("uninterruptible")?);
    ensure!(uninterruptible > Duration::from_millis(10), "{uninterruptible:?} of waits for a disk");
    ensure!(interruptible.is_zero(), "{interruptible:?} interruptible beside {uninterruptible:?}");
    Ok(())
}

/// One call usually waits briefly. In rare cases it waits a thousand times as long, for something else.
pub(crate) fn a_rare_long_wait_is_told_by_where_it_slept() -> Result<()> {
    let agent = Agent::start("")?;
    let cgroup = TestCgroup::new("descriptors")?;
    let report: DescriptorsReport = run(&format!("descriptors --cgroup {}", cgroup.path().display()))?;
    let metrics = agent.fresh_metrics()?;
    is_close("the socket", waited(&metrics, &cgroup, "network")?, Duration::from_nanos(report.socket_ns))?;
    let (pipe, most) = (waited(&metrics, &cgroup, "pipe")?, Duration::from_nanos(report.pipe_ns));
    ensure!(pipe >= most / 2 && pipe <= most, "{pipe:?} of waits for a pipe, and it read for {most:?}");
    // Only cached stacks can be wrong, and this test checks them.
    let wrong = metrics.get("podperf_stack_seen_wrong_seconds_total", &[]).context("no time with a wrong stack")?;
    let least = 0.9 * Duration::from_nanos(report.socket_ns).as_secs_f64();
    ensure!(wrong >= least, "{wrong} s were remembered wrongly, and at least {least} s should have been");
    metrics.ensure_profiles_cover(cgroup.kernel_path())
}

/// The test stops the load, or freezes its cgroup, during waits that are in the stack cache by then.
pub(crate) fn who_is_stopped_waits_for_nothing_else() -> Result<()> {
    const STOPPED: Duration = Duration::from_secs(2);
    let agent = Agent::start("")?;
    for freeze in [false, true] {
        let cgroup = TestCgroup::new("stopped")?;
        let path = cgroup.path();
        let mut load = Load::start(&format!("blocked --on network --millis 3500 --cgroup {}", path.display()))?;
        let pid = Pid::from_raw(i32::try_from(load.pid())?);
        let stop = |stops: bool| -> Result<()> {
            if freeze {
                return fs::write(path.join("cgroup.freeze"), if stops { "1" } else { "0" })
                    .context("failed to freeze");
            }
            Ok(kill(pid, if stops { Signal::SIGSTOP } else { Signal::SIGCONT })?)
        };
        thread::sleep(Duration::from_secs(1));
        let start = Instant::now();
        stop(true)?;
        thread::sleep(STOPPED);
        stop(false)?;
        let truth = start.elapsed();
        let _: BlockedReport = load.report()?;
        load.end()?;
        let metrics = agent.fresh_metrics()?;
        is_close("stopped", waited(&metrics, &cgroup, "stopped")?, truth)?;
        let network = waited(&metrics, &cgroup, "network")?;
        ensure!(network > Duration::from_secs(1) && network < STOPPED, "{network:?} for the network");
    }
    Ok(())
}

/// Two burners on one CPU preempt each other, and wait for nothing else.
pub(crate) fn preempted() -> Result<()> {
    let agent = Agent::start(WITHOUT_BUDGET)?;
    let cgroups = [TestCgroup::new("left")?, TestCgroup::new("right")?];
    let mut loads = Vec::new();
    for cgroup in &cgroups {
        loads.push(Load::start(&format!("spin --seconds 0.5 --cpu 0 --hold --cgroup {}", cgroup.path().display()))?);
    }
    for load in &mut loads {
        let _: CpuReport = load.report()?;
        load.wait_until_blocked()?;
    }
    let metrics = agent.fresh_metrics()?;
    for cgroup in &cgroups {
        let preempted = waited(&metrics, cgroup, "run_queue")?;
        ensure!(
            preempted > Duration::from_millis(300),
            "{preempted:?} preempted by a neighbour that burnt half a second"
        );
        is_close("preempted", preempted, time(&metrics, OFFCPU, cgroup, &[("state", "run_queue")])?)?;
        // The copy of its last wait may be unwound a moment later. Time that is lost would be too much for longer.
        within(Duration::from_secs(2), "its profile has all waits", || {
            Ok(agent.fresh_metrics()?.ensure_profiles_cover(cgroup.kernel_path()).ok())
        })?;
    }
    Ok(())
}

/// A burner with a quota of a fifth of a CPU waits for four fifths of the time. The kernel counts the same time.
pub(crate) fn throttled(stacks: bool) -> Result<()> {
    cgroup::switch_on("cpu")?;
    let agent = Agent::start(if stacks { WITHOUT_BUDGET } else { "stacks: {enabled: false}" })?;
    let cgroup = TestCgroup::new("throttled")?;
    fs::write(cgroup.path().join("cpu.max"), "20000 100000").context("failed to set a quota")?;
    let mut load = Load::start(&format!("spin --seconds 0.5 --hold --cgroup {}", cgroup.path().display()))?;
    let _: CpuReport = load.report()?;
    load.wait_until_blocked()?;
    let metrics = agent.fresh_metrics()?;
    let found = time(&metrics, OFFCPU, &cgroup, &[("state", "throttled")])?;
    let truth = throttled_time(cgroup.path())?;
    ensure!(truth > Duration::from_secs(1), "the kernel throttled it for only {truth:?}");
    tell(&format!("{found:?} throttled, and the kernel counted {truth:?}"));
    // The kernel's time is that of the group's run queue: it ends when the group has quota again, and the task runs a
    // moment later.
    ensure!(found.abs_diff(truth) <= truth / 50, "{found:?}, and the kernel counted {truth:?}");
    if !stacks {
        return Ok(());
    }
    is_close("the reason", waited(&metrics, &cgroup, "throttled")?, found)?;
    metrics.ensure_profiles_cover(cgroup.kernel_path())
}

/// Over `memory.high`, the kernel makes a thread sleep on its way back to user mode, after any access that touched the
/// page.
pub(crate) fn over_the_limit_of_memory() -> Result<()> {
    cgroup::switch_on("memory")?;
    let agent = Agent::start(WITHOUT_BUDGET)?;
    let cgroup = TestCgroup::new("high")?;
    fs::write(cgroup.path().join("memory.high"), "8M").context("failed to set a limit")?;
    let start = Instant::now();
    let report: HoardReport = run(&format!("hoard --cgroup {}", cgroup.path().display()))?;
    let at_most = start.elapsed();
    let metrics = agent.fresh_metrics()?;
    let found = waited(&metrics, &cgroup, "memory_limit")?;
    let queued = time(&metrics, OFFCPU, &cgroup, &[("state", "run_queue")])?;
    let waited = Duration::from_nanos(report.wall_ns.saturating_sub(report.cpu_ns));
    tell(&format!("{found:?} over the limit, and it waited {waited:?}"));
    ensure!(waited > Duration::from_secs(1), "it waited for only {waited:?}: {report:?}");
    // The load may wait once more after its report.
    ensure!(
        found + queued + waited / 20 >= waited && found <= at_most,
        "{found:?}, and {queued:?} in the run queue, of {waited:?} to {at_most:?}"
    );
    Ok(())
}

/// A thread is on the CPU, waits for it, or waits for something else, so the sum of these times is the wall time. Time
/// that a hypervisor stole from the running thread is in none of them.
pub(crate) fn one_thread_is_the_wall() -> Result<()> {
    let agent = Agent::start(WITHOUT_BUDGET)?;
    let cgroup = TestCgroup::new("wall")?;
    // A neighbour on the same CPU makes the load wait for the CPU, too.
    let _neighbour = Load::start("spin --seconds 60 --cpu 0")?;
    let (start, stolen) = (Instant::now(), process::stolen()?);
    let mut load = Load::start(&format!("mixed --cpu 0 --seconds 3 --cgroup {}", cgroup.path().display()))?;
    let report: MixedReport = load.report()?;
    load.end()?;
    // The load began after `start` and ended before this line. It measured most of its life itself.
    let at_most = start.elapsed();
    let stolen = process::stolen()?.saturating_sub(stolen);
    let metrics = agent.fresh_metrics()?;
    let sum = lived(&metrics, &cgroup)?;
    let wall = Duration::from_nanos(report.wall_ns);
    ensure!(wall > Duration::from_secs(2), "it did not run for long");
    ensure!(
        sum + stolen + wall / 100 >= wall && sum <= at_most,
        "{sum:?}; the thread lived for {wall:?} to {at_most:?}, of which {stolen:?} were stolen at most"
    );
    for (what, part) in [("ran", time(&metrics, ONCPU, &cgroup, &[])?), ("slept", waited(&metrics, &cgroup, "sleep")?)]
    {
        ensure!(part > wall / 10, "it {what} for only {part:?}");
    }
    metrics.ensure_profiles_cover(cgroup.kernel_path())
}

/// Children that live for milliseconds and compute all the time, beside other loads on their CPU. They are in the run
/// queue for most of their lives, from the first moment on.
pub(crate) fn children_are_their_lives() -> Result<()> {
    let agent = Agent::start(WITHOUT_BUDGET)?;
    let cgroup = TestCgroup::new("lives")?;
    let _neighbours = (0..4).map(|_| Load::start("spin --seconds 60 --cpu 0")).collect::<Result<Vec<_>>>()?;
    let (start, stolen) = (Instant::now(), process::stolen()?);
    let mut load = Load::start(&format!("lives --cpu 0 --cgroup {}", cgroup.path().display()))?;
    let report: LivesReport = load.report()?;
    load.end()?;
    let (elapsed, stolen) = (start.elapsed(), process::stolen()?.saturating_sub(stolen));
    let metrics = agent.fresh_metrics()?;
    let sum = lived(&metrics, &cgroup)?;
    let least = Duration::from_nanos(report.least_ns + report.own_ns);
    let most = Duration::from_nanos(report.most_ns) + elapsed;
    ensure!(
        sum + stolen + least / 100 >= least && sum <= most + most / 100,
        "{sum:?}; {} children and their parent lived for {least:?} to {most:?}, with {stolen:?} stolen",
        report.children
    );
    let queued = time(&metrics, OFFCPU, &cgroup, &[("state", "run_queue")])?;
    ensure!(queued >= sum / 4, "only {queued:?} of {sum:?} in the run queue");
    Ok(())
}

/// Returns the time on the CPU and off it, without the time without quota.
fn lived(metrics: &Metrics, cgroup: &TestCgroup) -> Result<Duration> {
    let states = ["interruptible", "uninterruptible", "run_queue"];
    let off = |state: &&str| time(metrics, OFFCPU, cgroup, &[("state", *state)]);
    Ok(time(metrics, ONCPU, cgroup, &[])? + states.iter().map(off).sum::<Result<Duration>>()?)
}

fn waited(metrics: &Metrics, cgroup: &TestCgroup, reason: &str) -> Result<Duration> {
    time(metrics, WAIT, cgroup, &[("reason", reason)])
}

fn throttled_time(cgroup: &Path) -> Result<Duration> {
    let text = fs::read_to_string(cgroup.join("cpu.stat"))?;
    let micros = text.lines().find_map(|line| line.strip_prefix("throttled_usec ")).context("no `throttled_usec`")?;
    Ok(Duration::from_micros(micros.trim().parse()?))
}
