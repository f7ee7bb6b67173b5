//! `make rules-mutation`: spoils each rule in one way after the other. promtool's tests must fail each time.
//!
//! `operators` has the ways to spoil an expression, `lexer` splits an expression into words, and `runner` runs the
//! tests. One promtool runs at a time with a batch of mutants, since most of the cost of a small test is the start of a
//! process.

mod lexer;
mod operators;
mod runner;

use std::{collections::BTreeSet, fs};

use anyhow::{Context as _, Result, ensure};

use super::{Rule, RuleFile, read, root};

/// The file of mutants that mean the same as the rule, each with the reason: rule, mutant, reason.
pub const EQUIVALENT: &str = "tests/rules/equivalent-mutants.yaml";

/// A rule with a deliberate mistake.
#[derive(Clone, Debug)]
pub struct Mutation {
    /// The name of the rule.
    pub rule: String,
    /// The description of the change, unique in the rule.
    pub what: String,
    /// The name of the rule's file.
    pub file: String,
    /// The file's text with the change.
    pub text: String,
}

/// Spoils each rule in each way, and prints the mutants that no test detects. `filter` is a part of the rule's name.
/// Returns whether all mutants were detected.
#[expect(clippy::print_stdout, reason = "the outcome of a command")]
pub fn run(filter: Option<&str>) -> Result<bool> {
    let files = read()?;
    let is_wanted = |mutation: &Mutation| filter.is_none_or(|filter| mutation.rule.contains(filter));
    let mutations: Vec<Mutation> = files.iter().flat_map(mutations).filter(is_wanted).collect();
    let equivalent = equivalent()?;
    let is_equivalent = |mutation: &Mutation| equivalent.contains(&(mutation.rule.clone(), mutation.what.clone()));
    for (rule, what) in &equivalent {
        let is_there = filter.is_some() || mutations.iter().any(|m| m.rule == *rule && m.what == *what);
        ensure!(is_there, "{EQUIVALENT}: {rule} has no mutant `{what}`");
    }
    let outcome = runner::run(&files, &mutations, is_equivalent)?;
    let of = |mutation: &Mutation, list: &[usize]| list.iter().any(|&index| std::ptr::eq(&mutations[index], mutation));
    let (mut missed, mut excused) = (0, 0);
    for mutation in mutations.iter().filter(|mutation| of(mutation, &outcome.survivors)) {
        if is_equivalent(mutation) {
            excused += 1;
        } else {
            missed += 1;
            println!("not noticed: {}: {}", mutation.rule, mutation.what);
        }
    }
    let noticed: Vec<&Mutation> = mutations.iter().filter(|mutation| !of(mutation, &outcome.survivors)).collect();
    let stale: Vec<_> = noticed.iter().filter(|mutation| is_equivalent(mutation)).collect();
    for mutation in &stale {
        println!("noticed, though {EQUIVALENT} has it: {}: {}", mutation.rule, mutation.what);
    }
    let total = mutations.len() - outcome.invalid - excused;
    println!(
        "{} of {total} mutants noticed; {excused} mean the same as the rule, {} are no PromQL",
        total - missed,
        outcome.invalid
    );
    Ok(missed == 0 && stale.is_empty())
}

fn equivalent() -> Result<BTreeSet<(String, String)>> {
    let text = fs::read_to_string(root().join(EQUIVALENT)).context(EQUIVALENT)?;
    let rows: Vec<(String, String, String)> = serde_yaml::from_str(&text).context(EQUIVALENT)?;
    let mut found = BTreeSet::new();
    for (rule, what, reason) in rows {
        ensure!(reason.len() > 20, "{EQUIVALENT}: {rule}: `{what}` has no reason");
        ensure!(found.insert((rule.clone(), what.clone())), "{EQUIVALENT}: {rule} has `{what}` twice");
    }
    Ok(found)
}

/// Returns all mutants of the rules of a file.
#[must_use]
pub fn mutations(file: &RuleFile) -> Vec<Mutation> {
    let mut mutations = Vec::new();
    for rule in &file.rules {
        let mut add = |what: String, lines: Vec<String>| {
            let (rule, file) = (rule.name.clone(), file.name.clone());
            mutations.push(Mutation { rule, what, file, text: lines.join("\n") + "\n" });
        };
        for (what, expression) in operators::mutants(&file.expression(rule)) {
            let mut lines = file.lines.clone();
            lines.splice(rule.expression.clone(), expression.lines().map(str::to_owned));
            add(what, lines);
        }
        for (what, line, text) in waits(file, rule) {
            let mut lines = file.lines.clone();
            lines[line] = text;
            add(what, lines);
        }
    }
    mutations
}

/// Returns a mutant of an alert that waits two minutes less, and one that waits two minutes more.
fn waits(file: &RuleFile, rule: &Rule) -> Vec<(String, usize, String)> {
    let Some(line) = rule.all.clone().find(|&line| file.lines[line].trim_start().starts_with("for: ")) else {
        return Vec::new();
    };
    let Some((indent, time)) = file.lines[line].split_once("for: ") else { return Vec::new() };
    let Ok(minutes) = time.trim_end_matches('m').parse::<u32>() else { return Vec::new() };
    let changed = [minutes - 2, minutes + 2];
    changed.map(|to| (format!("for {minutes}m -> {to}m"), line, format!("{indent}for: {to}m"))).into()
}
