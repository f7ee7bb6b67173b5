//! The benchmark behind `make bench`. It measures the cost per context switch beside perf, the growth of this cost, the
//! agent at rest, the agent on a node full of pods, the cost of profiles of frequent events, the cost of the sensors'
//! events, such as waits for locks, and the agent on a node of real servers.
//!
//! A ring of two processes in two cgroups on one CPU does nothing but switch. Each monitor is measured in pairs: the
//! ring without the monitor, and then with it. The rounds go over all monitors in turn, so that other work on the
//! machine affects all alike. The figure is the difference inside a pair. Nothing is asserted: time is reported, never
//! tested.

pub mod agent;
mod builds;
pub mod growth;
pub mod locks;
pub mod markdown;
pub mod monitor;
pub mod node;
pub mod profiles;
pub mod scale;
pub mod sensors;
pub mod servers;
pub mod setup;
pub mod soak;
pub mod stacks;
pub mod table;

use std::io::{self, Write as _};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use clap::{Parser, ValueEnum};
use monitor::{MONITORS, Monitor};
use podperf_tests::{
    bpf,
    cgroup::TestCgroup,
    load::{
        self,
        ring::{RingReport, Spread},
    },
    process, programs,
};
use setup::Setup;

/// Measure the cost of podperf: per context switch, beside the tools that exist, at rest, and on a node full of pods
#[derive(Clone, Debug, Parser)]
pub struct BenchArgs {
    /// Parts to run; all if absent, or of those only `switches` and `rest` if only some monitors are wanted
    pub parts: Vec<Part>,
    /// Interleaved rounds
    #[arg(long, default_value_t = 7)]
    pub rounds: usize,
    /// Monitors to measure, by key; all if absent
    #[arg(long, value_delimiter = ',')]
    pub only: Vec<String>,
    /// CPU of the ring; the last one if absent
    #[arg(long)]
    pub cpu: Option<usize>,
    /// Hops in one slice of the ring
    #[arg(long, default_value_t = 30_000)]
    pub hops: usize,
    /// Slices of the ring
    #[arg(long, default_value_t = 9)]
    pub slices: usize,
    /// Time that a monitor is given to settle after its start
    #[arg(long, default_value_t = 1_000)]
    pub settle_millis: u64,
    /// Length of the agent's rest, one scrape each 15 s; 0 leaves the section out
    #[arg(long, default_value_t = 60)]
    pub rest_seconds: u64,
    /// Scrapes of each row of the scale
    #[arg(long, default_value_t = 20)]
    pub scrapes: usize,
    /// perf with BPF skeletons (bench/programs/build-perf.sh)
    #[arg(long, default_value = "target/bench-perf/perf")]
    pub perf: PathBuf,
    /// The agent; `podperf` beside this program if absent
    #[arg(long)]
    pub agent: Option<PathBuf>,
    /// Another build of the agent: instead of the parts, compare what both builds' programs cost at each switch
    #[arg(long)]
    pub before: Option<PathBuf>,
    /// Print the monitors as Markdown, as `growth` and `profiles` always are
    #[arg(long)]
    pub markdown: bool,
    /// The arguments of `profiles`, also for the wake-ups of `sensors`
    #[command(flatten)]
    pub profiles: profiles::ProfilesArgs,
    /// The arguments of `growth`
    #[command(flatten)]
    pub growth: growth::GrowthArgs,
    /// The arguments of `locks`
    #[command(flatten)]
    pub locks: locks::LocksArgs,
    /// The arguments of `servers`
    #[command(flatten)]
    pub servers: servers::ServersArgs,
    /// The arguments of `stacks`
    #[command(flatten)]
    pub stacks: stacks::StacksArgs,
}

