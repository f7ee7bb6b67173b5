//! An agent under churn for an hour, or for the given time: no figure may grow, and no count may get lost.
//!
//! [`churn`] makes the load, [`trend`] decides for each figure whether it grows, and [`account`] stores the totals of
//! counters. Most figures need no limit of their own: a figure that is constant in the long run has no slope above the
//! noise in the second half. A run needs about 15 minutes at least.

mod account;
mod churn;
mod trend;

use std::{
    fmt, fs,
    sync::atomic::Ordering,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use nix::sys::signal::Signal;
use podperf_tests::{
    agent::{self, Agent, COALESCED_FOR, Metrics},
    cgroup::TestCgroup,
    process,
};

pub use account::Account;
pub use churn::Churn;
pub use trend::{Figure, Trend};

const CONFIG: &str = "counters: {groups: [[cpu-clock, page-faults]]}\nmetrics: {facts: [oncpu, offcpu], own: all}\n";
/// Rows end soon after their cgroups, so that an hour has many generations of them. Each reload changes this key.
const GRACES: [&str; 2] = ["cgroups: {grace: 5s}\n", "cgroups: {grace: 6s}\n"];
const RELOAD_EVERY: Duration = Duration::from_secs(10);
/// The longest time until a cgroup without a name gets one.
const NAMES: Duration = Duration::from_secs(35);

const ONCPU: &str = "podperf_cgroup_oncpu_seconds_total";
const CPU_CLOCK: &str = "podperf_cgroup_cpu_clock_seconds_total";
const COUNTED: &str = "podperf_pmu_event_counted_total";
const IDLE: &str = "podperf_node_idle_seconds_total";

/// The length of the run.
#[derive(Args, Clone, Copy, Debug)]
pub struct SoakArgs {
    /// Length in minutes
    #[arg(long, default_value_t = 60.0)]
    pub minutes: f64,
}

/// The result of the run.
#[derive(Debug)]
pub struct Report {
    length: Duration,
    did: String,
    figures: Vec<Figure>,
    balances: Vec<Balance>,
    fell: Vec<String>,
    drops: Vec<(String, f64)>,
}

/// Two ways to count the same thing.
#[derive(Clone, Debug)]
pub struct Balance {
    what: &'static str,
    counted: f64,
    truth: f64,
    /// The share of the truth by which both may differ.
    tolerance: f64,
}

impl Balance {
    fn error(&self) -> f64 {
        (self.counted - self.truth) / self.truth
    }

    fn holds(&self) -> bool {
        // NaN fails this comparison.
        self.error().abs() <= self.tolerance
    }
}

impl Report {
    /// Returns whether no figure grew and no count got lost.
    #[must_use]
    pub fn passed(&self) -> bool {
        let grew = self.figures.iter().any(Figure::grows);
        !grew && self.fell.is_empty() && self.balances.iter().all(Balance::holds)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:.1} minutes of churn: {}\n", self.length.as_secs_f64() / 60.0, self.did)?;
        writeln!(
            f,
            "{:<28} {:>10} {:>10} {:>12} {:>10} {:>10} {:>8}",
            "floor of the second half", "first", "last", "per hour", "growth", "allowed", "noise"
        )?;
        self.figures.iter().try_for_each(|figure| writeln!(f, "{figure}"))?;
        writeln!(f, "\n{:<52} {:>14} {:>14} {:>12}", "conservation", "counted", "truth", "error")?;
        for balance in &self.balances {
            let Balance { what, counted, truth, tolerance } = balance;
            let verdict = if balance.holds() { "holds" } else { "FAILS" };
            let (error, most) = (100.0 * balance.error(), 100.0 * *tolerance);
            writeln!(f, "{what:<52} {counted:>14.6} {truth:>14.6} {error:>+10.4} %  {verdict} (at most {most:.4} %)")?;
        }
        self.drops.iter().try_for_each(|(reason, count)| writeln!(f, "dropped and counted: {reason} {count}"))?;
        self.fell.iter().try_for_each(|counter| writeln!(f, "FELL: {counter}"))?;
        let told = self.figures.iter().all(|figure| figure.trend().is_some());
        let verdict = match (self.passed(), told) {
            (true, true) => "steady, and nothing lost",
            (true, false) => "nothing lost; too short to say whether anything grows",
            (false, _) => "FAILED",
        };
        write!(f, "\n{verdict}")
    }
}

