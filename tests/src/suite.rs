//! Runs the tests of a ring. A test is alone on the machine unless its row has the mark `#[beside]`. A test that lacks
//! something on the machine is ignored, and the runner counts it and prints its name.
//!
//! `make test` runs the rows that must pass before a change lands, in two parts: all rows that run beside others, and
//! then the rows that are alone. It tries a failure again that may be noise of the machine ([`again`]). Any other run of
//! a ring runs all rows, each once.
//!
//! Rings run as several programs, also from several checkouts, and share two locks. A test that is alone holds the
//! first lock exclusively, and tests beside others share it. The second lock is a turnstile: a test holds it while it
//! waits to be alone, so that no further test starts beside the tests that still run.

mod again;

use std::{
    cmp::Reverse,
    fs::{self, File},
    io::{self, Write as _},
    process::ExitCode,
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, anyhow, ensure};
use libtest_mimic::{Arguments, Failed, Trial};
use nix::{
    fcntl::{Flock, FlockArg},
    sys::statfs::{FsType, TMPFS_MAGIC, statfs},
};

use crate::{agent, cgroup, deadline::Deadline, weather::Begin};
use again::{Failure, Outcome};

/// `RAMFS_MAGIC` of the kernel's `magic.h`.
const RAMFS_MAGIC: FsType = FsType(0x8584_58f6);
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// The number of tests that are printed with their time.
const SLOWEST: usize = 10;
/// The usual directory of pins. Programs that a test leaves there go on counting beside all later tests.
const PINS: &str = "/sys/fs/bpf/podperf";
/// The variable that makes the runner print the times of all tests.
const TIMES: &str = "PODPERF_TIMES";
/// Number of tests of one ring that run at the same time. They mostly wait, so the number exceeds the CPUs of a small
/// machine.
const AT_ONCE: usize = 3;

/// The variable that makes a ring run one part of a landing: `beside` or `alone`.
const LANDING: &str = "PODPERF_LANDING";

/// One test. [`tests!`](crate::tests) makes the rows of a ring.
#[derive(Clone, Copy, Debug)]
pub struct Test {
    /// The name, which is a sentence.
    pub name: &'static str,
    /// The needs of the test beyond root.
    pub needs: &'static [Need],
    /// The test itself.
    pub body: fn() -> Result<()>,
    /// `true` if other tests may run at the same time.
    pub is_beside: bool,
    /// The failures that may be noise of the machine.
    pub noise: Noise,
    /// Whether `make test` runs the test; `None` leaves it to the ring.
    pub lands: Option<bool>,
}

/// The failures of a test that may be noise of the machine. `make test` tries these again ([`again`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Noise {
    /// A missed deadline.
    Late,
    /// None: the test counts kills, restarts, layouts, or values that never fall.
    Never,
    /// Any error: the test compares times of this machine.
    Any,
}

