//! The agent's own cost: the run time of its programs, and the features that it gives up over the cap.

use std::{
    collections::BTreeMap,
    ops::{Range, Sub},
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use podperf_ebpf::sensors;
use podperf_tests::{
    agent::{Agent, Metrics},
    bpf::enable_run_statistics,
    cgroup::TestCgroup,
    load::ring::RingReport,
    programs::Programs,
    running::{run, with_faults},
    suite::{self, within},
};

use crate::{counts, truth};

const RUNS: &str = "podperf_bpf_program_runs_total";
const RUN_TIME: &str = "podperf_bpf_program_run_time_seconds_total";
const LOADED: &str = "podperf_bpf_program_loaded";
const SIZE: &str = "podperf_bpf_program_verified_instructions";
const SWITCH: &[(&str, &str)] = &[("program", "sched_switch")];
/// The time limit of all steps. The agent checks its cost at each reading, but over 5 s at least, and takes one step at
/// a time.
const SHED: Duration = Duration::from_secs(150);
/// Number of rounds. Each round has some hundred runs that time themselves.
const ROUNDS: usize = 9;
/// The allowed range of the median, as a part of the kernel's own time.
const OF_THE_KERNELS: Range<f64> = 0.8..1.25;
/// The largest size of a program. The kernel's own limit is a million (`BPF_COMPLEXITY_LIMIT_INSNS`), and another
/// kernel's verifier may walk many more paths.
const MOST_VERIFIED: f64 = 200_000.0;

/// The truth is the kernel's own statistics, which only root may switch on. Neither time has the entry into the
/// program. Both times have one read of the clock, and the kernel's time of a run that times itself has two more.
///
/// One run of 61 stands for all runs: if an interrupt or the host prolongs it by a millisecond, this counts 61 times.
/// So the test compares the median of several rounds, which a few long runs cannot change.
pub(crate) fn runs_are_the_kernels_own() -> Result<()> {
    let _statistics = enable_run_statistics()?;
    let known = Programs::list()?;
    let agent = Agent::start("")?;
    let cgroups = (TestCgroup::new("first")?, TestCgroup::new("second")?);
    let ring = format!("ring --hops 30000 --cgroups {},{}", cgroups.0.path().display(), cgroups.1.path().display());
    let mut before = Accounts::read(&agent, &known)?;
    let mut ratios = Vec::with_capacity(ROUNDS);
    for _ in 0..ROUNDS {
        let report: RingReport = run(&ring)?;
        let after = Accounts::read(&agent, &known)?;
        let (own, kernel) = (after.own - before.own, after.kernel - before.kernel);
        #[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
        let hops = report.hops as f64;
        ensure!(own.runs >= hops, "{} runs for {hops} switches", own.runs);
        // The machine runs on between the scrape and the reading of the kernel's lists.
        let (least, most) = (after.listed_before, after.kernel.runs);
        ensure!(
            (least..=most).contains(&after.own.runs),
            "{} runs, and {least} to {most} by the kernel",
            after.own.runs
        );
        ratios.push((own.seconds / own.runs) / (kernel.seconds / kernel.runs));
        before = after;
    }
    ratios.sort_by(f64::total_cmp);
    let (median, least, most) = (ratios[ROUNDS / 2], ratios[0], ratios[ROUNDS - 1]);
    suite::tell(&format!(
        "time in the switch program by its own account: {median:.3} of the kernel's, the median of {ROUNDS} rounds from \
         {least:.3} to {most:.3}"
    ));
    ensure!(OF_THE_KERNELS.contains(&median), "{median} of the kernel's time: {ratios:.3?}");
    Ok(())
}

/// Runs of the switch program and the time in them.
#[derive(Clone, Copy, Debug)]
struct Runs {
    runs: f64,
    seconds: f64,
}

/// Runs by the agent, and runs by the kernel a moment later.
#[derive(Clone, Copy, Debug)]
struct Accounts {
    own: Runs,
    kernel: Runs,
    /// Number of runs by the kernel, a moment before the scrape.
    listed_before: f64,
}

impl Accounts {
    fn read(agent: &Agent, known: &Programs) -> Result<Self> {
        let listed = || Programs::list()?.new_since(known).busiest().context("no program of the agent ran");
        let before = listed()?;
        let metrics = agent.fresh_metrics()?;
        let truth = listed()?;
        let runs = metrics.get(RUNS, SWITCH).context("no runs")?;
        let seconds = metrics.get(RUN_TIME, SWITCH).context("no run time")?;
        #[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
        let (kernel, listed_before) =
            (Runs { runs: truth.count as f64, seconds: truth.time_ns as f64 / 1e9 }, before.count as f64);
        Ok(Self { own: Runs { runs, seconds }, kernel, listed_before })
    }
}

impl Sub for Runs {
    type Output = Self;

    fn sub(self, before: Self) -> Self {
        Self { runs: self.runs - before.runs, seconds: self.seconds - before.seconds }
    }
}

/// The agent gives up the stacks of waits little by little, with the sensor between, then the groups from the last to the first, then samples on
/// the CPU. Times and waits stay.
pub(crate) fn a_cap_sheds_in_its_order() -> Result<()> {
    let agent = Agent::start(
        "overhead: {maxPercent: 0.00001}\ncounters: {groups: [[cpu-clock], [task-clock]]}\n\
         sensors: {locks: {enabled: true}}\nstacks: {onCpuEvent: cpu-clock}\n",
    )?;
    let mut order = Vec::new();
    let metrics = within(SHED, "everything is given up", || {
        thread::sleep(Duration::from_secs(1));
        let metrics = agent.metrics()?;
        let shed = |feature| metrics.get("podperf_overhead_shed", &[("feature", feature)]).context("no such feature");
        let features = ["walks", "symbols", "sensors", "user_frames", "stacks", "profiles"];
        let features: Vec<_> = features.into_iter().map(shed).collect::<Result<_>>()?;
        let now = (features, shed("counters")?, counted(&metrics, "cpu-clock"), counted(&metrics, "task-clock"));
        let is_all = now.0[5] == 1.0;
        if order.last() != Some(&now) {
            order.push(now);
        }
        Ok(is_all.then_some(metrics))
    })?;
    // The times that each of these features is given up, in the order of giving up; counters come before profiles.
    let times = [4, 1, 1, 1, 1].map(f64::from);
    let mut now = vec![0.0; 6];
    let mut expected = vec![(now.clone(), 0.0, true, true)];
    for (feature, times) in times.into_iter().enumerate() {
        while now[feature] < times {
            now[feature] += 1.0;
            expected.push((now.clone(), 0.0, true, true));
        }
    }
    expected.extend([(now.clone(), 1.0, true, false), (now.clone(), 2.0, false, false)]);
    now[5] = 1.0;
    expected.push((now, 2.0, false, false));
    // A busy machine may not show each state.
    let mut states = expected.iter();
    let in_order = order.iter().all(|now| states.any(|state| state == now));
    ensure!(in_order && order.len() > expected.len() / 2, "given up in this order: {order:?}");
    ensure!(metrics.get("podperf_overhead_ratio", &[]).is_some_and(|ratio| ratio > 0.0), "no cost");
    ensure!(metrics.get("podperf_cgroup_oncpu_seconds_total", &[]).is_some(), "times were given up");
    let waits = metrics.get("podperf_bpf_drops_total", &[("reason", "stack_shed")]);
    ensure!(waits.is_some_and(|waits| waits > 0.0), "waits without a stack are not counted: {waits:?}");
    let shed = metrics.sum("podperf_cgroup_incomplete_stack_seconds_total", &[("cause", "shed")]);
    ensure!(shed > 0.0, "no time counts as shed");
    let (_, _, status) = agent.get("/status", &[])?;
    let status = String::from_utf8(status)?;
    let lines =
        ["over `overhead.maxPercent`", "stacks of waits are not taken", "2 groups of counters are off", "yielded"];
    for line in lines {
        ensure!(status.contains(line), "no `{line}` in\n{status}");
    }
    Ok(())
}

/// Returns whether an event is counted. An event that is not counted has no series, and a state of that meaning.
fn counted(metrics: &Metrics, event: &str) -> bool {
    let family = format!("podperf_cgroup_{}_seconds_total", event.replace('-', "_"));
    let placed = metrics.get("podperf_pmu_event_state", &[("event", event), ("state", "placed")]) == Some(1.0);
    let available = metrics.get("podperf_pmu_event_available", &[("event", event)]) == Some(1.0);
    let exported = metrics.get(&family, &[]).is_some();
    assert!(placed == available && placed == exported, "{event}: {placed} {available} {exported}");
    placed
}

/// The verifier walks all paths of a program, and its number of instructions is the program's size. It depends on the
/// kernel, on the configuration, and on the compiler a little.
///
/// In an emulator, the start of an agent takes longer than all else here, so one agent serves all.
pub(crate) fn all_programs_load_and_count_exactly() -> Result<()> {
    let agent = with_all_programs("")?;
    // `make vm` reads this line.
    suite::tell(&format!("verified instructions: {}", verified(&agent)?));
    truth::charges_what_is_burnt(&agent)?;
    counts::counts_exactly(&agent)
}

/// The programs that copy stacks are larger than those that walk them. One of both is the default.
pub(crate) fn the_programs_of_the_other_unwinding_load() -> Result<()> {
    let other = if cfg!(target_arch = "x86_64") { "frame-pointers" } else { "tables" };
    let agent = with_all_programs(&format!("unwind: {other}, "))?;
    suite::tell(&format!("with `unwind: {other}`: {}", verified(&agent)?));
    Ok(())
}

fn with_all_programs(stacks: &str) -> Result<Agent> {
    let all = sensors::ALL.map(|sensor| format!("{}: {{enabled: true}}", sensor.names.sensor)).join(", ");
    Agent::start(&with_faults(&format!(
        "counters: {{groups: [[cpu-clock, task-clock, page-faults, context-switches], [cpu-migrations, minor-faults]]}}\n\
         sensors: {{{all}}}\n\
         functions: [{{name: none, kernel: podperf_none}}]\n\
         stacks: {{{stacks}onCpuEvent: cpu-clock}}\n",
    )))
}

/// Returns the number of verified instructions of the largest program, and of all.
fn verified(agent: &Agent) -> Result<String> {
    let sizes = sizes(agent)?;
    let (largest, most) = sizes.iter().max_by(|a, b| a.1.total_cmp(b.1)).context("no program")?;
    ensure!(*most <= MOST_VERIFIED, "`{largest}` has more than {MOST_VERIFIED} verified instructions: {sizes:?}");
    Ok(format!("{most} in `{largest}`, {} in all {} programs", sizes.values().sum::<f64>(), sizes.len()))
}

/// Returns the number of verified instructions of each program. All are loaded.
fn sizes(agent: &Agent) -> Result<BTreeMap<String, f64>> {
    let metrics = agent.metrics()?;
    // An agent whose copying programs are refused starts without them.
    let as_asked = metrics.get("podperf_part_state", &[("part", "unwinding"), ("state", "healthy")]);
    ensure!(as_asked == Some(1.0), "not in the way that was asked for: {}", agent.log());
    let of = |family| -> BTreeMap<String, f64> {
        let samples = metrics.samples().iter().filter(|sample| sample.name == family);
        samples.map(|sample| (sample.labels.get("program").cloned().unwrap_or_default(), sample.value)).collect()
    };
    let (loaded, sizes) = (of(LOADED), of(SIZE));
    ensure!(loaded.keys().eq(sizes.keys()), "{loaded:?}, but {sizes:?}");
    // An agent whose kernel refuses one of these starts without it, and has no series of it.
    let of_sensors = sensors::ALL.iter().flat_map(|sensor| sensor.programs).map(|program| program.name);
    let refused: Vec<_> =
        of_sensors.chain(["sample", "sched_switch"]).filter(|name| !sizes.contains_key(*name)).collect();
    ensure!(refused.is_empty(), "not loaded: {refused:?}:\n{}", agent.log());
    Ok(sizes)
}
