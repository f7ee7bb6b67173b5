//! `make vm`: ring 2 on a row of kernels, each in an emulated machine.
//!
//! Each kernel is one row in `rows.rs`. The shell scripts in `tests/vm` fetch, build and pack. This module boots the
//! guests, and turns their output into results.

mod document;
mod guest;
mod outcome;
mod record;
pub mod rows;

use std::{
    collections::{HashMap, hash_map::Entry},
    env::consts::ARCH,
    fs,
    io::ErrorKind,
    panic::resume_unwind,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
};

use anyhow::{Context as _, Result, bail, ensure};
use clap::Args;

use guest::{Emulator, Session};
use outcome::{Outcome, Report};
use record::Record;
use rows::{Machine, ROWS, Row, Work};

/// `podperf-vm`.
#[derive(Args, Clone, Debug)]
pub struct VmArgs {
    /// Rows to boot, all if absent
    #[arg(long, value_delimiter = ',')]
    pub rows: Vec<String>,
    /// Run only the tests of ring 2 whose names contain this
    #[arg(long)]
    pub filter: Option<String>,
    /// Run only the tests of ring 2 with these whole names, and fail if one of them cannot run
    #[arg(long, value_delimiter = ',', conflicts_with_all = ["filter", "quick"])]
    pub only: Vec<String>,
    /// Leave out tests that take long and differ little between kernels
    #[arg(long)]
    pub quick: bool,
    /// Boot the programs of a debug build, which are built already on a machine that runs the tests
    #[arg(long, requires = "only")]
    pub dev: bool,
    /// Renew the columns of these rows in this page, and their records in the folder of the same name, by a run of all
    /// tests
    #[arg(long)]
    pub document: Option<PathBuf>,
    /// Boot nothing: name the rows whose record in `docs/kernels` is missing, failed, or of older programs
    #[arg(long, conflicts_with_all = ["rows", "filter", "only", "quick", "dev"])]
    pub check: bool,
}

/// The most guests that run the tests of one row at a time. Each takes 1 GiB.
const MOST_GUESTS: usize = 4;

/// Tests that a quick run leaves out: the other tracepoint, long counting, the long tests of unwinding, most of the
/// upgrades, and tests that show what the agent does on any kernel.
const LONG: &[&str] = &[
    "_by_the_raw_tracepoint",
    "six_software_events",
    "a_counter_of",
    "a_pmu_event",
    "the_programs_account",
    "kills_at_random",
    "kills_amid_upgrades",
    "upgrades_to_another_layout_and_back",
    "other_programs_take_over",
    "over_restarts_and_upgrades",
    "the_key_of_stack_ids",
    "dumped_maps",
    "without_frame_pointers",
    "two_stacks_of_one_call_site",
    "the_other_unwinding",
    "calls_go_on_over",
    "only_errors_are_counted",
    "a_refused_call",
    "a_call_that_begins_again",
    "a_call_over_an_upgrade",
    "a_reload_of_the_depth",
    "a_pod_with_many_files",
    "counts_follow_the_name",
    "a_recording_ends_early",
    "readers_have_no_function",
    "that_is_not_in_the_file",
    "up_to_each_reading_without_stacks",
    "its_quota_is_throttled_without_stacks",
    "histograms_go_on",
    "without_the_sensor",
    "excluded_cgroups",
    "a_dead_row_ends",
    "a_cap_on_the_cost",
    "a_load_over_the_cap",
    "a_damaged_file",
    "without_a_checkpoint",
    "what_is_pinned",
    "what_only_one_layout_has",
    "that_do_not_say_what_they_hold",
    "over_upgrades_and_kills",
];

