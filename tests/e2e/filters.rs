//! Filters of profiles: what they let pass arrives, the rest does not, and metrics have everything.

use std::{fs, time::Duration};

use anyhow::{Result, ensure};
use podperf_tests::{
    agent::Agent,
    cgroup::TestCgroup,
    collector::Collector,
    load::sleepers::SleepersReport,
    suite::{Need, Test},
};
use tempfile::TempDir;

use crate::{command::within, profiles::Held};

pub(crate) const TESTS: &[Test] = &[
    ("a_filter_by_length_and_name_lets_only_those_waits_pass", &[Need::Program("go")], by_length_and_name),
    ("a_filter_by_cgroup_or_thread_lets_only_those_pass", &[Need::Program("go")], by_cgroup_or_thread),
];

const DEADLINE: Duration = Duration::from_secs(30);

/// Two sleepers, one with long waits and one with short ones, under an agent with this filter.
struct Run {
    collector: Collector,
    agent: Agent,
    long: TestCgroup,
    short: TestCgroup,
}

impl Run {
    fn new(filter: impl Fn(&TestCgroup, u32) -> String) -> Result<Self> {
        let (long, short) = (TestCgroup::new("long")?, TestCgroup::new("short")?);
        let collector = Collector::start()?;
        let scratch = TempDir::new()?;
        let start = scratch.path().join("start");
        let after = start.to_string_lossy();
        let loads = [
            Held::start(&long, &["sleepers", "--waits", "40", "--millis", "50", "--after", &after])?,
            Held::start(&short, &["sleepers", "--waits", "1000", "--millis", "1", "--after", &after])?,
        ];
        let filter = filter(&long, loads[1].pid());
        let agent = Agent::start(&format!(
            "otlp: {{endpoint: '{}', interval: 1s}}\nstacks: {{filter: '{filter}'}}",
            collector.endpoint()
        ))?;
        fs::write(&start, "")?;
        let waits = |cgroup: &TestCgroup| {
            Ok::<_, anyhow::Error>(
                agent
                    .fresh_metrics()?
                    .sum("podperf_cgroup_wait_seconds_total", &[("cgroup", cgroup.kernel_path()), ("reason", "sleep")]),
            )
        };
        within(DEADLINE, "both have slept", || Ok((waits(&long)? >= 1.9 && waits(&short)? >= 0.9).then_some(())))?;
        let exports = || Ok::<_, anyhow::Error>(agent.metrics()?.sum("podperf_otlp_exports_total", &[]));
        // With nothing to send there are no exports: the next windows are over by then.
        let before = exports()?;
        within(Duration::from_secs(5), "two more windows", || Ok((exports()? >= before + 2.0).then_some(()))).ok();
        for load in loads {
            let _: SleepersReport = load.finish()?;
        }
        Ok(Self { collector, agent, long, short })
    }

    /// Seconds of sleep that have arrived.
    fn arrived(&self, cgroup: &TestCgroup) -> Result<f64> {
        let samples = self.collector.samples_of(cgroup.kernel_path())?;
        let slept = samples.iter().filter(|sample| sample.reason == "sleep");
        #[expect(clippy::cast_precision_loss, reason = "some seconds")]
        Ok(slept.map(|sample| sample.value as f64).sum::<f64>() / 1e9)
    }
}

fn by_length_and_name() -> Result<()> {
    let run = Run::new(|_, _| "duration >= 20ms && comm == \"podperf-l*\" || comm == nobody".into())?;
    let (long, short) = (run.arrived(&run.long)?, run.arrived(&run.short)?);
    ensure!(long >= 1.9, "only {long} s of long waits arrived: {}", run.agent.log());
    // Of their second, some may be delayed by others until they are long.
    ensure!(short <= 0.5, "{short} s of short waits arrived");
    Ok(())
}

fn by_cgroup_or_thread() -> Result<()> {
    let run = Run::new(|long, tid| format!("cgroup == \"{}\" && state == D || tid == {tid}", long.kernel_path()))?;
    let (long, short) = (run.arrived(&run.long)?, run.arrived(&run.short)?);
    ensure!(short >= 0.9, "only {short} s of the thread's waits arrived: {}", run.agent.log());
    ensure!(long == 0.0, "{long} s of interruptible waits arrived");
    Ok(())
}
