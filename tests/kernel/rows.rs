//! Rows are found by a slot. Several cgroups may share a slot, and later cgroups reuse it.

use std::{os::unix::fs::chown, time::Duration};

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::Signal;
use podperf_tests::{
    agent::{Agent, Metrics},
    bpffs::Bpffs,
    cgroup::TestCgroup,
    load::{
        churn::{ChurnReport, ShortLife},
        cpu::CpuReport,
        sleepers::SleepersReport,
    },
    running::{CPU_CLOCK, ONCPU, cpus, is_close, oncpu_is_cpu_stat, run},
    suite::within,
};

use crate::{
    conservation::timed_reading,
    histograms::{ON, sums_are_the_counters},
    maps::{delete, dump},
};

/// Few slots, so that cgroups share and reuse them. They are enough for the other cgroups of the machine.
const FEW: &str = "cgroups: {max: 256}\n";
/// The largest number of cgroups at once that fit beside the machine's own.
const AT_ONCE: usize = 180;
/// More cgroups than the table has entries, and as many as are more than half of them.
const CROWD: usize = 280;
const HALF: usize = 140;

/// The time in which readings free the slots of the last cgroups.
const FREED: Duration = Duration::from_secs(15);

fn dropped(metrics: &Metrics, reason: &str) -> Result<f64> {
    metrics.get("podperf_bpf_drops_total", &[("reason", reason)]).context("no drops")
}

fn nothing_was_dropped(metrics: &Metrics) -> Result<()> {
    let dropped = dropped(metrics, "cgroup_table")?;
    ensure!(dropped == 0.0, "{dropped} times there was no room");
    Ok(())
}

fn spin(cgroup: &TestCgroup) -> Result<()> {
    let _: CpuReport = run(&format!("spin --seconds 0.5 --cgroup {}", cgroup.path().display()))?;
    Ok(())
}

/// Makes cgroups in a cgroup, in each of which something has run.
fn crowd(parent: &TestCgroup, count: usize) -> Result<Vec<TestCgroup>> {
    let mut crowd = Vec::new();
    for _ in 0..count {
        let cgroup = parent.child("crowd")?;
        let status = cgroup.command().arg("true").status()?;
        ensure!(status.success(), "`true` in a cgroup: {status}");
        crowd.push(cgroup);
    }
    Ok(crowd)
}

pub(crate) fn cgroups_of_one_slot_are_counted_apart() -> Result<()> {
    let agent = Agent::start(FEW)?;
    let parent = TestCgroup::new("slots")?;
    let mut cgroups: Vec<TestCgroup> = Vec::new();
    loop {
        ensure!(cgroups.len() < AT_ONCE, "no two of {AT_ONCE} cgroups have one slot");
        let cgroup = parent.child("slot")?;
        let burn = || -> Result<CpuReport> {
            run(&format!("spin --cpu 0 --seconds 0.02 --cgroup {}", cgroup.path().display()))
        };
        burn()?;
        let second = dump(&agent, "rows_by_id")?.contains(&format!("\"key\": {}", cgroup.id()));
        if second {
            // The row exists now.
            burn()?;
        }
        cgroups.push(cgroup);
        if second {
            break;
        }
    }
    let metrics = agent.fresh_metrics()?;
    nothing_was_dropped(&metrics)?;
    cgroups.iter().try_for_each(|cgroup| oncpu_is_cpu_stat(&metrics, cgroup))
}

pub(crate) fn a_dead_cgroups_slot_is_anothers() -> Result<()> {
    let agent = Agent::start(FEW)?;
    let parent = TestCgroup::new("slots")?;
    let mut lives = Vec::new();
    while lives.len() < 400 {
        let report: ChurnReport = run(&format!("churn --count 100 --cgroup {}", parent.path().display()))?;
        lives.extend(report.cgroups);
        // The first reading has all their counts, and the second reading frees their slots.
        agent.fresh_metrics()?;
        agent.fresh_metrics()?;
    }
    let metrics = agent.fresh_metrics()?;
    nothing_was_dropped(&metrics)?;
    for life in &lives {
        let path = life.kernel_path.as_str();
        let found = metrics.get(ONCPU, &[("cgroup", path)]).with_context(|| format!("no row for `{path}`"))?;
        is_close(path, Duration::try_from_secs_f64(found)?, Duration::from_nanos(life.usage_ns))?;
    }
    // On a busy machine, the agent may learn of the last cgroups a reading later.
    let mut kept = Vec::new();
    let freed = within(FREED, "all dead cgroups have lost their slot", || {
        agent.fresh_metrics()?;
        kept = slots_of(&agent, &lives)?;
        Ok(kept.is_empty().then_some(()))
    });
    freed.with_context(|| format!("{} of {} dead cgroups have a slot: {:?}", kept.len(), lives.len(), kept.first()))
}

