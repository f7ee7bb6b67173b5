//! Stacks of code without frame pointers, which the agent unwinds by tables. No other unwinder is the judge: the load
//! `paths` notes itself which of its functions are on the stack.

mod paths;

use std::{collections::BTreeMap, thread, time::Duration};

use anyhow::{Context as _, Result, bail, ensure};
use podperf_tests::{
    agent::{Agent, Metrics},
    cgroup::TestCgroup,
    http,
    load::paths::{NotedPath, PathsReport},
    pprof::{self, Sample},
    running::Load,
    suite::{self, Test},
    tests,
};

use self::paths::{Noted, Whole};

pub(crate) const TESTS: &[Test] = tests![
    #[land]
    waits_without_frame_pointers_are_on_paths_that_the_program_notes,
    #[measures]
    waits_without_frame_pointers_have_the_path_that_the_program_notes,
    #[measures]
    waits_in_turn_on_two_stacks_of_one_call_site_are_told_apart_and_remembered,
    #[measures]
    samples_without_frame_pointers_have_the_path_that_the_program_notes,
];

/// No budget, so that no wait counts for another one.
const TABLES: &str = "stacks: {unwind: tables, maxWalks: 0, onCpuHertz: 199}";
/// Visits of each path. In a round, each thread waits some 90 ms or spins some 40 ms.
const WAITS: u64 = 60;
const FEW_WAITS: u64 = 8;
const SPINS: u64 = 250;
/// Waits of each of two functions in turn, of some 1 ms.
const TURNS: u64 = 1500;
/// The first copy of a wait has at least this part of the stack, in bytes: three pages, and a part of a fourth one.
const FIRST_COPY: u64 = 3 << 12;
/// The number of waits on one path whose stacks may be cut, if the path does not fit into the first copy. The agent
/// asks for the right pages while the thread goes on.
const CUT_AT_FIRST: u64 = 3;
/// The most recordings until all stacks of one could be copied.
const ATTEMPTS: usize = 3;
/// The limit on a loaded machine.
const DEADLINE: Duration = Duration::from_secs(60);
/// The smallest tolerance of a path's time, in nanoseconds. The tolerance is this value and 2 %.
const LEAST_TOLERANCE: f64 = 3e6;
/// The largest deviation of a share, in standard deviations.
const SIGMAS: f64 = 5.0;
/// Most waits are proved by recipes: at most one in this number is copied or walked, with those of other programs.
const MOST_WALKS: f64 = 4.0;
/// Most waits are remembered, also where two stacks have one call site: the kernel's part is walked for at most one in
/// this number.
const MOST_KERNEL_WALKS: f64 = 4.0;
/// The number of faults that an error shows.
const SHOWN: usize = 20;

/// A recorded load.
struct Recorded {
    report: PathsReport,
    samples: Vec<Sample>,
    counts: Counts,
}

/// Counts of the node while the load ran.
struct Counts {
    /// The waits.
    waits: f64,
    /// Those whose stacks were copied or walked.
    walks: f64,
    /// Those whose kernel part alone was walked.
    kernel_walks: f64,
    /// The stacks that were walked, because the ring of copies was full.
    uncopied: f64,
}

impl Counts {
    fn between(before: &Metrics, after: &Metrics) -> Result<Self> {
        let grown = |name: &str| -> Result<f64> {
            let of = |metrics: &Metrics| metrics.get(name, &[]).with_context(|| format!("no `{name}`"));
            Ok(of(after)? - of(before)?)
        };
        Ok(Self {
            waits: grown("podperf_stack_waits_total")?,
            walks: grown("podperf_stack_walks_total")?,
            kernel_walks: grown("podperf_stack_kernel_walks_total")?,
            uncopied: uncopied(after) - uncopied(before),
        })
    }
}

