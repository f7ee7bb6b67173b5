//! The cost of the sensor `locks` per wait, beside `perf lock contention --use-bpf`.
//!
//! Two processes in two cgroups write to one file as often as they can, so they wait for its lock in the kernel. Each
//! round measures all watchers in turn. The figure is the time of a watcher's programs by the kernel's statistics, per
//! run of its program at the end of a wait. Then both watch one load at the same time, and the number and the length
//! of the waits are compared.

use std::{
    fmt::Write as _,
    fs,
    process::{Command, Stdio},
    thread,
};

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use nix::sys::signal::Signal;
use podperf_tests::{
    agent::{Agent, Metrics},
    bpf,
    cgroup::TestCgroup,
    load::{locks::LocksReport, ring::Spread},
    programs::{Programs, Runs},
    running::run as run_load,
};
use tempfile::TempDir;

use super::{
    agent::without_stacks,
    growth::{Common, watch::Started},
    monitor::Process,
    progress,
    setup::wait_for_programs,
};

/// `podperf-bench locks`.
#[derive(Args, Clone, Debug)]
pub struct LocksArgs {
    /// Writes of each of the two processes in one stretch of the load
    #[arg(long, default_value_t = 20_000)]
    pub writes: u32,
}

/// The sensor.
pub(crate) const LOCKS: &str = "sensors: {locks: {enabled: true}}\n";
/// The file of perf's result in the scratch directory.
const PERF_OUTPUT: &str = "perf.csv";
/// The ways to watch locks, in the order of the table.
const WATCHERS: [Watcher; 3] = [Watcher::Podperf, Watcher::PerfByCgroup, Watcher::Perf];

/// A way to watch locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Watcher {
    Podperf,
    PerfByCgroup,
    Perf,
}

/// One round of one watcher.
#[derive(Clone, Copy, Debug)]
struct Round {
    /// ns per wait in the programs at the begin and the end of waits.
    contention_ns: f64,
    /// ns per wait in all programs of the watcher.
    all_ns: f64,
    waits: f64,
}

/// The number and the length of all waits, by one watcher.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Waits {
    count: f64,
    seconds: f64,
}

impl Watcher {
    const fn title(self) -> &'static str {
        match self {
            Self::Podperf => "podperf: locks by cgroup",
            Self::PerfByCgroup => "perf lock contention, by cgroup",
            Self::Perf => "perf lock contention, by caller (its default)",
        }
    }

    /// Starts the watcher, and waits until its programs are loaded.
    fn start(self, common: &Common<'_>, scratch: &TempDir) -> Result<Started> {
        Ok(match self {
            Self::Podperf => Started::Agent(start_agent(common)?),
            Self::PerfByCgroup => Started::Perf(start_perf(common, scratch, &["--lock-cgroup"])?),
            Self::Perf => Started::Perf(start_perf(common, scratch, &[])?),
        })
    }
}

fn start_agent(common: &Common<'_>) -> Result<Agent> {
    Agent::start_to_measure(common.agent, &(without_stacks(true, "") + LOCKS))
}

/// Starts perf, which writes its result to [`PERF_OUTPUT`] when it ends.
fn start_perf(common: &Common<'_>, scratch: &TempDir, more: &[&str]) -> Result<Process> {
    let mut command = Command::new(common.perf);
    command.args(["lock", "contention", "--all-cpus", "--use-bpf", "--field-separator", ","]).args(more);
    command.arg("--output").arg(scratch.path().join(PERF_OUTPUT));
    let log = scratch.path().join("perf.log");
    command.stdout(Stdio::null()).stderr(fs::File::create(&log)?);
    let mut perf = Process::spawn("perf-lock", &mut command, Signal::SIGINT, log)?;
    wait_for_programs(&mut perf)?;
    Ok(perf)
}

/// Measures everything, and returns the text to print.
pub fn run(args: &LocksArgs, common: &Common<'_>) -> Result<String> {
    let scratch = tempfile::tempdir().context("failed to make a scratch directory")?;
    let mut rounds: [Vec<Round>; WATCHERS.len()] = Default::default();
    let mut failures: [Option<String>; WATCHERS.len()] = Default::default();
    for round in 1..=common.rounds {
        for (at, watcher) in WATCHERS.iter().enumerate() {
            if failures[at].is_some() {
                continue;
            }
            progress(&format!("locks: round {round}/{}, {}", common.rounds, watcher.title()));
            match measure(*watcher, args, common, &scratch) {
                Ok(measured) => rounds[at].push(measured),
                Err(error) => failures[at] = Some(format!("{error:#}")),
            }
        }
    }
    let mut text = "\n## ns per wait for a lock of the kernel: median (least..greatest)\n\n\
        | watcher | begin and end of a wait | all programs | waits a round |\n|---|---|---|---|\n"
        .to_owned();
    for (at, watcher) in WATCHERS.iter().enumerate() {
        if let Some(failure) = &failures[at] {
            writeln!(text, "| {} | not measured: {failure} | | |", watcher.title())?;
            continue;
        }
        let figure = |of: fn(&Round) -> f64| {
            spread(&rounds[at], of).map(|it| format!("{:.0} ({:.0}..{:.0})", it.median, it.min, it.max))
        };
        let figures = [figure(|round| round.contention_ns), figure(|round| round.all_ns), figure(|round| round.waits)];
        let [ends, all, waits] = figures.map(Option::unwrap_or_default);
        writeln!(text, "| {} | {ends} | {all} | {waits} |", watcher.title())?;
    }
    text.push_str(&goals(&rounds));
    progress("locks: podperf and perf at the same time");
    match compare(args, common, &scratch) {
        Ok((podperf, perf)) => {
            let percent = |of: f64, to: f64| 100.0 * (of - to) / to;
            writeln!(
                text,
                "\nBoth at the same time: podperf has {:.0} waits of {:.3} s, perf has {:.0} waits of {:.3} s \
                 ({:+.2} % and {:+.2} %).",
                podperf.count,
                podperf.seconds,
                perf.count,
                perf.seconds,
                percent(podperf.count, perf.count),
                percent(podperf.seconds, perf.seconds)
            )?;
        }
        Err(error) => writeln!(text, "\nBoth at the same time: not measured: {error:#}")?,
    }
    Ok(text)
}

