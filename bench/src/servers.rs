//! The agent as shipped on a node of real servers: its cost, the features that it gives up to save CPU time, and the
//! waits that still have a reason.
//!
//! Each load of `bench/programs/servers` runs in a cgroup of its own. The agent starts cold, and is scraped at a fixed
//! interval. Nothing is asserted.

use std::{
    fmt::Write as _,
    fs,
    os::unix::fs::chown,
    path::Path,
    process::{Child, Stdio},
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use clap::Args;
use podperf_tests::{
    agent::{Agent, Metrics},
    cgroup::TestCgroup,
    http,
};
use tempfile::TempDir;

use super::{agent::CAP, cpus, progress};

/// The loads in the order of the table, each with its Debian packages.
const LOADS: [(&str, &str); 8] = [
    ("python", "python3"),
    ("cpp", "g++"),
    ("go", "golang-go"),
    ("java", "default-jdk-headless"),
    ("node", "nodejs"),
    ("nginx", "nginx-light"),
    ("redis", "redis-server"),
    ("postgres", "postgresql"),
];
/// The user of the servers, as in `run.sh`.
const NOBODY: u32 = 65_534;
/// The time for the servers and their clients to start.
const STARTS: Duration = Duration::from_secs(10);
const SCRAPE_EVERY: Duration = Duration::from_secs(10);
/// The least share of the waiting time with a known reason, at every scrape, in percent.
const REASONS_PERCENT: f64 = 90.0;
const CAP_PERCENT: f64 = 5.0;
/// The default facts, and the number of samples.
pub(crate) const FACTS: &str =
    "metrics: {facts: [oncpu, offcpu, wait_reasons, incomplete_stacks, context_switches, profile_samples]}\n";

const WAIT: &str = "podperf_cgroup_wait_seconds_total";
const OFF_CPU: &str = "podperf_cgroup_offcpu_seconds_total";
const ON_CPU: &str = "podperf_cgroup_oncpu_seconds_total";
const INCOMPLETE: &str = "podperf_cgroup_incomplete_stack_seconds_total";
const SAMPLES: &str = "podperf_cgroup_profile_samples_total";
const SWITCHES: &str = "podperf_cgroup_context_switches_total";

/// `podperf-bench servers`.
#[derive(Args, Clone, Debug)]
pub struct ServersArgs {
    /// Time in which the agent watches the servers, in seconds
    #[arg(long, default_value_t = 600)]
    pub server_seconds: u64,
}

/// A load in its cgroup. Its processes are killed on drop.
pub(super) struct Load {
    pub(super) name: &'static str,
    child: Child,
    pub(super) cgroup: TestCgroup,
    directory: TempDir,
}

/// Sums over the loads.
#[derive(Clone, Copy, Debug)]
struct Sums {
    waiting: f64,
    unknown: f64,
    off_cpu: f64,
    on_cpu: f64,
    incomplete: f64,
    samples: f64,
    switches: f64,
}

/// One interval between two scrapes.
struct Interval {
    cost_percent: f64,
    reasons_percent: f64,
    samples_a_second: f64,
    shed: String,
}

impl Load {
    fn start(name: &'static str) -> Result<Self> {
        let directory = tempfile::tempdir()?;
        // The servers run as nobody.
        chown(directory.path(), Some(NOBODY), Some(NOBODY))?;
        let cgroup = TestCgroup::new(name)?;
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs/servers/run.sh");
        let mut command = cgroup.command();
        command.arg(script).arg(name).arg(directory.path()).arg(http::free_address()?.port().to_string());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(fs::File::create(directory.path().join("log"))?);
        let child = command.spawn().context("failed to start `sh`")?;
        Ok(Self { name, child, cgroup, directory })
    }

    /// Starts all loads, and these. Returns those that run, and why the others do not.
    pub(super) fn start_all(more: &[(&'static str, &'static str)]) -> Result<(Vec<Self>, Vec<String>)> {
        let all = [&LOADS[..], more].concat();
        let mut loads = all.iter().map(|(name, _)| Self::start(name)).collect::<Result<Vec<_>>>()?;
        thread::sleep(STARTS);
        let mut absent = Vec::new();
        loads.retain_mut(|load| match load.check() {
            Ok(()) => true,
            Err(error) => {
                let package = all.iter().find(|(name, _)| *name == load.name).map_or("", |(_, package)| *package);
                absent.push(format!("{} ({error:#}; Debian package `{package}`)", load.name));
                false
            }
        });
        Ok((loads, absent))
    }

    /// Returns an error with the end of its log if the load has ended.
    pub(super) fn check(&mut self) -> Result<()> {
        if let Some(status) = self.child.try_wait()? {
            let log = fs::read_to_string(self.directory.path().join("log")).unwrap_or_default();
            bail!("it ended ({status}): {}", log.lines().last().unwrap_or("it wrote nothing"));
        }
        Ok(())
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        let _ = fs::write(self.cgroup.path().join("cgroup.kill"), "1");
        let _ = self.child.wait();
    }
}

impl Sums {
    /// Returns the growth between two scrapes.
    fn between(before: &Metrics, after: &Metrics, cgroups: &[&TestCgroup]) -> Self {
        let sum = |name: &str, labels: &[(&str, &str)]| -> f64 {
            let of = |cgroup: &&TestCgroup| {
                let labels: Vec<_> = labels.iter().copied().chain([("cgroup", cgroup.kernel_path())]).collect();
                after.sum(name, &labels) - before.sum(name, &labels)
            };
            cgroups.iter().map(of).sum()
        };
        Self {
            waiting: sum(WAIT, &[]),
            unknown: sum(WAIT, &[("reason", "unknown")]),
            off_cpu: sum(OFF_CPU, &[]),
            on_cpu: sum(ON_CPU, &[]),
            incomplete: sum(INCOMPLETE, &[]),
            samples: sum(SAMPLES, &[("profile", "cpu")]),
            switches: sum(SWITCHES, &[]),
        }
    }

    fn reasons_percent(self) -> f64 {
        100.0 * (1.0 - self.unknown / self.waiting.max(f64::MIN_POSITIVE))
    }

    fn whole_percent(self) -> f64 {
        100.0 * (1.0 - self.incomplete / (self.off_cpu + self.on_cpu).max(f64::MIN_POSITIVE))
    }
}

/// Measures everything, and returns the text to print.
pub fn run(args: &ServersArgs, program: &Path) -> Result<String> {
    progress("servers: they start");
    let (mut loads, mut absent) = Load::start_all(&[])?;
    let agent = Agent::start_to_measure(program, &(CAP.to_owned() + FACTS))?;
    let all: Vec<_> = loads.iter().map(|load| &load.cgroup).collect();
    let first = agent.fresh_metrics()?;
    let (mut last, mut intervals) = (first.clone(), Vec::new());
    let rounds = (args.server_seconds / SCRAPE_EVERY.as_secs()).max(1);
    for round in 1..=rounds {
        thread::sleep(SCRAPE_EVERY);
        let now = agent.fresh_metrics()?;
        let grown = Sums::between(&last, &now, &all);
        last = now;
        let interval = Interval {
            cost_percent: 100.0 * last.get("podperf_overhead_ratio", &[]).unwrap_or_default(),
            reasons_percent: grown.reasons_percent(),
            samples_a_second: grown.samples / SCRAPE_EVERY.as_secs_f64(),
            shed: shed(&last),
        };
        progress(&format!(
            "servers: {round}/{rounds}: {:.2} % of the node, {:.1} % of the waiting time with a reason, {:.0} samples a \
             second, given up: {}",
            interval.cost_percent, interval.reasons_percent, interval.samples_a_second, interval.shed
        ));
        intervals.push(interval);
    }
    let seconds = (rounds * SCRAPE_EVERY.as_secs()) as f64;
    let mut text = format!(
        "\n## Servers, watched by the agent as shipped\n\n{seconds:.0} s on {} CPUs, a scrape each {} s.\n\n\
         | load | switches a second | waiting s | with a reason | on the CPU s | whole stacks by time |\n\
         |---|---|---|---|---|---|\n",
        cpus()?,
        SCRAPE_EVERY.as_secs()
    );
    for load in &mut loads {
        if let Err(error) = load.check() {
            absent.push(format!("{} ({error:#}, while it was watched)", load.name));
            continue;
        }
        let sums = Sums::between(&first, &last, &[&load.cgroup]);
        writeln!(
            text,
            "| {} | {:.0} | {:.0} | {:.1} % | {:.1} | {:.1} % |",
            load.name,
            sums.switches / seconds,
            sums.waiting,
            sums.reasons_percent(),
            sums.on_cpu,
            sums.whole_percent()
        )?;
    }
    for load in absent {
        writeln!(text, "\nnot measured: {load}")?;
    }
    text.push_str(&goals(&intervals));
    Ok(text)
}

/// Returns the features that are given up at a scrape.
fn shed(metrics: &Metrics) -> String {
    let shed = metrics.samples().iter().filter(|sample| sample.name == "podperf_overhead_shed" && sample.value > 0.0);
    let shed: Vec<_> =
        shed.map(|sample| format!("{} {}", sample.labels.get("feature").map_or("", |it| it), sample.value)).collect();
    if shed.is_empty() { "nothing".to_owned() } else { shed.join(", ") }
}

fn goals(intervals: &[Interval]) -> String {
    let least = |of: fn(&Interval) -> f64| intervals.iter().map(of).fold(f64::INFINITY, f64::min);
    let mean = intervals.iter().map(|interval| interval.cost_percent).sum::<f64>() / intervals.len().max(1) as f64;
    let most = intervals.iter().map(|interval| interval.cost_percent).fold(0.0, f64::max);
    let (reasons, samples) = (least(|it| it.reasons_percent), least(|it| it.samples_a_second));
    let holds = |holds: bool| if holds { "yes" } else { "no" };
    let mut given_up: Vec<_> = intervals.iter().map(|interval| interval.shed.as_str()).collect();
    given_up.dedup();
    format!(
        "\n| goal | measured | holds |\n|---|---|---|\n\
         | at least {REASONS_PERCENT} % of the waiting time has its reason, at every scrape | {reasons:.1} % | {} |\n\
         | samples on the CPU go on, at every scrape | {samples:.1} a second | {} |\n\
         | mean cost of at most {CAP_PERCENT} % of the node | {mean:.2} % (most {most:.2} %) | {} |\n\n\
         Given up, in turn: {}.\n",
        holds(reasons >= REASONS_PERCENT),
        holds(samples > 0.0),
        holds(mean <= CAP_PERCENT),
        given_up.join("; ")
    )
}
