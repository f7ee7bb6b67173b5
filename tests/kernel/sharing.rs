//! A shared PMU: groups that do not fit, other programs that use counters, and groups that take turns.
//!
//! All events are the same event under other names, so each has the truth of the first.

use std::{
    collections::BTreeMap,
    fs, thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use podperf_tests::{
    agent::{Agent, Metrics, Sample},
    cgroup::TestCgroup,
    load::{hog::HogReport, instructions::LoopReport},
    running::{Load, count, run},
    suite::{self, tell, within},
};

/// Instructions, in the terms of the CPU's own PMU.
#[cfg(target_arch = "aarch64")]
const TERMS: &str = "event=0x8";
#[cfg(target_arch = "x86_64")]
const TERMS: &str = "event=0xc0";
const EVENTS: &str = "podperf_cgroup_perf_events_total";
/// Groups that yielded return one by one, each after a minute at the earliest.
const COMES_BACK: Duration = Duration::from_secs(900);
/// The instructions of a loop in the test of turns. There is a loop each second.
const LOOP: u64 = 20_000_000;
const TURNS: Duration = Duration::from_secs(600);
/// Loops of the run without turns, which is the reference.
const ALONE: u32 = 60;

/// Returns a configuration with `count` groups of one event each: `n0`, `n1`, ...
fn groups(count: usize) -> Result<String> {
    groups_of(1, count)
}

/// Returns a configuration with `count` events in groups of `size`.
fn groups_of(size: usize, count: usize) -> Result<String> {
    let events = (0..count).map(|number| Ok(format!("'{}'", event(number)?))).collect::<Result<Vec<_>>>()?;
    let groups: Vec<_> = events.chunks(size).map(|group| format!("[{}]", group.join(", "))).collect();
    Ok(format!("counters: {{groups: [{}]}}\n", groups.join(", ")))
}

fn event(number: usize) -> Result<String> {
    let pmus = fs::read_dir("/sys/bus/event_source/devices")?.flatten();
    let mut names = pmus.map(|pmu| pmu.file_name().to_string_lossy().into_owned());
    let name = names.find(|name| suite::is_core_pmu(name)).context("no PMU of the CPU")?;
    Ok(format!("{name}/{TERMS},name=n{number}/u"))
}

fn state(metrics: &Metrics, number: usize) -> Result<String> {
    let event = event(number)?;
    let is = |sample: &&Sample| {
        sample.name == "podperf_pmu_event_state" && sample.labels.get("event") == Some(&event) && sample.value == 1.0
    };
    let sample = metrics.samples().iter().find(is).with_context(|| format!("no state of `{event}`"))?;
    sample.labels.get("state").cloned().context("a state without a name")
}

fn states(metrics: &Metrics, count: usize) -> Result<Vec<String>> {
    (0..count).map(|number| state(metrics, number)).collect()
}

/// Returns the number of groups of one event that fit on the PMU: the number that the agent places with `leaveFree: 0`.
fn room() -> Result<usize> {
    let agent = Agent::start(&format!("pmu: {{leaveFree: 0}}\n{}", groups(8)?))?;
    let placed = states(&agent.metrics()?, 8)?.iter().filter(|state| *state == "placed").count();
    // The kernel keeps its promise: these events are still placed after they have counted for a while.
    thread::sleep(Duration::from_secs(3));
    let counted = states(&agent.metrics()?, 8)?.iter().filter(|state| *state == "placed").count();
    let (_, _, status) = agent.get("/status", &[])?;
    let status = String::from_utf8_lossy(&status);
    ensure!(counted == placed, "{placed} events were placed, and {counted} of them stay:\n{status}");
    ensure!((2..8).contains(&placed), "a PMU with room for {placed} events:\n{status}");
    Ok(placed)
}

/// The configuration leaves some counters free for other programs. The agent reports each group that does not fit, with
/// the same words everywhere.
pub(crate) fn groups_that_do_not_fit_say_so() -> Result<()> {
    let room = room()?;
    for free in 0..room {
        let agent = Agent::start(&format!("pmu: {{leaveFree: {free}}}\n{}", groups(8)?))?;
        let metrics = agent.metrics()?;
        let expected: Vec<_> =
            (0..8).map(|group| if group < room - free { "placed" } else { "yielded" }.to_owned()).collect();
        let found = states(&metrics, 8)?;
        ensure!(found == expected, "with {free} left free: {found:?}");
        let (_, _, status) = agent.get("/status", &[("Accept", "application/json")])?;
        let status: serde_json::Value = serde_json::from_slice(&status)?;
        let events = status["events"].as_array().context("no events at /status")?;
        let event = event(7)?;
        let last = events.iter().find(|found| found["event"] == event).context("not at /status")?;
        let detail = last["detail"].as_str().unwrap_or_default();
        ensure!(last["state"] == "yielded" && detail.contains("`pmu.leaveFree`"), "{last}");
        ensure!(metrics.get(EVENTS, &[("event", "n7")]).is_none(), "a series of an event that is not counted");
    }
    Ok(())
}

/// Another program pins all counters but two. The agent yields the last groups, and the first two are as before. After
/// the program has ended, the yielded groups return and continue from their last values.
pub(crate) fn a_hog_is_yielded_to_and_outlived() -> Result<()> {
    let room = room()?;
    let agent = Agent::start(&format!("pmu: {{leaveFree: 0}}\n{}", groups(room)?))?;
    let cgroup = TestCgroup::new("hogged")?;
    let looped = || run::<LoopReport>(&format!("loop --instructions {LOOP} --cgroup {}", cgroup.path().display()));
    looped()?;
    let before = agent.fresh_metrics()?;
    let last = |metrics: &Metrics| count(metrics, EVENTS, &cgroup, &[("event", &format!("n{}", room - 1))]);
    let counted = last(&before)?;

    let mut hog = Load::start(&format!("hog --counters {}", room - 2))?;
    let report: HogReport = hog.report()?;
    ensure!(report.counters == room - 2, "{report:?}");
    let expected: Vec<_> = (0..room).map(|group| if group < 2 { "placed" } else { "yielded" }.to_owned()).collect();
    let mut seen = Vec::new();
    let yielded = within(COMES_BACK, "the last groups yield", || {
        thread::sleep(Duration::from_secs(2));
        let metrics = agent.metrics()?;
        let now = states(&metrics, room)?;
        if seen.last() != Some(&now) {
            seen.push(now.clone());
        }
        Ok((now == expected).then_some(metrics))
    });
    let yielded = yielded.with_context(|| format!("{seen:?}\n{}", agent.log()))?;
    ensure!(last(&yielded).is_err(), "a series of an event that yielded");
    hog.end()?;

    let back = within(COMES_BACK, "all groups are back", || {
        thread::sleep(Duration::from_secs(5));
        let metrics = agent.metrics()?;
        Ok(states(&metrics, room)?.iter().all(|state| state == "placed").then_some(metrics))
    });
    let back = back.with_context(|| agent.log())?;
    let resumed = last(&back)?;
    ensure!(resumed >= counted, "it fell from {counted} to {resumed}");
    looped()?;
    let grown = last(&agent.fresh_metrics()?)? - resumed;
    let truth = f64::from(u32::try_from(LOOP)?);
    ensure!(grown >= truth && grown <= truth * 1.2, "grew by {grown} after it came back, and the loop has {truth}");
    Ok(())
}

/// Twice as many events as counters, for ten minutes, with a loop each second. The test compares every scrape with the
/// previous one, and the last one with a run in which the event had its counter to itself.
pub(crate) fn turns_are_scaled_and_nothing_falls() -> Result<()> {
    let events = 2 * room()?;
    let cgroup = TestCgroup::new("alone")?;
    let looped = |cgroup: &TestCgroup| -> Result<()> {
        run::<LoopReport>(&format!("loop --instructions {LOOP} --cgroup {}", cgroup.path().display())).map(drop)
    };
    let alone = {
        let agent = Agent::start(&groups(1)?)?;
        (0..ALONE).try_for_each(|_| looped(&cgroup))?;
        count(&agent.fresh_metrics()?, EVENTS, &cgroup, &[("event", "n0")])? / f64::from(ALONE)
    };

    let agent = Agent::start(&format!("pmu: {{multiplex: true}}\n{}", groups_of(2, events)?))?;
    let cgroup = TestCgroup::new("turns")?;
    let (start, mut loops, mut scrapes) = (Instant::now(), 0_u32, 0_u32);
    let mut last: BTreeMap<String, f64> = BTreeMap::new();
    let metrics = loop {
        looped(&cgroup)?;
        loops += 1;
        thread::sleep(Duration::from_secs(1));
        if loops.is_multiple_of(10) {
            let metrics = agent.metrics()?;
            never_falls(&metrics, &mut last)?;
            scrapes += 1;
            if start.elapsed() >= TURNS {
                break agent.fresh_metrics()?;
            }
        }
    };
    let shares: Vec<_> = (0..events).map(|number| share(&metrics, number)).collect::<Result<_>>()?;
    ensure!(shares.iter().all(|share| *share < 0.9), "not by turns: {shares:.2?}");
    let mut worst: f64 = 0.0;
    for number in 0..events {
        let found = count(&metrics, EVENTS, &cgroup, &[("event", &format!("n{number}"))])? / f64::from(loops);
        worst = if (found / alone - 1.0).abs() > worst.abs() { found / alone - 1.0 } else { worst };
    }
    tell(&format!(
        "{events} events by turns (on the PMU {shares:.2?} of the time), {loops} loops and {scrapes} scrapes in {:.0} s: \
         at worst {:+.2} % off the run alone",
        start.elapsed().as_secs_f64(),
        worst * 100.0
    ));
    ensure!(worst.abs() <= 0.03, "{:+.2} % off", worst * 100.0);
    Ok(())
}

/// Returns the share of its time that an event was on the PMU.
fn share(metrics: &Metrics, number: usize) -> Result<f64> {
    let name = event(number)?;
    let of = |family: &str| metrics.get(family, &[("event", &name)]).with_context(|| format!("no {family}"));
    Ok(of("podperf_pmu_event_running_seconds_total")? / of("podperf_pmu_event_enabled_seconds_total")?)
}

fn never_falls(metrics: &Metrics, last: &mut BTreeMap<String, f64>) -> Result<()> {
    for sample in metrics.samples().iter().filter(|sample| sample.name.ends_with("_total")) {
        let series = format!("{}{:?}", sample.name, sample.labels);
        if let Some(before) = last.insert(series.clone(), sample.value) {
            ensure!(sample.value >= before, "{series} fell from {before} to {}", sample.value);
        }
    }
    Ok(())
}
