//! The cost of sensors per event, beside empty programs and beside programs of the shape of perf's.
//!
//! Each sensor has a load that makes its events and nothing else. The rounds go over all watchers in turn. The first
//! figure is the difference inside a pair: the load without the watcher, and then with it. The second figure is the
//! time of the watcher's programs by the kernel's statistics, which are off in the first one. Then podperf is measured
//! at each switch with all sensors off, and the whole agent with all of them on. Nothing is asserted.

mod switch;
mod table;
mod watch;
mod whole;

use std::{
    path::Path,
    process::{Command, Stdio},
    thread,
};

use anyhow::{Context as _, Result, ensure};
use podperf_tests::{bpf, load, process, programs::Programs};
use serde::Deserialize;

use self::watch::{EMPTY, Function, KWORK, LATENCY, SUMMARY, Watcher, Way};
use super::{BenchArgs, growth::Common, last_cpu, progress};

/// A stretch under strace has fewer calls by this factor.
const FEWER_UNDER_STRACE: u32 = 50;

/// The events of a sensor, and the ways to watch them: first empty programs, then podperf, then others.
#[derive(Debug)]
struct Subject {
    title: &'static str,
    event: &'static str,
    /// The load, up to the number of its events.
    load: &'static str,
    events: u32,
    watchers: &'static [Watcher],
    goals: &'static [Goal],
}

/// A goal of podperf.
#[derive(Clone, Copy, Debug)]
enum Goal {
    /// Its programs take at most this many ns above the empty programs.
    AboveEmpty(f64),
    /// The load is slower by at most this part of what the watcher at this place makes it slower.
    PartOf(usize, f64),
}

/// The place of podperf, after the empty programs.
const PODPERF: usize = 1;

/// The programs of `perf trace -s --bpf-summary --summary-mode=cgroup`, in their shape.
const PERF_TRACE: Watcher = Watcher {
    title: "the shape of perf trace -s --bpf-summary, by cgroup",
    way: Way::Tracepoints(SUMMARY, &[("summary_enter", "sys_enter"), ("summary_exit", "sys_exit")]),
    runs: 2.0,
};

static SUBJECTS: [Subject; 6] = [
    Subject {
        title: "Interrupts",
        event: "packet; programs per interrupt",
        load: "flood --packets",
        events: 300_000,
        watchers: &[
            Watcher {
                title: "empty programs at begin and end",
                way: Way::Tracepoints(
                    EMPTY,
                    &[
                        ("podperf_empty", "irq_handler_entry"),
                        ("podperf_empty", "irq_handler_exit"),
                        ("podperf_empty", "softirq_entry"),
                        ("podperf_empty", "softirq_exit"),
                    ],
                ),
                runs: 2.0,
            },
            Watcher { title: "podperf: interrupts", way: Way::Sensor("interrupts"), runs: 2.0 },
            Watcher {
                title: "the shape of perf kwork",
                way: Way::Tracepoints(
                    KWORK,
                    &[
                        ("kwork_irq_entry", "irq_handler_entry"),
                        ("kwork_irq_exit", "irq_handler_exit"),
                        ("kwork_softirq_entry", "softirq_entry"),
                        ("kwork_softirq_exit", "softirq_exit"),
                    ],
                ),
                runs: 2.0,
            },
        ],
        goals: &[Goal::AboveEmpty(100.0)],
    },
    Subject {
        title: "Work queues",
        event: "byte through a terminal, which is an item",
        load: "repeat --what terminal --times",
        events: 100_000,
        watchers: &[
            Watcher {
                title: "empty programs at activation, start and end",
                way: Way::Tracepoints(
                    EMPTY,
                    &[
                        ("podperf_empty", "workqueue_activate_work"),
                        ("podperf_empty", "workqueue_execute_start"),
                        ("podperf_empty", "workqueue_execute_end"),
                    ],
                ),
                runs: 3.0,
            },
            Watcher { title: "podperf: workqueues", way: Way::Sensor("workqueues"), runs: 3.0 },
            Watcher {
                title: "the shape of perf kwork -k workqueue report",
                way: Way::Tracepoints(
                    KWORK,
                    &[("kwork_work_start", "workqueue_execute_start"), ("kwork_work_end", "workqueue_execute_end")],
                ),
                runs: 2.0,
            },
        ],
        goals: &[],
    },
    Subject {
        title: "System calls",
        event: "call",
        load: "repeat --what getppid --times",
        events: 2_000_000,
        watchers: &[
            Watcher {
                title: "an empty program at the return",
                way: Way::Tracepoints(EMPTY, &[("podperf_empty", "sys_exit")]),
                runs: 1.0,
            },
            Watcher { title: "podperf: calls", way: Way::Sensor("calls"), runs: 1.0 },
            PERF_TRACE,
            Watcher { title: "strace -c", way: Way::Strace, runs: 0.0 },
        ],
        goals: &[Goal::PartOf(2, 0.25), Goal::PartOf(3, 0.01)],
    },
    Subject {
        title: "The length of system calls",
        event: "read of a byte",
        load: "repeat --what read --times",
        events: 1_000_000,
        watchers: &[
            Watcher {
                title: "empty programs at entry and return",
                way: Way::Tracepoints(EMPTY, &[("podperf_empty", "sys_enter"), ("podperf_empty", "sys_exit")]),
                runs: 2.0,
            },
            Watcher { title: "podperf: latencies", way: Way::Sensor("latencies"), runs: 2.0 },
            PERF_TRACE,
        ],
        goals: &[],
    },
    Subject {
        title: "A function of a program",
        event: "call",
        load: "repeat --what function --times",
        events: 30_000,
        watchers: &of_function(Function::Program),
        goals: &[],
    },
    Subject {
        title: "A function of the kernel",
        event: "call",
        load: "repeat --what getppid --times",
        events: 300_000,
        watchers: &of_function(Function::Kernel),
        goals: &[],
    },
];

