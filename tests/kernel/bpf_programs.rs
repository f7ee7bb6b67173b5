//! The node's BPF programs. The truth of the time by samples is the CPU time of the thread that runs a program. The
//! truth of the runs is the kernel's statistics, which the test enables.

use std::{fs, time::Duration};

use anyhow::{Result, ensure};
use podperf_tests::{
    agent::{Agent, testing},
    bpf::{Spinning, enable_run_statistics},
    process::{nanos, thread_cpu_ns},
    suite::{Test, tell, within},
    tests,
};

pub(crate) const TESTS: &[Test] = tests![
    #[measures]
    the_time_in_a_program_is_that_of_the_thread_that_runs_it,
    #[land]
    #[exact]
    the_runs_of_a_program_are_the_kernels_and_its_holder_is_named,
];

const SAMPLED: &str = "podperf_node_bpf_program_sampled_seconds_total";
const RUNS_OF: &str = "podperf_node_bpf_program_runs_total";
const RUN_TIME_OF: &str = "podperf_node_bpf_program_run_time_seconds_total";
const INFO: &str = "podperf_node_bpf_program_info";
const NAME: &str = "podperf_spin";
const COUNTED: &str = "podperf_counted";
/// The number of times that the counted program runs `RUNS` times.
const ROUNDS: u32 = 20;
const BURNT: Duration = Duration::from_secs(5);
/// Number of runs between two looks at the clock.
const RUNS: u32 = 1_000;
/// The allowed difference: samples are taken 199 times a second, and a few of them are between two runs.
const PART: f64 = 0.05;
/// The time limit for the names of a window, which lasts ten seconds.
const NAMED: Duration = Duration::from_secs(60);

/// Loads a program. The kernel lists its name only with a JIT compiler.
fn load(name: &str) -> Result<Spinning> {
    let program = Spinning::load(name)?;
    let is_listed = String::from_utf8_lossy(&fs::read("/proc/kallsyms")?).contains(name);
    ensure!(is_listed, "the kernel does not list BPF programs (`sysctl net.core.bpf_jit_enable=1`)");
    Ok(program)
}

/// The kernel's own statistics of the program are shown beside it. They count preemption, too, which is no CPU time.
fn the_time_in_a_program_is_that_of_the_thread_that_runs_it() -> Result<()> {
    // The agent reads the kernel's functions when it starts.
    let program = load(NAME)?;
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

/// The agent sees the program before it runs, so all runs count.
fn the_runs_of_a_program_are_the_kernels_and_its_holder_is_named() -> Result<()> {
    let _statistics = enable_run_statistics()?;
    let program = load(COUNTED)?;
    let agent = Agent::start(&format!("{}stacks: {{enabled: true}}\n", testing("holdersEvery=200ms")))?;
    let process = fs::read_to_string("/proc/self/comm")?;
    let held = [("program", COUNTED), ("type", "socket_filter"), ("process", process.trim_end())];
    within(NAMED, "the holder of the program", || Ok(agent.metrics()?.get(INFO, &held)))?;
    for _ in 0..ROUNDS {
        program.run(RUNS)?;
    }
    let (counted, kernel) = program.statistics()?;
    ensure!(counted == u64::from(ROUNDS * RUNS), "the kernel counted {counted} of {} runs", ROUNDS * RUNS);
    let (mut runs, mut time) = (0.0, 0.0);
    let found = within(NAMED, "the runs of the program", || {
        let metrics = agent.fresh_metrics()?;
        (runs, time) =
            (metrics.sum(RUNS_OF, &[("program", COUNTED)]), metrics.sum(RUN_TIME_OF, &[("program", COUNTED)]));
        Ok((runs >= f64::from(ROUNDS * RUNS)).then_some(()))
    });
    tell(&format!("{runs} runs in {time} s, by the kernel {counted} in {} s", kernel.as_secs_f64()));
    found?;
    ensure!(runs == f64::from(ROUNDS * RUNS), "{runs} runs");
    ensure!((time / kernel.as_secs_f64() - 1.0).abs() <= PART, "{time} s, by the kernel {} s", kernel.as_secs_f64());
    drop(program);
    within(NAMED, "the end of the program", || Ok(agent.metrics()?.get(INFO, &held).is_none().then_some(())))?;
    let last = agent.metrics()?.sum(RUNS_OF, &[("program", COUNTED)]);
    ensure!(last == runs, "{runs} runs became {last} when the program was gone");
    Ok(())
}
