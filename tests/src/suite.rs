//! Runs the tests of a ring. A test is alone on the machine unless its row says that it may run beside others, and a test
//! whose machine lacks something is counted and named.
//!
//! Rings run as several programs, also of several checkouts, and share two locks. A test that is alone holds the first
//! exclusively; tests beside others share it. The second one is a turnstile: a test that waits to be alone holds it, so
//! that no further test starts beside those that still run.

use std::{
    cmp::Reverse,
    fs::{self, File},
    io::{self, Write as _},
    process::ExitCode,
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use libtest_mimic::{Arguments, Failed, Trial};
use nix::{
    fcntl::{Flock, FlockArg},
    sys::statfs::{FsType, TMPFS_MAGIC, statfs},
};

use crate::cgroup;

/// `RAMFS_MAGIC` of the kernel's `magic.h`.
const RAMFS_MAGIC: FsType = FsType(0x8584_58f6);
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// The number of tests that are printed with their time.
const SLOWEST: usize = 10;
/// Prints the times of all tests where it is set.
const TIMES: &str = "PODPERF_TIMES";
/// Tests of one ring that run beside each other. They mostly wait, so they are more than the CPUs of a small machine.
const AT_ONCE: usize = 4;

/// One test. [`tests!`](crate::tests) makes the rows of a ring.
#[derive(Clone, Copy, Debug)]
pub struct Test {
    /// A sentence.
    pub name: &'static str,
    /// What it needs beyond root.
    pub needs: &'static [Need],
    /// The test itself.
    pub body: fn() -> Result<()>,
    /// No other test runs meanwhile.
    pub is_alone: bool,
}

/// Returns rows of tests. A row is `name`, `name: NEEDS` or `name: NEEDS => body`; without a body, the function of that name
/// is the test. The mark `#[beside]` says that a test may run while others do: it asserts nothing that holds only for a
/// machine of its own, such as sums over all rows, costs, budgets, tight times, or that there is no other pod.
#[macro_export]
macro_rules! tests {
    (@needs) => { &[] };
    (@needs $needs:expr) => { $needs };
    (@body $name:ident) => { $name };
    (@body $name:ident $body:expr) => { $body };
    (@is_alone) => { true };
    (@is_alone beside) => { false };
    ($($(#[$class:ident])? $name:ident $(: $needs:expr)? $(=> $body:expr)?),* $(,)?) => {
        &[$($crate::suite::Test {
            name: stringify!($name),
            needs: $crate::tests!(@needs $($needs)?),
            body: $crate::tests!(@body $name $($body)?),
            is_alone: $crate::tests!(@is_alone $($class)?),
        }),*]
    };
}

/// What a machine may lack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// A program on the path.
    Program(&'static str),
    /// A file or directory.
    Path(&'static str),
    /// A machine that nobody else uses, such as a guest of `make vm`: [`OWN_MACHINE`] is set.
    OwnMachine,
    /// A CPU whose hardware counters the kernel can use.
    HardwarePmu,
    /// That many CPUs.
    Cpus(usize),
    /// A directory whose files are on a disk, not in memory.
    Disk(&'static str),
    /// A controller of the cgroup2 tree.
    Controller(&'static str),
}

/// Set where tests whose size is a choice are to be as large as they get.
const LONG: &str = "PODPERF_LONG";

/// Set where tests may take CPUs offline and counters away.
pub const OWN_MACHINE: &str = "PODPERF_TESTS_OWN_MACHINE";

impl Need {
    fn lacks(self) -> Option<String> {
        match self {
            Self::Program(name) => {
                let path = std::env::var_os("PATH").unwrap_or_default();
                let found = std::env::split_paths(&path).any(|directory| directory.join(name).exists());
                (!found).then(|| format!("no `{name}`"))
            }
            Self::OwnMachine => {
                std::env::var_os(OWN_MACHINE).is_none().then(|| "not a machine of its own (see `make vm`)".to_owned())
            }
            Self::Path(path) => (!std::path::Path::new(path).exists()).then(|| format!("no `{path}`")),
            Self::HardwarePmu => {
                let pmus = fs::read_dir("/sys/bus/event_source/devices").into_iter().flatten().flatten();
                let mut names = pmus.map(|pmu| pmu.file_name().to_string_lossy().into_owned());
                (!names.any(|name| is_core_pmu(&name))).then(|| "no hardware PMU".to_owned())
            }
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

/// Whether tests whose size is a choice are to be as large as they get.
#[must_use]
pub fn long() -> bool {
    std::env::var_os(LONG).is_some()
}

/// Whether a PMU of this name in sysfs is one of the CPUs themselves.
pub fn is_core_pmu(name: &str) -> bool {
    ["cpu", "cpu_core"].contains(&name) || name.starts_with("armv8_")
}

/// The tests that have run, and how long each took.
type Times = Arc<Mutex<Vec<(Duration, &'static str)>>>;

/// Runs the tests of one ring: first those beside others, then the others one by one. A test whose machine lacks
/// something is ignored, counted and named with what it lacks. At the end it prints where the time went.
#[must_use]
pub fn run(tests: &[Test]) -> ExitCode {
    let root = nix::unistd::geteuid().is_root();
    // An emulated machine has no time to spare. One test at a time is named before it runs.
    let is_guest = std::env::var_os(OWN_MACHINE).is_some();
    let one = is_guest || tests.iter().all(|test| test.is_alone);
    run_at_once(if one { 1 } else { AT_ONCE }, tests, (!root).then_some("not root"))
}

/// The same for a ring that needs no root. All of its tests run beside others, as many as there are CPUs.
#[must_use]
pub fn run_beside_others(tests: &[Test]) -> ExitCode {
    let tests: Vec<_> = tests.iter().map(|&test| Test { is_alone: false, ..test }).collect();
    run_at_once(thread::available_parallelism().map_or(1, usize::from), &tests, None)
}

fn run_at_once(count: usize, tests: &[Test], lacks: Option<&str>) -> ExitCode {
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(count);
    let times = Times::default();
    let conclusion = libtest_mimic::run(&arguments, trials(tests, lacks, &times));
    let mut times = std::mem::take(&mut *times.lock().unwrap_or_else(PoisonError::into_inner));
    times.sort_by_key(|&(time, _)| Reverse(time));
    if std::env::var_os(TIMES).is_none() {
        times.truncate(SLOWEST);
    }
    let lines: String = times.iter().map(|(time, name)| format!("\n  {:6.1} s  {name}", time.as_secs_f64())).collect();
    if !lines.is_empty() {
        tell(&format!("the longest tests:{lines}"));
    }
    conclusion.exit_code()
}

fn trials(tests: &[Test], lacks: Option<&str>, times: &Times) -> Vec<Trial> {
    let trial = |&Test { name, needs, body, is_alone }: &Test| {
        let lacks = lacks.map(str::to_owned).or_else(|| needs.iter().find_map(|need| need.lacks()));
        let title = lacks.as_ref().map_or_else(|| name.to_owned(), |lacks| format!("{name} (skipped: {lacks})"));
        let times = Arc::clone(times);
        let test = move || {
            let _turn = turn(is_alone)?;
            let start = Instant::now();
            let outcome = body();
            times.lock().unwrap_or_else(PoisonError::into_inner).push((start.elapsed(), name));
            outcome
        };
        Trial::test(title, move || test().map_err(|error| Failed::from(format!("{error:#}"))))
            .with_ignored_flag(lacks.is_some())
    };
    let (alone, beside): (Vec<_>, Vec<_>) = tests.iter().partition(|test| test.is_alone);
    beside.into_iter().chain(alone).map(trial).collect()
}

/// Waits until a test may run, and returns the lock that it holds meanwhile.
fn turn(is_alone: bool) -> Result<Flock<File>> {
    let _turnstile = lock("podperf-tests.turnstile", FlockArg::LockExclusive)?;
    lock("podperf-tests.lock", if is_alone { FlockArg::LockExclusive } else { FlockArg::LockShared })
}

fn lock(name: &str, how: FlockArg) -> Result<Flock<File>> {
    let path = std::env::temp_dir().join(name);
    // A lock needs no right to write, and the file may be another user's.
    let file = File::open(&path).or_else(|_absent| File::options().append(true).create(true).open(&path));
    let file = file.with_context(|| format!("failed to open lock `{}`", path.display()))?;
    Flock::lock(file, how).map_err(|(_, error)| error.into())
}

/// Prints a figure for the record, on stderr so that `make test` shows it too.
pub fn tell(figure: &str) {
    writeln!(io::stderr(), "\n  {figure}").ok();
}

/// Asks until there is an answer; an error when there is none in time.
pub fn within<T>(deadline: Duration, what: &str, mut look: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    let start = Instant::now();
    loop {
        if let Some(found) = look()? {
            return Ok(found);
        }
        ensure!(start.elapsed() < deadline, "not within {deadline:?}: {what}");
        thread::sleep(LOOK_EVERY);
    }
}