const fn of_function(function: Function) -> [Watcher; 3] {
    [
        Watcher {
            title: "empty programs at begin and return",
            way: Way::Probes(EMPTY, ["podperf_empty_probe"; 2], function),
            runs: 2.0,
        },
        Watcher { title: "podperf: functions", way: Way::Functions(function), runs: 2.0 },
        Watcher {
            title: "the shape of perf ftrace latency -b",
            way: Way::Probes(LATENCY, ["latency_begin", "latency_end"], function),
            runs: 2.0,
        },
    ]
}

/// The measurements of one watcher, one figure per round, in ns per event.
#[derive(Debug, Default)]
struct Cell {
    /// The load without the watcher.
    without: Vec<f64>,
    /// The load with the watcher, minus that without it.
    extra: Vec<f64>,
    /// The watcher's programs by the kernel's statistics, which count a part of their own cost.
    programs: Vec<f64>,
    /// The reason why the watcher could not be measured.
    failure: Option<String>,
}

/// Measures everything, and returns the text to print.
pub fn run(args: &BenchArgs, common: &Common<'_>) -> Result<String> {
    let scratch = tempfile::tempdir().context("failed to make a scratch directory")?;
    let cpu = common.cpu.map_or_else(last_cpu, Ok)?;
    let mut measured: Vec<(&Subject, Vec<Cell>)> =
        SUBJECTS.iter().map(|subject| (subject, subject.watchers.iter().map(|_| Cell::default()).collect())).collect();
    for round in 1..=common.rounds {
        for (subject, cells) in &mut measured {
            for (watcher, cell) in subject.watchers.iter().zip(cells).filter(|(_, cell)| cell.failure.is_none()) {
                progress(&format!("sensors: round {round}/{}, {}: {}", common.rounds, subject.title, watcher.title));
                if let Err(error) = measure(subject, watcher, cell, common, (cpu, scratch.path())) {
                    cell.failure = Some(format!("{error:#}"));
                }
            }
        }
    }
    let mut text = measured.iter().map(|(subject, cells)| table::of(subject, cells)).collect::<String>();
    text.push_str(&switch::run(args, common, cpu)?);
    text.push_str(&whole::run(&args.profiles, common)?);
    Ok(text)
}

/// Measures one round of a watcher.
#[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
fn measure(
    subject: &Subject,
    watcher: &Watcher,
    cell: &mut Cell,
    common: &Common<'_>,
    (cpu, scratch): (usize, &Path),
) -> Result<()> {
    let without = ns_per_event(subject, cpu, None)?;
    let known = Programs::list()?;
    let mut started = watcher.way.start(common.agent, scratch)?;
    thread::sleep(common.settle);
    let with = ns_per_event(subject, cpu, started.strace())?;
    started.check()?;
    if let Some(name) = watcher.way.programs() {
        let _statistics = bpf::enable_run_statistics()?;
        let before = Programs::list()?;
        ns_per_event(subject, cpu, None)?;
        started.check()?;
        let runs = Programs::list()?.new_since(&known).named(name).runs_since(&before);
        // A soft interrupt may receive more than one packet. Other processes have events, too.
        ensure!(runs.count > u64::from(subject.events) / 2, "the programs ran only {} times", runs.count);
        cell.programs.push(watcher.runs * runs.time_ns as f64 / runs.count as f64);
    }
    cell.without.push(without);
    cell.extra.push(with - without);
    Ok(())
}

/// The part of a load's report that all loads of [`SUBJECTS`] have.
#[derive(Deserialize)]
struct Took {
    on_cpu_ns: u64,
}

/// Runs one stretch of a load, and returns its time per event.
#[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
fn ns_per_event(subject: &Subject, cpu: usize, strace: Option<&Path>) -> Result<f64> {
    let binary = load::binary()?;
    let (mut command, events) = match strace {
        None => (Command::new(binary), subject.events),
        Some(strace) => {
            let mut command = Command::new(strace);
            command.args(["-f", "-c", "-o", "/dev/null"]).arg(binary);
            (command, subject.events / FEWER_UNDER_STRACE)
        }
    };
    command.args(subject.load.split(' ')).arg(events.to_string()).arg(format!("--cpu={cpu}"));
    command.stdin(Stdio::null()).stderr(Stdio::inherit());
    let output = process::bind_to_parent(&mut command).output().context("failed to run the load")?;
    ensure!(output.status.success(), "the load ended badly: {}", output.status);
    let took: Took = serde_json::from_slice(&output.stdout)?;
    Ok(took.on_cpu_ns as f64 / f64::from(events))
}
