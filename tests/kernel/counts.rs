//! Switches and faults are exact: each count is equal to the kernel's count of the task.

use anyhow::{Result, ensure};
use podperf_tests::{
    agent::{Agent, Metrics, NO_STACKS},
    cgroup::TestCgroup,
    load::faults::FaultsReport,
    running::{Counts, Load, ONCPU, count, is_close, time, with_faults},
};

const SWITCHES: &str = "podperf_cgroup_context_switches_total";
const FAULTS: &str = "podperf_cgroup_page_faults_total";

/// A load of faults and switches. The test moves it into a cgroup while it blocks. Then it works there, and blocks
/// again. At both ends the test can read its counts, because they stand still, so their difference is exactly the
/// cgroup's.
pub(crate) struct Inside<'a> {
    load: Load,
    cgroup: &'a TestCgroup,
    before: Counts,
}

/// The load's work in its cgroup: by the kernel's counts, by its own, and by the agent's.
pub(crate) struct Worked<'a> {
    cgroup: &'a TestCgroup,
    pub(crate) truth: Counts,
    pub(crate) report: FaultsReport,
    pub(crate) metrics: Metrics,
}

impl<'a> Inside<'a> {
    /// Starts `faults` with more arguments, and moves it into the cgroup before it works.
    pub(crate) fn start(arguments: &str, cgroup: &'a TestCgroup) -> Result<Self> {
        let mut load = Load::start(&format!("faults --wait {arguments}"))?;
        load.wait_for_word("ready")?;
        load.wait_until_blocked()?;
        let before = Counts::of(load.pid())?;
        cgroup.add(load.pid())?;
        load.go_on()?;
        Ok(Self { load, cgroup, before })
    }

    /// Waits until the load's work is done, and scrapes before it ends.
    pub(crate) fn finish(mut self, agent: &Agent) -> Result<Worked<'a>> {
        self.load.wait_for_word("done")?;
        self.load.wait_until_blocked()?;
        let after = Counts::of(self.load.pid())?;
        let metrics = agent.fresh_metrics()?;
        ensure!(after == Counts::of(self.load.pid())?, "the load did not stand still");
        self.load.go_on()?;
        let report = self.load.report()?;
        self.load.end()?;
        Ok(Worked { cgroup: self.cgroup, truth: after.since(&self.before), report, metrics })
    }
}

impl Worked<'_> {
    /// Checks that the agent's counts are exactly the kernel's.
    pub(crate) fn ensure_exact(&self) -> Result<()> {
        self.exact(SWITCHES, "voluntary", self.truth.voluntary)?;
        self.exact(SWITCHES, "involuntary", self.truth.involuntary)?;
        self.exact(FAULTS, "minor", self.truth.minor_faults)?;
        self.exact(FAULTS, "major", self.truth.major_faults)
    }

    fn exact(&self, family: &str, kind: &str, truth: u64) -> Result<()> {
        let found = count(&self.metrics, family, self.cgroup, &[("kind", kind)])?;
        let truth = f64::from(u32::try_from(truth)?);
        ensure!(found.to_bits() == truth.to_bits(), "{found} {kind} {family}, and the truth is {truth}");
        Ok(())
    }
}

pub(crate) fn switches_and_faults(configuration: &str) -> Result<()> {
    counts_exactly(&Agent::start(&with_faults(&format!("{configuration}{NO_STACKS}")))?)
}

/// Checks the counts of an agent that exports switches and faults.
pub(crate) fn counts_exactly(agent: &Agent) -> Result<()> {
    let cgroup = TestCgroup::new("counts")?;
    let worked = Inside::start("--pages 5000 --switches 2000", &cgroup)?.finish(agent)?;
    worked.ensure_exact()?;
    let Worked { truth, report, metrics, .. } = &worked;
    // A sleep may end before its switch, if the load was preempted before the switch.
    ensure!(report.inside.voluntary_switches >= 1900, "{report:?}");
    ensure!(report.inside.minor_faults >= 5000, "{report:?}");
    ensure!(truth.minor_faults >= report.inside.minor_faults, "{report:?}");
    is_close("on-CPU time", time(metrics, ONCPU, &cgroup, &[])?, truth.run)
}
