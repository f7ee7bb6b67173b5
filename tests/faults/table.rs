//! The table of faults, and the common checks of the agent after each fault.

use std::sync::{Mutex, PoisonError};

use anyhow::{Context as _, Result, ensure};
use podperf_tests::{
    agent::{Agent, Metrics},
    cgroup::TestCgroup,
    load::cpu::CpuReport,
    running::{oncpu_is_cpu_stat, run},
    suite,
};

static ROWS: Mutex<Vec<[String; 3]>> = Mutex::new(Vec::new());

/// Adds a fault that the agent has survived: the fault, the symptoms for users, and the losses.
pub(crate) fn row(fault: &str, seen: &str, lost: &str) {
    let row = [fault, seen, lost].map(|text| text.trim().replace('|', "\\|").replace('\n', " "));
    ROWS.lock().unwrap_or_else(PoisonError::into_inner).push(row);
}

/// Prints the rows of this run, as Markdown.
pub(crate) fn print() {
    let rows = ROWS.lock().unwrap_or_else(PoisonError::into_inner);
    if rows.is_empty() {
        return;
    }
    let lines = rows.iter().map(|[fault, seen, lost]| format!("\n  | {fault} | {seen} | {lost} |"));
    let lines: String = lines.collect();
    suite::tell(&format!("| fault | what the user sees | what was lost |\n  |---|---|---|{lines}"));
}

/// Checks that the agent lives, is ready, and counts the CPU time of a new load.
pub(crate) fn serves_and_counts(agent: &mut Agent) -> Result<Metrics> {
    agent.check()?;
    let cgroup = TestCgroup::new("afterwards")?;
    let _: CpuReport = run(&format!("spin --seconds 0.3 --cgroup {}", cgroup.path().display()))?;
    let metrics = agent.fresh_metrics().with_context(|| agent.log())?;
    oncpu_is_cpu_stat(&metrics, &cgroup)?;
    for path in ["/livez", "/readyz", "/status"] {
        let (code, _, body) = agent.get(path, &[])?;
        ensure!(code == 200, "{path} answered {code}: {}", String::from_utf8_lossy(&body));
    }
    Ok(metrics)
}

/// Returns the number of drops for this reason.
pub(crate) fn dropped(metrics: &Metrics, reason: &str) -> Result<f64> {
    let count = metrics.get("podperf_bpf_drops_total", &[("reason", reason)]);
    count.with_context(|| format!("no `{reason}` in `podperf_bpf_drops_total`"))
}

/// Checks that no time and no count is missing, by all reasons of losses.
pub(crate) fn nothing_was_lost(metrics: &Metrics) -> Result<()> {
    for reason in ["cgroup_table", "task_storage", "event_read", "sample_table", "sample_stack", "sensor_table"] {
        let count = dropped(metrics, reason)?;
        ensure!(count == 0.0, "`{reason}`: {count}");
    }
    Ok(())
}
