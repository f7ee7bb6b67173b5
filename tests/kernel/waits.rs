//! Time off the CPU, by the task's state when it left the CPU.

use std::time::Duration;

use anyhow::{Result, ensure};
use podperf_tests::{
    agent::Agent,
    cgroup::TestCgroup,
    load::{cpu::CpuReport, sleepers::SleepersReport},
    running::{Counts, Load, OFFCPU, is_close, run, time},
};

pub(crate) fn sleeps(configuration: &str) -> Result<()> {
    let agent = Agent::start(configuration)?;
    let cgroup = TestCgroup::new("sleeps")?;
    let report: SleepersReport = run(&format!("sleepers --waits 50 --millis 20 --cgroup {}", cgroup.path().display()))?;
    let metrics = agent.fresh_metrics()?;
    // The load's own clock also has its waits for a CPU.
    let truth = Duration::from_nanos(report.waited_ns - report.usage.cpu_ns);
    let queued = time(&metrics, OFFCPU, &cgroup, &[("state", "run_queue")])?;
    let waited = time(&metrics, OFFCPU, &cgroup, &[("state", "interruptible")])?;
    is_close("interruptible waits", waited, waited.clamp(truth.saturating_sub(queued), truth))?;
    let other = time(&metrics, OFFCPU, &cgroup, &[("state", "uninterruptible")])?;
    ensure!(other < Duration::from_millis(20), "{other:?} of uninterruptible waits");
    Ok(())
}

/// A parent in vfork waits in state D for its child, which sleeps in state S in the same cgroup.
pub(crate) fn vfork() -> Result<()> {
    let agent = Agent::start("")?;
    let cgroup = TestCgroup::new("vfork")?;
    let arguments = "sleepers --waits 50 --millis 20 --uninterruptible";
    let report: SleepersReport = run(&format!("{arguments} --cgroup {}", cgroup.path().display()))?;
    let metrics = agent.fresh_metrics()?;
    let truth = report.blocked().saturating_sub(Duration::from_nanos(report.usage.cpu_ns));
    is_close("uninterruptible waits", time(&metrics, OFFCPU, &cgroup, &[("state", "uninterruptible")])?, truth)?;
    let child = time(&metrics, OFFCPU, &cgroup, &[("state", "interruptible")])?;
    ensure!(child >= Duration::from_millis(1000), "the children slept for only {child:?}");
    Ok(())
}

/// Both loads block before the test reads them, so their waits for a CPU are over.
pub(crate) fn runqueue(configuration: &str) -> Result<()> {
    let agent = Agent::start(configuration)?;
    let cgroups = [TestCgroup::new("left")?, TestCgroup::new("right")?];
    let mut loads = Vec::new();
    for cgroup in &cgroups {
        loads.push(Load::start(&format!("spin --seconds 0.7 --cpu 0 --hold --cgroup {}", cgroup.path().display()))?);
    }
    let mut truths = Vec::new();
    for load in &mut loads {
        let report: CpuReport = load.report()?;
        load.wait_until_blocked()?;
        truths.push(Counts::of(load.pid())?.runqueue - Duration::from_nanos(report.outside.wait_ns));
    }
    let metrics = agent.fresh_metrics()?;
    for (cgroup, truth) in cgroups.iter().zip(truths) {
        ensure!(truth > Duration::from_millis(400), "waited for only {truth:?}");
        is_close("run-queue wait", time(&metrics, OFFCPU, cgroup, &[("state", "run_queue")])?, truth)?;
    }
    Ok(())
}
