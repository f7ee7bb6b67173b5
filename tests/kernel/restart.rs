//! Restarts without a gap: the next agent has all counts of a killed agent, and all counts of the time between them.

use std::{collections::BTreeMap, fs, time::Duration};

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::Signal;
use podperf_tests::{
    agent::{self, Agent, Metrics, testing},
    bpffs::Bpffs,
    cgroup::{self, TestCgroup},
    cluster::wait_for_part,
    load::cpu::CpuReport,
    running::{Load, OFFCPU, ONCPU, count, run, time, with_faults},
};

use crate::counts::{Inside, Worked};

/// The facts that the tests compare with the truth.
pub(crate) const FACTS: &str = "metrics: {facts: [oncpu, offcpu, context_switches, page_faults], classicBuckets: true}\n\
     sensors: {histograms: {enabled: true}}";

/// The allowed relative deviation of a clock, as a divisor: 0.05 %.
const CLOCKS: u32 = 2000;
/// The allowed absolute deviation of a clock. It covers the time between two reads of clocks, for an interval of any
/// length.
pub(crate) const INSTANT: Duration = Duration::from_micros(50);

/// Returns the number of kills: ten, or `PODPERF_KILLS`.
pub(crate) fn kills() -> Result<usize> {
    std::env::var("PODPERF_KILLS").map_or(Ok(10), |kills| kills.parse().context("a bad `PODPERF_KILLS`"))
}

/// Returns the counters that must never fall. The process's own counters are not in the result.
pub(crate) fn counters(metrics: &Metrics) -> BTreeMap<String, f64> {
    let own = [
        "process_",
        "podperf_http_",
        "podperf_log_",
        "podperf_otlp_",
        "podperf_kube_",
        "podperf_server_",
        "podperf_stack_cut_",
        "podperf_stack_symbol",
        "podperf_stack_unsymbol",
    ];
    let counters = metrics
        .samples()
        .iter()
        .filter(|sample| ["_total", "_bucket", "_sum", "_count"].iter().any(|suffix| sample.name.ends_with(suffix)))
        .filter(|sample| !own.iter().any(|prefix| sample.name.starts_with(prefix)));
    counters.map(|sample| (format!("{} {:?}", sample.name, sample.labels), sample.value)).collect()
}

pub(crate) fn none_falls(before: &BTreeMap<String, f64>, after: &BTreeMap<String, f64>) -> Result<()> {
    let root = cgroup::mount_point()?;
    for (series, before) in before {
        // The row of a removed cgroup ends, whichever test made the cgroup.
        let cgroup = series.split("\"cgroup\": \"/").nth(1).and_then(|rest| rest.split('"').next());
        let has_ended = cgroup.is_some_and(|cgroup| !root.join(cgroup).exists());
        let Some(after) = after.get(series) else {
            ensure!(has_ended, "{series} is gone");
            continue;
        };
        ensure!(after >= before, "{series} fell from {before} to {after}");
    }
    Ok(())
}

/// Kills the agent repeatedly, starts it with these configurations in turn, and compares its last counts with the
/// kernel's own counts of the load.
fn survives(signal: Signal, times: usize, more: &[&str]) -> Result<()> {
    let of_turn = |bpffs: &Bpffs, turn: usize| format!("{}\n{}\n{FACTS}", bpffs.yaml(), more[turn % more.len()]);
    survives_turns(times, |bpffs| of_turn(bpffs, 0), |agent, bpffs, turn| agent.restart(signal, &of_turn(bpffs, turn)))
}

/// The same with any action of `next` on the agent in each turn.
pub(crate) fn survives_turns(
    times: usize,
    first: impl Fn(&Bpffs) -> String,
    mut next: impl FnMut(&mut Agent, &Bpffs, usize) -> Result<()>,
) -> Result<()> {
    let bpffs = Bpffs::mount()?;
    let mut agent = Agent::start(&first(&bpffs))?;
    let cgroup = TestCgroup::new("restart")?;
    let going = agent.directory().join("going");
    fs::write(&going, "")?;
    let load = Inside::start(&format!("--pages 50 --switches 50 --while-exists {}", going.display()), &cgroup)?;
    let mut shown = BTreeMap::new();
    for turn in 1..=times {
        let now = counters(&agent.metrics()?);
        none_falls(&shown, &now).with_context(|| format!("after {} ends", turn - 1))?;
        shown = now;
        next(&mut agent, &bpffs, turn).with_context(|| format!("end {turn}"))?;
    }
    fs::remove_file(&going)?;
    let worked = load.finish(&agent)?;
    none_falls(&shown, &counters(&worked.metrics)).context("at the end")?;

    ensure!(worked.report.inside.voluntary_switches > 100, "{:?}", worked.report);
    worked.ensure_exact()?;
    ensure_clocks(&worked, &cgroup)?;
    Ok(())
}

