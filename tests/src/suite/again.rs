//! The second and third run of a failure that may be noise of the machine. Such a test runs again, alone and on a quiet
//! machine. It is broken if it fails each time, and unsteady if it passes later. Too many unsteady tests fail a ring,
//! since a real fault may hide among them.

use std::{
    fmt::Write as _,
    fs,
    io::Write as _,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result};

use super::{Noise, Test, tell};
use crate::{
    agent::{ENDED_EARLY, PANICKED},
    deadline,
    rules::root,
    weather::Weather,
};

/// The number of runs of a test, with the first.
const RUNS: usize = 3;
/// A ring with more unsteady tests fails: those that failed in calm weather, and all.
const MOST_IN_CALM: usize = 3;
const MOST: usize = 8;
/// The number of characters of an error that are kept.
const MOST_OF_TEXT: usize = 300;
pub(super) const PINS_LEFT: &str = "an agent left its pins in `/sys/fs/bpf/podperf`";
/// Errors with these texts are never noise.
const NEVER: [&str; 3] = [ENDED_EARLY, PINS_LEFT, PANICKED];

/// A test that returned an error.
#[derive(Clone, Debug)]
pub(super) struct Failure {
    test: Test,
    text: String,
    weather: Weather,
    may_be_noise: bool,
}

/// The result of one run of some rows.
#[derive(Debug)]
pub(super) struct Outcome {
    /// Number of tests that failed. It exceeds the number of failures by the panics.
    pub(super) failed: usize,
    /// The tests that returned an error.
    pub(super) failures: Vec<Failure>,
    /// The tests that ran and passed.
    pub(super) passed: Vec<&'static str>,
}

/// A test that passed in a later run.
#[derive(Debug)]
struct Unsteady {
    failure: Failure,
    passed_in: usize,
}

/// The result of a ring with all runs.
#[derive(Debug)]
pub(super) struct Verdict {
    broken: usize,
    unsteady: Vec<Unsteady>,
}

impl Failure {
    /// Judges the error of a test that ran in this weather.
    pub(super) fn of(test: Test, error: &anyhow::Error, weather: Weather) -> Self {
        let text = format!("{error:#}");
        let is_never = test.noise == Noise::Never || NEVER.iter().any(|never| text.contains(never));
        let may_be_noise = !is_never && (test.noise == Noise::Any || deadline::is_late(error));
        Self { test, text, weather, may_be_noise }
    }
}

impl Outcome {
    /// Returns the failures that may be noise, and the number of all others.
    pub(super) fn split(self) -> (Vec<Failure>, usize) {
        let noise: Vec<_> = self.failures.into_iter().filter(|failure| failure.may_be_noise).collect();
        let broken = self.failed.saturating_sub(noise.len());
        (noise, broken)
    }

    /// Adds failures of another part.
    pub(super) fn add(&mut self, others: Vec<Failure>) {
        self.failed += others.len();
        self.failures.extend(others);
    }
}

/// Runs the failures that may be noise again by `run`, until each has passed or has had its last run.
pub(super) fn settle(first: Outcome, mut run: impl FnMut(&[Test]) -> Outcome) -> Verdict {
    let (mut waiting, mut broken) = first.split();
    let mut unsteady = Vec::new();
    for passed_in in 2..=RUNS {
        // A ring that fails anyway need not wait for a quiet machine.
        if waiting.is_empty() || broken > 0 || waiting.len() > MOST {
            break;
        }
        let rows: Vec<Test> = waiting.iter().map(|failure| failure.test).collect();
        let again = run(&rows);
        for failure in std::mem::take(&mut waiting) {
            let later = again.failures.iter().find(|again| again.test.name == failure.test.name && again.may_be_noise);
            if again.passed.contains(&failure.test.name) {
                unsteady.push(Unsteady { failure, passed_in });
            } else if let Some(later) = later {
                // The failure in the calmer weather says more.
                waiting.push(if later.weather.is_calm() { later.clone() } else { failure });
            } else {
                // Another error, a panic, or no run at all.
                broken += 1;
            }
        }
    }
    Verdict { broken: broken + waiting.len(), unsteady }
}

