//! The growth of the cost over the number of events and the number of cgroups, beside perf's BPF counters.
//!
//! Each ring has n processes on one CPU, each in a cgroup of its own. All rings exist at once, and each turns only on
//! request. So the rounds go over all numbers of cgroups and all watchers in turn, and other work on the machine
//! affects all alike. The figure is the difference inside a pair: one stretch without the watcher, and one with it.

pub mod plot;
pub mod table;
pub mod watch;

use std::{
    collections::BTreeMap,
    fs,
    io::{BufRead as _, BufReader, Write as _},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use clap::Args;

use super::{last_cpu, progress};
use podperf_tests::{
    bpf,
    cgroup::TestCgroup,
    load::{
        self,
        ring::{Slice, Spread},
    },
    process,
    programs::Programs,
};
use watch::{Tools, Watcher};

/// Hops of a timed stretch. With many cgroups, at least `ROUNDS_AT_LEAST` rounds of the ring.
const HOPS: usize = 30_000;
/// Hops before a timed stretch, with the same minimum: the agent knows tasks and cgroups from their first switch on.
const WARMUP: usize = 5_000;
const ROUNDS_AT_LEAST: usize = 2;

/// `podperf-bench growth`.
#[derive(Args, Clone, Debug)]
pub struct GrowthArgs {
    /// Numbers of cgroups, rising
    #[arg(long, value_delimiter = ',', default_values_t = [2, 100, 1_000, 5_000])]
    pub cgroup_counts: Vec<usize>,
    /// Numbers of events, rising; at most 12
    #[arg(long, value_delimiter = ',', default_values_t = [1, 4, 6, 12])]
    pub event_counts: Vec<usize>,
    /// Most cgroups that perf is given: it opens a file for each
    #[arg(long, default_value_t = 1_000)]
    pub perf_cgroups: usize,
    /// File for a plot of the growth, in SVG
    #[arg(long)]
    pub plot: Option<PathBuf>,
}

/// The measurements of one watcher on one ring.
#[derive(Clone, Debug, Default)]
pub struct Cell {
    /// CPU ns per hop without and with the watcher, one pair per round.
    pub pairs: Vec<(f64, f64)>,
    /// Mean ns of a run of the watcher's programs at a switch, by the kernel's statistics, one figure per round. It
    /// includes the time of the statistics themselves.
    pub bpf_ns: Vec<f64>,
    /// Number of files that the watcher's process had open.
    pub fds: Option<usize>,
    /// The reason why the watcher could not be measured.
    pub failure: Option<String>,
}

impl Cell {
    /// Returns the extra ns per hop over the pairs.
    pub fn extra_ns(&self) -> Option<Spread> {
        if self.failure.is_some() {
            return None;
        }
        Spread::of(self.pairs.iter().map(|(without, with)| with - without).collect())
    }

    /// Returns the ns of a BPF run over the rounds.
    pub fn bpf_ns(&self) -> Option<Spread> {
        if self.failure.is_some() {
            return None;
        }
        Spread::of(self.bpf_ns.clone())
    }
}

/// All cells, by watcher and number of cgroups.
#[derive(Debug)]
pub struct Growth {
    /// The numbers of cgroups, rising.
    pub cgroup_counts: Vec<usize>,
    /// The numbers of events, rising.
    pub event_counts: Vec<usize>,
    /// The watchers, in the order of the table.
    pub watchers: Vec<Watcher>,
    cells: BTreeMap<(Watcher, usize), Cell>,
}

impl Growth {
    /// Returns the measurements of a watcher with this number of cgroups.
    pub fn cell(&self, watcher: Watcher, cgroups: usize) -> Option<&Cell> {
        self.cells.get(&(watcher, cgroups))
    }

    /// Returns the CPU ns per hop of a ring without a watcher.
    pub fn base_ns(&self, cgroups: usize) -> Option<Spread> {
        let cells = self.cells.iter().filter(|((_, count), _)| *count == cgroups);
        Spread::of(cells.flat_map(|(_, cell)| &cell.pairs).map(|pair| pair.0).collect())
    }
}

/// The arguments of other parts that this part uses.
#[derive(Debug)]
pub struct Common<'a> {
    /// Interleaved rounds.
    pub rounds: usize,
    /// CPU of the rings.
    pub cpu: Option<usize>,
    /// The wait after a start.
    pub settle: Duration,
    /// perf with BPF skeletons.
    pub perf: &'a Path,
    /// The agent's program.
    pub agent: &'a Path,
}

/// Measures everything, writes the plot, and returns the text to print.
pub fn run(args: &GrowthArgs, common: &Common<'_>) -> Result<String> {
    let growth = measure(args, common)?;
    if let Some(path) = &args.plot {
        fs::write(path, plot::svg(&growth)).with_context(|| format!("failed to write `{}`", path.display()))?;
    }
    Ok(table::growth(&growth) + &table::goals(&growth))
}

