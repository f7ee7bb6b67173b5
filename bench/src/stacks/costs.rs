//! The cost and the losses of an agent while it records, by its own metrics.

use std::{
    fmt::{Error, Write as _},
    time::Instant,
};

use anyhow::Result;
use nix::unistd::Pid;
use podperf_tests::{
    agent::{Agent, Metrics},
    cgroup::TestCgroup,
    process,
};

const RUNS: &str = "podperf_bpf_program_runs_total";
const RUN_TIME: &str = "podperf_bpf_program_run_time_seconds_total";
const DROPS: &str = "podperf_bpf_drops_total";
const MEMORY: &str = "podperf_overhead_memory_bytes";
const ON_CPU: &str = "podperf_cgroup_oncpu_seconds_total";
const OFF_CPU: &str = "podperf_cgroup_offcpu_seconds_total";
const INCOMPLETE: &str = "podperf_cgroup_incomplete_stack_seconds_total";
const CUT: &str = "podperf_stack_cut_samples_total";
/// The causes of samples whose stack is cut.
const CUT_CAUSES: [&str; 6] = ["process_gone", "no_time", "unreadable", "no_copy", "not_copied", "elsewhere"];
/// The states of waits that have a stack.
const BLOCKED: [&str; 2] = ["interruptible", "uninterruptible"];

/// The accounts of an agent at one moment.
pub(super) struct Account {
    metrics: Metrics,
    cpu_ns: u64,
    at: Instant,
}

/// The change between two accounts.
pub(super) struct Costs<'a> {
    before: &'a Account,
    after: &'a Account,
    loads: &'a [&'a TestCgroup],
}

impl Account {
    pub(super) fn of(agent: &Agent) -> Result<Self> {
        let metrics = agent.fresh_metrics()?;
        let cpu_ns = process::cpu_ns_of(Pid::from_raw(i32::try_from(agent.pid())?))?;
        Ok(Self { metrics, cpu_ns, at: Instant::now() })
    }

    /// Returns the growth of a metric since `before`.
    pub(super) fn grown(&self, before: &Self, name: &str, labels: &[(&str, &str)]) -> f64 {
        self.metrics.sum(name, labels) - before.metrics.sum(name, labels)
    }
}

impl<'a> Costs<'a> {
    pub(super) fn between(before: &'a Account, after: &'a Account, loads: &'a [&'a TestCgroup]) -> Self {
        Self { before, after, loads }
    }

    fn grown(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        self.after.grown(self.before, name, labels)
    }

    fn ns_a_run(&self, program: &str) -> String {
        let labels = [("program", program)];
        format!("{:.0}", 1e9 * ratio(self.grown(RUN_TIME, &labels), self.grown(RUNS, &labels)))
    }

    fn of_loads(&self, name: &str, more: &[(&str, &str)]) -> f64 {
        let of = |load: &&TestCgroup| self.grown(name, &[&[("cgroup", load.kernel_path())][..], more].concat());
        self.loads.iter().map(of).sum()
    }

    /// Returns the rows of the table, in their order: what is measured, and the figure.
    fn rows(&self) -> [(&'static str, String); 13] {
        let count = |name: &str| self.grown(name, &[]);
        let seconds = self.after.at.duration_since(self.before.at).as_secs_f64();
        let cpu = self.after.cpu_ns.saturating_sub(self.before.cpu_ns) as f64 / 1e9;
        let dropped = |reason| format!("{:.0}", self.grown(DROPS, &[("reason", reason)]));
        let blocked: f64 = BLOCKED.into_iter().map(|state| self.of_loads(OFF_CPU, &[("state", state)])).sum();
        let incomplete = ratio(self.of_loads(INCOMPLETE, &[]), blocked + self.of_loads(ON_CPU, &[]));
        let [waits, walks, kernel_walks] =
            ["podperf_stack_waits_total", "podperf_stack_walks_total", "podperf_stack_kernel_walks_total"].map(count);
        let cut = CUT_CAUSES.map(|cause| format!("{cause} {:.0}", self.grown(CUT, &[("cause", cause)])));
        let [checks, wrong] = ["podperf_stack_checks_total", "podperf_stack_checks_wrong_total"].map(count);
        [
            ("ns of BPF a switch", self.ns_a_run("sched_switch")),
            ("ns of BPF a wake-up", self.ns_a_run("sched_waking")),
            ("ns of BPF a sample on the CPU", self.ns_a_run("sample")),
            ("all programs, of one CPU", percent(ratio(count(RUN_TIME), seconds))),
            ("the process, of one CPU", percent(ratio(cpu, seconds))),
            ("memory", format!("{:.1} MiB", self.after.metrics.sum(MEMORY, &[]) / f64::from(1 << 20))),
            ("waits that were copied or walked", format!("{} of {waits:.0}", percent(ratio(walks, waits)))),
            ("waits whose kernel part alone was walked", percent(ratio(kernel_walks, waits))),
            ("wrong checks of remembered stacks", format!("{wrong:.0} of {checks:.0}")),
            ("samples on the CPU that are `cut`", cut.join(", ")),
            ("drops `sample_stack`", dropped("sample_stack")),
            ("drops `copy_ring`", dropped("copy_ring")),
            ("incomplete stacks, of the loads' time", percent(incomplete)),
        ]
    }
}

/// Returns a table with a column for each agent.
pub(super) fn table(ways: &[&str], costs: &[Costs<'_>]) -> Result<String, Error> {
    let mut text = format!("\n| | {} |\n|---|{}\n", ways.join(" | "), "---|".repeat(ways.len()));
    let columns: Vec<_> = costs.iter().map(Costs::rows).collect();
    for (row, (what, _)) in columns.first().into_iter().flatten().enumerate() {
        let figures: Vec<_> = columns.iter().filter_map(|rows| rows.get(row)).map(|(_, figure)| &**figure).collect();
        writeln!(text, "| {what} | {} |", figures.join(" | "))?;
    }
    Ok(text)
}

pub(super) fn ratio(part: f64, all: f64) -> f64 {
    if all > 0.0 { part / all } else { 0.0 }
}

fn percent(share: f64) -> String {
    format!("{:.2} %", 100.0 * share)
}
