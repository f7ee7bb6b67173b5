//! The cap on the agent's CPU time: a load that costs too much makes the agent give up little by little, and all of it
//! comes back.

use std::{
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use podperf_tests::{
    agent::{Agent, Metrics, SHARES_READINGS, testing},
    cgroup::{self, TestCgroup},
    running::{Load, cpus},
    suite::{has_own_machine, tell, within},
};

const WAIT: &str = "podperf_cgroup_wait_seconds_total";
const OFFCPU: &str = "podperf_cgroup_offcpu_seconds_total";
const ONCPU: &str = "podperf_cgroup_oncpu_seconds_total";
const INCOMPLETE: &str = "podperf_cgroup_incomplete_stack_seconds_total";
const SAMPLES: &str = "podperf_cgroup_profile_samples_total";
const CONFIG: &str = "metrics: {facts: [oncpu, offcpu, wait_reasons, incomplete_stacks, profile_samples]}\n\
                      otlp: {interval: 5s}\nstacks: {onCpuEvent: cpu-clock, maxSamples: 65536}\n";
/// The size of the stack cache. A larger one holds all stacks of the load, which then costs little without a cap.
const CACHED: &str = "maxStacks=32768";
/// The steps that this test sees, in the order of giving up, and how often each can be given up.
const STEPS: [(&str, f64); 5] =
    [("walks", 4.0), ("symbols", 1.0), ("user_frames", 1.0), ("stacks", 1.0), ("profiles", 1.0)];
/// The cap as a part of the cost of the load without a cap.
const OF_LOADED: f64 = 0.3;
/// The time in which no step is taken once there are enough, longer than a judged period and a reading.
const SETTLED: Duration = Duration::from_secs(25);
/// The time for all steps, and for all of them to come back.
const ENOUGH: Duration = Duration::from_secs(200);
/// The part of the cap below which steps come back, and the time that this takes, with a reading before and after it.
const ROOM: f64 = 0.6;
const BACK: Duration = Duration::from_secs(60 + 2 * 10);

/// The load has short waits, each with a stack of its own; threads beside it sleep long. A program that begins while user
/// frames are given up has them later.
pub(crate) fn a_load_over_the_cap_loses_little_and_gets_all_back() -> Result<()> {
    // Like a pod, the load has a CPU share of its own, if the cgroup2 tree has this controller. Its many threads would
    // leave the agent without a CPU in an emulated guest.
    cgroup::switch_on("cpu").ok();
    let (busy, sleeping) = (TestCgroup::new("busy")?, TestCgroup::new("sleeping")?);
    // In an emulated machine, a walk takes ten times as long. If the load took all of its CPU time, the load would do
    // more with all that the agent gives up.
    let (threads, micros) = if has_own_machine() { (8, 8_000) } else { (32, 1_000) };
    let threads = threads * cpus()?;
    let thicket = format!("thicket --threads {threads} --micros {micros} --cgroup {}", busy.path().display());
    let _sleepers =
        Load::start(&format!("sleepers --waits 100000 --millis 300 --cgroup {}", sleeping.path().display()))?;
    let settings = testing(CACHED) + SHARES_READINGS;
    // The load leaves little CPU time for the start of an agent, so it begins after the agent.
    let loaded = {
        let agent = Agent::start(&format!("{settings}overhead: {{maxPercent: 0}}\n{CONFIG}"))?;
        let _load = Load::start(&thicket)?;
        thread::sleep(Duration::from_secs(20));
        cost(&agent.fresh_metrics()?)?
    };
    let cap = loaded * OF_LOADED;
    let capped = format!("{settings}overhead: {{maxPercent: {}}}\n{CONFIG}", cap * 100.0);
    let mut agent = Agent::start(&capped)?;
    let load = Load::start(&thicket)?;

    let mut seen: Vec<(f64, [f64; 5])> = Vec::new();
    let mut changed = Instant::now();
    let before = within(ENOUGH, "enough is given up", || {
        thread::sleep(Duration::from_secs(2));
        // On a machine without a free CPU, an answer may come too late for the client. An agent that has ended is told.
        agent.check()?;
        let Ok(metrics) = agent.metrics() else { return Ok(None) };
        let now = given_up(&metrics);
        let last = seen.last().map_or([0.0; 5], |(_, last)| *last);
        if now != last {
            changed = Instant::now();
            seen.push((cost(&metrics)?, now));
        }
        for (at, (_, most)) in STEPS.iter().enumerate() {
            ensure!(now[at] == *most || now[at + 1..].iter().all(|later| *later == 0.0), "not in order: {seen:?}");
        }
        ensure!(now[4] == 0.0, "samples on the CPU are given up, and stacks of waits are not enough: {seen:?}");
        let is_enough = cost(&metrics)? <= cap && changed.elapsed() >= SETTLED;
        Ok((is_enough && now[2] > 0.0).then_some(metrics))
    });
    tell(&format!("the load costs {:.2} %, the cap is {:.2} %; given up: {seen:?}", loaded * 100.0, cap * 100.0));
    let before = before?;
    let status = String::from_utf8(agent.get("/status", &[])?.2)?;
    ensure!(status.contains("the budget of walks is 1/"), "not in the status:\n{status}");
    let (short, long) = (with_reason(&before, &busy)?, with_reason(&before, &sleeping)?);
    let shed = shed_part(&before, None, &busy)?;
    tell(&format!(
        "part of the time with a reason: {short:.3} of short waits, {long:.3} of long ones; {shed:.3} of short ones counts \
         as shed"
    ));
    ensure!(long > 0.95, "{long} of long waits have a reason");
    ensure!(short + shed > 0.7, "{short} of short waits have a reason, and only {shed} counts as shed");
    ensure!(shed < 1.02, "more time counts as shed than there is");
    let new = TestCgroup::new("new")?;
    let _new = Load::start(&format!("sleepers --waits 100000 --millis 2 --cgroup {}", new.path().display()))?;
    within(Duration::from_secs(60), "stacks without user frames count as shed", || {
        thread::sleep(Duration::from_secs(2));
        Ok((shed_part(&agent.metrics()?, None, &new).is_ok_and(|part| part > 0.5)).then_some(()))
    })?;
    within(Duration::from_secs(60), "samples on the CPU go on", || {
        let sampled = |metrics: &Metrics| metrics.sum(SAMPLES, &[("cgroup", busy.kernel_path()), ("profile", "cpu")]);
        Ok((sampled(&agent.metrics()?) - sampled(&before) > 50.0).then_some(()))
    })?;

    drop(load);
    let mut over = Instant::now();
    let took = within(ENOUGH, "all is back", || {
        thread::sleep(Duration::from_secs(1));
        let metrics = agent.metrics()?;
        if cost(&metrics)? > cap * ROOM {
            // Other programs on the machine cost as well.
            over = Instant::now();
        }
        Ok((given_up(&metrics) == [0.0; 5]).then(|| over.elapsed()))
    })?;
    tell(&format!("all is back {:.0} s after the cost was below {ROOM} of the cap", took.as_secs_f64()));
    ensure!(took <= BACK, "only {took:?} after the cost was below {ROOM} of the cap");
    within(Duration::from_secs(60), "new stacks are whole", || {
        let before = agent.fresh_metrics()?;
        thread::sleep(Duration::from_secs(6));
        let part = shed_part(&agent.fresh_metrics()?, Some(&before), &new)?;
        Ok((part < 0.01).then_some(()))
    })?;
    let healthy = agent.metrics()?.get("podperf_part_state", &[("part", "overhead"), ("state", "healthy")]);
    ensure!(healthy == Some(1.0), "the part is not healthy");
    Ok(())
}

/// Returns the agent's cost over its last window, as a part of all CPUs' time.
fn cost(metrics: &Metrics) -> Result<f64> {
    metrics.get("podperf_overhead_ratio", &[]).context("no cost")
}

/// Returns the part of a cgroup's time on and off the CPU that counts as shed: since `before`, or in all.
fn shed_part(metrics: &Metrics, before: Option<&Metrics>, cgroup: &TestCgroup) -> Result<f64> {
    let labels = [("cgroup", cgroup.kernel_path())];
    let sums = |metrics: &Metrics| {
        let shed = metrics.sum(INCOMPLETE, &[labels[0], ("cause", "shed")]);
        (shed, metrics.sum(ONCPU, &labels) + metrics.sum(OFFCPU, &labels))
    };
    let ((shed, time), (shed_then, then)) = (sums(metrics), before.map_or((0.0, 0.0), sums));
    ensure!(time > then, "no time");
    Ok((shed - shed_then) / (time - then))
}

fn given_up(metrics: &Metrics) -> [f64; 5] {
    STEPS.map(|(feature, _)| metrics.sum("podperf_overhead_shed", &[("cap", "cpu"), ("feature", feature)]))
}

/// Returns the part of a cgroup's time off the CPU that has a reason.
fn with_reason(metrics: &Metrics, cgroup: &TestCgroup) -> Result<f64> {
    let labels = [("cgroup", cgroup.kernel_path())];
    let all = metrics.get(OFFCPU, &labels).context("no waits")?;
    let unknown = metrics.sum(WAIT, &[labels[0], ("reason", "unknown")]);
    Ok((metrics.sum(WAIT, &labels) - unknown) / all)
}
