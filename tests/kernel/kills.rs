//! Kills at random moments: in a reading, a write of the kept file, a `forget` of dead cgroups, a start and a takeover.
//! The next agent always continues with exactly the kernel's counts.

use std::{
    collections::BTreeMap,
    fs, hint,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant, SystemTime},
};

use anyhow::{Context as _, Result, ensure};
use podperf_tests::{
    agent::{self, Agent, Metrics, Sample},
    bpffs::Bpffs,
    cgroup::TestCgroup,
    load::churn::ChurnReport,
    running::{Load, ONCPU, time},
    suite::tell,
};

use crate::{
    counts::Inside,
    restart::{FACTS, INSTANT, counters, ensure_clocks, kills, none_falls},
};

/// The row of the parent has the counts of short cgroups, and each reading forgets them.
const DEPTH: &str = "cgroups: {depth: 1, max: 4096}";
/// Configurations for two sets of programs with the same layout. Each can take over from the other, and not adopt it.
pub(crate) const PROGRAMS: [&str; 2] =
    ["counters: {groups: [[cpu-clock, page-faults]]}", "counters: {groups: [[page-faults, cpu-clock]]}"];
/// The longest wait for a moment. On a busy machine the kill comes late.
const LATE: Duration = Duration::from_secs(2);

/// The step of an agent at which it is killed. The delay after it is random.
#[derive(Clone, Copy, Debug)]
enum Moment {
    /// At any time in a reading or in the work after it.
    Reading,
    /// While the agent writes its file.
    Write,
    /// After the write, while the agent forgets rows of dead cgroups.
    Forget,
    /// At any time in a start that adopts programs.
    Adoption,
    /// At any time in a start with other programs.
    Takeover,
    /// While the pins of the previous generation and of the new one are both there.
    BothPinned,
}

const MOMENTS: [Moment; 6] =
    [Moment::Reading, Moment::Write, Moment::Forget, Moment::Takeover, Moment::Adoption, Moment::BothPinned];

/// A random generator. The test prints its seed, and reads it from `PODPERF_SEED` to repeat a run.
struct Random(u64);

impl Random {
    fn new() -> Result<Self> {
        let seed = match std::env::var("PODPERF_SEED") {
            Ok(seed) => seed.parse().context("a bad `PODPERF_SEED`")?,
            Err(_) => u64::from(SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.subsec_nanos()),
        };
        tell(&format!("kills at random moments: PODPERF_SEED={seed}"));
        Ok(Self(seed))
    }

    /// SplitMix64.
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, most: usize) -> usize {
        usize::try_from(self.next() % most as u64).unwrap_or(0)
    }

    fn up_to(&mut self, most: Duration) -> Duration {
        let nanoseconds = u64::try_from(most.as_nanos()).unwrap_or(u64::MAX).max(1);
        Duration::from_nanos(self.next() % nanoseconds)
    }
}

/// An agent that the test kills repeatedly, and the test's knowledge of it.
struct Victim {
    agent: Agent,
    bpffs: Bpffs,
    builds: [PathBuf; 2],
    /// The indices of the current build and the current programs.
    now: (usize, usize),
    /// The duration of a start, and of a scrape.
    start: Duration,
    scrape: Duration,
    random: Random,
}

impl Victim {
    fn start() -> Result<Self> {
        let (builds, bpffs, random) = ([agent::binary()?, agent::other_layout()?], Bpffs::mount()?, Random::new()?);
        let begin = Instant::now();
        let agent = Agent::start(&yaml(&bpffs, 0))?;
        let start = begin.elapsed();
        let begin = Instant::now();
        agent.metrics()?;
        Ok(Self { agent, bpffs, builds, now: (0, 0), start, scrape: begin.elapsed(), random })
    }

    fn kept(&self) -> PathBuf {
        self.agent.directory().join("kept.state")
    }