/// Returns rows of tests. A row is `name`, `name: NEEDS` or `name: NEEDS => body`; without a body, the function of that
/// name is the test. Marks before the name say when and how it runs:
///
/// * `#[land]`: also in `make test`. Without it, a row runs in `make rings` only. Rings that need no root land whole,
///   and there the mark `#[rings]` leaves a row to `make rings`.
/// * `#[beside]`: other tests may run at the same time. Such a test asserts nothing that needs a machine of its own,
///   such as sums over all rows, costs, budgets, or the absence of other pods.
/// * `#[exact]` and `#[measures]`, which stand last: the failures that may be noise are [`Noise::Never`] and [`Noise::Any`]; without one,
///   [`Noise::Late`].
#[macro_export]
macro_rules! tests {
    (@needs) => { &[] };
    (@needs $needs:expr) => { $needs };
    (@body $name:ident) => { $name };
    (@body $name:ident $body:expr) => { $body };
    (@lands land $($rest:ident)*) => { Some(true) };
    (@lands rings $($rest:ident)*) => { Some(false) };
    (@lands $first:ident $($rest:ident)*) => { $crate::tests!(@lands $($rest)*) };
    (@lands) => { None };
    (@is_beside beside $($rest:ident)*) => { true };
    (@is_beside $first:ident $($rest:ident)*) => { $crate::tests!(@is_beside $($rest)*) };
    (@is_beside) => { false };
    (@noise exact) => { $crate::suite::Noise::Never };
    (@noise measures) => { $crate::suite::Noise::Any };
    (@noise land $($rest:ident)*) => { $crate::tests!(@noise $($rest)*) };
    (@noise rings $($rest:ident)*) => { $crate::tests!(@noise $($rest)*) };
    (@noise beside $($rest:ident)*) => { $crate::tests!(@noise $($rest)*) };
    (@noise) => { $crate::suite::Noise::Late };
    ($($(#[$mark:ident])* $name:ident $(: $needs:expr)? $(=> $body:expr)?),* $(,)?) => {
        &[$($crate::suite::Test {
            name: stringify!($name),
            needs: $crate::tests!(@needs $($needs)?),
            body: $crate::tests!(@body $name $($body)?),
            is_beside: $crate::tests!(@is_beside $($mark)*),
            noise: $crate::tests!(@noise $($mark)*),
            lands: $crate::tests!(@lands $($mark)*),
        }),*]
    };
}

/// A thing that a machine may lack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// A program on the path.
    Program(&'static str),
    /// A file or directory.
    Path(&'static str),
    /// A machine without other users, such as a guest of `make vm`: [`OWN_MACHINE`] is set.
    OwnMachine,
    /// A CPU whose hardware counters the kernel can use.
    HardwarePmu,
    /// At least this number of CPUs.
    Cpus(usize),
    /// A CPU that has no tick while it runs a single thread.
    NohzFull,
    /// A directory whose files are on a disk, not in memory.
    Disk(&'static str),
    /// A controller of the cgroup2 tree.
    Controller(&'static str),
}

/// The variable that makes tests with a variable size run at their largest size.
const LONG: &str = "PODPERF_LONG";

/// The variable that limits a ring to some of its tests: their whole names, with commas between them.
const ONLY: &str = "PODPERF_ONLY";

/// The variable that limits a ring to one share of its tests: of `1/3`, each third test, from the second one on.
const SHARE: &str = "PODPERF_SHARE";

/// The variable that allows tests to take CPUs offline and counters away.
pub const OWN_MACHINE: &str = "PODPERF_TESTS_OWN_MACHINE";

/// Returns true on a machine that runs nothing else: a guest of `make vm`.
#[must_use]
pub fn has_own_machine() -> bool {
    std::env::var_os(OWN_MACHINE).is_some()
}

impl Need {
    fn lacks(self) -> Option<String> {
        match self {
            Self::Program(name) => {
                let path = std::env::var_os("PATH").unwrap_or_default();
                let found = std::env::split_paths(&path).any(|directory| directory.join(name).exists());
                (!found).then(|| format!("no `{name}`"))
            }
            Self::OwnMachine => (!has_own_machine()).then(|| "not a machine of its own (see `make vm`)".to_owned()),
            Self::Path(path) => (!std::path::Path::new(path).exists()).then(|| format!("no `{path}`")),
            Self::HardwarePmu => {
                let pmus = fs::read_dir("/sys/bus/event_source/devices").into_iter().flatten().flatten();
                let mut names = pmus.map(|pmu| pmu.file_name().to_string_lossy().into_owned());
                (!names.any(|name| is_core_pmu(&name))).then(|| "no hardware PMU".to_owned())
            }
            Self::NohzFull => nohz_full_cpu().is_none().then(|| "no `nohz_full` CPU".to_owned()),
            Self::Disk(directory) => {
                let kind = fs::create_dir_all(directory).ok().and_then(|()| statfs(directory).ok());
                let memory = [TMPFS_MAGIC, RAMFS_MAGIC].map(Some).contains(&kind.map(|stat| stat.filesystem_type()));
                (memory || kind.is_none()).then(|| "no disk for files: they are in memory".to_owned())
            }
            Self::Controller(name) => {
                let root = cgroup::mount_point().unwrap_or_default();
                let controllers = fs::read_to_string(root.join("cgroup.controllers")).unwrap_or_default();
                (!controllers.split_whitespace().any(|controller| controller == name))
                    .then(|| format!("no `{name}` controller in the cgroup2 tree"))
            }
            Self::Cpus(count) => {
                let found = thread::available_parallelism().map_or(1, usize::from);
                (found < count).then(|| format!("fewer than {count} CPUs"))
            }
        }
    }
}

/// Returns whether tests with a variable size must run at their largest size.
#[must_use]
pub fn long() -> bool {
    std::env::var_os(LONG).is_some()
}

/// Returns the first CPU that has no tick while it runs a single thread (`nohz_full=`); `None` if there is no such CPU.
#[must_use]
pub fn nohz_full_cpu() -> Option<usize> {
    let list = fs::read_to_string("/sys/devices/system/cpu/nohz_full").ok()?;
    // Without `nohz_full=`, kernels print `(null)` or an empty line.
    list.trim().split(['-', ',']).next()?.parse().ok()
}

/// Returns whether a PMU of this name in sysfs belongs to the CPUs themselves.
pub fn is_core_pmu(name: &str) -> bool {
    ["cpu", "cpu_core"].contains(&name) || name.starts_with("armv8_")
}

/// The rows that a run takes from a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    /// All rows, each once.
    Whole,
    /// The rows of a landing that run beside others. Failures that may be noise are left to the next part.
    Beside,
    /// The other rows of a landing, and then, again, the failures of both parts that may be noise.
    Alone,
}

impl Part {
    fn chosen() -> Result<Self> {
        match std::env::var(LANDING).as_deref() {
            Err(_) => Ok(Self::Whole),
            Ok("beside") => Ok(Self::Beside),
            Ok("alone") => Ok(Self::Alone),
            Ok(other) => anyhow::bail!("{LANDING} is `{other}` (it is `beside` or `alone`, or is not set)"),
        }
    }

    fn has(self, test: &Test, lands: bool) -> bool {
        self == Self::Whole || test.lands.unwrap_or(lands) && test.is_beside == (self == Self::Beside)
    }
}

/// Runs the tests of one ring: first the tests beside others, and then the remaining tests one by one. A test that
/// lacks something on the machine is ignored, and printed with the missing thing. At the end it prints the slowest
/// tests.
#[must_use]
pub fn run(tests: &[Test]) -> ExitCode {
    let root = nix::unistd::geteuid().is_root();
    // An emulated machine has no time to spare. If one test runs at a time, its name is printed before it runs.
    let is_guest = has_own_machine();
    let one = is_guest || tests.iter().all(|test| !test.is_beside);
    run_ring(if one { 1 } else { AT_ONCE }, tests, (!root).then_some("not root"), false)
}

/// Runs a ring that needs no root. All of its tests run beside others, one per CPU at a time, and all land that are not
/// marked otherwise.
#[must_use]
pub fn run_beside_others(tests: &[Test]) -> ExitCode {
    let tests: Vec<_> = tests.iter().map(|&test| Test { is_beside: true, ..test }).collect();
    run_ring(thread::available_parallelism().map_or(1, usize::from), &tests, None, true)
}

fn run_ring(count: usize, tests: &[Test], lacks: Option<&str>, lands: bool) -> ExitCode {
    match ring(count, tests, lacks, lands) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(101),
        Err(error) => {
            tell(&format!("the ring cannot run: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

/// Returns whether the part of the ring passed.
fn ring(count: usize, tests: &[Test], lacks: Option<&str>, lands: bool) -> Result<bool> {
    let part = Part::chosen()?;
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(count);
    let named = only(tests, std::env::var(ONLY).ok().as_deref())?;
    let named = share(named, std::env::var(SHARE).ok().as_deref())?;
    let rows: Vec<Test> = named.into_iter().filter(|test| part.has(test, lands)).collect();
    let times = Times::default();
    let once = |arguments: &Arguments, rows: &[Test]| {
        run_once(arguments, rows, |test| test.lacks(lacks), &|test| turn(test.is_beside), &times)
    };
    let mut first = once(&arguments, &rows);
    print_longest(&times);
    match part {
        Part::Whole => return Ok(first.failed == 0),
        Part::Beside => {
            let (noise, broken) = first.split();
            again::leave(&noise)?;
            return Ok(broken == 0);
        }
        Part::Alone => first.add(again::take(tests)?),
    }
    let verdict = again::settle(first, |rows| {
        tell(&format!("again, alone, in this weather: {}", crate::weather::wait_for_calm()));
        let alone: Vec<_> = rows.iter().map(|&test| Test { is_beside: false, ..test }).collect();
        once(&Arguments { test_threads: Some(1), ..Arguments::default() }, &alone)
    });
    verdict.report()?;
    Ok(verdict.is_green())
}

/// Returns the tests that the value of [`ONLY`] names, or all tests without it.
fn only(tests: &[Test], names: Option<&str>) -> Result<Vec<Test>> {
    let find = |name: &str| {
        let test = tests.iter().find(|test| test.name == name).copied();
        test.with_context(|| format!("failed to find test `{name}` of `{ONLY}` in this ring"))
    };
    names.map_or_else(|| Ok(tests.to_vec()), |names| names.split(',').map(find).collect())
}

/// Returns the tests of the share that the value of [`SHARE`] chooses, or all tests without it.
fn share(tests: Vec<Test>, share: Option<&str>) -> Result<Vec<Test>> {
    let Some(text) = share else { return Ok(tests) };
    let numbers = text.split_once('/').and_then(|(at, of)| Some((at.parse().ok()?, of.parse().ok()?)));
    let (at, of): (usize, usize) = numbers
        .filter(|(at, of)| at < of)
        .with_context(|| format!("{SHARE} is `{text}` (it is such as `0/2` or `1/2`, or is not set)"))?;
    Ok(tests.into_iter().skip(at).step_by(of).collect())
}

/// The tests that have run, with the duration of each.
type Times = Arc<Mutex<Vec<(Duration, &'static str)>>>;

fn print_longest(times: &Times) {
    let mut times = std::mem::take(&mut *times.lock().unwrap_or_else(PoisonError::into_inner));
    times.sort_by_key(|&(time, _)| Reverse(time));
    if std::env::var_os(TIMES).is_none() {
        times.truncate(SLOWEST);
    }
    let lines: String = times.iter().map(|(time, name)| format!("\n  {:6.1} s  {name}", time.as_secs_f64())).collect();
    if !lines.is_empty() {
        tell(&format!("the longest tests:{lines}"));
    }
}

impl Test {
    /// Returns what the machine lacks for the test.
    fn lacks(&self, ring: Option<&str>) -> Option<String> {
        ring.map(str::to_owned).or_else(|| self.needs.iter().find_map(|need| need.lacks()))
    }
}

/// Runs rows once, and returns their failures. `turn` returns what a test holds while it runs.
fn run_once<T: 'static>(
    arguments: &Arguments,
    rows: &[Test],
    lacks: impl Fn(&Test) -> Option<String>,
    turn: &'static (impl Fn(&Test) -> Result<T> + Sync),
    times: &Times,
) -> Outcome {
    let failures = Arc::new(Mutex::new(Vec::new()));
    let passed = Arc::new(Mutex::new(Vec::new()));
    let trial = |test: &Test| {
        let (test, times) = (*test, Arc::clone(times));
        let (passed, failures) = (Arc::clone(&passed), Arc::clone(&failures));
        let lacks = lacks(&test);
        let title =
            lacks.as_ref().map_or_else(|| test.name.to_owned(), |lacks| format!("{} (skipped: {lacks})", test.name));
        let body = move || {
            let _turn = turn(&test).map_err(|error| Failed::from(format!("{error:#}")))?;
            let begin = Begin::now();
            let outcome = run_clean(&test);
            times.lock().unwrap_or_else(PoisonError::into_inner).push((begin.elapsed(), test.name));
            if let Err(error) = outcome {
                let failure = Failure::of(test, &error, begin.weather());
                failures.lock().unwrap_or_else(PoisonError::into_inner).push(failure);
                return Err(Failed::from(format!("{error:#}")));
            }
            passed.lock().unwrap_or_else(PoisonError::into_inner).push(test.name);
            Ok(())
        };
        Trial::test(title, body).with_ignored_flag(lacks.is_some())
    };
    let (beside, alone): (Vec<_>, Vec<_>) = rows.iter().partition(|test| test.is_beside);
    let conclusion = libtest_mimic::run(arguments, beside.into_iter().chain(alone).map(trial).collect());
    let failures = std::mem::take(&mut *failures.lock().unwrap_or_else(PoisonError::into_inner));
    let passed = std::mem::take(&mut *passed.lock().unwrap_or_else(PoisonError::into_inner));
    Outcome { failed: usize::try_from(conclusion.num_failed).unwrap_or(usize::MAX), failures, passed }
}

/// Runs a test, and checks that no agent of it ended unasked, and that it leaves no pins.
fn run_clean(test: &Test) -> Result<()> {
    let pins = fs::exists(PINS)?;
    agent::take_ended();
    let outcome = (test.body)();
    if let Some(ended) = agent::take_ended() {
        return outcome.and_then(|()| Err(anyhow!("the test had not noticed"))).context(ended);
    }
    outcome?;
    ensure!(pins || !fs::exists(PINS)?, "{}", again::PINS_LEFT);
    Ok(())
}

/// Waits until a test may run, and returns the lock that the test must hold.
fn turn(is_beside: bool) -> Result<Flock<File>> {
    let _turnstile = lock("podperf-tests.turnstile", FlockArg::LockExclusive)?;
    let how = if is_beside { FlockArg::LockShared } else { FlockArg::LockExclusive };
    lock("podperf-tests.lock", how)
}

fn lock(name: &str, how: FlockArg) -> Result<Flock<File>> {
    let path = std::env::temp_dir().join(name);
    // A lock needs no write permission, and the file may belong to another user.
    let file = File::open(&path).or_else(|_absent| File::options().append(true).create(true).open(&path));
    let file = file.with_context(|| format!("failed to open lock `{}`", path.display()))?;
    Flock::lock(file, how).map_err(|(_, error)| error.into())
}

/// Prints a figure on stderr, so that `make test` also shows it.
pub fn tell(figure: &str) {
    writeln!(io::stderr(), "\n  {figure}").ok();
}

/// Calls `look` until it returns a value, and returns an error at the [`Deadline`].
pub fn within<T>(limit: Duration, what: &str, mut look: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    let deadline = Deadline::begin(limit);
    loop {
        if let Some(found) = look()? {
            return Ok(found);
        }
        deadline.check(|| what.to_owned())?;
        thread::sleep(LOOK_EVERY);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_runs_only_the_named_tests_and_rejects_an_unknown_name() -> Result<()> {
        let test = |name| Test { name, ..crate::tests![any => || Ok(())][0] };
        let ring = ["a_burner", "a_burner_by_the_raw_tracepoint", "a_ring"].map(test);
        let names = |only| -> Result<Vec<_>> { Ok(super::only(&ring, only)?.iter().map(|test| test.name).collect()) };
        assert_eq!(names(None)?.len(), 3);
        assert_eq!(names(Some("a_ring,a_burner"))?, ["a_ring", "a_burner"]);
        let share = |text| -> Result<Vec<_>> { Ok(share(ring.to_vec(), text)?.iter().map(|test| test.name).collect()) };
        assert_eq!([share(Some("0/2"))?, share(Some("1/2"))?], [vec!["a_burner", "a_ring"], vec![ring[1].name]]);
        assert_eq!(share(None)?.len(), 3);
        assert!(["2/2", "1", "a/b", ""].iter().all(|text| share(Some(text)).is_err()));
        let error = names(Some("a_ring,a_rin")).err().context("a part of a name was accepted")?;
        assert!(error.to_string().contains("`a_rin`"), "{error}");
        Ok(())
    }
}
