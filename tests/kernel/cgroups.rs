//! Cgroups that come and go, and cgroups whose counts are in another cgroup's row.

use std::{path::Path, thread, time::Duration};

use anyhow::{Context as _, Result, ensure};
use podperf_tests::{
    agent::{Agent, Metrics, NO_STACKS},
    cgroup::TestCgroup,
    load::{churn::ChurnReport, cpu::CpuReport},
    running::{ONCPU, is_close, oncpu_is_cpu_stat, run, time},
};

const LIVES: usize = 50;

fn churn(below: &Path) -> Result<ChurnReport> {
    let report: ChurnReport = run(&format!("churn --count {LIVES} --cgroup {}", below.display()))?;
    ensure!(report.cgroups.len() == LIVES, "only {} cgroups", report.cgroups.len());
    Ok(report)
}

fn all_are_resolved(metrics: &Metrics) -> Result<()> {
    let unresolved = metrics.get("podperf_cgroups_unresolved", &[]).context("no `podperf_cgroups_unresolved`")?;
    ensure!(unresolved == 0.0, "{unresolved} cgroups are unresolved");
    ensure!(metrics.get(ONCPU, &[("cgroup", "(unresolved)")]).is_none(), "a row for the unresolved");
    Ok(())
}

pub(crate) fn short_lives_have_rows() -> Result<()> {
    let agent = Agent::start("")?;
    let parent = TestCgroup::new("churn")?;
    let report = churn(parent.path())?;
    let metrics = agent.fresh_metrics()?;
    let mut sum = Duration::ZERO;
    for life in &report.cgroups {
        let path = life.kernel_path.as_str();
        let found = metrics.get(ONCPU, &[("cgroup", path)]).with_context(|| format!("no row for `{path}`"))?;
        let found = Duration::try_from_secs_f64(found)?;
        ensure!(found > Duration::ZERO, "`{path}` never ran");
        is_close(path, found, Duration::from_nanos(life.usage_ns))?;
        sum += found;
    }
    is_close(
        "the sum of the short lives",
        sum,
        report.cgroups.iter().map(|life| Duration::from_nanos(life.usage_ns)).sum(),
    )?;
    all_are_resolved(&metrics)
}

pub(crate) fn deep_cgroups_are_in_their_ancestor() -> Result<()> {
    let agent = Agent::start("cgroups: {depth: 1}\n")?;
    let parent = TestCgroup::new("churn")?;
    let report = churn(parent.path())?;
    let metrics = agent.fresh_metrics()?;
    for life in &report.cgroups {
        let path = life.kernel_path.as_str();
        ensure!(metrics.get(ONCPU, &[("cgroup", path)]).is_none(), "a row for `{path}`");
    }
    let truth: u64 = report.cgroups.iter().map(|life| life.usage_ns).sum();
    ensure!(truth > 100_000_000, "the short lives did little: {truth} ns");
    oncpu_is_cpu_stat(&metrics, &parent)?;
    all_are_resolved(&metrics)
}

pub(crate) fn excluded_cgroups_are_in_their_ancestor() -> Result<()> {
    let agent = Agent::start(&format!("cgroups: {{exclude: ['.*-hidden']}}\n{NO_STACKS}"))?;
    let parent = TestCgroup::new("parent")?;
    let (hidden, seen) = (parent.child("hidden")?, parent.child("seen")?);
    for cgroup in [&hidden, &seen] {
        let _: CpuReport = run(&format!("spin --seconds 0.3 --cgroup {}", cgroup.path().display()))?;
    }
    let metrics = agent.fresh_metrics()?;
    ensure!(metrics.get(ONCPU, &[("cgroup", hidden.kernel_path())]).is_none(), "a row for the excluded");
    oncpu_is_cpu_stat(&metrics, &seen)?;
    // Rows do not overlap: the parent's row has the hidden child's time, and not the other child's time.
    is_close("the parent", time(&metrics, ONCPU, &parent, &[])?, hidden.cpu_usage()?)
}

pub(crate) fn a_dead_row_ends_after_two_scrapes() -> Result<()> {
    const GRACE: Duration = Duration::from_secs(1);
    let agent = Agent::start(&format!("cgroups: {{grace: {}s}}\n{NO_STACKS}", GRACE.as_secs()))?;
    let parent = TestCgroup::new("parent")?;
    let child = parent.child("child")?;
    let kernel_path = child.kernel_path().to_owned();
    for cgroup in [&parent, &child] {
        let _: CpuReport = run(&format!("spin --seconds 0.2 --cgroup {}", cgroup.path().display()))?;
    }
    let truth = child.cpu_usage()?;
    // The parent's own time. Its cpu.stat also has the child's time.
    let own = parent.cpu_usage()? - truth;
    drop(child);
    for scrape in 1..=2 {
        // A probe reads the metrics, and does not count as a scrape.
        for _ in 0..3 {
            agent.get("/readyz", &[])?;
        }
        let metrics = agent.fresh_metrics()?;
        let found = metrics.get(ONCPU, &[("cgroup", &kernel_path)]);
        let found = found.with_context(|| format!("no row at scrape {scrape} after the death"))?;
        is_close("the dead", Duration::try_from_secs_f64(found)?, truth)?;
        is_close("the parent", time(&metrics, ONCPU, &parent, &[])?, own)?;
        // The grace period begins at the first reading without the cgroup. Without two scrapes the row stays after it.
        thread::sleep(GRACE);
    }
    let metrics = agent.fresh_metrics()?;
    ensure!(metrics.get(ONCPU, &[("cgroup", &kernel_path)]).is_none(), "the dead row is still there");
    is_close("the parent after the row's end", time(&metrics, ONCPU, &parent, &[])?, own)
}
