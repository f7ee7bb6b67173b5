//! Switches and faults are exact: not one more or less than the kernel counted for the task.

use anyhow::{Result, ensure};
use podperf_tests::{agent::Agent, cgroup::TestCgroup, load::faults::FaultsReport};

use crate::running::{Counts, Load, ONCPU, count, is_close, time, with_faults};

/// The load is moved while it blocks, works, and blocks again: at both ends its counts stand still and can be read
/// from outside, so what is between them is exactly what belongs to the cgroup.
pub(crate) fn switches_and_faults(configuration: &str) -> Result<()> {
    let agent = Agent::start(&with_faults(configuration))?;
    let cgroup = TestCgroup::new("counts")?;
    let mut load = Load::start("faults --pages 5000 --switches 2000 --wait")?;
    load.wait_for_word("ready")?;
    load.wait_until_blocked()?;
    let before = Counts::of(load.pid())?;
    cgroup.add(load.pid())?;
    load.go_on()?;
    load.wait_for_word("done")?;
    load.wait_until_blocked()?;
    let after = Counts::of(load.pid())?;
    let metrics = agent.fresh_metrics()?;
    ensure!(after == Counts::of(load.pid())?, "the load did not stand still");
    load.go_on()?;
    let report: FaultsReport = load.report()?;
    load.end()?;

    let exact = |family: &str, kind: &str, truth: u64| -> Result<()> {
        let found = count(&metrics, family, &cgroup, &[("kind", kind)])?;
        let truth = u32::try_from(truth)?;
        ensure!(found.to_bits() == f64::from(truth).to_bits(), "{found} {kind} {family}, and the truth is {truth}");
        Ok(())
    };
    let switches = "podperf_cgroup_context_switches_total";
    exact(switches, "voluntary", after.voluntary - before.voluntary)?;
    exact(switches, "involuntary", after.involuntary - before.involuntary)?;
    // getrusage's count is taken just before the load blocks the second time, which is one more.
    exact(switches, "voluntary", report.inside.voluntary_switches + 1)?;
    // A sleep may end before its switch, when the load was preempted on the way to it.
    ensure!(report.inside.voluntary_switches >= 1900, "{report:?}");
    let faults = "podperf_cgroup_page_faults_total";
    exact(faults, "minor", after.minor_faults - before.minor_faults)?;
    exact(faults, "major", after.major_faults - before.major_faults)?;
    ensure!(report.inside.minor_faults >= 5000, "{report:?}");
    ensure!(after.minor_faults - before.minor_faults >= report.inside.minor_faults, "{report:?}");
    is_close("on-CPU time", time(&metrics, ONCPU, &cgroup, &[])?, after.run - before.run)
}
