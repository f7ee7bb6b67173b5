//! The stack cache saves walks and copies.

use anyhow::{Context as _, Result, ensure};
use podperf_tests::{agent::Agent, cgroup::TestCgroup, load::sleepers::SleepersReport, running::run};

const WAITS: u32 = 2000;
/// The length of a wait. The agent takes a part of a second to answer the first copy, and each wait until then is
/// copied. All waits together take far longer.
const MILLIS: u32 = 5;

pub(crate) fn are_remembered() -> Result<()> {
    let agent = Agent::start("")?;
    let cgroup = TestCgroup::new("stacks")?;
    let before = agent.fresh_metrics()?;
    let report: SleepersReport =
        run(&format!("sleepers --waits {WAITS} --millis {MILLIS} --cgroup {}", cgroup.path().display()))?;
    let after = agent.fresh_metrics()?;
    let grown = |name: &str| -> Result<f64> {
        let of =
            |metrics: &podperf_tests::agent::Metrics| metrics.get(name, &[]).with_context(|| format!("no `{name}`"));
        Ok(of(&after)? - of(&before)?)
    };
    let (waits, walks) = (grown("podperf_stack_waits_total")?, grown("podperf_stack_walks_total")?);
    // On a slow machine, a short sleep may be over before the switch. Such a sleep is not a wait.
    let load = f64::from(u32::try_from(report.usage.voluntary_switches)?);
    ensure!(load >= f64::from(WAITS) * 0.9, "the load waited only {load} times");
    ensure!(waits >= load, "{waits} waits should have a stack, and the load alone had {load}");
    // These are sums of the machine. Other processes may have walked at each of their waits, and the load's walks may
    // be few.
    let others = waits - load;
    ensure!(walks - others <= load / 10.0, "{walks} walks for {waits} waits, of which {others} were not the load's");
    let wrong = grown("podperf_stack_checks_wrong_total")?;
    ensure!(wrong <= waits / 200.0, "{wrong} wrong answers were found for {waits} waits");
    Ok(())
}
