//! Runs promtool's tests on mutants, many in one process, and the quickest tests first.
//!
//! Stories are excluded: a rule's own tests must be enough.

use std::{
    ffi::OsString,
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use tempfile::TempDir;

use super::{
    super::{RULES, RuleFile, TESTS, files_in, is_story, root},
    Mutation,
};

/// Number of mutants in one process.
const BATCH: usize = 50;

/// The outcome for a list of mutants.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    /// Mutants with which all tests pass, by their index.
    pub(super) survivors: Vec<usize>,
    /// Number of mutants that are no PromQL.
    pub(super) invalid: usize,
}

/// A file of tests, cut into its cases.
struct Test {
    name: OsString,
    /// The text before the first case.
    head: String,
    cases: Vec<String>,
    takes: Duration,
}

/// Some cases of a file.
struct Step<'a> {
    test: &'a Test,
    cases: Vec<&'a str>,
}

impl Test {
    fn read(path: &Path) -> Result<Self> {
        let text = fs::read_to_string(path)?;
        let start = Instant::now();
        let output = Command::new("promtool").args(["test", "rules"]).arg(path).output();
        let output = output.context("failed to run promtool")?;
        let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        ensure!(output.status.success(), "the tests fail as it is: {said}");
        let mut parts = text.split("\n  - name: ");
        let head = parts.next().unwrap_or_default().to_owned();
        let cases = parts.map(|case| format!("\n  - name: {case}")).collect();
        let name = path.file_name().context("a test without a name")?.to_owned();
        Ok(Self { name, head, cases, takes: start.elapsed() })
    }
}

/// Runs the tests that read a mutant's file until one fails. For a mutant that `is_equivalent`, runs only the cases
/// with its rule.
pub(super) fn run(
    files: &[RuleFile],
    mutations: &[Mutation],
    is_equivalent: impl Fn(&Mutation) -> bool,
) -> Result<Outcome> {
    let mut tests = Vec::new();
    for path in files_in(&root().join(TESTS), "_test.yaml")? {
        if !is_story(&path) {
            tests.push(Test::read(&path)?);
        }
    }
    tests.sort_by_key(|test| test.takes);
    let mut outcome = Outcome::default();
    // For each mutant, the remaining steps, with the next one last.
    let steps = mutations.iter().map(|mutation| steps(mutation, &tests, is_equivalent(mutation)));
    let mut open: Vec<(usize, Vec<Step<'_>>)> = steps.enumerate().collect();
    loop {
        let (left, done): (Vec<_>, Vec<_>) = open.into_iter().partition(|(_, steps)| !steps.is_empty());
        outcome.survivors.extend(done.into_iter().map(|(index, _)| index));
        open = Vec::new();
        if left.is_empty() {
            outcome.survivors.sort_unstable();
            return Ok(outcome);
        }
        let mut left = left.into_iter().peekable();
        while left.peek().is_some() {
            let batch: Vec<_> = left.by_ref().take(BATCH).collect();
            let said = run_batch(files, mutations, &batch)?;
            for ((index, mut steps), said) in batch.into_iter().zip(said) {
                if said.contains("could not parse expression") {
                    outcome.invalid += 1;
                } else if said.contains("SUCCESS") {
                    steps.pop();
                    open.push((index, steps));
                }
            }
        }
    }
}

/// Returns the steps in reverse order: first run the cases that name the rule, and then all other cases of files that
/// read the rule's file.
fn steps<'a>(mutation: &Mutation, tests: &'a [Test], is_equivalent: bool) -> Vec<Step<'a>> {
    let reads = |test: &&Test| test.head.contains(&format!("/{}", mutation.file));
    let mut steps = Vec::new();
    for names in [true, false] {
        for test in tests.iter().filter(reads) {
            let is_wanted = |case: &&String| case.contains(&mutation.rule) == names;
            let cases: Vec<&str> = test.cases.iter().filter(is_wanted).map(String::as_str).collect();
            if !cases.is_empty() && (names || !is_equivalent) {
                steps.push(Step { test, cases });
            }
        }
    }
    steps.reverse();
    steps
}

/// Returns promtool's output for the next step of each mutant.
fn run_batch(files: &[RuleFile], mutations: &[Mutation], batch: &[(usize, Vec<Step<'_>>)]) -> Result<Vec<String>> {
    let directory = TempDir::new()?;
    let mut paths = Vec::new();
    for (place, (index, steps)) in batch.iter().enumerate() {
        let step = steps.last().context("no step is left")?;
        paths.push(lay_out(&directory.path().join(format!("m{place}")), files, &mutations[*index], step)?);
    }
    let output = Command::new("promtool").args(["test", "rules"]).args(&paths).output();
    let output = output.context("failed to run promtool")?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let parts: Vec<String> = said.split("Unit Testing:  ").skip(1).map(str::to_owned).collect();
    ensure!(parts.len() == batch.len(), "promtool speaks of {} of {} files: {said}", parts.len(), batch.len());
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    let errors: Vec<&str> = errors.split("  FAILED:").skip(1).collect();
    let mut failed = errors.iter();
    // Failures are in the other stream, in the same order.
    Ok(parts
        .into_iter()
        .map(
            |part| {
                if part.contains("SUCCESS") { part } else { failed.next().map_or(part, |error| (*error).to_owned()) }
            },
        )
        .collect())
}

/// Makes a tree with the mutant and the cases of a step, and returns the path of the cases.
fn lay_out(directory: &Path, files: &[RuleFile], mutation: &Mutation, step: &Step<'_>) -> Result<PathBuf> {
    let (rules, tests) = (directory.join(RULES), directory.join(TESTS));
    fs::create_dir_all(&rules)?;
    fs::create_dir_all(&tests)?;
    for file in files {
        if file.name == mutation.file {
            fs::write(rules.join(&file.name), &mutation.text)?;
        } else {
            symlink(fs::canonicalize(root().join(RULES).join(&file.name))?, rules.join(&file.name))?;
        }
    }
    let path = tests.join(&step.test.name);
    fs::write(&path, format!("{}{}\n", step.test.head, step.cases.concat()))?;
    Ok(path)
}