fn spread(rounds: &[Round], of: fn(&Round) -> f64) -> Option<Spread> {
    Spread::of(rounds.iter().map(of).collect())
}

/// Returns one line per goal. Nothing is asserted.
fn goals(rounds: &[Vec<Round>; WATCHERS.len()]) -> String {
    let ends = |at: usize| spread(&rounds[at], |round| round.contention_ns).map(|ns| ns.median);
    let mut text = "\n| goal | at most | measured | holds |\n|---|---|---|---|\n".to_owned();
    for (at, at_most) in [(1, 0.3), (2, 0.06)] {
        let measured = ends(0).zip(ends(at)).map(|(podperf, perf)| podperf / perf);
        let shown = measured.map_or_else(|| "not measured".to_owned(), |measured| format!("{measured:.2}"));
        let holds = measured.map_or("-", |measured| if measured <= at_most { "yes" } else { "no" });
        let _ = writeln!(text, "| podperf / {} | {at_most} | {shown} | {holds} |", WATCHERS[at].title());
    }
    text
}

#[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
fn measure(watcher: Watcher, args: &LocksArgs, common: &Common<'_>, scratch: &TempDir) -> Result<Round> {
    let known = Programs::list()?;
    let mut started = watcher.start(common, scratch)?;
    thread::sleep(common.settle);
    let _statistics = bpf::enable_run_statistics()?;
    let before = Programs::list()?;
    storm(args)?;
    started.check()?;
    let after = Programs::list()?.new_since(&known);
    let all = after.runs_since(&before);
    // The kernel cuts `locks_contention_end` off.
    let begin_and_end = after.named("contentio").runs_since(&before);
    ensure!(begin_and_end.count > 0, "no program ran at a wait");
    // As many runs begin a wait as end one, except for mutexes, which are rare here.
    let waits = begin_and_end.count as f64 / 2.0;
    let per_wait = |runs: Runs| runs.time_ns as f64 / waits;
    Ok(Round { contention_ns: per_wait(begin_and_end), all_ns: per_wait(all), waits })
}

/// Runs one stretch of the load.
fn storm(args: &LocksArgs) -> Result<()> {
    let (waiter, holder) = (TestCgroup::new("waiter")?, TestCgroup::new("holder")?);
    let (waiter, holder, writes) = (waiter.path().display(), holder.path().display(), args.writes);
    let _: LocksReport = run_load(&format!("locks --kind storm --waits {writes} --cgroup {waiter} --holder {holder}"))?;
    Ok(())
}

/// Lets both watch the same load, and returns the waits of podperf and of perf.
fn compare(args: &LocksArgs, common: &Common<'_>, scratch: &TempDir) -> Result<(Waits, Waits)> {
    let agent = start_agent(common)?;
    thread::sleep(common.settle);
    // The start of perf waits for locks, and perf does not count these waits: podperf's window begins after it.
    let perf = start_perf(common, scratch, &["--lock-cgroup"])?;
    let before = of_metrics(&agent.fresh_metrics()?);
    storm(args)?;
    drop(perf);
    let after = of_metrics(&agent.fresh_metrics()?);
    let podperf = Waits { count: after.count - before.count, seconds: after.seconds - before.seconds };
    Ok((podperf, of_perf(&fs::read_to_string(scratch.path().join(PERF_OUTPUT))?)?))
}

fn of_metrics(metrics: &Metrics) -> Waits {
    let sum =
        |family: &str| metrics.samples().iter().filter(|sample| sample.name == family).map(|sample| sample.value).sum();
    Waits {
        count: sum("podperf_cgroup_kernel_lock_contentions_total"),
        seconds: sum("podperf_cgroup_kernel_lock_wait_seconds_total"),
    }
}

/// Reads the sums of `perf lock contention -x,`: each line has the number of waits, and then their length in ns.
fn of_perf(text: &str) -> Result<Waits> {
    let mut waits = Waits { count: 0.0, seconds: 0.0 };
    for line in text.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty()) {
        let mut fields = line.split(',');
        let mut number = || -> Result<f64> {
            let field = fields.next().with_context(|| format!("perf wrote `{line}`"))?;
            field.trim().parse().with_context(|| format!("perf wrote `{line}`"))
        };
        waits.count += number()?;
        waits.seconds += number()? / 1e9;
    }
    Ok(waits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sums_of_perf_are_read() {
        let text = "# output: contended, total wait, max wait, avg wait, cgroup\n2, 3000000000, 5, 5, /a\n1, 500000000, 5, 5, /b\n";
        assert_eq!(of_perf(text).unwrap(), Waits { count: 3.0, seconds: 3.5 });
        assert!(of_perf("?\n").is_err());
    }
}
