//! The growth of the cost as Markdown for people.

use std::fmt::Write as _;

use super::{
    Cell, Growth,
    watch::{SIX, Watcher},
};

/// Returns one line per watcher with one column per number of cgroups, and then the open files.
pub fn growth(growth: &Growth) -> String {
    let mut text = "\n## Extra CPU ns per hop: median (least..greatest) over the rounds\n\n".to_owned();
    header(&mut text, "watcher", growth);
    line(&mut text, "ns per hop without any", growth, |count| {
        growth.base_ns(count).map(|base| format!("{:.0} ({:.0}..{:.0})", base.median, base.min, base.max))
    });
    for watcher in &growth.watchers {
        line(&mut text, &watcher.title(), growth, |count| growth.cell(*watcher, count).map(extra));
    }
    text.push_str("\n## ns of a BPF run, which includes the kernel's statistics: median (least..greatest)\n\n");
    header(&mut text, "watcher", growth);
    for watcher in growth.watchers.iter().filter(|watcher| **watcher != Watcher::Nobody && !watcher.is_perf()) {
        line(&mut text, &watcher.title(), growth, |count| {
            let ns = growth.cell(*watcher, count)?.bpf_ns()?;
            Some(format!("{:.0} ({:.0}..{:.0})", ns.median, ns.min, ns.max))
        });
    }
    text.push_str("\n## Files that the watcher has open\n\n");
    header(&mut text, "watcher", growth);
    for watcher in growth.watchers.iter().filter(|watcher| **watcher != Watcher::Nobody) {
        line(&mut text, &watcher.title(), growth, |count| {
            growth.cell(*watcher, count)?.fds.map(|count| count.to_string())
        });
    }
    for (watcher, count) in growth.watchers.iter().flat_map(|w| growth.cgroup_counts.iter().map(move |c| (*w, *c))) {
        if let Some(failure) = growth.cell(watcher, count).and_then(|cell| cell.failure.as_ref()) {
            let _ = writeln!(text, "\nnot measured: {}, {count} cgroups: {failure}", watcher.title());
        }
    }
    text
}

fn header(text: &mut String, first: &str, growth: &Growth) {
    let _ = write!(text, "| {first} |");
    for count in &growth.cgroup_counts {
        let _ = write!(text, " {count} cgroups |");
    }
    let _ = writeln!(text, "\n|---|{}", "---|".repeat(growth.cgroup_counts.len()));
}

fn line(text: &mut String, title: &str, growth: &Growth, cell: impl Fn(usize) -> Option<String>) {
    let _ = write!(text, "| {title} |");
    for count in &growth.cgroup_counts {
        let _ = write!(text, " {} |", cell(*count).unwrap_or_else(|| "-".to_owned()));
    }
    text.push('\n');
}

fn extra(cell: &Cell) -> String {
    cell.extra_ns().map_or_else(|| "-".to_owned(), |ns| format!("{:+.0} ({:+.0}..{:+.0})", ns.median, ns.min, ns.max))
}

/// A goal and its measured value.
struct Goal {
    title: String,
    at_most: f64,
    measured: Option<f64>,
}

/// Returns one line per goal: the goal, the measured value, and whether the goal is met. Nothing is asserted.
pub fn goals(growth: &Growth) -> String {
    let (Some(few), Some(many)) = (growth.cgroup_counts.first().copied(), growth.cgroup_counts.last().copied()) else {
        return String::new();
    };
    let extra = |watcher: Watcher, count| Some(growth.cell(watcher, count)?.extra_ns()?.median);
    // A cost below zero is noise, and so is its ratio.
    let ratio =
        |of: Option<f64>, to: Option<f64>| of.zip(to).filter(|(of, to)| *of > 0.0 && *to > 0.0).map(|(of, to)| of / to);
    let perf = extra(Watcher::Perf(SIX), few);
    let mut goals = vec![
        Goal {
            title: format!("facts and times / perf's BPF counters of {SIX} events, {few} cgroups"),
            at_most: 0.12,
            measured: ratio(extra(Watcher::Facts, few), perf),
        },
        Goal {
            title: format!("{SIX} events / perf's BPF counters of {SIX} events, {few} cgroups"),
            at_most: 0.5,
            measured: ratio(extra(Watcher::Events(SIX), few), perf),
        },
    ];
    let bpf_ns = |watcher: Watcher, count| Some(growth.cell(watcher, count)?.bpf_ns()?.median);
    for watcher in [Watcher::Facts, Watcher::Events(SIX)] {
        goals.push(Goal {
            title: format!("{}: ns of a BPF run at {many} cgroups / at {few}", watcher.title()),
            at_most: 1.8,
            measured: ratio(bpf_ns(watcher, many), bpf_ns(watcher, few)),
        });
    }
    goals.push(Goal {
        title: "files: most per event and CPU, over all numbers of events and cgroups".to_owned(),
        at_most: 1.0,
        measured: files_per_event(growth),
    });
    let mut text = "\n## Goals\n\n| goal | at most | measured | holds |\n|---|---|---|---|\n".to_owned();
    for goal in goals {
        let measured = goal.measured.map_or_else(|| "not measured".to_owned(), |measured| format!("{measured:.2}"));
        let holds = goal.measured.map_or("-", |measured| if measured <= goal.at_most { "yes" } else { "no" });
        let _ = writeln!(text, "| {} | {} | {measured} | {holds} |", goal.title, goal.at_most);
    }
    text
}

/// Returns the additional open files of podperf per event and CPU, compared with facts alone and the fewest cgroups.
#[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
fn files_per_event(growth: &Growth) -> Option<f64> {
    let cpus = std::thread::available_parallelism().ok()?.get();
    let none = growth.cell(Watcher::Facts, *growth.cgroup_counts.first()?)?.fds?;
    let counted = growth.watchers.iter().filter(|watcher| !watcher.is_perf() && watcher.events() > 0);
    let cells = counted.flat_map(|watcher| growth.cgroup_counts.iter().map(move |count| (*watcher, *count)));
    let per_event = cells.filter_map(|(watcher, count)| {
        let more = growth.cell(watcher, count)?.fds?.saturating_sub(none);
        Some(more as f64 / (watcher.events() * cpus) as f64)
    });
    per_event.reduce(f64::max)
}
