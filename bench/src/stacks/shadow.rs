//! The remembered stacks that are wrong: in shadow mode, the kernel side compares them with recipes, and the agent unwinds
//! many of the stacks that recipes prove.

use std::{path::Path, thread, time::Duration};

use anyhow::Result;
use podperf_tests::agent::{Agent, testing};

use super::costs::{Account, ratio};

/// Watches the loads in shadow mode, and returns the text to print.
pub(super) fn run(program: &Path, way: &str, warm_up: Duration, time: Duration) -> Result<String> {
    let shadow = testing("shadow=true");
    let yaml =
        format!("{shadow}overhead: {{maxPercent: 0}}\nstacks: {{unwind: {way}, maxWalks: 0}}\nmetrics: {{own: all}}\n");
    let agent = Agent::start_to_measure(program, &yaml)?;
    thread::sleep(warm_up);
    let before = Account::of(&agent)?;
    thread::sleep(time);
    let after = Account::of(&agent)?;
    let grown = |name: &str| after.grown(&before, name, &[]);
    let [compared, wrong] = ["podperf_stack_shadow_waits_total", "podperf_stack_shadow_wrong_total"].map(grown);
    let [compared_s, wrong_s] =
        ["podperf_stack_shadow_waits_seconds_total", "podperf_stack_shadow_wrong_seconds_total"].map(grown);
    let [proved, refuted] = ["podperf_stack_shadow_proofs_total", "podperf_stack_shadow_proofs_wrong_total"].map(grown);
    Ok(format!(
        "\n{way}, in shadow mode for {} s: {compared:.0} remembered stacks were compared, and {wrong:.0} were wrong ({:.4} \
         %); of their time {:.4} %. {proved:.0} stacks that a recipe proved were unwound, and {refuted:.0} were others.\n",
        time.as_secs(),
        100.0 * ratio(wrong, compared),
        100.0 * ratio(wrong_s, compared_s)
    ))
}
