//! Hardware events per cgroup, on machines with a PMU. Their truth is a loop of a known number of instructions.

use std::{fs, path::Path, process::Command, thread, time::Duration};

use anyhow::{Context as _, Result, ensure};
use podperf_tests::{
    agent::{Agent, Metrics},
    cgroup::TestCgroup,
    http,
    load::{self, instructions::LoopReport, mixed::MixedReport},
    running::{ONCPU, count, run, time},
    suite::{Need, tell},
};

const CYCLES: &str = "podperf_cgroup_cpu_cycles_total";
const INSTRUCTIONS: &str = "podperf_cgroup_cpu_instructions_total";
/// Instructions of the two loops. They differ, so that one loop's counts cannot hide in the other's.
const LOOPS: [u64; 2] = [400_000_000, 100_000_000];

/// The need of all these tests.
pub(crate) const PMU: Need = Need::HardwarePmu;
/// The need of the comparison with perf.
pub(crate) const PERF: Need = Need::Program("perf");

fn looped(instructions: u64, cgroup: &TestCgroup) -> Result<()> {
    let report: LoopReport = run(&format!("loop --instructions {instructions} --cgroup {}", cgroup.path().display()))?;
    ensure!(report.instructions == instructions, "{report:?} instead of {instructions}");
    Ok(())
}

/// Checks that both are equal within this part of the truth.
fn agrees(what: &str, found: f64, truth: f64, part: f64) -> Result<()> {
    let error = found / truth - 1.0;
    ensure!(error.abs() <= part, "{what}: {found}, and the truth is {truth} ({:+.4} %)", error * 100.0);
    Ok(())
}

/// The test counts user mode only, because kernel mode includes the timer's interrupts. It subtracts the process's
/// start and exit, by a loop of no instructions.
pub(crate) fn instructions_are_those_of_the_loops() -> Result<()> {
    let agent = Agent::start("counters: {groups: [['instructions:u']]}\n")?;
    let none = TestCgroup::new("none")?;
    let cgroups = [TestCgroup::new("first")?, TestCgroup::new("second")?];
    looped(0, &none)?;
    for (instructions, cgroup) in LOOPS.into_iter().zip(&cgroups) {
        looped(instructions, cgroup)?;
    }
    let metrics = agent.fresh_metrics()?;
    let found = |cgroup| count(&metrics, INSTRUCTIONS, cgroup, &[("mode", "user")]);
    let around = found(&none)?;
    ensure!(around > 0.0, "a process without an instruction");
    for (instructions, cgroup) in LOOPS.into_iter().zip(&cgroups) {
        let truth = f64::from(u32::try_from(instructions)?);
        agrees("user-mode instructions", found(cgroup)? - around, truth, 0.001)?;
    }
    Ok(())
}

/// The same with the kernel's part, whose exact size is unknown. It must be small.
pub(crate) fn instructions_of_both_modes_are_little_more() -> Result<()> {
    let agent = Agent::start("counters: {groups: [[cycles, instructions]]}\n")?;
    let cgroups = [TestCgroup::new("first")?, TestCgroup::new("second")?];
    for (instructions, cgroup) in LOOPS.into_iter().zip(&cgroups) {
        looped(instructions, cgroup)?;
    }
    let metrics = agent.fresh_metrics()?;
    for (instructions, cgroup) in LOOPS.into_iter().zip(&cgroups) {
        let truth = f64::from(u32::try_from(instructions)?);
        let found = count(&metrics, INSTRUCTIONS, cgroup, &[])?;
        ensure!(found >= truth && found <= truth * 1.02, "{found} instructions, and the loop has {truth}");
        ensure!(count(&metrics, CYCLES, cgroup, &[])? > 0.0, "no cycles");
    }
    Ok(())
}

/// Law 1 for hardware events, to the last instruction: the sum of all rows is the CPUs' count.
pub(crate) fn all_rows_are_the_cpus_counts() -> Result<()> {
    let agent = Agent::start("counters: {groups: [[cycles, instructions]]}\n")?;
    let cgroup = TestCgroup::new("loop")?;
    looped(LOOPS[0], &cgroup)?;
    let metrics = agent.fresh_metrics()?;
    for (event, family) in [("cycles", CYCLES), ("instructions", INSTRUCTIONS)] {
        let rows = metrics.get(family, &[]).with_context(|| format!("no {family}"))?;
        let cpus = metrics.get("podperf_pmu_event_counted_total", &[("event", event)]);
        ensure!(cpus == Some(rows), "{event}: all CPUs counted {cpus:?}, and the rows have {rows}");
        ensure!(rows > f64::from(u32::try_from(LOOPS[0])?), "{rows} {event} with a loop of {}", LOOPS[0]);
        let idle = metrics.get(family, &[("cgroup", "(idle)")]).context("no row `(idle)`")?;
        ensure!(idle > 0.0, "no idle {event}");
    }
    Ok(())
}

