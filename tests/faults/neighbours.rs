//! Another agent on the same node.

use anyhow::Result;
use podperf_tests::{
    agent::{Agent, NO_STACKS},
    cgroup::TestCgroup,
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
    for agent in &mut agents {
        nothing_was_lost(&serves_and_counts(agent)?)?;
    }
    // The end of one agent does not affect the other one.
    let [first, mut second] = agents;
    drop(first);
    serves_and_counts(&mut second)?;
    row("two agents on one node, each with its `runDir`", "both count all", "0");
    Ok(())
}
