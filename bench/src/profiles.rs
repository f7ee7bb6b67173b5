//! The cost of profiles on a node: the whole agent with its default configuration, with ten thousand wake-ups a second,
//! and with the symbols of fifty programs.
//!
//! The agent's own account is taken in a stretch of its own. The other account uses the kernel's run statistics, which
//! make each run of a program cost more.

use std::{
    path::Path,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use nix::unistd::Pid;
use podperf_tests::{
    agent::{Agent, Metrics},
    bpf,
    cgroup::TestCgroup,
    load::{self, ring::Spread, wakeups::WakeupsReport},
    process,
    programs::Programs,
    system_programs::{self, Sleepers},
};

use super::{
    agent::{CAP, REST_AFTER, memory_mib},
    cpus, progress,
};

/// Number of programs whose symbols the agent reads.
pub const PROGRAMS: usize = 50;
/// The load starts before the measured time, and ends after it.
const LOAD_BEFORE: Duration = Duration::from_secs(1);
const LOAD_AFTER: Duration = Duration::from_secs(2);
/// Scrapes while the load runs. The account of the first scrape also covers time before the load.
const SCRAPES: u32 = 3;
/// Two windows of the default length: the first window has only a part of all programs.
const WARM_UP: Duration = Duration::from_secs(20);
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The arguments of `profiles`.
#[derive(Args, Clone, Debug)]
pub struct ProfilesArgs {
    /// Wake-ups in a second
    #[arg(long, default_value_t = 10_000)]
    pub wakeups: u32,
    /// Time in which each account, and the memory, is measured, in seconds
    #[arg(long, default_value_t = 30)]
    pub profile_seconds: u32,
}

/// The results of both halves; one may fail without the other.
#[derive(Debug)]
pub struct Profiles {
    /// The arguments of this run.
    pub args: ProfilesArgs,
    /// The half with the wake-ups.
    pub cost: Result<Cost>,
    /// The half with the symbols.
    pub memory: Result<Memory>,
}

/// The result with the wake-ups. A percentage is a share of the time of all CPUs together.
#[derive(Clone, Copy, Debug)]
pub struct Cost {
    /// Number of CPUs of the node.
    pub cpus: usize,
    /// Wake-ups in a second by the kernel's count, in each of the two stretches.
    pub wakeups_per_second: [f64; 2],
    /// The CPU time of the load itself, without the kernel's statistics.
    pub load_percent: f64,
    /// `podperf_overhead_ratio` of each scrape but the first.
    pub own_percent: Spread,
    /// The CPU time of the agent's process in the same stretch.
    pub process_percent: f64,
    /// The CPU time of the agent's process in the stretch with the kernel's statistics.
    pub process_percent_counted: f64,
    /// The time of the agent's programs in that stretch: `run_time_ns` of fdinfo.
    pub programs_percent: f64,
    /// Runs of the agent's programs in that stretch, in a second.
    pub runs_per_second: f64,
    /// Mean time of such a run in ns.
    pub ns_per_run: f64,
    /// Waits that should have a stack, in a second, without the kernel's statistics.
    pub waits_per_second: f64,
    /// Stacks that the agent walked and did not take from the stack cache, in a second, without the kernel's
    /// statistics.
    pub walks_per_second: f64,
    /// Features that the agent switched off to stay below its cap.
    pub shed: f64,
}

impl Cost {
    /// Returns the share of the node by the kernel's account: the agent's programs and its process.
    pub fn kernel_percent(&self) -> f64 {
        self.programs_percent + self.process_percent_counted
    }
}

/// The result with the programs.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    /// `VmRSS` before the programs.
    pub before_mib: f64,
    /// The largest `VmRSS` that was seen while windows were made.
    pub most_mib: f64,
    /// `VmHWM`, the peak of the memory.
    pub peak_mib: f64,
    /// Number of programs that ran to the end.
    pub programs: usize,
    /// Frames that got a name during the measurement.
    pub named: f64,
    /// Frames that got no name during the measurement.
    pub unnamed: f64,
}

/// Measures both halves.
pub fn run(args: &ProfilesArgs, program: &Path) -> Profiles {
    Profiles { args: args.clone(), cost: cost(args, program, CAP), memory: memory(args, program) }
}

/// Measures an agent of this configuration with the wake-ups.
pub(super) fn cost(args: &ProfilesArgs, program: &Path, configuration: &str) -> Result<Cost> {
    let mut agent = Agent::start_to_measure(program, configuration)?;
    thread::sleep(REST_AFTER);
    progress(&format!("profiles: {} wake-ups a second for {} s", args.wakeups, args.profile_seconds));
    let own = stretch(args, &agent)?;
    progress("profiles: the same with the kernel's statistics");
    let statistics = bpf::enable_run_statistics()?;
    let counted = stretch(args, &agent)?;
    drop(statistics);
    agent.check()?;
    Ok(Cost {
        cpus: cpus()?,
        wakeups_per_second: [own.load.per_second, counted.load.per_second],
        load_percent: own.load_percent,
        own_percent: Spread::of(own.ratios.iter().map(|ratio| 100.0 * ratio).collect()).context("no scrapes")?,
        process_percent: own.process_percent,
        process_percent_counted: counted.process_percent,
        programs_percent: counted.programs_percent,
        runs_per_second: counted.runs_per_second,
        ns_per_run: counted.ns_per_run,
        waits_per_second: own.waits_per_second,
        walks_per_second: own.walks_per_second,
        shed: own.shed + counted.shed,
    })
}