/// A container makes more cgroups than the table has entries, and they live on. The counts of a container that is born
/// later are right, the crowd is counted in its container, and nothing is missing in the sum.
pub(crate) fn a_crowd_of_cgroups_takes_no_row_of_another_container() -> Result<()> {
    let agent = Agent::start(&format!("{FEW}counters: {{groups: [[cpu-clock]]}}\n{ON}\n"))?;
    let (first, second) = (TestCgroup::new("first")?, TestCgroup::new("second")?);
    // Names end at the second level.
    let container = first.child("container")?;
    let (start, before) = timed_reading(&agent)?;
    let _crowd = crowd(&container, CROWD)?;
    let (last, sibling) = (container.child("last")?, second.child("sibling")?);
    for cgroup in [&last, &sibling] {
        spin(cgroup)?;
        let _: SleepersReport = run(&format!("sleepers --waits 50 --millis 2 --cgroup {}", cgroup.path().display()))?;
    }
    let (end, metrics) = timed_reading(&agent)?;
    let used = metrics.get("podperf_bpf_map_entries", &[("map", "cgroups")]).context("no entries")?;
    ensure!(used < 0.75 * 256.0, "{used} of 256 entries are taken");
    ensure!(dropped(&metrics, "cgroup_share")? >= 100.0, "the whole crowd has rows: {used} entries");
    nothing_was_dropped(&metrics)?;
    ensure!(dropped(&metrics, "sensor_table")? == 0.0, "the crowd took the rows of a sensor");
    for cgroup in [&container, &sibling] {
        oncpu_is_cpu_stat(&metrics, cgroup)?;
        // Both are charged to one row, whichever that is.
        sums_are_the_counters(&metrics, cgroup)?;
    }
    // Law 1: the sum of all rows and of the idle time.
    let sum = |metrics: &Metrics| metrics.get(CPU_CLOCK, &[]).context("no cpu-clock");
    let grown = sum(&metrics)? - sum(&before)?;
    let truth = (end - start).as_secs_f64() * f64::from(u32::try_from(cpus()?)?);
    let error = grown / truth - 1.0;
    ensure!(error.abs() <= 0.001, "grew by {grown} s, and the truth is {truth} s ({:+.3} %)", error * 100.0);
    Ok(())
}

/// With half of the table in use, a cgroup at any depth is charged to its container, and one in the part of another user
/// to that part. Names of pods end at their containers, wherever `kubepods` is. A later cgroup has a row again when the
/// crowd is gone.
pub(crate) fn a_cgroup_without_a_row_is_charged_to_its_container_or_user() -> Result<()> {
    let agent = Agent::start(FEW)?;
    let (parent, user) = (TestCgroup::new("parent")?, TestCgroup::new("user")?);
    let container = parent.child("container")?;
    // Another user owns this cgroup, though not the one below, which is at a level of names.
    chown(user.path(), Some(65534), None)?;
    let of_user = user.child("inner")?;
    let mut deep = vec![container.child("deep")?];
    while deep.len() < 20 {
        let deeper = deep[deep.len() - 1].child("deep")?;
        deep.push(deeper);
    }
    let kubepods = parent.child_named("kubepods")?;
    let pod = kubepods.child_named("pod6ef0362e-e3b9-43a3-acdb-de4ba71f1fa4")?;
    let in_pod = pod.child_named(&"4f".repeat(32))?;
    let below = in_pod.child("inner")?;
    // From here on the programs know where pods are.
    agent.fresh_metrics()?;
    let many = crowd(&container, HALF)?;
    let deepest = &deep[deep.len() - 1];
    for cgroup in [deepest, &of_user, &below] {
        spin(cgroup)?;
    }
    let metrics = agent.fresh_metrics()?;
    nothing_was_dropped(&metrics)?;
    for cgroup in [&container, &user, &kubepods] {
        oncpu_is_cpu_stat(&metrics, cgroup)?;
    }
    let charged: String = dump(&agent, "charged")?.split_whitespace().collect();
    for (inner, outer) in [(deepest, &container), (&of_user, &user), (&below, &in_pod)] {
        let entry = format!("\"key\":{},\"value\":{}}}", inner.id(), outer.id());
        ensure!(charged.contains(&entry), "{} is not charged to {}", inner.kernel_path(), outer.kernel_path());
    }
    drop(many);
    within(FREED, "a cgroup of the container has a row", || {
        agent.fresh_metrics()?;
        let late = container.child("late")?;
        spin(&late)?;
        Ok(dump(&agent, "cgroups")?.contains(&format!("\"key\": {},", late.id())).then_some(()))
    })
}

/// A sensor may leave such a row, or an agent that ends while it frees rows.
pub(crate) fn a_row_without_its_cgroup_is_freed() -> Result<()> {
    let bpffs = Bpffs::mount()?;
    let mut agent = Agent::start(&bpffs.yaml())?;
    let cgroup = TestCgroup::new("orphan")?;
    let other = TestCgroup::new("other")?;
    for cgroup in [&cgroup, &other] {
        let _: CpuReport = run(&format!("spin --seconds 0.02 --cgroup {}", cgroup.path().display()))?;
    }
    agent.fresh_metrics()?;
    delete(&agent, "cgroups", &cgroup)?;
    let has_row = |agent: &Agent, cgroup: &TestCgroup| -> Result<bool> {
        Ok(dump(agent, "rows")?.contains(&format!("\"id\": {},", cgroup.id())))
    };
    agent.fresh_metrics()?;
    ensure!(has_row(&agent, &cgroup)?, "the row is gone without a sweep");
    agent.restart(Signal::SIGKILL, &bpffs.yaml())?;
    within(FREED, "the row without its cgroup is freed", || {
        agent.fresh_metrics()?;
        Ok((!has_row(&agent, &cgroup)?).then_some(()))
    })?;
    ensure!(has_row(&agent, &other)?, "the row of a cgroup is gone");
    oncpu_is_cpu_stat(&agent.fresh_metrics()?, &other)
}

/// Returns the cgroups that have a slot, each with the slot's content, and whether the kernel side knows the cgroup.
fn slots_of(agent: &Agent, lives: &[ShortLife]) -> Result<Vec<(u64, String, bool)>> {
    let (rows, known) = (dump(agent, "rows")?, dump(agent, "cgroups")?);
    let slots: Vec<&str> = rows.split("\"id\": ").skip(1).collect();
    let slot_of = |life: &ShortLife| {
        let slot = slots.iter().find(|slot| slot.starts_with(&format!("{},", life.id)))?;
        Some((life.id, slot.split_whitespace().collect(), known.contains(&format!("\"key\": {}", life.id))))
    };
    Ok(lives.iter().filter_map(slot_of).collect())
}
