//! The stacks of real servers, by frame pointers and by unwind tables, and on the CPU by another profiler. Nothing is
//! asserted.
//!
//! Two agents watch the loads of `bench/programs/servers` at the same time. Each of them records waits and samples on
//! the CPU, and the recordings say where each stack ended, and at which frames those did that ended early. Their metrics
//! say what that cost. Then the loads are stopped, and elfutils unwinds their stacks, too. At last a third agent
//! compares remembered stacks with the real ones.

mod costs;
mod early;
mod held;
mod profiler;
mod shadow;

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    path::{Path, PathBuf},
    thread,
    time::{Duration, UNIX_EPOCH},
};

use anyhow::{Result, bail, ensure};
use clap::Args;
use podperf_tests::{
    agent::Agent,
    http,
    pprof::{self, Sample},
};

use self::{
    costs::{Account, Costs},
    profiler::Profiler,
};
use super::{progress, servers::Load};

/// The loads besides those of `servers`, each with its Debian package.
const MORE_LOADS: [(&str, &str); 2] = [("cpp-pointers", "g++"), ("musl", "musl-tools")];

/// The ways to find user stacks.
const WAYS: [&str; 2] = ["frame-pointers", "tables"];
const SIDES: [&str; 2] = ["off-cpu", "on-cpu"];
/// The least share of the samples on the CPU that reach the outermost function by tables, in percent.
const LEAST_ON_CPU: f64 = 99.5;
/// The time in which the agents read the files of the servers.
const WARM_UP: Duration = Duration::from_secs(20);
/// The time for an answer after the end of a recording.
const ANSWERS: Duration = Duration::from_secs(60);

/// `podperf-bench stacks`.
#[derive(Args, Clone, Debug)]
pub struct StacksArgs {
    /// Time in which the agents record the servers, and then another one compares stacks, in seconds
    #[arg(long, default_value_t = 60)]
    pub stack_seconds: u64,
    /// The OpenTelemetry eBPF profiler (bench/programs/build-profiler.sh)
    #[arg(long, default_value = "target/bench-profiler/ebpf-profiler")]
    pub profiler: PathBuf,
}

/// The time of one load in nanoseconds, or its samples, by the end of its stacks.
#[derive(Debug, Default)]
struct Ends(BTreeMap<String, u64>);

impl Ends {
    fn of(samples: &[Sample], side: &str, cgroup: &str) -> Self {
        let mut ends = Self::default();
        for sample in samples.iter().filter(|sample| sample.label("cgroup") == cgroup) {
            if matches!(sample.label("state"), "run_queue" | "throttled") {
                continue;
            }
            let [first, second] = sample.values;
            let end = match sample.label("unwind") {
                _ if sample.frames.is_empty() => "none",
                "" if sample.frames.iter().all(|frame| frame.file == "[kernel]") => "kernel",
                "" => "whole",
                end => end,
            };
            *ends.0.entry(end.to_owned()).or_default() += if side == "off-cpu" { first } else { second };
        }
        ends
    }

    /// Returns the share that reaches the outermost function, in percent of what has user frames: in a process that ends
    /// or is just being made, there are kernel frames alone.
    fn reach(&self) -> f64 {
        self.percent("whole") + self.percent("guessed")
    }

    fn percent(&self, end: &str) -> f64 {
        100.0 * self.0.get(end).map_or(0.0, |time| *time as f64) / (self.with_user_frames() as f64).max(1.0)
    }

    fn include(&mut self, other: &Self) {
        for (end, time) in &other.0 {
            *self.0.entry(end.clone()).or_default() += time;
        }
    }

    fn total(&self) -> u64 {
        self.0.values().sum()
    }

    fn with_user_frames(&self) -> u64 {
        self.total() - self.0.get("kernel").copied().unwrap_or_default()
    }

    /// Returns the share that reaches the outermost function, and what the rest is.
    fn text(&self) -> String {
        let mut text = format!("{:.2} %", self.reach());
        let rest = self.0.keys().filter(|end| *end != "whole");
        let rest: Vec<_> = rest.map(|end| format!("{end} {:.2}", self.percent(end))).collect();
        if !rest.is_empty() {
            text += &format!(" ({})", rest.join(", "));
        }
        text
    }
}

/// Returns the least share of a load's waits that reach the outermost function by tables, in percent; `None` for loads
/// that are there for the comparison. All of musl's stacks and most of Java's are guessed.
fn least(load: &str) -> Option<f64> {
    match load {
        "go" | "cpp-pointers" => None,
        "java" | "musl" => Some(95.0),
        _ => Some(99.0),
    }
}