struct Stretch {
    load: WakeupsReport,
    load_percent: f64,
    ratios: Vec<f64>,
    process_percent: f64,
    programs_percent: f64,
    runs_per_second: f64,
    ns_per_run: f64,
    waits_per_second: f64,
    walks_per_second: f64,
    shed: f64,
}

#[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
fn stretch(args: &ProfilesArgs, agent: &Agent) -> Result<Stretch> {
    let cgroup = TestCgroup::new("wakeups")?;
    let length = Duration::from_secs(args.profile_seconds.into());
    let seconds = (LOAD_BEFORE + length + LOAD_AFTER).as_secs_f64();
    let mut command = Command::new(load::binary()?);
    command.args(["wakeups", &format!("--per-second={}", args.wakeups), &format!("--seconds={seconds}")]);
    command.arg("--cgroup").arg(cgroup.path()).stdin(Stdio::null()).stdout(Stdio::piped());
    let load = process::bind_to_parent(&mut command).spawn().context("failed to start the load")?;
    thread::sleep(LOAD_BEFORE);

    let pid = Pid::from_raw(i32::try_from(agent.pid())?);
    let (before, cpu, start) = (Programs::of_process(agent.pid())?, process::cpu_ns_of(pid)?, Instant::now());
    let counted = agent.metrics()?;
    let mut last = counted.clone();
    let mut ratios = Vec::new();
    for scrape in 0..SCRAPES {
        thread::sleep(length / SCRAPES);
        last = agent.metrics()?;
        if scrape > 0 {
            ratios.push(last.get("podperf_overhead_ratio", &[]).context("no `podperf_overhead_ratio`")?);
        }
    }
    let cpu = process::cpu_ns_of(pid)?.saturating_sub(cpu);
    let (runs, took) = (Programs::of_process(agent.pid())?.runs_since(&before), start.elapsed());

    let output = load.wait_with_output().context("failed to wait for the load")?;
    ensure!(output.status.success(), "the load ended badly: {}", output.status);
    let load: WakeupsReport = serde_json::from_slice(&output.stdout)?;
    let in_a_second = |name: &str| (last.sum(name, &[]) - counted.sum(name, &[])) / took.as_secs_f64();
    let cpus = cpus()? as f64;
    let percent = |ns: u64, wall: Duration| 100.0 * ns as f64 / (1e9 * wall.as_secs_f64() * cpus);
    Ok(Stretch {
        load,
        load_percent: percent(load.usage.cpu_ns, Duration::from_nanos(load.wall_ns)),
        ratios,
        process_percent: percent(cpu, took),
        programs_percent: percent(runs.time_ns, took),
        runs_per_second: runs.count as f64 / took.as_secs_f64(),
        ns_per_run: runs.time_ns as f64 / runs.count.max(1) as f64,
        waits_per_second: in_a_second("podperf_stack_waits_total"),
        walks_per_second: in_a_second("podperf_stack_walks_total"),
        shed: last.sum("podperf_overhead_shed", &[]),
    })
}

fn memory(args: &ProfilesArgs, program: &Path) -> Result<Memory> {
    // The library makes its stacks out of frame pointers.
    let mut agent =
        Agent::start_to_measure(program, &format!("{CAP}stacks: {{unwind: frame-pointers}}\nmetrics: {{own: all}}\n"))?;
    thread::sleep(REST_AFTER);
    progress(&format!("profiles: the symbols of {PROGRAMS} programs"));
    let (cgroup, directory) = (TestCgroup::new("symbols")?, tempfile::tempdir()?);
    let (before_mib, counted) = (memory_mib(agent.pid(), "VmRSS")?, agent.metrics()?);
    let mut sleepers = Sleepers::start(&system_programs::find(PROGRAMS)?, &cgroup, directory.path())?;
    thread::sleep(WARM_UP);
    let (start, mut most_mib) = (Instant::now(), 0.0_f64);
    while start.elapsed() < Duration::from_secs(args.profile_seconds.into()) {
        thread::sleep(LOOK_EVERY);
        most_mib = most_mib.max(memory_mib(agent.pid(), "VmRSS")?);
    }
    agent.check()?;
    let metrics = agent.fresh_metrics()?;
    let grown = |name: &str| Metrics::sum(&metrics, name, &[]) - counted.sum(name, &[]);
    let named = grown("podperf_stack_symbolized_frames_total");
    ensure!(named > 0.0, "the agent named no frame");
    Ok(Memory {
        before_mib,
        most_mib,
        peak_mib: memory_mib(agent.pid(), "VmHWM")?,
        programs: sleepers.alive(),
        named,
        unnamed: grown("podperf_stack_unsymbolized_frames_total"),
    })
}
