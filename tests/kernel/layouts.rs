//! Upgrades to a version whose maps hold the same data in other places, and back. The other version is a second build
//! of the agent (`tests/other-layout.sh`).

use std::{
    cell::Cell,
    fs,
    path::PathBuf,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use nix::sys::signal::Signal;
use podperf_tests::{
    agent::{self, Agent},
    bpffs::Bpffs,
    cgroup::TestCgroup,
    running::{Load, OFFCPU, time},
};

use crate::{
    going_on::CHARGED_AFTER,
    restart::{FACTS, counters, kills, none_falls, survives_turns},
};

/// The allowed absolute error of a wait over the takeovers: the old and the new programs read the time a moment apart.
const INSTANT: Duration = Duration::from_millis(20);

fn yaml(bpffs: &Bpffs) -> String {
    format!("{}\n{FACTS}", bpffs.yaml())
}

/// Returns the two builds in turn, starting with the build of turn 0.
fn builds() -> Result<[PathBuf; 2]> {
    Ok([agent::binary()?, agent::other_layout()?])
}

fn starts(agent: &Agent, how: &str) -> Result<f64> {
    Ok(agent.metrics()?.sum("podperf_starts_total", &[("how", how)]))
}

/// Returns the layout versions of the pinned generations.
fn layouts(bpffs: &Bpffs) -> Vec<String> {
    let names = fs::read_dir(bpffs.pins()).into_iter().flatten().flatten();
    let names = names.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let mut layouts: Vec<_> = names.filter_map(|name| Some(name.split_once('-')?.0.to_owned())).collect();
    layouts.sort_unstable();
    layouts
}

pub(crate) fn upgrades_lose_nothing() -> Result<()> {
    let builds = builds()?;
    survives_turns(kills()?, yaml, |agent, bpffs, turn| {
        let before = layouts(bpffs);
        agent.restart_as(&builds[turn % 2], Signal::SIGKILL, &yaml(bpffs))?;
        let taken_over = starts(agent, "taken_over")?;
        ensure!(taken_over == f64::from(u32::try_from(turn)?), "{taken_over} takeovers:\n{}", agent.log());
        let after = layouts(bpffs);
        ensure!(before.len() == 1 && after.len() == 1 && before != after, "from {before:?} to {after:?}");
        Ok(())
    })
}

/// Kills at moments all over an upgrade: before the new pins are complete, while both generations are there, and after
/// the previous pins are gone.
pub(crate) fn kills_amid_upgrades() -> Result<()> {
    let builds = builds()?;
    let (both, current) = (Cell::new(0), Cell::new(0));
    survives_turns(kills()?, yaml, |agent, bpffs, turn| {
        let polls = Cell::new(0);
        let next = &builds[1 - current.get()];
        let begun = || bpffs.pins().join("unfinished").exists();
        agent.restart_and_kill(next, &yaml(bpffs), || match turn % 3 {
            0 => begun(),
            // The kill comes some time after both are there, at a different time in each turn.
            _ => {
                polls.set(polls.get() + usize::from(layouts(bpffs).len() > 1 || polls.get() > 0));
                polls.get() > turn / 3 * 4
            }
        })?;
        both.set(both.get() + usize::from(layouts(bpffs).len() > 1));
        // The next agent has either of the two layouts.
        current.set(turn / 2 % 2);
        agent.restart_as(&builds[current.get()], Signal::SIGKILL, &yaml(bpffs))?;
        agent.metrics()?;
        ensure!(layouts(bpffs).len() == 1, "{:?}", layouts(bpffs));
        Ok(())
    })?;
    ensure!(both.get() > 0, "none was killed while both were there");
    Ok(())
}

/// The task does not run while the agent of the other layout counts: its wait begins before that agent starts, and ends
/// after it.
pub(crate) fn a_wait_over_two_upgrades() -> Result<()> {
    let builds = builds()?;
    let bpffs = Bpffs::mount()?;
    let mut agent = Agent::start(&yaml(&bpffs))?;
    let cgroup = TestCgroup::new("over")?;
    let mut load = Load::start(&format!("faults --pages 1 --switches 1 --wait --cgroup {}", cgroup.path().display()))?;
    load.wait_for_word("ready")?;
    load.go_on()?;
    load.wait_for_word("done")?;
    let start = Instant::now();
    load.wait_until_blocked()?;
    // The first reading charges a part of the wait.
    thread::sleep(CHARGED_AFTER);
    agent.fresh_metrics()?;
    for build in [&builds[1], &builds[0]] {
        agent.restart_as(build, Signal::SIGTERM, &yaml(&bpffs))?;
        agent.metrics()?;
    }
    let waited = start.elapsed();
    load.go_on()?;
    load.end()?;
    let found = time(&agent.fresh_metrics()?, OFFCPU, &cgroup, &[("state", "interruptible")])?;
    ensure!(found.abs_diff(waited) < INSTANT + waited / 50, "{found:?} of a wait of {waited:?}:\n{}", agent.log());
    Ok(())
}

pub(crate) fn what_is_new_is_named() -> Result<()> {
    let bpffs = Bpffs::mount()?;
    let mut agent = Agent::start(&yaml(&bpffs))?;
    agent.metrics()?;
    agent.restart_as(&agent::other_layout()?, Signal::SIGTERM, &yaml(&bpffs))?;
    let line = agent.wait_for_log("programs of another layout", Duration::from_secs(5))?;
    ensure!(line.contains("WARN") && line.contains("podperf_cgroup.new"), "{line}");
    let (_, _, status) = agent.get("/status", &[])?;
    let status = String::from_utf8(status)?;
    ensure!(status.contains("`podperf_cgroup.new`") && !status.contains("run_ns"), "{status}");
    Ok(())
}

/// Versions from before the descriptions have such pins.
pub(crate) fn without_a_description_there_is_a_gap() -> Result<()> {
    let bpffs = Bpffs::mount()?;
    let mut agent = Agent::start(&yaml(&bpffs))?;
    let before = counters(&agent.metrics()?);
    for generation in fs::read_dir(bpffs.pins())? {
        fs::remove_file(generation?.path().join("maps/description")).ok();
    }
    agent.restart_as(&agent::other_layout()?, Signal::SIGKILL, &yaml(&bpffs))?;
    agent.wait_for_log("does not say what it holds, and is removed", Duration::from_secs(5))?;
    ensure!(starts(&agent, "anew")? == 1.0, "{}", agent.log());
    none_falls(&before, &counters(&agent.metrics()?))
}