impl Verdict {
    /// Returns whether the ring passed.
    pub(super) fn is_green(&self) -> bool {
        let in_calm = self.unsteady.iter().filter(|one| one.failure.weather.is_calm()).count();
        self.broken == 0 && in_calm <= MOST_IN_CALM && self.unsteady.len() <= MOST
    }

    /// Prints the unsteady tests, and keeps them in `unsteady.tsv` in podperf's cache.
    pub(super) fn report(&self) -> Result<()> {
        if self.unsteady.is_empty() {
            return Ok(());
        }
        let ring = program();
        let (date, commit) = (said("date", &["-u", "+%FT%TZ"]), said("git", &["rev-parse", "--short", "HEAD"]));
        let mut kept = String::new();
        for Unsteady { failure: Failure { test, text, weather, .. }, passed_in } in &self.unsteady {
            let (name, text) = (test.name, end_of(&one_line(text)));
            let hint = if weather.is_calm() { ": look for a race" } else { "" };
            tell(&format!("unsteady: {ring} {name} passed in run {passed_in} ({weather}){hint}: {text}"));
            let _ = writeln!(kept, "{date}\t{commit}\t{ring}\t{name}\t{passed_in}\t{weather}\t{text}");
        }
        let green = if self.is_green() { "" } else { ", too many: the ring fails" };
        tell(&format!("unsteady tests of `{ring}`: {}{green}", self.unsteady.len()));
        let path = cache().join("unsteady.tsv");
        fs::create_dir_all(cache())?;
        let mut file = fs::File::options().append(true).create(true).open(&path);
        file.as_mut()
            .map_err(|error| anyhow::anyhow!("{error}"))
            .and_then(|file| Ok(file.write_all(kept.as_bytes())?))
            .with_context(|| format!("failed to write `{}`", path.display()))
    }
}

/// Leaves failures of the part beside others to the part that is alone.
pub(super) fn leave(noise: &[Failure]) -> Result<()> {
    fs::create_dir_all(left().parent().context("no directory")?)?;
    fs::write(left(), write(noise)).with_context(|| format!("failed to write `{}`", left().display()))?;
    for failure in noise {
        tell(&format!("left to the end: {}", failure.test.name));
    }
    Ok(())
}

/// Takes the failures that the part beside others has left.
pub(super) fn take(tests: &[Test]) -> Result<Vec<Failure>> {
    let text = fs::read_to_string(left());
    let text = text.with_context(|| format!("no `{}`: the part beside others has not run", left().display()))?;
    fs::remove_file(left())?;
    read(&text, tests)
}

/// Writes failures as lines: name, stolen, waited, text.
fn write(failures: &[Failure]) -> String {
    let line = |Failure { test, text, weather, .. }: &Failure| {
        format!("{}\t{}\t{}\t{}\n", test.name, weather.stolen, weather.waited, one_line(text))
    };
    failures.iter().map(line).collect()
}

fn read(text: &str, tests: &[Test]) -> Result<Vec<Failure>> {
    let failure = |line: &str| {
        let fields: Vec<&str> = line.splitn(4, '\t').collect();
        let [name, stolen, waited, text] = fields[..] else { anyhow::bail!("not a failure: `{line}`") };
        let test = *tests.iter().find(|test| test.name == name).with_context(|| format!("no row `{name}`"))?;
        let weather = Weather { stolen: stolen.parse()?, waited: waited.parse()? };
        Ok(Failure { test, text: text.to_owned(), weather, may_be_noise: true })
    };
    text.lines().map(failure).collect()
}

