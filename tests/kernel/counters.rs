//! perf events per cgroup.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use podperf_tests::{
    agent::{Agent, Metrics, NO_STACKS},
    cgroup::TestCgroup,
    load::{cpu::CpuReport, faults::FaultsReport},
    running::{
        CPU_CLOCK, ONCPU, astray, count, counter_is_close, cpus, keep_awake, keep_cpus_awake, run, time, timed_reading,
        with_faults,
    },
};

const EVENTS: &str = "podperf_cgroup_perf_events_total";
const TASK_CLOCK: &str = "podperf_cgroup_task_clock_seconds_total";
const TSC: &str = "msr/tsc/";
/// Six software events, each a group of its own.
pub(crate) const ALONE: &str =
    "[cpu-clock], [task-clock], [context-switches], [page-faults], [cpu-migrations], [minor-faults]";
/// The same events in one group. To the kernel they are of three PMUs: a sibling that joins a group of another PMU
/// which already counts is not scheduled with it, so a group must be complete before it is enabled.
pub(crate) const TOGETHER: &str =
    "[cpu-clock, task-clock, context-switches, page-faults, cpu-migrations, minor-faults]";
/// A PMU that no machine has.
const ABSENT: &str = "no_such_pmu/event=1/";

/// Returns a load's arguments from the directories of one or two cgroups.
type Arguments = fn(&str, &str) -> String;

/// Checks a counter like `truth.rs` checks on-CPU times. The counter belongs to the CPU: if the agent misses a join,
/// the cgroup gets all counts of the CPU since its last change of cgroup.
///
/// The load runs on the first `cpus` CPUs, and all other CPUs stay idle. The CPUs of a `make vm` guest take turns, and
/// time goes on while one CPU spins and a switch on another CPU stands still.
pub(crate) fn cpu_clock_is_cpu_stat(cpus: usize, arguments: Arguments) -> Result<()> {
    let agent = Agent::start(&format!("counters: {{groups: [[cpu-clock]]}}\n{NO_STACKS}"))?;
    let _awake = keep_awake(0..cpus)?;
    let before = astray(&agent.fresh_metrics()?)?;
    let cgroups = [TestCgroup::new("first")?, TestCgroup::new("second")?];
    let [first, second] = cgroups.each_ref().map(|cgroup| cgroup.path().display().to_string());
    let _: serde_json::Value = run(&arguments(&first, &second))?;
    let metrics = agent.fresh_metrics()?;
    for cgroup in &cgroups {
        let truth = cgroup.cpu_usage()?;
        if truth > Duration::ZERO {
            counter_is_close("cpu-clock", (&metrics, before), time(&metrics, CPU_CLOCK, cgroup, &[])?, truth)?;
        }
    }
    ensure!(cgroups[0].cpu_usage()? > Duration::from_millis(10), "the load did nothing");
    Ok(())
}

/// The truth of faults and switches is the same agent's count from the tasks' own fields, which other tests compare
/// with the kernel. The truth of the clocks is `cpu.stat`, over a load that hardly switches: the agent reads a perf
/// counter a moment after the scheduler has charged the time, and the CPUs of a `make vm` guest take turns. For a CPU
/// that stands still in that moment, the clocks are 0.6 ms later, and sleeps by timers meet this at the same place
/// repeatedly.
pub(crate) fn software_events(groups: &str) -> Result<()> {
    let agent = Agent::start(&with_faults(&format!("counters: {{groups: [{groups}]}}\n")))?;
    let _awake = keep_cpus_awake()?;
    let before = astray(&agent.fresh_metrics()?)?;
    let (spinning, cgroup) = (TestCgroup::new("spinning")?, TestCgroup::new("software")?);
    let _: CpuReport = run(&format!("spin --seconds 0.5 --cgroup {}", spinning.path().display()))?;
    let _: FaultsReport = run(&format!("faults --pages 5000 --switches 1000 --cgroup {}", cgroup.path().display()))?;
    let metrics = agent.fresh_metrics()?;
    let truth = spinning.cpu_usage()?;
    for family in [CPU_CLOCK, TASK_CLOCK] {
        counter_is_close(family, (&metrics, before), time(&metrics, family, &spinning, &[])?, truth)?;
        ensure!(time(&metrics, family, &cgroup, &[])? > Duration::ZERO, "{family}: nothing of a load that switches");
    }
    let event = |name| count(&metrics, EVENTS, &cgroup, &[("event", name)]);
    let fact = |name, kind| count(&metrics, name, &cgroup, &[("kind", kind)]);
    let faults = fact("podperf_cgroup_page_faults_total", "minor")?;
    for name in ["page-faults", "minor-faults"] {
        let found = event(name)?;
        ensure!((found - faults).abs() <= faults * 0.02, "{found} {name}, and {faults} by the tasks");
    }
    let switches = "podperf_cgroup_context_switches_total";
    let (switches, found) = (fact(switches, "voluntary")? + fact(switches, "involuntary")?, event("context-switches")?);
    ensure!((found - switches).abs() <= switches * 0.02, "{found} context-switches, and {switches} by the tasks");
    ensure!(event("cpu-migrations")? <= switches, "more migrations than switches");
    Ok(())
}