/// Boots the rows, one after the other, and prints the results on stdout. Returns `false` if anything failed.
pub fn run(args: &VmArgs) -> Result<bool> {
    if args.check {
        return check(args.document.as_deref());
    }
    let rows = chosen(&args.rows)?;
    let mut tests: Vec<String> = args.filter.iter().cloned().collect();
    if args.quick {
        tests.push(format!("skip={}", LONG.join(",")));
    }
    if !args.only.is_empty() {
        tests.push(format!("only={}", args.only.join(",")));
    }
    // A record says which programs it is of, so it is of a commit.
    let mut page = args.document.as_deref().filter(|_| tests.is_empty());
    if page.is_some() && !git(&["status", "--porcelain", "--", "ebpf"])?.is_empty() {
        print("vm: this run gets no record: `ebpf` has uncommitted changes (commit them, then run again)\n");
        page = None;
    }
    let programs = if page.is_some() { programs()? } else { "-".to_owned() };
    let mut initramfs: HashMap<Machine, PathBuf> = HashMap::new();
    for row in &rows {
        if let Entry::Vacant(absent) = initramfs.entry(row.machine) {
            absent.insert(pack(row.machine, args.dev)?);
        }
    }
    let mut all = Vec::new();
    for row in rows {
        let record = boot(row, &initramfs[&row.machine], &tests, &args.only, &programs)?;
        if let Some(page) = page {
            let path = record_of(&page.with_extension(""), row);
            fs::write(&path, record.text()).with_context(|| format!("failed to write `{}`", path.display()))?;
        }
        all.push((row.name, record));
    }
    let columns: Vec<_> = all.iter().map(|(name, record)| (*name, record)).collect();
    print(&document::text(&columns, &programs));
    if let Some(page) = page {
        write(page)?;
    }
    Ok(!all.iter().any(|(_, record)| record.has_failed()))
}

/// Returns the names of the rows whose record in `docs/kernels` is missing, failed, or not of the programs of the last
/// commit.
///
/// # Errors
///
/// When a record cannot be read, or git does not know the commit.
pub fn outdated() -> Result<Vec<String>> {
    Ok(record::outdated(&records(&sources().join("docs/kernels"))?, &programs()?))
}

/// Prints the names of the outdated rows, and returns whether there are none. A page gets its marks again.
fn check(page: Option<&Path>) -> Result<bool> {
    if let Some(page) = page {
        write(page)?;
    }
    let outdated = outdated()?;
    if !outdated.is_empty() {
        let rows = outdated.join(",");
        print(&format!("vm: no good record of these programs: {rows} (run `make vm ROWS={rows}`)\n"));
    }
    Ok(outdated.is_empty())
}

/// Writes the page of all records.
fn write(page: &Path) -> Result<()> {
    let records = records(&page.with_extension(""))?;
    let columns: Vec<_> = records.iter().filter_map(|(name, record)| Some((*name, record.as_ref()?))).collect();
    fs::write(page, document::markdown(&columns, &programs()?))
        .with_context(|| format!("failed to write `{}`", page.display()))
}

/// Returns the records of all rows, in the order of the table.
fn records(directory: &Path) -> Result<Vec<(&'static str, Option<Record>)>> {
    let read = |row: &'static Row| {
        let path = record_of(directory, row);
        let record = match fs::read_to_string(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok((row.name, None)),
            text => text.map_err(Into::into).and_then(|text| Record::parse(&text)),
        };
        Ok((row.name, Some(record.with_context(|| format!("failed to read `{}`", path.display()))?)))
    };
    ROWS.iter().map(read).collect()
}

fn record_of(directory: &Path, row: &Row) -> PathBuf {
    directory.join(format!("{}.txt", row.name))
}

/// Returns the id of the BPF programs of the last commit.
fn programs() -> Result<String> {
    git(&["rev-parse", "--short=12", "HEAD:ebpf"])
}

fn git(arguments: &[&str]) -> Result<String> {
    said(Command::new("git").arg("-C").arg(sources()).args(arguments))
}

/// Returns what a command prints on stdout.
fn said(command: &mut Command) -> Result<String> {
    let output = command.stderr(Stdio::inherit()).output().with_context(|| format!("failed to run {command:?}"))?;
    ensure!(output.status.success(), "{command:?} failed: {}", output.status);
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}

fn chosen(names: &[String]) -> Result<Vec<&'static Row>> {
    if names.is_empty() {
        return Ok(ROWS.iter().collect());
    }
    let known = || ROWS.iter().map(|row| row.name).collect::<Vec<_>>().join(", ");
    let find = |name: &String| ROWS.iter().find(|row| row.name == name);
    names.iter().map(|name| find(name).with_context(|| format!("no row `{name}` (there are {})", known()))).collect()
}