/// Compares the clocks of the load's row with the kernel's, and returns the larger deviation as a share.
pub(crate) fn ensure_clocks(worked: &Worked, cgroup: &TestCgroup) -> Result<f64> {
    let mut worst = 0.0_f64;
    let queued: &[_] = &[("state", "run_queue")];
    for (family, labels, truth) in [(ONCPU, &[][..], worked.truth.run), (OFFCPU, queued, worked.truth.runqueue)] {
        let found = time(&worked.metrics, family, cgroup, labels)?;
        let most = truth / CLOCKS + INSTANT;
        ensure!(found.abs_diff(truth) <= most, "{family}: {found:?}, and the truth is {truth:?} (+-{most:?})");
        worst = worst.max(found.abs_diff(truth).as_secs_f64() / truth.as_secs_f64());
    }
    Ok(worst)
}

pub(crate) fn an_ordinary_end_loses_nothing() -> Result<()> {
    survives(Signal::SIGTERM, 3, &[""])
}

/// The programs get other constants, other sizes of the rows, and counters in another order: none of their maps fits.
pub(crate) fn other_programs_take_over() -> Result<()> {
    survives(
        Signal::SIGKILL,
        kills()?,
        &[
            "cgroups: {max: 256}\ncounters: {groups: [[cpu-clock, page-faults]]}",
            "cgroups: {max: 4096}\ncounters: {groups: [[page-faults, cpu-clock]]}\nstacks: {longWait: 600ms}",
        ],
    )
}

/// Each turn has other user frames, and so other programs: unwound by tables, none, walked by frame pointers because the
/// program that copies stacks is refused, and unwound again.
pub(crate) fn other_user_frames_take_over() -> Result<()> {
    let tables = ("stacks: {unwind: tables}".to_owned(), "by the unwind tables of the programs' files");
    let turns = [
        tables.clone(),
        ("stacks: {unwind: none}".to_owned(), "kernel stacks of every wait, without user frames"),
        (
            testing("refuseCopies=true") + &tables.0,
            "by frame pointers instead of tables: failed to start BPF program `sample` (report this as a bug",
        ),
        tables,
    ];
    let yaml = |bpffs: &Bpffs, turn: usize| format!("{}\n{}\n{FACTS}", bpffs.yaml(), turns[turn].0);
    survives_turns(
        turns.len() - 1,
        |bpffs| yaml(bpffs, 0),
        |agent, bpffs, turn| {
            agent.restart(Signal::SIGKILL, &yaml(bpffs, turn))?;
            let status = String::from_utf8(agent.get("/status", &[])?.2)?;
            ensure!(status.contains(turns[turn].1), "turn {turn}: {status}");
            let metrics = agent.metrics()?;
            let taken_over = metrics.sum("podperf_starts_total", &[("how", "taken_over")]);
            ensure!(taken_over == f64::from(u32::try_from(turn)?), "{taken_over} takeovers:\n{}", agent.log());
            let samples = metrics.get("podperf_part_state", &[("part", "cpu samples"), ("state", "healthy")]);
            ensure!(samples == Some(1.0), "turn {turn}: no samples: {status}");
            Ok(())
        },
    )
}

/// The checkpoint file is damaged. The kernel's rows keep their counts.
pub(crate) fn what_is_kept_may_be_damaged() -> Result<()> {
    let bpffs = Bpffs::mount()?;
    let yaml = with_faults(&bpffs.yaml());
    let mut agent = Agent::start(&yaml)?;
    let cgroup = TestCgroup::new("damaged")?;
    let mut load =
        Load::start(&format!("faults --pages 500 --switches 100 --wait --cgroup {}", cgroup.path().display()))?;
    load.wait_for_word("ready")?;
    load.go_on()?;
    load.wait_for_word("done")?;
    load.wait_until_blocked()?;
    let switches = |agent: &Agent| -> Result<f64> {
        count(&agent.fresh_metrics()?, "podperf_cgroup_context_switches_total", &cgroup, &[("kind", "voluntary")])
    };
    let before = switches(&agent)?;
    let file = agent.directory().join("kept.state");
    let mut text = fs::read(&file)?;
    let middle = text.len() / 2;
    text[middle] ^= 1;
    fs::write(&file, text)?;
    agent.restart(Signal::SIGKILL, &yaml)?;
    let line = agent.wait_for_log("cannot be used", Duration::from_secs(15))?;
    ensure!(line.contains("WARN") && line.contains("damaged") && line.contains("lost="), "{line}");
    let after = switches(&agent)?;
    ensure!(before.to_bits() == after.to_bits(), "{before} before, {after} after");
    // The maps are new, and the values that Prometheus had from the previous ones must not fall.
    let metrics = agent.metrics_for_prometheus()?;
    let shown = count(&metrics, "podperf_cgroup_context_switches_total", &cgroup, &[("kind", "voluntary")])?;
    ensure!(before.to_bits() == shown.to_bits(), "{before} before, and Prometheus is shown {shown}");
    let starts = metrics.get("podperf_starts_total", &[("how", "unusable")]);
    ensure!(starts == Some(1.0), "{starts:?}");
    load.go_on()?;
    load.end()
}

