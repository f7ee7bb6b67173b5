//! The agent about itself: what its programs cost, and what it gives up when that is too much.

use std::{thread, time::Duration};

use anyhow::{Context as _, Result, ensure};
use podperf_tests::{
    agent::{Agent, Metrics},
    bench::{bpf::enable_run_statistics, programs::Programs},
    cgroup::TestCgroup,
    load::ring::RingReport,
    suite::{self, within},
};

use crate::running::run;

const RUNS: &str = "podperf_bpf_program_runs_total";
const RUN_TIME: &str = "podperf_bpf_program_run_time_seconds_total";
const SIZE: &str = "podperf_bpf_program_verified_instructions";
const SWITCH: &[(&str, &str)] = &[("program", "sched_switch")];
/// The agent looks at its cost each time it reads, but over 5 s at least, and takes one step a time.
const SHED: Duration = Duration::from_secs(60);
/// Rows of the committed table: kernel, program, instructions.
const SIZES: &str = include_str!("verified-instructions.txt");

/// The kernel's own statistics are the truth, which only root may switch on. What it takes to get into the program is
/// in neither.
pub(crate) fn runs_are_the_kernels_own() -> Result<()> {
    let _statistics = enable_run_statistics()?;
    let known = Programs::list()?;
    let agent = Agent::start("")?;
    let cgroups = (TestCgroup::new("first")?, TestCgroup::new("second")?);
    let ring = format!("ring --hops 30000 --cgroups {},{}", cgroups.0.path().display(), cgroups.1.path().display());
    let report: RingReport = run(&ring)?;
    let metrics = agent.fresh_metrics()?;
    let truth = Programs::list()?.new_since(&known).busiest().context("no program of the agent ran")?;
    let runs = metrics.get(RUNS, SWITCH).context("no runs")?;
    #[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
    let (hops, kernel_runs, kernel_seconds) = (report.hops as f64, truth.count as f64, truth.time_ns as f64 / 1e9);
    ensure!(runs >= hops, "{runs} runs for {hops} switches");
    // The machine goes on between the two lists.
    ensure!((runs / kernel_runs - 1.0).abs() < 0.02, "{runs} runs, and {kernel_runs} by the kernel");
    let seconds = metrics.get(RUN_TIME, SWITCH).context("no run time")?;
    let ratio = seconds / kernel_seconds;
    ensure!((0.3..2.0).contains(&ratio), "{seconds} s in the programs, and {kernel_seconds} s by the kernel");
    Ok(())
}

/// First the stacks, then the groups from the last to the first; times and waits stay.
pub(crate) fn a_cap_sheds_in_its_order() -> Result<()> {
    let agent = Agent::start(
        "overhead: {maxPercent: 0.00001}\ncounters: {groups: [[cpu-clock], [task-clock]]}\n\
         stacks: {onCpuEvent: cpu-clock}\n",
    )?;
    let mut order = Vec::new();
    let metrics = within(SHED, "everything is given up", || {
        thread::sleep(Duration::from_secs(1));
        let metrics = agent.metrics()?;
        let shed = |feature| metrics.get("podperf_overhead_shed", &[("feature", feature)]).context("no such feature");
        let now = (shed("stacks")?, shed("counters")?, counted(&metrics, "cpu-clock"), counted(&metrics, "task-clock"));
        if order.last() != Some(&now) {
            order.push(now);
        }
        Ok((now.1 == 2.0).then_some(metrics))
    })?;
    let expected = [(0.0, 0.0, true, true), (1.0, 0.0, true, true), (1.0, 1.0, true, false), (1.0, 2.0, false, false)];
    ensure!(order == expected, "given up in this order: {order:?}");
    ensure!(metrics.get("podperf_overhead_ratio", &[]).is_some_and(|ratio| ratio > 0.0), "no cost");
    ensure!(metrics.get("podperf_cgroup_oncpu_seconds_total", &[]).is_some(), "times were given up");
    let waits = metrics.get("podperf_bpf_drops_total", &[("reason", "stack_shed")]);
    ensure!(waits.is_some_and(|waits| waits > 0.0), "waits without a stack are not counted: {waits:?}");
    let (_, _, status) = agent.get("/status", &[])?;
    let status = String::from_utf8(status)?;
    for line in ["more than `overhead.maxPercent`", "stacks are not taken, 2 groups of counters are off", "yielded"] {
        ensure!(status.contains(line), "no `{line}` in\n{status}");
    }
    Ok(())
}

/// A counter that is not counted has no series, and says so by its state.
fn counted(metrics: &Metrics, event: &str) -> bool {
    let family = format!("podperf_cgroup_{}_seconds_total", event.replace('-', "_"));
    let placed = metrics.get("podperf_pmu_event_state", &[("event", event), ("state", "placed")]) == Some(1.0);
    let available = metrics.get("podperf_pmu_event_available", &[("event", event)]) == Some(1.0);
    let exported = metrics.get(&family, &[]).is_some();
    assert!(placed == available && placed == exported, "{event}: {placed} {available} {exported}");
    placed
}

/// The verifier walks all paths of a program: what it walked is the program's size, and the same each time.
pub(crate) fn programs_have_not_grown() -> Result<()> {
    let agent = Agent::start(
        "counters: {groups: [[cpu-clock, task-clock, page-faults, context-switches], [cpu-migrations, minor-faults]]}\n\
         stacks: {onCpuEvent: cpu-clock}\n",
    )?;
    let metrics = agent.metrics()?;
    let release = nix::sys::utsname::uname()?.release().to_string_lossy().into_owned();
    let version = release.split('.').take(2).collect::<Vec<_>>().join(".");
    let kernel = format!("{version}-{}", std::env::consts::ARCH);
    let mut found = String::new();
    for sample in metrics.samples().iter().filter(|sample| sample.name == SIZE) {
        let program = sample.labels.get("program").map_or("", String::as_str);
        found.push_str(&format!("{kernel} {program} {}\n", sample.value));
    }
    let table: Vec<Vec<&str>> = SIZES.lines().map(|line| line.split_whitespace().collect()).collect();
    let known: Vec<_> = table.iter().filter(|row| row.first() == Some(&kernel.as_str())).collect();
    if known.is_empty() {
        // Another kernel's verifier walks other paths.
        suite::tell(&format!("no rows of Linux {kernel} in verified-instructions.txt; they would be\n{found}"));
        return Ok(());
    }
    for row in known {
        let [_, program, most] = row.as_slice() else { anyhow::bail!("not a row: {row:?}") };
        let now = metrics.get(SIZE, &[("program", program)]);
        let (now, most) = (now.with_context(|| format!("no `{program}`"))?, most.parse::<f64>()?);
        // Other compilers make other code of the same source.
        ensure!(
            now <= most * 1.05,
            "`{program}` has {now} verified instructions instead of {most} (if that is worth it, the table would be\n{found})"
        );
    }
    Ok(())
}
