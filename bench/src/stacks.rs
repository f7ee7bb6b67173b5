//! The stacks of real servers, by frame pointers and by unwind tables. Nothing is asserted.
//!
//! Two agents watch the loads of `bench/programs/servers` at the same time. Each of them records waits and samples on the
//! CPU, and the recordings say where each stack ended.

use std::{collections::BTreeMap, fmt::Write as _, path::Path, thread, time::Duration};

use anyhow::{Context as _, Result, bail, ensure};
use clap::Args;
use podperf_tests::{
    agent::Agent,
    http,
    pprof::{self, Sample},
};

use super::{progress, servers::Load};

/// The ways to find user stacks.
const WAYS: [&str; 2] = ["frame-pointers", "tables"];
const SIDES: [&str; 2] = ["off-cpu", "on-cpu"];
/// The time in which the agents read the files of the servers.
const WARM_UP: Duration = Duration::from_secs(20);
/// The time for an answer after the end of a recording.
const ANSWERS: Duration = Duration::from_secs(60);

/// `podperf-bench stacks`.
#[derive(Args, Clone, Debug)]
pub struct StacksArgs {
    /// Time in which the agents record the servers, in seconds
    #[arg(long, default_value_t = 60)]
    pub stack_seconds: u64,
}

/// The time of one load, by the end of its stacks, in nanoseconds.
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

    fn percent(&self, end: &str) -> f64 {
        100.0 * self.0.get(end).map_or(0.0, |time| *time as f64) / (self.total() as f64).max(1.0)
    }

    fn total(&self) -> u64 {
        self.0.values().sum()
    }

    /// Returns the share that reaches the outermost function, and what the rest is.
    fn text(&self) -> String {
        let mut text = format!("{:.2} %", self.percent("whole") + self.percent("guessed"));
        let rest = self.0.keys().filter(|end| *end != "whole");
        let rest: Vec<_> = rest.map(|end| format!("{end} {:.2}", self.percent(end))).collect();
        if !rest.is_empty() {
            text += &format!(" ({})", rest.join(", "));
        }
        text
    }
}

/// Measures everything, and returns the text to print.
pub fn run(args: &StacksArgs, program: &Path) -> Result<String> {
    progress("stacks: the servers start");
    let (mut loads, mut absent) = Load::start_all()?;
    let agents = WAYS.map(|way| {
        let yaml = format!("overhead: {{maxPercent: 0}}\nstacks: {{unwind: {way}}}\n");
        Agent::start_to_measure(program, &yaml)
    });
    let agents = agents.into_iter().collect::<Result<Vec<_>>>()?;
    thread::sleep(WARM_UP);
    progress(&format!("stacks: two agents record {} s", args.stack_seconds));
    let mut recordings = Vec::new();
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
    let [pointers_off, pointers_on, tables_off, tables_on] = &recordings[..] else { bail!("not four recordings") };
    let mut text = format!(
        "\n## Whole stacks of servers\n\n{} s, both agents at once. Shares of the time of stacks that reach the outermost \
         function, and what the rest and the guessed part are.\n\n\
         | load | waits, s | by frame pointers | by tables | on the CPU, s | by frame pointers | by tables |\n\
         |---|---|---|---|---|---|---|\n",
        args.stack_seconds
    );
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
        writeln!(
            text,
            "| {} | {off_seconds:.0} | {} | {} | {on_seconds:.1} | {} | {} |",
            load.name,
            off[0].text(),
            off[1].text(),
            on[0].text(),
            on[1].text()
        )?;
    }
    for load in absent {
        writeln!(text, "\nnot measured: {load}")?;
    }
    for (agent, way) in agents.iter().zip(WAYS) {
        let cost = agent.metrics()?.get("podperf_overhead_ratio", &[]).context("no cost")?;
        writeln!(text, "\n{way}: {:.2} % of the node", 100.0 * cost)?;
    }
    Ok(text)
}