/// A part of the benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Part {
    /// The cost per context switch.
    Switches,
    /// The agent with nothing to do.
    Rest,
    /// The agent on a node full of pods.
    Scale,
    /// The cost over the number of events and of cgroups.
    Growth,
    /// The whole agent with wake-ups, and with symbols.
    Profiles,
    /// The cost per wait for a lock of the kernel.
    Locks,
    /// The cost per interrupt, system call and call of a function, and of all sensors together.
    Sensors,
    /// The agent as shipped on a node of real servers, for ten minutes.
    Servers,
    /// The whole stacks of real servers, by frame pointers and by unwind tables.
    Stacks,
}

impl BenchArgs {
    fn wants(&self, part: Part) -> bool {
        match self.parts.as_slice() {
            [] => matches!(part, Part::Switches | Part::Rest) || self.only.is_empty(),
            parts => parts.contains(&part),
        }
    }
}

/// All measurements of one monitor.
#[derive(Debug)]
pub struct Measurement {
    /// The measured monitor.
    pub monitor: &'static Monitor,
    /// CPU ns per hop without and with the monitor, one pair per round.
    pub pairs: Vec<(f64, f64)>,
    /// The time of its BPF programs at each switch in ns, if the monitor has programs.
    pub bpf_ns_per_run: Option<f64>,
    /// The reason why the monitor could not be measured.
    pub failure: Option<String>,
}

impl Measurement {
    fn of(monitor: &'static Monitor) -> Self {
        Self { monitor, pairs: Vec::new(), bpf_ns_per_run: None, failure: None }
    }

    /// Returns the extra ns per hop over the pairs.
    pub fn extra_ns(&self) -> Option<Spread> {
        Spread::of(self.pairs.iter().map(|(without, with)| with - without).collect())
    }

    /// Returns the ratio of the time with the monitor to the time without it, over the pairs.
    pub fn ratio(&self) -> Option<Spread> {
        Spread::of(self.pairs.iter().map(|(without, with)| with / without).collect())
    }
}

/// Runs the benchmark and returns the text to print.
pub fn run(args: &BenchArgs) -> Result<String> {
    let agent = match &args.agent {
        Some(agent) => agent.clone(),
        None => std::env::current_exe()?.with_file_name("podperf"),
    };
    if let Some(before) = &args.before {
        return builds::run(args, &agent, before, args.cpu.map_or_else(last_cpu, Ok)?);
    }
    let mut text = String::new();
    if args.wants(Part::Switches) {
        text.push_str(&switches(args, agent.clone())?);
    }
    if args.wants(Part::Rest) && args.rest_seconds > 0 && select(&args.only)?.any(Monitor::is_agent) {
        progress(&format!("the agent at rest for {} s", args.rest_seconds));
        text.push_str(&table::rest(&agent::rest(&agent, Duration::from_secs(args.rest_seconds))));
    }
    if args.wants(Part::Scale) {
        text.push_str(&table::scale(&scale::run(&agent, args.scrapes)));
    }
    if args.wants(Part::Profiles) {
        text.push_str(&markdown::profiles(&profiles::run(&args.profiles, &agent)));
    }
    if args.wants(Part::Servers) {
        text.push_str(&servers::run(&args.servers, &agent)?);
    }
    if args.wants(Part::Stacks) {
        text.push_str(&stacks::run(&args.stacks, &agent)?);
    }
    let common = growth::Common {
        rounds: args.rounds,
        cpu: args.cpu,
        settle: Duration::from_millis(args.settle_millis),
        perf: &args.perf,
        agent: &agent,
    };
    if args.wants(Part::Locks) {
        text.push_str(&locks::run(&args.locks, &common)?);
    }
    if args.wants(Part::Sensors) {
        text.push_str(&sensors::run(args, &common)?);
    }
    if args.wants(Part::Growth) {
        text.push_str(&growth::run(&args.growth, &common)?);
    }
    Ok(text)
}