/// The TSC's PMU is the only one that virtual machines have too. Its counter runs all the time, so the sum of all rows
/// is its frequency.
pub(crate) fn a_pmu_event_in_its_own_terms() -> Result<()> {
    let agent = Agent::start(&format!("counters: {{groups: [['{TSC}']]}}\n"))?;
    let _awake = keep_cpus_awake()?;
    let cgroup = TestCgroup::new("tsc")?;
    let (start, first) = timed_reading(&agent)?;
    let _: CpuReport = run(&format!("spin --seconds 1 --cgroup {}", cgroup.path().display()))?;
    let (end, second) = timed_reading(&agent)?;
    let sum = |metrics: &Metrics| metrics.get(EVENTS, &[("event", TSC)]).context("no event `msr/tsc/`");
    let wall = (end - start).as_secs_f64() * f64::from(u32::try_from(cpus()?)?);
    let frequency = (sum(&second)? - sum(&first)?) / wall;
    ensure!((0.5e9..10e9).contains(&frequency), "a time stamp counter of {frequency} Hz");
    let found = count(&second, EVENTS, &cgroup, &[("event", TSC)])? / frequency;
    let oncpu = time(&second, ONCPU, &cgroup, &[])?;
    counter_is_close(
        "time by the time stamp counter",
        (&second, astray(&first)?),
        Duration::try_from_secs_f64(found)?,
        oncpu,
    )
}

pub(crate) fn an_absent_event_is_named() -> Result<()> {
    let agent = Agent::start(&format!("counters: {{groups: [['{ABSENT}', cpu-clock], [task-clock]]}}\n"))?;
    let cgroup = TestCgroup::new("absent")?;
    let _: CpuReport = run(&format!("spin --seconds 0.1 --cgroup {}", cgroup.path().display()))?;
    let metrics = agent.fresh_metrics()?;
    let available = |event| metrics.get("podperf_pmu_event_available", &[("event", event)]);
    ensure!(available(ABSENT) == Some(0.0), "the absent event: {:?}", available(ABSENT));
    ensure!(metrics.get(EVENTS, &[("event", ABSENT)]).is_none(), "a series for the absent event");
    for (event, family) in [("cpu-clock", CPU_CLOCK), ("task-clock", TASK_CLOCK)] {
        ensure!(available(event) == Some(1.0), "{event}: {:?}", available(event));
        ensure!(time(&metrics, family, &cgroup, &[])? > Duration::ZERO, "{event} counted nothing");
    }
    let (_, _, body) = agent.get("/status", &[("Accept", "application/json")])?;
    let status: serde_json::Value = serde_json::from_slice(&body)?;
    let events = status["events"].as_array().context("no events at /status")?;
    let absent = events.iter().find(|event| event["event"] == ABSENT).context("the absent event is not at /status")?;
    ensure!(absent["state"] == "unsupported", "{absent}");
    let reason = absent["detail"].as_str().context("no reason")?;
    ensure!(reason.contains("no_such_pmu"), "a reason that does not name the PMU: {reason}");
    Ok(())
}