/// Records the load, and again if the ring of copies was full: a busy agent empties the ring too late. Then stacks are
/// walked by frame pointers, which the load's functions do not have.
fn recorded(agent: &Agent, activity: &str, load: &str) -> Result<Recorded> {
    know_the_files(agent)?;
    for _ in 0..ATTEMPTS {
        let recorded = record(agent, activity, load)?;
        if recorded.counts.uncopied == 0.0 {
            return Ok(recorded);
        }
        suite::tell(&format!("{} stacks found no room in the ring of copies", recorded.counts.uncopied));
    }
    bail!("the ring of copies was full in each of {ATTEMPTS} recordings")
}

/// Waits until the agent knows the unwind tables of the load's files. It cuts stacks until then.
fn know_the_files(agent: &Agent) -> Result<()> {
    let cgroup = TestCgroup::new("early")?;
    let mut early = Load::start(&format!("paths --hold --rounds 1 --cgroup {}", cgroup.path().display()))?;
    early.report::<PathsReport>()?;
    // All copies of a window are unwound at its end.
    suite::within(DEADLINE, "names of the first windows", || {
        Ok((agent.get("/debug/profile?seconds=1", &[])?.0 == 200).then_some(()))
    })?;
    early.end()
}

/// Records the load once, with the file as pprof. The load lives until the recording has ended, so that its files can
/// be read.
fn record(agent: &Agent, activity: &str, load: &str) -> Result<Recorded> {
    let cgroup = TestCgroup::new("paths")?;
    let subject = cgroup.kernel_path();
    let path = format!("/debug/profile?subject={subject}&activity={activity}&seconds=300&id=paths&format=pb");
    let of = |method: &str| http::ask(agent.address(), &format!("{method} /debug/recordings/paths"), &[], "");
    thread::scope(|scope| {
        let recording = scope.spawn(|| http::get_within(Duration::from_secs(330), agent.address(), &path));
        let ran = suite::within(DEADLINE, "the recording begins", || {
            // `seconds` is null before the start.
            let begun = |body: &[u8]| !String::from_utf8_lossy(body).contains("\"seconds\":null");
            Ok(of("GET").is_ok_and(|(status, _, body)| status == 200 && begun(&body)).then_some(()))
        })
        .and_then(|()| {
            let before = agent.fresh_metrics()?;
            let mut load = Load::start(&format!("{load} --hold --cgroup {}", cgroup.path().display()))?;
            let report = load.report::<PathsReport>()?;
            let counts = Counts::between(&before, &agent.fresh_metrics()?)?;
            Ok((load, report, counts))
        });
        of("DELETE")?;
        let (status, _, body) = recording.join().expect("the client panicked")?;
        let (load, report, counts) = ran?;
        ensure!(status == 200, "{status}: {}", String::from_utf8_lossy(&body));
        load.end()?;
        Ok(Recorded { report, samples: pprof::samples(&body)?, counts })
    })
}

fn uncopied(metrics: &Metrics) -> f64 {
    metrics.sum("podperf_bpf_drops_total", &[("reason", "copy_ring")])
}

/// Returns an error that shows the first of these faults, if there are any.
fn no_faults(faults: &[String]) -> Result<()> {
    let shown = faults[..faults.len().min(SHOWN)].join("\n");
    ensure!(faults.is_empty(), "{} faults, the first ones:\n{shown}", faults.len());
    Ok(())
}

#[expect(clippy::cast_precision_loss, reason = "some seconds of nanoseconds")]
const fn real(value: u64) -> f64 {
    value as f64
}

/// The waits of a recording.
struct Waits {
    /// The time and the number of those with a whole path.
    whole: BTreeMap<String, [u64; 2]>,
    /// The number of those whose path is cut.
    cut: u64,
    /// Samples that are on no path of the program.
    faults: Vec<String>,
}