fn switches(args: &BenchArgs, agent: PathBuf) -> Result<String> {
    let cpu = args.cpu.map_or_else(last_cpu, Ok)?;
    let setup = Setup::new(args, agent)?;
    let ring = Ring::new(args, cpu, &setup.cgroups)?;
    let mut measurements: Vec<Measurement> = select(&args.only)?.map(Measurement::of).collect();

    for round in 1..=args.rounds {
        for measurement in &mut measurements {
            progress(&format!("round {round}/{}: {}", args.rounds, measurement.monitor.title));
            measure_pair(measurement, &setup, &ring)?;
        }
    }
    for measurement in &mut measurements {
        progress(&format!("BPF statistics: {}", measurement.monitor.title));
        measure_programs(measurement, &setup, &ring)?;
    }
    Ok(if args.markdown {
        markdown::measurements(&measurements) + &markdown::goals(&measurements)
    } else {
        table::measurements(&measurements) + &table::goals(&measurements)
    })
}

fn measure_pair(measurement: &mut Measurement, setup: &Setup, ring: &Ring) -> Result<()> {
    if measurement.failure.is_some() {
        return Ok(());
    }
    let without = ring.cpu_ns()?;
    match measurement.monitor.start(setup) {
        Err(error) => measurement.failure = Some(format!("{error:#}")),
        Ok(mut running) => {
            let with = ring.cpu_ns()?;
            // A monitor that ended early was not measured.
            match running.check() {
                Err(error) => measurement.failure = Some(format!("{error:#}")),
                Ok(()) => measurement.pairs.push((without, with)),
            }
        }
    }
    Ok(())
}

fn measure_programs(measurement: &mut Measurement, setup: &Setup, ring: &Ring) -> Result<()> {
    if measurement.failure.is_some() {
        return Ok(());
    }
    let _statistics = bpf::enable_run_statistics()?;
    let known = programs::Programs::list()?;
    let Ok(_running) = measurement.monitor.start(setup) else {
        return Ok(());
    };
    let before = programs::Programs::list()?;
    let report = ring.run()?;
    let after = programs::Programs::list()?;
    measurement.bpf_ns_per_run = after.new_since(&known).ns_per_switch(&before, report.hops);
    Ok(())
}

fn select(only: &[String]) -> Result<impl Iterator<Item = &'static Monitor>> {
    for key in only {
        if !MONITORS.iter().any(|monitor| monitor.key == key) {
            let keys: Vec<&str> = MONITORS.iter().map(|monitor| monitor.key).collect();
            bail!("failed to find monitor `{key}` (known: {})", keys.join(", "));
        }
    }
    let only = only.to_vec();
    Ok(MONITORS.iter().filter(move |m| only.is_empty() || only.iter().any(|key| key == m.key)))
}

fn last_cpu() -> Result<usize> {
    Ok(cpus()? - 1)
}

fn cpus() -> Result<usize> {
    Ok(thread::available_parallelism().context("failed to count the cpus")?.get())
}

fn progress(text: &str) {
    let _ = writeln!(io::stderr(), "{text}");
}

/// The ring load with its fixed arguments.
struct Ring {
    binary: PathBuf,
    arguments: Vec<String>,
}

impl Ring {
    fn new(args: &BenchArgs, cpu: usize, cgroups: &[TestCgroup]) -> Result<Self> {
        let directories: Vec<_> = cgroups.iter().map(|cgroup| cgroup.path().to_string_lossy()).collect();
        Ok(Self {
            binary: load::binary()?,
            arguments: vec![
                "ring".to_owned(),
                format!("--cpu={cpu}"),
                format!("--hops={}", args.hops),
                format!("--slices={}", args.slices),
                format!("--cgroups={}", directories.join(",")),
            ],
        })
    }

    fn cpu_ns(&self) -> Result<f64> {
        Ok(self.run()?.cpu_ns.median)
    }

    fn run(&self) -> Result<RingReport> {
        let mut command = Command::new(&self.binary);
        command.args(&self.arguments).stdin(Stdio::null()).stderr(Stdio::inherit());
        let output = process::bind_to_parent(&mut command)
            .output()
            .with_context(|| format!("failed to run `{}`", self.binary.display()))?;
        ensure!(output.status.success(), "the ring ended badly: {}", output.status);
        Ok(serde_json::from_slice(&output.stdout)?)
    }
}