    /// Kills the agent at this moment, and returns the name of the actual moment.
    fn kill_at(&mut self, moment: Moment) -> Result<&'static str> {
        match moment {
            Moment::Reading | Moment::Write | Moment::Forget => self.kill_in_a_reading(moment),
            Moment::Adoption => self.kill_in_a_start(moment, self.now),
            Moment::Takeover | Moment::BothPinned => {
                let other = self.other();
                self.kill_in_a_start(moment, other)
            }
        }
    }

    fn kill_in_a_reading(&mut self, moment: Moment) -> Result<&'static str> {
        // Without this pause the agent would return the previous reading again.
        thread::sleep(self.agent.coalesced_for());
        let (kept, new) = (self.kept(), self.kept().with_extension("new"));
        let before = written(&kept);
        let _answer = self.agent.begin_scrape()?;
        match moment {
            Moment::Write => {
                spin_until(|| new.exists() || written(&kept) != before);
                pause(self.random.up_to(Duration::from_micros(200)));
            }
            Moment::Forget => {
                spin_until(|| written(&kept) != before);
                pause(self.random.up_to(Duration::from_millis(2)));
            }
            _ => pause(self.random.up_to(self.scrape * 3 / 2)),
        }
        self.agent.kill()?;
        Ok(match (new.exists(), written(&kept) == before) {
            (true, _) => "within a write",
            (false, true) => "before a write",
            (false, false) => "after a write",
        })
    }

    fn kill_in_a_start(&mut self, moment: Moment, next: (usize, usize)) -> Result<&'static str> {
        self.agent.kill()?;
        let pins = self.bpffs.pins();
        self.begin(next)?;
        match moment {
            Moment::BothPinned => {
                let start = Instant::now();
                while generations(&pins) < 2 && start.elapsed() < self.start * 2 {
                    thread::sleep(Duration::from_micros(200));
                }
                let rest = self.start / 8;
                pause(self.random.up_to(rest));
            }
            _ => pause(self.random.up_to(self.start)),
        }
        self.agent.kill()?;
        Ok(match (moment, generations(&pins)) {
            (Moment::Adoption, _) => "in a start",
            (_, 0 | 1) => "beside a takeover",
            _ => "within a takeover",
        })
    }

    /// Returns another build or other programs than the current ones.
    fn other(&mut self) -> (usize, usize) {
        let (build, programs) = self.now;
        if self.random.below(2) == 0 { (1 - build, programs) } else { (build, 1 - programs) }
    }

    fn begin(&mut self, (build, programs): (usize, usize)) -> Result<()> {
        self.now = (build, programs);
        self.agent.begin_again(&self.builds[build], &yaml(&self.bpffs, programs))
    }

    /// Starts the next agent with the same or another build and programs.
    fn revive(&mut self) -> Result<()> {
        let next = if self.random.below(2) == 0 { self.now } else { self.other() };
        let begin = Instant::now();
        self.begin(next)?;
        self.agent.wait_until_ready()?;
        self.start = begin.elapsed();
        Ok(())
    }
}

fn yaml(bpffs: &Bpffs, programs: usize) -> String {
    format!("{}\n{FACTS}\n{DEPTH}\n{}", bpffs.yaml(), PROGRAMS[programs])
}

/// Returns the file's identity, which changes when another file is renamed to it.
fn written(kept: &Path) -> Option<(u64, i64)> {
    fs::metadata(kept).ok().map(|found| (found.ino(), found.mtime_nsec()))
}

fn generations(pins: &Path) -> usize {
    fs::read_dir(pins).into_iter().flatten().flatten().filter(|entry| entry.path().is_dir()).count()
}

/// Spins, because the moment lasts some microseconds and a sleep would miss it.
fn spin_until(happened: impl Fn() -> bool) {
    let start = Instant::now();
    while !happened() && start.elapsed() < LATE {
        hint::spin_loop();
    }
}

fn pause(time: Duration) {
    let start = Instant::now();
    thread::sleep(time.saturating_sub(Duration::from_micros(200)));
    while start.elapsed() < time {
        hint::spin_loop();
    }
}

