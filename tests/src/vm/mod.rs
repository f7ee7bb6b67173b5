//! `make vm`: ring 2 on a row of kernels, each in an emulated machine.
//!
//! Each kernel is one row in `rows.rs`. The shell scripts in `tests/vm` fetch, build and pack. This module boots the
//! guests, and turns their output into results.

mod document;
mod guest;
mod outcome;
pub mod rows;

use std::{
    collections::{HashMap, hash_map::Entry},
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};
use clap::Args;

use guest::Emulator;
use outcome::{Outcome, Report};
use rows::{Machine, ROWS, Row};

/// `podperf-vm`.
#[derive(Args, Clone, Debug)]
pub struct VmArgs {
    /// Rows to boot, all if absent
    #[arg(long, value_delimiter = ',')]
    pub rows: Vec<String>,
    /// Rows that are not booted: their last logs are read again
    #[arg(long, value_delimiter = ',')]
    pub logged: Vec<String>,
    /// Run only the tests of ring 2 whose names contain this
    #[arg(long)]
    pub filter: Option<String>,
    /// Leave out tests that take long and differ little between kernels
    #[arg(long)]
    pub quick: bool,
    /// Write the table here when all rows have run in full
    #[arg(long)]
    pub document: Option<PathBuf>,
}

/// The result of one row.
#[derive(Debug)]
struct Ran {
    row: &'static Row,
    report: Report,
    boot: Option<Duration>,
    whole: Option<Duration>,
    qemu: String,
}

/// Tests that a quick run leaves out: the other tracepoint, long counting, and most of the tests of restarts.
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
];

/// Boots the rows, one after the other, and prints the results on stdout. Returns `false` if anything failed.
pub fn run(args: &VmArgs) -> Result<bool> {
    let rows = chosen(&args.rows)?;
    let mut tests: Vec<&str> = args.filter.iter().map(String::as_str).collect();
    let skip = format!("skip={}", LONG.join(","));
    if args.quick {
        tests.push(&skip);
    }
    let mut initramfs: HashMap<Machine, PathBuf> = HashMap::new();
    let is_logged = |row: &Row| args.logged.iter().any(|name| name == row.name);
    for row in rows.iter().filter(|row| !is_logged(row)) {
        if let Entry::Vacant(absent) = initramfs.entry(row.machine) {
            absent.insert(pack(row.machine)?);
        }
    }
    let mut all = Vec::new();
    for row in &rows {
        let ran = if is_logged(row) { logged(row)? } else { boot(row, &initramfs[&row.machine], &tests)? };
        say(&ran);
        all.push(ran);
    }
    print(&document::text(&all));
    let failed = all.iter().flat_map(|ran| &ran.report.tests).any(|test| matches!(test.outcome, Outcome::Failed(_)));
    if let Some(document) = args.document.as_ref().filter(|_| rows.len() == ROWS.len() && tests.is_empty()) {
        fs::write(document, document::markdown(&all))
            .with_context(|| format!("failed to write `{}`", document.display()))?;
    }
    Ok(!failed)
}

fn chosen(names: &[String]) -> Result<Vec<&'static Row>> {
    if names.is_empty() {
        return Ok(ROWS.iter().collect());
    }
    let known = || ROWS.iter().map(|row| row.name).collect::<Vec<_>>().join(", ");
    let find = |name: &String| ROWS.iter().find(|row| row.name == name);
    names.iter().map(|name| find(name).with_context(|| format!("no row `{name}` (there are {})", known()))).collect()
}

fn boot(row: &'static Row, initramfs: &Path, tests: &[&str]) -> Result<Ran> {
    let emulator = Emulator::fetch(row.machine)?;
    let session = emulator.boot(row, initramfs, tests, &log(row))?;
    let report = Report::read(row, &session.console, session.cut.as_deref());
    Ok(Ran { row, report, boot: session.boot, whole: Some(session.whole), qemu: emulator.version()? })
}

/// Returns a row's result from its last log.
fn logged(row: &'static Row) -> Result<Ran> {
    let log = log(row);
    let console = fs::read(&log).with_context(|| format!("failed to read `{}` (boot the row)", log.display()))?;
    let report = Report::read(row, &String::from_utf8_lossy(&console), None);
    Ok(Ran { row, report, boot: None, whole: None, qemu: Emulator::fetch(row.machine)?.version()? })
}

fn log(row: &Row) -> PathBuf {
    directory().join(format!("{}.log", row.name))
}

/// Builds and packs the initramfs that this machine boots. Cargo decides which parts are up to date.
fn pack(machine: Machine) -> Result<PathBuf> {
    let arch = machine.arch();
    let programs = script("vm", "build.sh", &[arch])?;
    let out = directory().join(format!("{arch}.cpio")).display().to_string();
    let mut pack = vec![out.clone(), programs];
    for (package, parts) in machine.tools() {
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

/// Prints one row's line, and its failures, as soon as they are known.
fn say(ran: &Ran) {
    print(&document::line(ran));
    for test in &ran.report.tests {
        if let Outcome::Failed(message) = &test.outcome {
            print(&format!("vm: {} FAILED {}: {message}\n", ran.row.name, test.test));
        }
    }
}

#[expect(clippy::print_stdout, reason = "the result is for the terminal")]
fn print(text: &str) {
    print!("{text}");
}
