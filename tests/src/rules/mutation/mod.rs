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

#[cfg(test)]
mod tests {
    use super::*;

    /// Mistakes that a review of the rules made by hand: a rule, and the mutant that is this mistake. Ten of these 26
    /// were not noticed by the tests of that time. A rule has changed its numbers since then; the mistake is the same.
    const REVIEWED: &[(&str, &str)] = &[
        ("PodperfWorkloadLowIPC", "3e8 -> 255000000"),
        ("namespace_workload_cpuid:podperf_instructions_per_cycle:yesterday", "20 -> 17"),
        ("PodperfPodCPIOutlier", "3.5 -> 2.975"),
        ("PodperfContainerRunqueueWait", "0.25 -> 0.2125"),
        ("namespace_workload:podperf_instructions_per_cycle:ratio_rate1d", "1d -> 43200s"),
        ("namespace_pod:podperf_replica:info", "cluster out of on #2"),
        ("PodperfCountersMultiplexed", "0.8 -> 0.68"),
        ("PodperfCgroupsUnresolved", "0.05 -> 0.0425"),
        ("PodperfHighOverhead", "avg_over_time -> max_over_time"),
        ("PodperfNodeNotCovered", "cluster out of on"),
        ("PodperfWorkloadLowIPC", "0.6 -> 0.51"),
        ("PodperfWorkloadLowIPC", "0.6 -> 0.69"),
        ("PodperfPodCPIOutlier", ">= -> >"),
        ("PodperfPodCPIOutlier", "1.3 -> 1.495"),
        ("PodperfContainerRunqueueWait", "0.05 -> 0.0575"),
        ("namespace_workload:podperf_instructions_per_cycle:ratio_rate1d", "offset 1h dropped"),
        ("namespace_pod_container:podperf_instructions_per_cycle:ratio_rate5m", "1e7 -> 8500000"),
        ("namespace_workload_pod:podperf_cycles_per_instruction:ratio_rate5m", "0.25 -> 0.2125"),
        ("namespace_workload_pod:podperf_cycles_per_instruction:zscore_ratio_rate5m", "0.02 -> 0.017"),
        ("namespace_workload_pod:podperf_cycles_per_instruction:zscore_ratio_rate5m", "0.6745 -> 0.775675"),
        ("namespace_workload:podperf_cycles_per_instruction:median_ratio_rate5m", "0.5 -> 0.7"),
        ("namespace_workload:podperf_wasted_cores:rate1h", "clamp_min -> clamp_max"),
        ("PodperfKubeWatchStale", "900 -> 1035"),
        ("PodperfHighOverhead", "0.02 -> 0.023"),
        ("PodperfCountersUnavailable", "0 -> 0.1"),
        ("PodperfStackCoverageLow", "{reason!=\"unknown\"} dropped"),
    ];

    #[test]
    fn each_mistake_of_the_review_is_a_mutant() {
        let mutants: BTreeSet<(String, String)> =
            read().unwrap().iter().flat_map(mutations).map(|Mutation { rule, what, .. }| (rule, what)).collect();
        assert_eq!(REVIEWED.len(), 26);
        for (rule, what) in REVIEWED {
            assert!(mutants.contains(&((*rule).into(), (*what).into())), "{rule} has no mutant `{what}`");
        }
    }
}
