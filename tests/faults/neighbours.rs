//! Another agent on the same node.

use anyhow::{Result, ensure};
use podperf_tests::{
    agent::{self, Agent, NO_STACKS},
    cgroup::TestCgroup,
    command::Refusal,
    load::cpu::CpuReport,
    running::{oncpu_is_cpu_stat, run},
    suite::Test,
    tests,
};

use crate::table::{nothing_was_lost, row, serves_and_counts};

pub(crate) const TESTS: &[Test] = tests![
    #[land]
    #[measures]
    two_agents_on_a_node_count_each_for_itself,
];

fn two_agents_on_a_node_count_each_for_itself() -> Result<()> {
    let mut agents = [Agent::start(NO_STACKS)?, Agent::start(NO_STACKS)?];
    let cgroup = TestCgroup::new("watched-twice")?;
    let _: CpuReport = run(&format!("spin --seconds 0.5 --cgroup {}", cgroup.path().display()))?;
    for agent in &agents {
        oncpu_is_cpu_stat(&agent.fresh_metrics()?, &cgroup)?;
    }
    // A second agent with the same run directory is refused.
    let refusal = Refusal::of(&mut agent::command(agents[0].directory(), "")?)?;
    let pid = agents[0].pid();
    refusal.expect(1, &[&format!("another podperf agent is running, pid {pid} "), "runDir"])?;
    for agent in &mut agents {
        nothing_was_lost(&serves_and_counts(agent)?)?;
    }
    // The end of one agent does not affect the other one.
    let [first, mut second] = agents;
    drop(first);
    serves_and_counts(&mut second)?;
    let says = refusal.says.trim().to_owned();
    ensure!(!says.is_empty(), "no word");
    row(
        "two agents on one node",
        &format!("of one `runDir`, the second exits with 1: `{says}`; of two, both count all"),
        "0",
    );
    Ok(())
}
