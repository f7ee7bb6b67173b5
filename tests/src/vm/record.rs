//! The record of a row's last full run, which is a file of `docs/kernels`. Pure.

use std::fmt::Write as _;

use anyhow::{Context as _, Result};

use super::outcome::{Ended, Outcome};

/// The titles of a run's facts, in the order of a record's first lines.
pub(super) const FACTS: [&str; 6] = ["kernel", "architecture", "emulator", "date", "programs", VERIFIED];
/// The title of the sizes of the BPF programs. The line that a test prints about them begins with it, too.
pub(super) const VERIFIED: &str = "verified instructions";
/// The place of the programs' id in [`FACTS`]: the first digits of git's id of the folder `ebpf`.
pub(super) const PROGRAMS: usize = 4;

/// The facts and the outcomes of one run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Record {
    /// The values of [`FACTS`].
    pub(super) facts: [String; FACTS.len()],
    /// The tests, in the order in which they ran.
    pub(super) tests: Vec<Ended>,
}

impl Record {
    /// Returns the text of the file: a line for each fact, an empty line, and a line for each test.
    pub(super) fn text(&self) -> String {
        let mut text = String::new();
        for (title, fact) in FACTS.iter().zip(&self.facts) {
            let _ = writeln!(text, "{title}: {fact}");
        }
        text.push('\n');
        for Ended { test, outcome } in &self.tests {
            let (word, reason) = match outcome {
                Outcome::Passed => ("passed", ""),
                Outcome::Unsupported(reason) => ("unsupported", reason.as_str()),
                Outcome::Failed(message) => ("FAILED", message.as_str()),
            };
            let line: Vec<&str> = [test.as_str(), word].into_iter().chain(reason.split_whitespace()).collect();
            let _ = writeln!(text, "{}", line.join(" "));
        }
        text
    }

    /// Reads the text of the file.
    ///
    /// # Errors
    ///
    /// When a fact is missing, or a line is not that of a test.
    pub(super) fn parse(text: &str) -> Result<Self> {
        let mut lines = text.lines();
        let mut facts = FACTS.map(str::to_owned);
        for fact in &mut facts {
            let value = lines.next().and_then(|line| line.strip_prefix(fact.as_str())?.strip_prefix(": "));
            *fact = value.with_context(|| format!("no line `{fact}: ...`"))?.to_owned();
        }
        let ended = |line: &str| {
            let (test, rest) = line.split_once(' ')?;
            let (word, reason) = rest.split_once(' ').unwrap_or((rest, ""));
            let outcome = match word {
                "passed" => Outcome::Passed,
                "unsupported" => Outcome::Unsupported(reason.to_owned()),
                "FAILED" => Outcome::Failed(reason.to_owned()),
                _ => return None,
            };
            Some(Ended { test: test.to_owned(), outcome })
        };
        let tests = lines.filter(|line| !line.is_empty());
        let tests = tests.map(|line| ended(line).with_context(|| format!("no outcome of a test: `{line}`")));
        Ok(Self { facts, tests: tests.collect::<Result<_>>()? })
    }

    /// Returns whether the run was one of the programs with this id.
    pub(super) fn is_of(&self, programs: &str) -> bool {
        self.facts[PROGRAMS] == programs
    }

    /// Returns whether a test failed.
    pub(super) fn has_failed(&self) -> bool {
        self.tests.iter().any(|test| matches!(test.outcome, Outcome::Failed(_)))
    }
}

/// Returns the rows that have no record, one without tests or with a failed test, or one of programs with another id.
pub(super) fn outdated(records: &[(&str, Option<Record>)], programs: &str) -> Vec<String> {
    let is_good = |record: &Record| record.is_of(programs) && !record.tests.is_empty() && !record.has_failed();
    let outdated = records.iter().filter(|(_, record)| !record.as_ref().is_some_and(is_good));
    outdated.map(|&(row, _)| row.to_owned()).collect()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::vm) fn record(programs: &str, outcome: Outcome) -> Record {
        let facts = ["6.1.0-50-cloud-amd64", "x86_64", "QEMU 10.0.13", "2026-11-25", programs, "-"].map(str::to_owned);
        let passed = Ended { test: "a_first_test".to_owned(), outcome: Outcome::Passed };
        Record { facts, tests: vec![passed, Ended { test: "a_test".to_owned(), outcome }] }
    }

    #[test]
    fn a_record_is_what_was_written() -> Result<()> {
        for outcome in [
            Outcome::Passed,
            Outcome::Unsupported("no `perf`: 1 of 2".to_owned()),
            Outcome::Failed("passed | at 5 %".to_owned()),
            Outcome::Failed(String::new()),
        ] {
            let record = record("0123456789ab", outcome);
            assert_eq!(Record::parse(&record.text())?, record);
        }
        let lines = record("0123456789ab", Outcome::Failed("one\n  two\n".to_owned())).text();
        assert!(lines.ends_with("a_test FAILED one two\n"), "{lines}");
        Ok(())
    }

    #[test]
    fn a_damaged_record_is_rejected() {
        let text = record("0123456789ab", Outcome::Passed).text();
        for (from, to) in [("date: ", "day: "), ("a_test passed", "a_test"), ("a_test passed", "a_test ignored")] {
            assert!(Record::parse(&text.replace(from, to)).is_err(), "{from} -> {to}");
        }
    }

    #[test]
    fn a_row_is_outdated_without_a_record_or_with_one_that_failed_or_is_older() {
        let records = [
            ("good", Some(record("now", Outcome::Unsupported("no `perf`".to_owned())))),
            ("missing", None),
            ("failed", Some(record("now", Outcome::Failed("wrong".to_owned())))),
            ("empty", Some(Record { tests: Vec::new(), ..record("now", Outcome::Passed) })),
            ("older", Some(record("then", Outcome::Passed))),
        ];
        assert_eq!(outdated(&records, "now"), ["missing", "failed", "empty", "older"]);
    }
}