/// Returns the end of a line: the cause of an error stands behind its contexts, such as a log.
fn end_of(line: &str) -> String {
    line.chars().skip(line.chars().count().saturating_sub(MOST_OF_TEXT)).collect()
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn left() -> PathBuf {
    root().join("target/landing").join(program())
}

/// Returns the ring's name: that of the program, without the hash that cargo appends.
fn program() -> String {
    let path = std::env::current_exe().unwrap_or_default();
    let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    stem.rsplit_once('-').map_or(stem.clone(), |(name, _)| name.to_owned())
}

/// Returns podperf's directory for what outlives a checkout.
fn cache() -> PathBuf {
    let home = || Path::new(&std::env::var_os("HOME").unwrap_or_else(|| "/tmp".into())).join(".cache");
    std::env::var_os("XDG_CACHE_HOME").map_or_else(home, PathBuf::from).join("podperf")
}

fn said(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).current_dir(root()).output();
    output.map_or_else(|_absent| "-".into(), |output| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use anyhow::{bail, ensure};
    use libtest_mimic::Arguments;

    use super::*;
    use crate::{deadline::Deadline, suite::run_once};

    const CALM: Weather = Weather { stolen: 0.0, waited: 0.0 };
    const STORM: Weather = Weather { stolen: 0.0, waited: 0.9 };

    /// A body that fails in its first run, and in no other.
    macro_rules! fails_once {
        () => {
            || {
                static RUN: AtomicUsize = AtomicUsize::new(0);
                ensure!(RUN.fetch_add(1, Ordering::Relaxed) > 0, "this run was the first");
                Ok(())
            }
        };
    }

    /// Runs rows as a landing does, without locks and without a wait for a quiet machine, in this weather.
    fn land(rows: &[Test], weather: Weather) -> Verdict {
        let run = |rows: &[Test]| {
            let logfile = Some("/dev/null".to_owned());
            let arguments = Arguments { test_threads: Some(1), logfile, ..Arguments::default() };
            let mut outcome = run_once(&arguments, rows, |_| None, &|_: &Test| Ok(()), &Default::default());
            outcome.failures.iter_mut().for_each(|failure| failure.weather = weather);
            outcome
        };
        settle(run(rows), run)
    }

    fn seen(verdict: &Verdict) -> (usize, usize, bool) {
        (verdict.broken, verdict.unsteady.len(), verdict.is_green())
    }

    #[test]
    fn a_measurement_that_fails_once_is_unsteady_and_one_that_always_fails_is_broken() {
        let rows: &[Test] = crate::tests![#[measures] steady => || Ok(()), #[measures] once => fails_once!()];
        assert_eq!(seen(&land(rows, CALM)), (0, 1, true));
        let rows: &[Test] = crate::tests![#[measures] always => || bail!("always")];
        assert_eq!(seen(&land(rows, STORM)), (1, 0, false));
    }

    #[test]
    fn a_missed_deadline_is_tried_again_unless_the_row_is_exact() {
        fn late_once(run: &AtomicUsize) -> Result<()> {
            let is_first = run.fetch_add(1, Ordering::Relaxed) == 0;
            let limit = std::time::Duration::from_secs(if is_first { 0 } else { 9 });
            Ok(Deadline::begin(limit).check(|| "it is there".into())?)
        }
        macro_rules! late_once {
            () => {
                || {
                    static RUN: AtomicUsize = AtomicUsize::new(0);
                    late_once(&RUN)
                }
            };
        }
        let rows: &[Test] = crate::tests![alone => late_once!(), #[beside] beside => late_once!()];
        assert_eq!(seen(&land(rows, STORM)), (0, 2, true));
        let rows: &[Test] = crate::tests![#[exact] exact => late_once!()];
        assert_eq!(seen(&land(rows, STORM)), (1, 0, false));
    }

    #[test]
    fn a_later_run_with_another_error_or_without_a_result_is_broken() {
        static RUN: AtomicUsize = AtomicUsize::new(0);
        let rows: &[Test] = crate::tests![changes => || {
            ensure!(RUN.fetch_add(1, Ordering::Relaxed) == 0, "a count was lost");
            Ok(Deadline::begin(std::time::Duration::ZERO).check(|| "it is there".into())?)
        }];
        assert_eq!((seen(&land(rows, STORM)), RUN.load(Ordering::Relaxed)), ((1, 0, false), 2));
        let failure = |text: &str, weather| Failure { test: rows[0], text: text.into(), weather, may_be_noise: true };
        let nothing = || Outcome { failed: 0, failures: Vec::new(), passed: Vec::new() };
        let first = || Outcome { failed: 1, failures: vec![failure("beside", STORM)], ..nothing() };
        assert_eq!(seen(&settle(first(), |_| nothing())), (1, 0, false), "it did not run");

        let calm = || Outcome { failed: 1, failures: vec![failure("alone", CALM)], ..nothing() };
        let mut later = vec![Outcome { passed: vec![rows[0].name], ..nothing() }, calm()];
        let verdict = settle(first(), |_| later.pop().unwrap_or_else(nothing));
        assert_eq!((seen(&verdict), verdict.unsteady[0].failure.text.as_str()), ((0, 1, true), "alone"));
        assert!(verdict.unsteady[0].failure.weather.is_calm(), "the failure alone is the one that is told");
    }

    #[test]
    fn exact_rows_panics_and_agents_that_ended_are_never_tried_again() {
        let rows: &[Test] = crate::tests![#[exact] exact => fails_once!()];
        assert_eq!(seen(&land(rows, STORM)), (1, 0, false));
        let rows: &[Test] = crate::tests![alone => fails_once!()];
        assert_eq!(seen(&land(rows, STORM)), (1, 0, false), "no deadline was missed");
        static PANICS: AtomicUsize = AtomicUsize::new(0);
        let rows: &[Test] = crate::tests![#[measures] panics => || {
            assert!(PANICS.fetch_add(1, Ordering::Relaxed) > 0, "the first run");
            Ok(())
        }];
        assert_eq!((seen(&land(rows, STORM)), PANICS.load(Ordering::Relaxed)), ((1, 0, false), 1));
        for text in ["podperf ended early (signal: 11)", PINS_LEFT, "thread 'main' panicked at agent/src/a.rs:1:1"] {
            let test = crate::tests![#[measures] gone => || Ok(())][0];
            assert!(!Failure::of(test, &anyhow::anyhow!("{text}"), STORM).may_be_noise, "{text}");
        }
    }

    #[test]
    fn too_many_unsteady_tests_fail_the_ring() {
        let four: &[Test] = crate::tests![#[measures] a => fails_once!(), #[measures] b => fails_once!(),
            #[measures] c => fails_once!(), #[measures] d => fails_once!()];
        assert_eq!(seen(&land(four, CALM)), (0, 4, false));
        let four: &[Test] = crate::tests![#[measures] a => fails_once!(), #[measures] b => fails_once!(),
            #[measures] c => fails_once!(), #[measures] d => fails_once!()];
        assert_eq!(seen(&land(four, STORM)), (0, 4, true));
        let always = crate::tests![#[measures] always => || bail!("always")][0];
        assert_eq!(seen(&land(&[always; 9], STORM)), (9, 0, false), "nine are not tried again");
    }

    #[test]
    fn failures_that_are_left_to_the_next_part_are_read_back() -> Result<()> {
        let rows: &[Test] = crate::tests![one => || Ok(()), two => || Ok(())];
        let failure = Failure { test: rows[1], text: "a\n\tb".into(), weather: STORM, may_be_noise: true };
        let found = read(&write(&[failure]), rows)?;
        assert_eq!((found[0].test.name, found[0].text.as_str(), found[0].weather), ("two", "a b", STORM));
        assert_eq!(end_of(&("log ".repeat(MOST_OF_TEXT) + "why")).chars().count(), MOST_OF_TEXT);
        assert!(
            end_of("a log: why").ends_with("why")
                && read("three\t0\t0\tx\n", rows).is_err()
                && read("two\n", rows).is_err()
        );
        Ok(())
    }
}