/// The checkpoint cannot be written while a cgroup ends. All that the next agent has of the last counts is the row.
pub(crate) fn what_ended_without_a_checkpoint_is_not_lost() -> Result<()> {
    let bpffs = Bpffs::mount()?;
    let mut agent = Agent::start(&bpffs.yaml())?;
    let cgroup = TestCgroup::new("unsaved")?;
    let path = cgroup.kernel_path().to_owned();
    let burn = || -> Result<CpuReport> { run(&format!("spin --seconds 0.2 --cgroup {}", cgroup.path().display())) };
    let shown = |agent: &Agent| -> Result<f64> {
        agent.fresh_metrics()?.get(ONCPU, &[("cgroup", &path)]).with_context(|| format!("no row for `{path}`"))
    };
    burn()?;
    let saved = shown(&agent)?;
    let in_the_way = agent.directory().join("kept.new");
    fs::create_dir(&in_the_way)?;
    burn()?;
    drop(cgroup);
    // The second reading after the end would free the row.
    for _ in 0..3 {
        shown(&agent)?;
    }
    wait_for_part(&agent, "restart", "degraded", &["failed to write `"])?;
    let before = shown(&agent)?;
    ensure!(before > saved + 0.1, "{saved} s, and then {before} s");
    agent.kill()?;
    fs::remove_dir(&in_the_way)?;
    agent.begin_again(&agent::binary()?, &bpffs.yaml())?;
    agent.wait_until_ready()?;
    let after = shown(&agent)?;
    ensure!(before.to_bits() == after.to_bits(), "{before} s before, {after} s after");
    Ok(())
}

/// A generation with a description and a missing map. The takeover finds this when it changes the active generation.
pub(crate) fn what_is_pinned_may_be_unreadable() -> Result<()> {
    let bpffs = Bpffs::mount()?;
    let with = |max: u32| format!("{}\ncgroups: {{max: {max}}}\n{FACTS}", bpffs.yaml());
    let mut agent = Agent::start(&with(256))?;
    let cgroup = TestCgroup::new("unreadable")?;
    let before = counters(&agent.metrics()?);
    let generations = || -> Result<Vec<_>> {
        let entries = fs::read_dir(bpffs.pins())?.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
        Ok(entries.into_iter().filter(|path| path.join("maps").exists()).collect())
    };
    let [broken] = &generations()?[..] else { anyhow::bail!("{:?}", generations()?) };
    fs::remove_file(broken.join("maps/cpus"))?;
    agent.restart(Signal::SIGKILL, &with(4096))?;
    let line = agent.wait_for_log("what is pinned cannot be read", Duration::from_secs(15))?;
    ensure!(line.contains("WARN") && line.contains("lost"), "{line}");
    let (_, _, status) = agent.get("/status", &[])?;
    let status = String::from_utf8(status)?;
    ensure!(status.contains("cannot be read"), "{status}");
    let now = agent.metrics()?;
    none_falls(&before, &counters(&now))?;
    ensure!(now.get("podperf_starts_total", &[("how", "incomplete")]) == Some(1.0), "{}", agent.log());
    ensure!(!broken.exists() && generations()?.len() == 1, "{:?}", generations()?);

    // The agent continues to count, and the next agent reports no error.
    let load = Inside::start("--pages 50 --switches 50", &cgroup)?;
    load.finish(&agent)?.ensure_exact()?;
    agent.restart(Signal::SIGKILL, &with(4096))?;
    ensure!(!agent.log().contains("cannot be read"), "{}", agent.log());
    ensure!(agent.metrics()?.get("podperf_starts_total", &[("how", "adopted")]) == Some(1.0), "{}", agent.log());
    Ok(())
}