/// Returns the series that show losses, unnamed cgroups and starts, one a line.
fn astray(metrics: &Metrics) -> String {
    let says = |sample: &&Sample| {
        let unnamed = sample.labels.get("cgroup").is_some_and(|cgroup| cgroup.starts_with('('));
        let lost = ["podperf_bpf_drops_total", "podperf_cgroups_unresolved", "podperf_starts_total"];
        sample.value > 0.0 && (lost.contains(&&*sample.name) || unnamed && sample.name == ONCPU)
    };
    let line = |sample: &Sample| format!("\n{} {:?} {}", sample.name, sample.labels, sample.value);
    metrics.samples().iter().filter(says).map(line).collect()
}

pub(crate) fn at_random_moments_lose_nothing() -> Result<()> {
    let times = kills()?;
    let mut victim = Victim::start()?;
    let (worker, churned) = (TestCgroup::new("killed")?, TestCgroup::new("churned")?);
    let going = victim.agent.directory().join("going");
    fs::write(&going, "")?;
    let load = Inside::start(&format!("--pages 50 --switches 50 --while-exists {}", going.display()), &worker)?;
    // No agent sees a cgroup that lives only between two agents, so cgroups linger longer than the gap. The gap may
    // have a killed start, and a slower one.
    let linger = 4.0 * victim.start.as_secs_f64() + 2.0;
    // The process that creates the cgroups is in the same row. So the row is right, on whichever side of a join the
    // kernel counts a moment.
    let maker = TestCgroup::below(churned.path(), "maker")?;
    let mut churn = Load::start(&format!(
        "churn --wait --pause-millis 5 --linger-seconds {linger} --cgroup {} --while-exists {}",
        churned.path().display(),
        going.display()
    ))?;
    churn.wait_for_word("ready")?;
    churn.wait_until_blocked()?;
    maker.add(churn.pid())?;
    churn.go_on()?;
    let mut shown = counters(&victim.agent.metrics()?);
    let mut moments: BTreeMap<&str, u32> = BTreeMap::new();
    // The kinds of moments take turns, starting with a random one.
    let first = victim.random.below(MOMENTS.len());
    for turn in 0..times {
        let moment = MOMENTS[(first + turn) % MOMENTS.len()];
        let at = victim.kill_at(moment).with_context(|| format!("kill {turn}, {moment:?}"))?;
        *moments.entry(at).or_default() += 1;
        victim.revive().with_context(|| format!("after kill {turn}, {at}"))?;
        let now = counters(&victim.agent.metrics()?);
        none_falls(&shown, &now).with_context(|| format!("after kill {turn}, {at}"))?;
        shown = now;
    }
    fs::remove_file(&going)?;
    churn.wait_for_word("done")?;
    churn.wait_until_blocked()?;
    let truth = churned.cpu_usage()?;
    let worked = load.finish(&victim.agent)?;
    churn.go_on()?;
    let lives: ChurnReport = churn.report()?;
    churn.end()?;
    none_falls(&shown, &counters(&worked.metrics)).context("at the end")?;

    let off = ensure_clocks(&worked, &worker)?;
    worked.ensure_exact()?;
    let lives = lives.cgroups.len();
    let found = time(&worked.metrics, ONCPU, &churned, &[])?;
    tell(&format!(
        "{times} kills, {moments:?}: {} switches and {} faults exact, clocks within {:.4} %; {lives} short cgroups with {found:?}, and the \
         truth is {truth:?} (+-{INSTANT:?})",
        worked.truth.voluntary + worked.truth.involuntary,
        worked.truth.minor_faults + worked.truth.major_faults,
        off * 100.0,
    ));
    ensure!(lives > 10 * times, "only {lives} short cgroups");
    ensure!(
        found.abs_diff(truth) <= INSTANT,
        "{lives} short cgroups: {found:?}, and the truth is {truth:?} (+-{INSTANT:?}){}",
        astray(&worked.metrics)
    );
    Ok(())
}