/// Runs the churn, and returns the result.
pub fn run(arguments: SoakArgs) -> Result<Report> {
    let length = Duration::try_from_secs_f64(arguments.minutes * 60.0)?;
    let mut agent = Agent::start_to_measure(&agent::binary()?, &(CONFIG.to_owned() + GRACES[0]))?;
    let cgroup = TestCgroup::new("soak")?;
    let mut account = Account::default();
    let (begin, first) = reading(&agent, &mut account)?;
    let stolen = process::stolen()?;
    let churn = Churn::start(&cgroup, agent.address())?;
    let mut figures = figures();
    let (mut reloads, mut scrapes) = (0_usize, 0_u64);
    while begin.elapsed() < length {
        thread::sleep(COALESCED_FOR);
        agent.check()?;
        let metrics = agent.metrics()?;
        account.add(&metrics);
        scrapes += 1;
        for (figure, value) in figures.iter_mut().zip(values(&agent, &metrics)?) {
            figure.points.push((begin.elapsed().as_secs_f64(), value));
        }
        if begin.elapsed() >= RELOAD_EVERY * u32::try_from(reloads + 1)? {
            reloads += 1;
            agent::command(agent.directory(), &(CONFIG.to_owned() + GRACES[reloads % 2]))?;
            agent.signal(Signal::SIGHUP)?;
        }
    }
    let counts = churn.end();
    let (end, last) = settled(&agent, &mut account)?;
    let stolen = process::stolen()?.saturating_sub(stolen);
    let load = |count: &std::sync::atomic::AtomicU64| count.load(Ordering::Relaxed);
    ensure!(load(&counts.loads) > 0 && load(&counts.answers) > 0, "nothing happened: {counts:?}");
    let did = format!(
        "{} loads ({} failed), {} series ended, {scrapes} scrapes, {} other answers, {} hung up, {reloads} reloads",
        load(&counts.loads),
        load(&counts.failed),
        account.ended(),
        load(&counts.answers),
        load(&counts.hung_up),
    );
    let balances = balances(&account, (&first, &last), (end - begin, stolen), &cgroup)?;
    Ok(Report { length, did, figures, balances, fell: account.fell().to_vec(), drops: drops(&last) })
}

/// Returns a new reading and its time.
fn reading(agent: &Agent, account: &mut Account) -> Result<(Instant, Metrics)> {
    let metrics = agent.fresh_metrics()?;
    account.add(&metrics);
    Ok((Instant::now(), metrics))
}

/// Returns a new reading and its time, when no count waits for a name any more.
fn settled(agent: &Agent, account: &mut Account) -> Result<(Instant, Metrics)> {
    let start = Instant::now();
    loop {
        let (at, metrics) = reading(agent, account)?;
        if metrics.get("podperf_cgroups_unresolved", &[]) == Some(0.0) {
            return Ok((at, metrics));
        }
        ensure!(start.elapsed() < NAMES, "counts still wait for names");
    }
}

fn figures() -> Vec<Figure> {
    let figure = |name, allowance| Figure { name, allowance, points: Vec::new() };
    vec![
        figure("resident memory, MiB", 2.0),
        figure("file descriptors", 2.0),
        figure("threads", 1.0),
        figure("rows in the kernel's table", 20.0),
        figure("kernel memory of maps, MiB", 0.5),
        figure("cgroups that live", 5.0),
        figure("series", 50.0),
    ]
}

/// Returns the values of a reading, in the order of [`figures`].
fn values(agent: &Agent, metrics: &Metrics) -> Result<[f64; 7]> {
    const MIB: f64 = 1024.0 * 1024.0;
    let get = |name: &str| metrics.get(name, &[]).with_context(|| format!("no `{name}`"));
    let count = |directory: &str| -> Result<f64> {
        let entries = fs::read_dir(format!("/proc/{}/{directory}", agent.pid()))?.count();
        Ok(f64::from(u32::try_from(entries)?))
    };
    Ok([
        get("process_resident_memory_bytes")? / MIB,
        count("fd")?,
        count("task")?,
        get("podperf_bpf_map_entries")?,
        get("podperf_bpf_map_memory_bytes")? / MIB,
        get("podperf_cgroups_tracked")?,
        get("podperf_exported_series")?,
    ])
}

fn balances(
    account: &Account,
    (first, last): (&Metrics, &Metrics),
    (wall, stolen): (Duration, Duration),
    cgroup: &TestCgroup,
) -> Result<Vec<Balance>> {
    let grown = |name: &str, labels: &[(&str, &str)]| last.sum(name, labels) - first.sum(name, labels);
    let rows = |family: &str| account.sum(family, |_| true) - first.sum(family, &[]);
    let inside = format!("{}/", cgroup.kernel_path());
    let below = account.sum(ONCPU, |labels| {
        labels.get("cgroup").is_some_and(|path| path == cgroup.kernel_path() || path.starts_with(&inside))
    });
    // The time of a reading is known only to a second on a busy machine.
    let blurred = 1e-3 + 2.0 / wall.as_secs_f64();
    let clock = wall.as_secs_f64() * f64::from(u32::try_from(thread::available_parallelism()?.get())?);
    Ok(vec![
        Balance {
            what: "cpu-clock of all rows, and of the CPUs, s",
            counted: rows(CPU_CLOCK),
            truth: grown(COUNTED, &[("event", "cpu-clock")]) / 1e9,
            tolerance: 1e-6,
        },
        Balance { what: "the same, and the wall clock, s", counted: rows(CPU_CLOCK), truth: clock, tolerance: blurred },
        Balance {
            what: "on-CPU time of what came and went, and `cpu.stat`, s",
            counted: below,
            truth: cgroup.cpu_usage()?.as_secs_f64(),
            tolerance: 1e-3,
        },
        // Time that the hypervisor stole is in no task's run time.
        Balance {
            what: "on-CPU time of all rows, idleness and stolen time, s",
            counted: rows(ONCPU) + grown(IDLE, &[]) + stolen.as_secs_f64(),
            truth: clock,
            tolerance: blurred,
        },
    ])
}

/// Returns the number of drops for each reason.
fn drops(metrics: &Metrics) -> Vec<(String, f64)> {
    let drops =
        metrics.samples().iter().filter(|sample| sample.name == "podperf_bpf_drops_total" && sample.value > 0.0);
    drops.map(|sample| (sample.labels.get("reason").cloned().unwrap_or_default(), sample.value)).collect()
}
