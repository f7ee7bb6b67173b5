//! The table of tests and kernels, for the terminal and for `docs/kernels.md`. Pure.

use std::fmt::Write as _;
use std::time::Duration;

use super::Ran;
use super::outcome::Outcome;

/// The start of `docs/kernels.md`.
const HEAD: &str = "\
# Kernels

This page has the results of ring 2 of the tests (`tests/kernel`) on a row of Debian's kernels. Each test compares the
agent's numbers with a load whose numbers are known. `make vm` writes this file: it builds podperf without shared
libraries, boots each kernel in an emulated machine, and runs the tests there. No hardware virtualization is needed, so
every machine gives the same table. With each change, `make vm-x86` runs the short tests on Linux 6.1.

Time in the guests is counted in instructions (`-icount`), so what else the host does is not seen.

| mark | means |
|---|---|
| passed | the test ran there and passed |
| unsupported | it did not run there; the number leads to what the machine lacks |
| FAILED | podperf is wrong there, or the test is |
| - | not for this kernel |
";

/// Returns one row in one line.
pub(super) fn line(ran: &Ran) -> String {
    let [passed, unsupported, failed] = counts(ran);
    format!(
        "vm: {} ({}): {passed} passed, {unsupported} unsupported, {failed} failed in {}\n",
        ran.row.name,
        kernel(ran),
        seconds(ran.whole)
    )
}

/// Returns the table for a terminal: columns of equal width.
pub(super) fn text(all: &[Ran]) -> String {
    let table = Table::of(all);
    let mut widths = vec![0; all.len() + 1];
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

/// Returns the whole text of `docs/kernels.md`.
pub(super) fn markdown(all: &[Ran]) -> String {
    let table = Table::of(all);
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
    fn of(all: &[Ran]) -> Self {
        let mut table = Self { rows: Vec::new(), reasons: Vec::new() };
        let mut facts = |title: &str, fact: &dyn Fn(&Ran) -> String| {
            table.rows.push([title.to_owned()].into_iter().chain(all.iter().map(fact)).collect());
        };
        facts("", &|ran| ran.row.name.to_owned());
        facts("kernel", &kernel);
        facts("architecture", &|ran| ran.row.machine.arch().to_owned());
        facts("emulator", &|ran| ran.qemu.split(" (").next().unwrap_or_default().replace("emulator version ", ""));
        facts("up after, done after", &|ran| format!("{}, {}", seconds(ran.boot), seconds(ran.whole)));
        facts("passed, unsupported, failed", &|ran| counts(ran).map(|count| count.to_string()).join(", "));
        let mut names: Vec<&str> = Vec::new();
        for test in all.iter().flat_map(|ran| &ran.report.tests) {
            if !names.contains(&test.test.as_str()) {
                names.push(&test.test);
            }
        }
        for name in names {
            let mut row = vec![name.replace('_', " ")];
            for ran in all {
                let found = ran.report.tests.iter().find(|test| test.test == name);
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

fn kernel(ran: &Ran) -> String {
    ran.report.kernel.clone().unwrap_or_else(|| "did not boot".to_owned())
}

fn seconds(duration: Option<Duration>) -> String {
    duration.map_or_else(|| "-".to_owned(), |duration| format!("{:.0} s", duration.as_secs_f64()))
}

/// Returns the numbers of passed, unsupported and failed tests.
fn counts(ran: &Ran) -> [usize; 3] {
    let count = |is: fn(&Outcome) -> bool| ran.report.tests.iter().filter(|test| is(&test.outcome)).count();
    [
        count(|outcome| *outcome == Outcome::Passed),
        count(|outcome| matches!(outcome, Outcome::Unsupported(_))),
        count(|outcome| matches!(outcome, Outcome::Failed(_))),
    ]
}