/// perf and the agent run one after the other, because perf's counters are also the CPU's own.
pub(crate) fn ipc_is_that_of_perf() -> Result<()> {
    let cgroups = [TestCgroup::new("first")?, TestCgroup::new("second")?];
    let scratch = tempfile::tempdir()?;
    let perf = perf_stat(&cgroups, &scratch.path().join("stat"))?;
    let agent = Agent::start("counters: {groups: [[cycles, instructions]]}\n")?;
    for (instructions, cgroup) in LOOPS.into_iter().zip(&cgroups) {
        looped(instructions, cgroup)?;
    }
    let metrics = agent.fresh_metrics()?;
    for (cgroup, perf) in cgroups.iter().zip(perf) {
        let [cycles, instructions] = [CYCLES, INSTRUCTIONS].map(|family| count(&metrics, family, cgroup, &[]));
        let (cycles, instructions) = (cycles?, instructions?);
        agrees("instructions beside perf's", instructions, perf.instructions, 0.005)?;
        agrees("IPC beside perf's", instructions / cycles, perf.instructions / perf.cycles, 0.005)?;
    }
    Ok(())
}

/// The load takes a tenth of a CPU. If cycles continue in idle time, as in an emulator, the kernel takes few samples
/// there. `ebpf/tests/sample_time.rs` tests the other case.
pub(crate) fn samples_by_cycles_are_the_time() -> Result<()> {
    /// The length of the recording, in seconds. It contains the load. The name lookup comes after it.
    const RECORDED: u32 = 125;
    const PATIENCE: Duration = Duration::from_secs(600);
    let agent = Agent::start(
        "stacks: {onCpuEvent: cycles, onCpuHertz: 199}\nmetrics: {facts: [oncpu, offcpu, profile_samples]}",
    )?;
    let cgroup = TestCgroup::new("tenth")?;
    let path = format!("/debug/profile?activity=on-cpu&seconds={RECORDED}&format=folded");
    let before = agent.fresh_metrics()?;
    let (status, _, folded) = thread::scope(|scope| {
        let recording = scope.spawn(|| http::get_within(PATIENCE, agent.address(), &path));
        thread::sleep(Duration::from_secs(1));
        let path = cgroup.path().display();
        let _: MixedReport = run(&format!("mixed --cpu 0 --seconds 120 --sleep 63 --cgroup {path}"))?;
        recording.join().expect("the client panicked")
    })?;
    let metrics = agent.fresh_metrics()?;
    let folded = String::from_utf8(folded)?;
    ensure!(status == 200, "{status}: {folded}");
    let sampled = |of: &str| -> Result<f64> {
        let lines = folded.lines().filter(|line| line.starts_with(of));
        let words = lines.filter_map(|line| line.rsplit(' ').next()).map(str::parse::<u64>);
        Ok(Duration::from_nanos(words.sum::<Result<_, _>>()?).as_secs_f64())
    };
    let ran = |metrics: &Metrics| metrics.sum("podperf_cgroup_oncpu_seconds_total", &[]);
    let hits = count(&metrics, "podperf_cgroup_profile_samples_total", &cgroup, &[("profile", "cpu")])?;
    let (own, all) = (sampled(cgroup.kernel_path())?, sampled("")?);
    let truth = time(&metrics, ONCPU, &cgroup, &[])?.as_secs_f64();
    tell(&format!(
        "{own} s sampled of {truth} s, by {hits} samples; {all} s of all, which ran for {} s at most",
        ran(&metrics) - ran(&before)
    ));
    agrees("samples by cycles", own, truth, 0.05)
}

struct Counted {
    cycles: f64,
    instructions: f64,
}

/// Runs the same loads under `perf stat`.
fn perf_stat(cgroups: &[TestCgroup; 2], out: &Path) -> Result<Vec<Counted>> {
    let names = cgroups.each_ref().map(|cgroup| cgroup.kernel_path().trim_start_matches('/'));
    let load = load::binary()?.display().to_string();
    let loops: Vec<String> = LOOPS
        .into_iter()
        .zip(cgroups)
        .map(|(instructions, cgroup)| {
            format!("{load} loop --instructions {instructions} --cgroup {}", cgroup.path().display())
        })
        .collect();
    let mut command = Command::new("perf");
    command.args(["stat", "-a", "-x", ",", "-e", "cycles,instructions", "--for-each-cgroup", &names.join(","), "-o"]);
    let output = command.arg(out).args(["--", "sh", "-c", &loops.join(" && ")]).output();
    let output = output.context("failed to run perf")?;
    ensure!(output.status.success(), "perf failed: {}", String::from_utf8_lossy(&output.stderr));
    let text = fs::read_to_string(out)?;
    let of = |cgroup: &str, event: &str| -> Result<f64> {
        // The columns are count,unit,event,cgroup,...
        let mut lines = text.lines().map(|line| line.split(',').collect::<Vec<_>>());
        let line = lines.find(|line| line.len() > 3 && line[2].starts_with(event) && line[3] == cgroup);
        let line = line.with_context(|| format!("no {event} of {cgroup} in perf's words:\n{text}"))?;
        line[0].parse().with_context(|| format!("perf did not count {event}:\n{text}"))
    };
    names
        .into_iter()
        .map(|name| Ok(Counted { cycles: of(name, "cycles")?, instructions: of(name, "instructions")? }))
        .collect()
}