/// Boots one row, and prints its results as soon as they are known.
fn boot(row: &'static Row, initramfs: &Path, tests: &[String], only: &[String], programs: &str) -> Result<Record> {
    let emulator = Emulator::fetch(row.machine)?;
    // An emulated machine takes one CPU of this one, however many it has.
    let is_whole = matches!(row.work, Work::Tests) && tests.iter().all(|test| test.starts_with("skip="));
    let guests = if is_whole { thread::available_parallelism().map_or(1, usize::from).min(MOST_GUESTS) } else { 1 };
    let log = &|guest: usize| match guests {
        1 => format!("{}.log", row.name),
        _ => format!("{}-{guest}.log", row.name),
    };
    let boot = &|guest: usize| {
        let share = (guests > 1).then(|| format!("{guest}/{guests}"));
        emulator.boot(row, initramfs, tests, share, &directory().join(log(guest)))
    };
    let sessions = thread::scope(|scope| {
        let running: Vec<_> = (0..guests).map(|guest| scope.spawn(move || boot(guest))).collect();
        let ended = running.into_iter().map(|guest| guest.join().unwrap_or_else(|panic| resume_unwind(panic)));
        ended.collect::<Result<Vec<_>>>()
    })?;
    let read =
        |(guest, session): (usize, &Session)| Report::read(row, &log(guest), &session.console, session.cut.as_deref());
    let mut report = Report::together(sessions.iter().enumerate().map(read).collect());
    let mut required = only.to_vec();
    // Without the thing that its tests need, a guest that boots for them alone would show nothing.
    if matches!(row.work, Work::Some(_)) && tests.is_empty() {
        ensure!(!report.tests.is_empty(), "no test ran in guest `{}`", row.name);
        required.extend(report.tests.iter().map(|ended| ended.test.clone()));
    }
    report.require(&required);
    let version = emulator.version()?;
    let facts = [
        report.kernel.unwrap_or_else(|| "did not boot".to_owned()),
        row.machine.arch().to_owned(),
        version.split(" (").next().unwrap_or_default().replace("emulator version ", ""),
        said(Command::new("date").args(["-u", "+%F"]))?,
        programs.to_owned(),
        report.verified.unwrap_or_else(|| "-".to_owned()),
    ];
    let record = Record { facts, tests: report.tests };
    let longest = sessions.iter().map(|session| session.whole).max().unwrap_or_default();
    print(&document::line((row.name, &record), longest));
    for test in &record.tests {
        if let Outcome::Failed(message) = &test.outcome {
            print(&format!("vm: {} FAILED {}: {message}\n", row.name, test.test));
        }
    }
    Ok(record)
}

/// Builds and packs the initramfs that this machine boots. Cargo decides which parts are up to date.
fn pack(machine: Machine, dev: bool) -> Result<PathBuf> {
    let arch = machine.arch();
    ensure!(!dev || arch == ARCH, "a debug build is for {ARCH} only, not for {arch} (leave out `--dev`)");
    let (name, programs) =
        if dev { ("dev", script("vm", "dev.sh", &[])?) } else { (arch, script("vm", "build.sh", &[arch])?) };
    let out = directory().join(format!("{name}.cpio")).display().to_string();
    let mut pack = vec![out.clone(), programs];
    // The tests of a landing need no perf.
    for (package, parts) in rows::TOOLS.iter().filter(|(package, _)| !dev || *package != rows::PERF) {
        pack.push(script("vm", "unpack.sh", &[rows::TOOLS_SUITE, machine.debian_arch(), package, parts])?);
    }
    script("vm", "initramfs.sh", &pack.iter().map(String::as_str).collect::<Vec<_>>())?;
    Ok(out.into())
}

/// Returns the directory of everything that is fetched, built or logged.
fn directory() -> PathBuf {
    sources().join("target/vm")
}

fn sources() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new("."))
}

/// Returns a command of an emulator for a machine like this one, for uses outside of ring 2.
pub fn emulator() -> Result<Command> {
    Emulator::fetch(if cfg!(target_arch = "aarch64") { Machine::Arm64 } else { Machine::X86_64 })?.command()
}

/// Runs a script in a directory of `tests`, and returns the path that it prints. The script prints its progress and
/// errors itself.
pub fn script(directory: &str, name: &str, arguments: &[&str]) -> Result<String> {
    let path = sources().join("tests").join(directory).join(name);
    let output = Command::new(&path).args(arguments).stderr(Stdio::inherit()).output();
    let output = output.with_context(|| format!("failed to run `{}`", path.display()))?;
    if !output.status.success() {
        bail!("`tests/{directory}/{name} {}` failed", arguments.join(" "));
    }
    let text = String::from_utf8(output.stdout)?;
    let line = text.trim();
    ensure!(!line.contains('\n'), "`tests/{directory}/{name}` printed more than a path: {line}");
    Ok(line.to_owned())
}

#[expect(clippy::print_stdout, reason = "the result is for the terminal")]
fn print(text: &str) {
    print!("{text}");
}