fn measure(args: &GrowthArgs, common: &Common<'_>) -> Result<Growth> {
    let cpu = common.cpu.map_or_else(last_cpu, Ok)?;
    let scratch = tempfile::tempdir().context("failed to make a scratch directory")?;
    let tools = Tools { perf: common.perf, agent: common.agent, scratch: scratch.path() };
    let mut rings = Vec::new();
    for count in &args.cgroup_counts {
        progress(&format!("growth: a ring of {count} cgroups"));
        rings.push(Ring::start(*count, cpu)?);
    }
    let mut growth = Growth {
        cgroup_counts: args.cgroup_counts.clone(),
        event_counts: args.event_counts.clone(),
        watchers: watch::all(&args.event_counts),
        cells: BTreeMap::new(),
    };
    for round in 1..=common.rounds {
        for ring in &mut rings {
            progress(&format!("growth: round {round}/{}, {} cgroups", common.rounds, ring.count));
            for watcher in growth.watchers.clone() {
                if watcher.is_perf() && ring.count > args.perf_cgroups {
                    continue;
                }
                let cell = growth.cells.entry((watcher, ring.count)).or_default();
                if cell.failure.is_none() {
                    measure_pair(cell, watcher, ring, &tools, common.settle)?;
                }
            }
        }
    }
    rings.into_iter().try_for_each(Ring::end)?;
    Ok(growth)
}

fn measure_pair(cell: &mut Cell, watcher: Watcher, ring: &mut Ring, tools: &Tools<'_>, settle: Duration) -> Result<()> {
    let without = ring.go_round()?;
    // Without bpftool, the time of the programs is not measured.
    let known = Programs::list().ok();
    let measured = watcher.start(tools, ring.parent.kernel_path()).and_then(|mut started| {
        thread::sleep(settle);
        let fds = started.fds();
        let with = ring.go_round()?;
        let bpf_ns = known.as_ref().map_or(Ok(None), |known| measure_programs(ring, known))?;
        // A watcher that ended early was not measured.
        started.check()?;
        Ok((fds, with, bpf_ns))
    });
    match measured {
        Ok((fds, with, bpf_ns)) => {
            cell.fds = fds;
            cell.pairs.push((without.cpu_ns, with.cpu_ns));
            cell.bpf_ns.extend(bpf_ns);
        }
        Err(error) => cell.failure = Some(format!("{error:#}").trim().to_owned()),
    }
    Ok(())
}

/// Returns the mean ns of a run of the programs that are not in `known`, over one more stretch of the ring.
fn measure_programs(ring: &mut Ring, known: &Programs) -> Result<Option<f64>> {
    let _statistics = bpf::enable_run_statistics()?;
    let before = Programs::list()?;
    ring.go_round()?;
    Ok(Programs::list()?.new_since(known).ns_per_switch(&before, u64::try_from(HOPS)?))
}

/// A ring with its cgroups, which turns on request.
#[derive(Debug)]
struct Ring {
    count: usize,
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
    /// This field is the last one: its cgroups can be removed only when the processes are gone.
    parent: TestCgroup,
}

impl Ring {
    fn start(count: usize, cpu: usize) -> Result<Self> {
        let parent = TestCgroup::new("ring")?;
        for number in 0..count {
            let directory = parent.path().join(number.to_string());
            fs::create_dir(&directory).with_context(|| format!("failed to create `{}`", directory.display()))?;
        }
        let mut command = Command::new(load::binary()?);
        command.args(["ring", "--on-demand"]);
        command.args(["--cpu".to_owned(), cpu.to_string(), "--processes".to_owned(), count.to_string()]);
        command.args(["--hops".to_owned(), HOPS.max(count * ROUNDS_AT_LEAST).to_string()]);
        command.args(["--warmup".to_owned(), WARMUP.max(count * ROUNDS_AT_LEAST).to_string()]);
        command.arg("--cgroups-below").arg(parent.path());
        let mut child = process::bind_to_parent(&mut command)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("failed to start the ring")?;
        let to = child.stdin.take().context("no stdin")?;
        let from = BufReader::new(child.stdout.take().context("no stdout")?);
        let mut ring = Self { count, child, to, from, parent };
        // The first turn is not measured: its answer means that all processes are in place.
        ring.go_round()?;
        Ok(ring)
    }

    fn go_round(&mut self) -> Result<Slice> {
        writeln!(self.to)?;
        let mut line = String::new();
        self.from.read_line(&mut line)?;
        serde_json::from_str(&line).context("the ring is broken")
    }

    /// Waits for the end of the processes before their cgroups are removed. Thousands of processes take a while.
    fn end(self) -> Result<()> {
        let Self { mut child, to, from, parent, .. } = self;
        drop(to);
        // Discards the ring's report, because a full pipe would block the ring.
        from.lines().for_each(drop);
        let status = child.wait()?;
        drop(parent);
        ensure!(status.success(), "the ring ended badly: {status}");
        Ok(())
    }
}
