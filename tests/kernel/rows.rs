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
    },
    running::{ONCPU, is_close, oncpu_is_cpu_stat, run},
    suite::within,
};

use crate::maps::{delete, dump};

/// Few slots, so that cgroups share and reuse them. They are enough for the other cgroups of the machine.
pub(crate) const FEW: &str = "cgroups: {max: 256}\n";
/// The largest number of cgroups at once that fit beside the machine's own.
const AT_ONCE: usize = 180;

/// The time in which readings free the slots of the last cgroups.
pub(crate) const FREED: Duration = Duration::from_secs(15);

pub(crate) fn dropped(metrics: &Metrics, reason: &str) -> Result<f64> {
    metrics.get("podperf_bpf_drops_total", &[("reason", reason)]).context("no drops")
}

pub(crate) fn nothing_was_dropped(metrics: &Metrics) -> Result<()> {
    let dropped = dropped(metrics, "cgroup_table")?;
    ensure!(dropped == 0.0, "{dropped} times there was no room");
    Ok(())
}

/// Root's cgroups, and those of a user, which have an outer cgroup.
pub(crate) fn cgroups_of_one_slot_are_counted_apart() -> Result<()> {
    [0, 65534].into_iter().try_for_each(one_slot)
}

fn one_slot(owner: u32) -> Result<()> {
    let agent = Agent::start(FEW)?;
    let parent = TestCgroup::new("slots")?;
    chown(parent.path(), Some(owner), None)?;
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