/// Measures everything, and returns the text to print.
pub fn run(args: &StacksArgs, program: &Path) -> Result<String> {
    let agents = WAYS.map(|way| {
        let yaml = format!("overhead: {{maxPercent: 0}}\nstacks: {{unwind: {way}}}\nmetrics: {{own: all}}\n");
        Agent::start_to_measure(program, &yaml)
    });
    let agents = agents.into_iter().collect::<Result<Vec<_>>>()?;
    // After the agents, as on a node: nobody can tell the stack of a wait that began before.
    progress("stacks: the servers start");
    let (mut loads, mut absent) = Load::start_all(&MORE_LOADS)?;
    let profiler = Profiler::start(&args.profiler);
    thread::sleep(WARM_UP);
    progress(&format!("stacks: two agents record {} s", args.stack_seconds));
    let accounts = || agents.iter().map(Account::of).collect::<Result<Vec<_>>>();
    let before = accounts()?;
    let mut recordings = Vec::new();
    let begin = UNIX_EPOCH.elapsed()?;
    thread::scope(|scope| {
        let both = agents.iter().flat_map(|agent| SIDES.map(|side| (agent.address(), side)));
        let threads: Vec<_> = both
            .map(|(address, side)| {
                scope.spawn(move || -> Result<Vec<Sample>> {
                    let seconds = args.stack_seconds;
                    let path = format!("/debug/profile?activity={side}&seconds={seconds}&format=pb");
                    let (status, _, body) = http::get_within(Duration::from_secs(seconds) + ANSWERS, address, &path)?;
                    ensure!(status == 200, "{status}: {}", String::from_utf8_lossy(&body));
                    pprof::samples(&body)
                })
            })
            .collect();
        for thread in threads {
            let Ok(samples) = thread.join() else { bail!("a thread has panicked") };
            recordings.push(samples?);
        }
        Ok(())
    })?;
    let after = accounts()?;
    let of_profiler = profiler.and_then(|profiler| profiler.end(begin, args.stack_seconds));
    let [pointers_off, pointers_on, tables_off, tables_on] = &recordings[..] else { bail!("not four recordings") };
    let mut text = format!(
        "\n## Whole stacks of servers\n\n{} s, both agents at once. Shares of the time of stacks that reach the outermost \
         function, and what the rest and the guessed part are.\n\n\
         | load | waits, s | by frame pointers | by tables | at least | holds | on the CPU, s | by frame pointers | by \
         tables | at least | holds | samples by OpenTelemetry's profiler |\n{}|\n",
        args.stack_seconds,
        "|---".repeat(12)
    );
    let goal = |ends: &Ends, least: Option<f64>| match least {
        Some(least) if ends.total() > 0 => {
            format!("{least} % | {}", if ends.reach() >= least { "yes" } else { "no" })
        }
        _ => "- | -".to_owned(),
    };
    let mut early = String::new();
    let mut all = [Ends::default(), Ends::default()];
    for load in &mut loads {
        if let Err(error) = load.check() {
            absent.push(format!("{} ({error:#}, while it was watched)", load.name));
            continue;
        }
        let of = |samples, side| Ends::of(samples, side, load.cgroup.kernel_path());
        let (off, on) = (
            [pointers_off, tables_off].map(|it| of(it, SIDES[0])),
            [pointers_on, tables_on].map(|it| of(it, SIDES[1])),
        );
        let [off_seconds, on_seconds] = [&off[1], &on[1]].map(|ends| ends.total() as f64 / 1e9);
        let least = least(load.name);
        let by_profiler = match &of_profiler {
            Ok(stacks) => {
                let of_tables = tables_off.iter().chain(tables_on);
                let of_load = of_tables.filter(|sample| sample.label("cgroup") == load.cgroup.kernel_path());
                let ends = profiler::ends(stacks, &held::processes(&load.cgroup)?, of_load);
                all[0].include(&on[1]);
                all[1].include(&ends);
                format!("{} of {}", ends.text(), ends.total())
            }
            Err(_) => "-".to_owned(),
        };
        writeln!(
            text,
            "| {} | {off_seconds:.0} | {} | {} | {} | {on_seconds:.1} | {} | {} | {} | {by_profiler} |",
            load.name,
            off[0].text(),
            off[1].text(),
            goal(&off[1], least),
            on[0].text(),
            on[1].text(),
            goal(&on[1], least.map(|_| LEAST_ON_CPU))
        )?;
        early += &early::rows(tables_on, load.name, load.cgroup.kernel_path())?;
    }
    match of_profiler {
        Ok(_) => writeln!(
            text,
            "\nOn the CPU, all these loads: {:.2} % by tables, {:.2} % of {} samples by OpenTelemetry's profiler.",
            all[0].reach(),
            all[1].reach(),
            all[1].total()
        )?,
        Err(error) => absent.push(format!("the OpenTelemetry eBPF profiler ({error:#})")),
    }
    for load in absent {
        writeln!(text, "\nnot measured: {load}")?;
    }
    write!(
        text,
        "\nThe outermost frames of stacks on the CPU that end early, by tables:\n\n\
         | load | end | outermost frame | of the load's time |\n|---|---|---|---|\n{early}"
    )?;
    let cgroups: Vec<_> = loads.iter().map(|load| &load.cgroup).collect();
    let pairs = before.iter().zip(&after);
    let costs: Vec<_> = pairs.map(|(before, after)| Costs::between(before, after, &cgroups)).collect();
    text += &costs::table(&WAYS, &costs)?;
    if let Some(tables) = agents.last() {
        text += &held::run(tables, &loads)?;
    }
    drop(agents);
    progress(&format!("stacks: another agent compares remembered stacks for {} s", args.stack_seconds));
    text += &shadow::run(program, WAYS[1], WARM_UP, Duration::from_secs(args.stack_seconds))?;
    Ok(text)
}