impl Waits {
    fn of(samples: &[Sample], noted: &Noted) -> Self {
        let mut waits = Self { whole: BTreeMap::new(), cut: 0, faults: Vec::new() };
        for sample in samples {
            let [ns, count] = sample.values;
            let is_sleep = sample.label("reason") == "sleep";
            match noted.path_of(sample) {
                Err(fault) => waits.faults.push(text(fault)),
                // A thread also waits for a CPU, on any part of a path.
                Ok((path, whole)) if !is_sleep => {
                    waits.faults.extend(noted.ensure_part(&path, whole, sample).err().map(text));
                }
                Ok((path, Whole::Yes)) if noted.has(&path) => {
                    let sum = waits.whole.entry(path).or_default();
                    *sum = [sum[0] + ns, sum[1] + count];
                }
                Ok((path, Whole::No)) if noted.ends_so(&path, FIRST_COPY) => waits.cut += count,
                Ok((path, whole)) => {
                    waits.faults.push(format!("{count} waits at `{path}`, whole {whole:?}: {}", sample.text()));
                }
            }
        }
        waits
    }

    /// Adds up the sleeps by the one function of the report that is on their stack.
    fn in_functions(samples: &[Sample], report: &PathsReport) -> Self {
        let mut waits = Self { whole: BTreeMap::new(), cut: 0, faults: Vec::new() };
        for sample in samples.iter().filter(|sample| sample.label("reason") == "sleep") {
            let [ns, count] = sample.values;
            let has = |path: &&NotedPath| sample.frames.iter().any(|frame| frame.function == path.path);
            let paths: Vec<_> = report.paths.iter().filter(has).collect();
            if let ([path], "") = (&paths[..], sample.label("unwind")) {
                let sum = waits.whole.entry(path.path.clone()).or_default();
                *sum = [sum[0] + ns, sum[1] + count];
            } else {
                waits.faults.push(format!("{count} waits, `{}`: {}", sample.label("unwind"), sample.text()));
            }
        }
        waits
    }

    /// Compares the numbers with those of the program. Of the waits on a path that does not fit into the first copy,
    /// `may_be_cut` may be cut. Returns the number of waits that the program made.
    fn compare(&mut self, report: &PathsReport, may_be_cut: u64) -> u64 {
        let mut missing = 0;
        for path in &report.paths {
            let [_, count] = self.whole.get(&path.path).copied().unwrap_or_default();
            let may_miss = if path.stack_bytes > FIRST_COPY { may_be_cut } else { 0 };
            if count > path.count || count + may_miss < path.count {
                let NotedPath { path, count: made, stack_bytes, .. } = path;
                self.faults.push(format!("{count} waits instead of {made} ({stack_bytes} bytes) at {path}"));
            }
            missing += path.count.saturating_sub(count);
        }
        if missing != self.cut {
            self.faults.push(format!("{missing} waits are missing, and {} are cut", self.cut));
        }
        report.paths.iter().map(|path| path.count).sum()
    }

    /// Compares the times. Returns the largest deviation, in nanoseconds.
    fn compare_times(&mut self, report: &PathsReport) -> f64 {
        let mut deviation = 0.0_f64;
        for path in &report.paths {
            let [ns, count] = self.whole.get(&path.path).copied().unwrap_or_default();
            // The clock of the program also has the time in which it was ready to run.
            let (truth, share) = (real(path.ns), real(count) / real(path.count));
            let (least, tolerance) =
                (real(path.ns - path.queued_ns.min(path.ns)) * share, LEAST_TOLERANCE + 0.02 * truth);
            let most = truth * share.min(1.0);
            deviation = deviation.max(least - real(ns)).max(real(ns) - most);
            if real(ns) < least - tolerance || real(ns) > most + tolerance {
                self.faults.push(format!("{ns} ns of {count} waits, and the truth is {path:?}"));
            }
        }
        deviation
    }
}

/// At least one wait on each path is whole. A busy agent answers late, and then more waits are cut: another test counts
/// these.
fn waits_without_frame_pointers_are_on_paths_that_the_program_notes() -> Result<()> {
    let agent = Agent::start(TABLES)?;
    let Recorded { report, samples, .. } = recorded(&agent, "off-cpu", &format!("paths --rounds {FEW_WAITS}"))?;
    let mut waits = Waits::of(&samples, &Noted::new(&report)?);
    let all = waits.compare(&report, FEW_WAITS - 1);
    suite::tell(&format!("{all} waits, {} of them cut", waits.cut));
    no_faults(&waits.faults)
}

