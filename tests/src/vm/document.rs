//! The table of tests and kernels, for the terminal and for `docs/kernels.md`. Pure.

use std::{fmt::Write as _, time::Duration};

use super::{
    outcome::Outcome,
    record::{FACTS, PROGRAMS, Record},
};

/// The start of `docs/kernels.md`.
const HEAD: &str = "\
# Kernels

This page has the results of ring 2 of the tests (`tests/kernel`) on a row of Debian's kernels. Each test compares the
agent's numbers with a load whose numbers are known. `make vm` writes this file: it builds podperf without shared
libraries, boots each kernel in an emulated machine, and runs the tests there. No hardware virtualization is needed, so
every machine gives the same table. Each change boots Linux 6.1 only, with a debug build, and runs one of the tests
there (`make vm-land`).

Each column is of the last full run on its kernel ([`docs/kernels`](kernels) has these runs). `programs` is git's id of
the folder `ebpf` in that run. A column says `of older programs` if that folder has changed since then.

Time in the guests is counted in instructions (`-icount`), so what else the host does is not seen.

| mark | means |
|---|---|
| passed | the test ran there and passed |
| unsupported | it did not run there; the number leads to what the machine lacks |
| FAILED | podperf is wrong there, or the test is |
| - | not for this kernel, or not in this run |
";

/// A column of the table: the name of its row of kernels, and the run.
pub(super) type Column<'a> = (&'a str, &'a Record);

/// Returns one row in one line.
pub(super) fn line((name, record): Column<'_>, whole: Duration) -> String {
    let [passed, unsupported, failed] = counts(record);
    format!(
        "vm: {name} ({}): {passed} passed, {unsupported} unsupported, {failed} failed in {:.0} s\n",
        record.facts[0],
        whole.as_secs_f64()
    )
}

/// Returns the table for a terminal: columns of equal width. `programs` is the id of the programs of now.
pub(super) fn text(columns: &[Column<'_>], programs: &str) -> String {
    let table = Table::of(columns, programs);
    let mut widths = vec![0; columns.len() + 1];
    for row in &table.rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.len());
        }
    }
    let mut text = String::new();
    for row in &table.rows {
        let cells: Vec<String> = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        let _ = writeln!(text, "{}", cells.join("  ").trim_end());
    }
    for (number, reason) in table.reasons.iter().enumerate() {
        let _ = writeln!(text, "[{}] {reason}", number + 1);
    }
    text
}

/// Returns the whole text of `docs/kernels.md`. `programs` is the id of the programs of now.
pub(super) fn markdown(columns: &[Column<'_>], programs: &str) -> String {
    let table = Table::of(columns, programs);
    let mut text = format!("{HEAD}\n");
    for (number, row) in table.rows.iter().enumerate() {
        let _ = writeln!(text, "| {} |", row.join(" | "));
        if number == 0 {
            let _ = writeln!(text, "|{}", "---|".repeat(row.len()));
        }
    }
    text.push('\n');
    for (number, reason) in table.reasons.iter().enumerate() {
        let _ = writeln!(text, "{}. {}", number + 1, reason.replace('|', "\\|"));
    }
    text
}

struct Table {
    rows: Vec<Vec<String>>,
    reasons: Vec<String>,
}

impl Table {
    fn of(columns: &[Column<'_>], programs: &str) -> Self {
        let mut table = Self { rows: Vec::new(), reasons: Vec::new() };
        let mut row = |title: &str, cell: &dyn Fn(Column<'_>) -> String| {
            table.rows.push([title.to_owned()].into_iter().chain(columns.iter().copied().map(cell)).collect());
        };
        row("", &|(name, _)| name.to_owned());
        for (number, title) in FACTS.iter().enumerate() {
            row(title, &|(_, record)| {
                let is_older = number == PROGRAMS && !record.is_of(programs);
                format!("{}{}", record.facts[number], if is_older { " of older programs" } else { "" })
            });
        }
        row("passed, unsupported, failed", &|(_, record)| counts(record).map(|count| count.to_string()).join(", "));
        let mut names: Vec<&str> = Vec::new();
        for test in columns.iter().flat_map(|(_, record)| &record.tests) {
            if !names.contains(&test.test.as_str()) {
                names.push(&test.test);
            }
        }
        for name in names {
            let mut row = vec![name.replace('_', " ")];
            for (_, record) in columns {
                let found = record.tests.iter().find(|test| test.test == name);
                row.push(table.cell(found.map(|test| &test.outcome)));
            }
            table.rows.push(row);
        }
        table
    }

    fn cell(&mut self, outcome: Option<&Outcome>) -> String {
        match outcome {
            None => "-".to_owned(),
            Some(Outcome::Passed) => "passed".to_owned(),
            Some(Outcome::Unsupported(reason)) => format!("unsupported [{}]", self.reason(reason)),
            Some(Outcome::Failed(message)) => format!("FAILED [{}]", self.reason(message)),
        }
    }

    fn reason(&mut self, reason: &str) -> usize {
        let known = self.reasons.iter().position(|known| known == reason);
        known.map_or_else(
            || {
                self.reasons.push(reason.to_owned());
                self.reasons.len()
            },
            |at| at + 1,
        )
    }
}

/// Returns the numbers of passed, unsupported and failed tests.
fn counts(record: &Record) -> [usize; 3] {
    let count = |is: fn(&Outcome) -> bool| record.tests.iter().filter(|test| is(&test.outcome)).count();
    [
        count(|outcome| *outcome == Outcome::Passed),
        count(|outcome| matches!(outcome, Outcome::Unsupported(_))),
        count(|outcome| matches!(outcome, Outcome::Failed(_))),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vm::{record::tests::record, records, sources};

    #[test]
    fn a_column_of_other_programs_says_so() {
        let (now, then) = (record("now", Outcome::Passed), record("then", Outcome::Passed));
        let page = markdown(&[("6.1", &now), ("6.12", &then)], "now");
        assert!(page.contains("\n| programs | now | then of older programs |\n"), "{page}");
    }

    #[test]
    fn a_reason_has_one_number_in_all_columns() {
        let lacks = |what: &str| record("now", Outcome::Unsupported(what.to_owned()));
        let page = markdown(&[("a", &lacks("no `perf`")), ("b", &lacks("no PMU")), ("c", &lacks("no `perf`"))], "now");
        assert!(page.contains("\n| a test | unsupported [1] | unsupported [2] | unsupported [1] |\n"), "{page}");
        assert!(page.ends_with("\n1. no `perf`\n2. no PMU\n"), "{page}");
    }

    /// The ids are left out: a commit that changes the programs changes the marks of the page.
    #[test]
    fn the_page_is_that_of_the_records() -> anyhow::Result<()> {
        let docs = sources().join("docs");
        let records = records(&docs.join("kernels"))?;
        let columns: Vec<_> = records.iter().filter_map(|(name, record)| Some((*name, record.as_ref()?))).collect();
        let lines = |page: String| -> Vec<String> {
            page.lines().filter(|line| !line.starts_with("| programs |")).map(str::to_owned).collect()
        };
        let page = std::fs::read_to_string(docs.join("kernels.md"))?;
        assert_eq!(lines(page), lines(markdown(&columns, "")), "run `make vm ARGS=--check`");
        Ok(())
    }
}
