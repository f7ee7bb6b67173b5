//! `make rules-mutation`: each rule is spoilt, one way after the other, and promtool's tests must notice each time.

use std::{
    fs,
    process::{Command, Stdio},
    sync::atomic::{AtomicUsize, Ordering},
    thread,
};

use anyhow::{Context as _, Result, ensure};
use tempfile::TempDir;

use super::{RULES, Rule, RuleFile, TESTS, files_in, read, root};

/// Promtools at a time.
const AT_ONCE: usize = 2;

/// A rule that is not as it should be.
#[derive(Clone, Debug)]
pub struct Mutation {
    /// Which rule, and what was done to it.
    pub what: String,
    rule: String,
    file: String,
    text: String,
}

/// Spoils each rule each way, and prints what nobody noticed. Whether all was noticed.
#[expect(clippy::print_stdout, reason = "the outcome of a command")]
pub fn run() -> Result<bool> {
    let files = read()?;
    let mutations: Vec<Mutation> = files.iter().flat_map(mutations).collect();
    let unspoilt = Mutation { what: "nothing".into(), rule: String::new(), file: String::new(), text: String::new() };
    ensure!(!is_noticed(&files, &unspoilt)?, "the tests fail as it is");
    let next = AtomicUsize::new(0);
    let missed: Vec<String> = thread::scope(|scope| {
        let workers: Vec<_> = (0..AT_ONCE)
            .map(|_| {
                scope.spawn(|| -> Result<Vec<String>> {
                    let mut missed = Vec::new();
                    while let Some(mutation) = mutations.get(next.fetch_add(1, Ordering::Relaxed)) {
                        if !is_noticed(&files, mutation)? {
                            missed.push(mutation.what.clone());
                        }
                    }
                    Ok(missed)
                })
            })
            .collect();
        let outcomes = workers.into_iter().map(|worker| worker.join().ok().context("a worker panicked")?);
        outcomes.collect::<Result<Vec<_>>>().map(|missed| missed.concat())
    })?;
    for what in &missed {
        println!("not noticed: {what}");
    }
    println!("{} passed, {} failed", mutations.len() - missed.len(), missed.len());
    Ok(missed.is_empty())
}

/// All ways to spoil the rules of a file.
#[must_use]
pub fn mutations(file: &RuleFile) -> Vec<Mutation> {
    let mut mutations = Vec::new();
    for rule in &file.rules {
        let mut add = |what: String, lines: Vec<String>| {
            let what = format!("{} {what}", rule.name);
            let (rule, file) = (rule.name.clone(), file.name.clone());
            mutations.push(Mutation { what, rule, file, text: lines.join("\n") + "\n" });
        };
        let mut disabled = file.lines.clone();
        disabled.splice(rule.expression.clone(), ["          vector(0) > 1".to_owned()]);
        add("disabled".into(), disabled);
        for line in rule.expression.clone() {
            if let Some((threshold, loosened)) = loosen(&file.lines[line]) {
                add(format!("with threshold {threshold} as `{}`", loosened.trim()), with_line(file, line, loosened));
            }
        }
        if let Some((line, sooner)) = sooner(file, rule) {
            add(format!("with `{}`", sooner.trim()), with_line(file, line, sooner));
        }
    }
    mutations
}

fn with_line(file: &RuleFile, line: usize, text: String) -> Vec<String> {
    let mut lines = file.lines.clone();
    lines[line] = text;
    lines
}

/// The name of the threshold in a line, and the line with one that more will pass.
fn loosen(line: &str) -> Option<(&str, String)> {
    let (before, name) = line.split_once(" # threshold ")?;
    let (head, number) = before.rsplit_once(' ')?;
    let (indent, operator) = head.rsplit_once(' ').unwrap_or(("", head));
    let number: f64 = number.parse().ok()?;
    let loosened = match operator.trim() {
        ">" if number == 0.0 => ">= 0".to_owned(),
        ">" | ">=" => format!("{operator} {}", number / 2.0),
        "<" | "<=" => format!("{operator} {}", number * 1.5),
        _ => return None,
    };
    Some((name, format!("{indent} {}", loosened.trim())))
}

/// The line with `for`, and it with half of the time.
fn sooner(file: &RuleFile, rule: &Rule) -> Option<(usize, String)> {
    let line = rule.all.clone().find(|&line| file.lines[line].trim_start().starts_with("for: "))?;
    let (indent, time) = file.lines[line].split_once("for: ")?;
    let minutes: u32 = time.trim_end_matches('m').parse().ok()?;
    Some((line, format!("{indent}for: {}m", minutes / 2)))
}

/// Whether a test fails with the mutation in place. Of the tests, those that speak of the rule, where any do.
fn is_noticed(files: &[RuleFile], mutation: &Mutation) -> Result<bool> {
    let directory = TempDir::new()?;
    let (rules, tests) = (directory.path().join(RULES), directory.path().join(TESTS));
    fs::create_dir_all(&rules)?;
    fs::create_dir_all(&tests)?;
    for file in files {
        let text = if file.name == mutation.file { mutation.text.clone() } else { file.lines.join("\n") + "\n" };
        fs::write(rules.join(&file.name), text)?;
    }
    let mut all = Vec::new();
    for path in files_in(&root().join(TESTS), "_test.yaml")? {
        let text = fs::read_to_string(&path)?;
        let copy = tests.join(path.file_name().context("a test without a name")?);
        fs::write(&copy, &text)?;
        all.push((text.contains(&mutation.rule), copy));
    }
    // A recording is tested through what stands on it.
    let any = all.iter().any(|(speaks, _)| *speaks);
    let chosen =
        all.iter().filter(|(speaks, _)| *speaks || !any).chain(all.iter().filter(|(speaks, _)| any && !speaks));
    for (_, test) in chosen {
        let mut command = Command::new("promtool");
        command.args(["test", "rules"]).arg(test).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        if !command.status().context("failed to run promtool")?.success() {
            return Ok(true);
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loosened_threshold_is_passed_by_more() {
        for (line, name, loosened) in [
            ("  > 0.25 # threshold share", "share", "  > 0.125"),
            ("  < 0.6 # threshold share", "share", "  < 0.8999999999999999"),
            ("  >= 60 # threshold points", "points", "  >= 30"),
            ("> 0 # threshold containers", "containers", " >= 0"),
            ("  > 3e8 # threshold cycles", "cycles", "  > 150000000"),
        ] {
            let (found, text) = loosen(line).unwrap();
            assert_eq!((found, text.trim()), (name, loosened.trim()), "{line}");
        }
        assert_eq!(loosen("> 0.25"), None);
    }

    #[test]
    fn every_threshold_of_the_files_is_one_that_can_be_loosened() {
        for file in read().unwrap() {
            let thresholds = file.lines.iter().filter(|line| line.contains(" # threshold "));
            thresholds.for_each(|line| assert!(loosen(line).is_some(), "{}: {line}", file.name));
        }
    }
}