fn waits_without_frame_pointers_have_the_path_that_the_program_notes() -> Result<()> {
    let agent = Agent::start(TABLES)?;
    let Recorded { report, samples, counts } = recorded(&agent, "off-cpu", &format!("paths --rounds {WAITS}"))?;
    let mut waits = Waits::of(&samples, &Noted::new(&report)?);
    let all = waits.compare(&report, CUT_AT_FIRST);
    let deviation = waits.compare_times(&report);
    let walks = counts.walks;
    suite::tell(&format!("{all} waits, {walks} walks, {} cut, off by {} ms", waits.cut, deviation / 1e6));
    if walks > real(all) / MOST_WALKS {
        waits.faults.push(format!("{walks} stacks were copied or walked: recipes do not prove the {all} waits"));
    }
    no_faults(&waits.faults)
}

/// Each wait is on another stack than the last one at its call site.
fn waits_in_turn_on_two_stacks_of_one_call_site_are_told_apart_and_remembered() -> Result<()> {
    let agent = Agent::start(TABLES)?;
    let Recorded { report, samples, counts } = recorded(&agent, "off-cpu", &format!("turns --rounds {TURNS}"))?;
    let mut waits = Waits::in_functions(&samples, &report);
    let all = waits.compare(&report, 0);
    let deviation = waits.compare_times(&report);
    let Counts { walks, kernel_walks, .. } = counts;
    // Other waits of the node may all have been walked.
    let others = counts.waits - real(all);
    suite::tell(&format!(
        "{all} waits and {others} others, {walks} walks, {kernel_walks} of the kernel's part, off by {} ms",
        deviation / 1e6
    ));
    if kernel_walks - others > real(all) / MOST_KERNEL_WALKS {
        waits.faults.push(format!("{kernel_walks} kernel parts were walked: those of {all} waits are not remembered"));
    }
    no_faults(&waits.faults)
}

fn samples_without_frame_pointers_have_the_path_that_the_program_notes() -> Result<()> {
    let agent = Agent::start(TABLES)?;
    let Recorded { report, samples, .. } = recorded(&agent, "on-cpu", &format!("paths --on-cpu --rounds {SPINS}"))?;
    let noted = Noted::new(&report)?;
    let (mut faults, mut found) = (Vec::new(), BTreeMap::<String, u64>::new());
    let mut all = 0;
    for sample in &samples {
        let [count, _] = sample.values;
        all += count;
        match noted.path_of(sample) {
            Err(fault) => faults.push(format!("{fault:#}")),
            Ok((path, Whole::Yes)) if noted.has(&path) => *found.entry(path).or_default() += count,
            // Between two spins the thread is somewhere on a path.
            Ok((path, whole)) => faults.extend(noted.ensure_part(&path, whole, sample).err().map(text)),
        }
    }
    let whole: u64 = found.values().sum();
    let spun: u64 = report.paths.iter().map(|path| path.ns).sum();
    let mut deviation = 0.0_f64;
    for path in &report.paths {
        let (count, share) = (found.get(&path.path).copied().unwrap_or_default(), real(path.ns) / real(spun));
        let (expected, sigma) = (share * real(whole), (share * (1.0 - share) * real(whole)).sqrt());
        let off = (real(count) - expected).abs() / sigma;
        deviation = deviation.max(off);
        if off > SIGMAS {
            faults.push(format!("{count} samples instead of {expected:.1} ({off:.1} sigma) at {}", path.path));
        }
    }
    suite::tell(&format!("{all} samples, {whole} with a whole path, shares are off by {deviation:.1} sigma"));
    if real(whole) < real(all) * 0.99 || whole == 0 {
        faults.push(format!("{whole} of {all} samples have a whole path"));
    }
    no_faults(&faults)
}

fn text(error: anyhow::Error) -> String {
    format!("{error:#}")
}
