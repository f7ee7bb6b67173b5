//! Runs the tests of a ring. A test is alone on the machine unless its row has the mark `#[beside]`. A test that lacks
//! something on the machine is ignored, and the runner counts it and prints its name.
//!
//! Rings run as several programs, also from several checkouts, and share two locks. A test that is alone holds the
//! first lock exclusively, and tests beside others share it. The second lock is a turnstile: a test holds it while it
//! waits to be alone, so that no further test starts beside the tests that still run.

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
/// The usual directory of pins. Programs that a test leaves there go on counting beside all later tests.
const PINS: &str = "/sys/fs/bpf/podperf";
/// The variable that makes the runner print the times of all tests.
const TIMES: &str = "PODPERF_TIMES";
/// Number of tests of one ring that run at the same time. They mostly wait, so the number exceeds the CPUs of a small
/// machine.
const AT_ONCE: usize = 4;

/// One test. [`tests!`](crate::tests) makes the rows of a ring.
#[derive(Clone, Copy, Debug)]
pub struct Test {
    /// The name, which is a sentence.
    pub name: &'static str,
    /// The needs of the test beyond root.
    pub needs: &'static [Need],
    /// The test itself.
    pub body: fn() -> Result<()>,
    /// `true` if no other test may run at the same time.
    pub is_alone: bool,
}

/// Returns rows of tests. A row is `name`, `name: NEEDS` or `name: NEEDS => body`; without a body, the function of that
/// name is the test. The mark `#[beside]` allows a test to run while other tests do. Such a test asserts nothing that
/// needs a machine of its own, such as sums over all rows, costs, budgets, tight times, or the absence of other pods.
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
    /// A directory whose files are on a disk, not in memory.
    Disk(&'static str),
    /// A controller of the cgroup2 tree.
    Controller(&'static str),
}

/// The variable that makes tests with a variable size run at their largest size.
const LONG: &str = "PODPERF_LONG";

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

/// Returns whether a PMU of this name in sysfs belongs to the CPUs themselves.
pub fn is_core_pmu(name: &str) -> bool {
    ["cpu", "cpu_core"].contains(&name) || name.starts_with("armv8_")
}

/// The tests that have run, with the duration of each.
type Times = Arc<Mutex<Vec<(Duration, &'static str)>>>;

/// Runs the tests of one ring: first the tests beside others, and then the remaining tests one by one. A test that
/// lacks something on the machine is ignored, and printed with the missing thing. At the end it prints the slowest
/// tests.
#[must_use]
pub fn run(tests: &[Test]) -> ExitCode {
    let root = nix::unistd::geteuid().is_root();
    // An emulated machine has no time to spare. If one test runs at a time, its name is printed before it runs.
    let is_guest = has_own_machine();
    let one = is_guest || tests.iter().all(|test| test.is_alone);
    run_at_once(if one { 1 } else { AT_ONCE }, tests, (!root).then_some("not root"))
}

/// Runs a ring that needs no root. All of its tests run beside others, one per CPU at a time.
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
            let (start, pins) = (Instant::now(), fs::exists(PINS)?);
            let outcome = body();
            times.lock().unwrap_or_else(PoisonError::into_inner).push((start.elapsed(), name));
            outcome?;
            ensure!(pins || !fs::exists(PINS)?, "an agent left its pins in `{PINS}`");
            Ok(())
        };
        Trial::test(title, move || test().map_err(|error| Failed::from(format!("{error:#}"))))
            .with_ignored_flag(lacks.is_some())
    };
    let (alone, beside): (Vec<_>, Vec<_>) = tests.iter().partition(|test| test.is_alone);
    beside.into_iter().chain(alone).map(trial).collect()
}

/// Waits until a test may run, and returns the lock that the test must hold.
fn turn(is_alone: bool) -> Result<Flock<File>> {
    let _turnstile = lock("podperf-tests.turnstile", FlockArg::LockExclusive)?;
    lock("podperf-tests.lock", if is_alone { FlockArg::LockExclusive } else { FlockArg::LockShared })
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

/// Calls `look` until it returns a value, and returns an error at the deadline.
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
