//! The time in the node's BPF programs, by samples. The truth is the CPU time of the thread that runs a program.

use std::{fs, time::Duration};

use anyhow::{Result, ensure};
use podperf_tests::{
    agent::Agent,
    bpf::{Spinning, enable_run_statistics},
    process::{nanos, thread_cpu_ns},
    suite::{Test, tell, within},
    tests,
};

pub(crate) const TESTS: &[Test] = tests![
    #[measures]
    the_time_in_a_program_is_that_of_the_thread_that_runs_it,
];

const SAMPLED: &str = "podperf_node_bpf_program_sampled_seconds_total";
const NAME: &str = "podperf_spin";
const BURNT: Duration = Duration::from_secs(5);
/// Number of runs between two looks at the clock.
const RUNS: u32 = 1_000;
/// The allowed difference: samples are taken 199 times a second, and a few of them are between two runs.
const PART: f64 = 0.05;
/// The time limit for the names of a window, which lasts ten seconds.
const NAMED: Duration = Duration::from_secs(60);

/// The kernel's own statistics of the program are shown beside it. They count preemption, too, which is no CPU time.
fn the_time_in_a_program_is_that_of_the_thread_that_runs_it() -> Result<()> {
    // The agent reads the kernel's functions when it starts.
    let program = Spinning::load(NAME)?;
    let is_listed = String::from_utf8_lossy(&fs::read("/proc/kallsyms")?).contains(NAME);
    ensure!(is_listed, "the kernel does not list BPF programs (`sysctl net.core.bpf_jit_enable=1`)");
    let _statistics = enable_run_statistics()?;
    let agent = Agent::start("stacks: {onCpuHertz: 199}")?;
    let (began, mut runs) = (thread_cpu_ns()?, 0);
    while thread_cpu_ns()? - began < nanos(BURNT) {
        program.run(RUNS)?;
        runs += u64::from(RUNS);
    }
    let truth = Duration::from_nanos(thread_cpu_ns()? - began).as_secs_f64();
    let (counted, kernel) = program.statistics()?;
    ensure!(counted == runs, "the kernel counted {counted} of {runs} runs");
    let mut last = 0.0;
    let found = within(NAMED, "the samples of the program", || {
        last = agent.fresh_metrics()?.get(SAMPLED, &[("program", NAME)]).unwrap_or(0.0);
        Ok((last >= truth * (1.0 - PART)).then_some(last))
    });
    tell(&format!("{last} s sampled in a program of {truth} s, {} s by the kernel's statistics", kernel.as_secs_f64()));
    ensure!(found? <= truth * (1.0 + PART), "{last} s sampled of {truth} s");
    Ok(())
}
