//! The results as Markdown.

use std::fmt::Write as _;

use podperf_tests::load::ring::Spread;

use super::{Cell, Goal, PODPERF, Subject};
use crate::markdown::holds;

/// Returns one row per watcher, and the goals.
pub(super) fn of(subject: &Subject, cells: &[Cell]) -> String {
    let mut text = format!(
        "\n### {}\n\nns per {}: median (least..greatest)\n\n\
         | watcher | the load, above none | its programs | above the empty ones | podperf / this |\n\
         |---|---|---|---|---|\n",
        subject.title, subject.event
    );
    for (at, (watcher, cell)) in subject.watchers.iter().zip(cells).enumerate() {
        let title = watcher.title;
        let _ = match &cell.failure {
            Some(failure) => writeln!(text, "| {title} | not measured: {failure} | | | |"),
            None => {
                let above = above_empty(cells, at).map_or_else(|| "-".to_owned(), |ns| format!("{ns:+.0}"));
                let part = part_of(cells, at).map_or_else(|| "-".to_owned(), |part| format!("{part:.3}"));
                let (extra, programs) = (spread(&cell.extra, true), spread(&cell.programs, false));
                writeln!(text, "| {title} | {extra} | {programs} | {above} | {part} |")
            }
        };
    }
    let without = cells.iter().flat_map(|cell| cell.without.clone()).collect::<Vec<_>>();
    let rounds = cells.iter().map(|cell| cell.without.len()).max().unwrap_or(0);
    let _ = writeln!(text, "\nMedians of {rounds} rounds; the load alone takes {} ns.", spread(&without, false));
    if !subject.goals.is_empty() {
        text.push_str("\n| goal | at most | measured | |\n|---|---|---|---|\n");
    }
    for goal in subject.goals {
        let (what, at_most, measured) = match *goal {
            Goal::AboveEmpty(at_most) => {
                ("podperf's programs above the empty ones, ns".to_owned(), at_most, above_empty(cells, PODPERF))
            }
            Goal::PartOf(at, at_most) => {
                (format!("podperf / {}", subject.watchers[at].title), at_most, part_of(cells, at))
            }
        };
        let shown = measured.map_or_else(|| "not measured".to_owned(), |measured| format!("{measured:.3}"));
        let verdict = measured.map_or("", |measured| holds(measured, at_most));
        let _ = writeln!(text, "| {what} | {at_most} | {shown} | {verdict} |");
    }
    text
}

/// Returns the figures with their sign, if that says something.
fn spread(figures: &[f64], with_sign: bool) -> String {
    match Spread::of(figures.to_vec()) {
        None => "-".to_owned(),
        Some(Spread { min, median, max }) if with_sign => format!("{median:+.0} ({min:+.0}..{max:+.0})"),
        Some(Spread { min, median, max }) => format!("{median:.0} ({min:.0}..{max:.0})"),
    }
}

/// Returns the time of the programs of a watcher above that of the empty programs.
fn above_empty(cells: &[Cell], at: usize) -> Option<f64> {
    let median = |cell: &Cell| Spread::of(cell.programs.clone()).map(|spread| spread.median);
    let empty = cells.first().filter(|_| at > 0).and_then(median)?;
    Some(cells.get(at).and_then(median)? - empty)
}

/// Returns what podperf adds to the load, as a part of what another watcher adds.
fn part_of(cells: &[Cell], at: usize) -> Option<f64> {
    let median = |cell: &Cell| Spread::of(cell.extra.clone()).map(|spread| spread.median);
    let podperf = cells.get(PODPERF).filter(|_| at > PODPERF).and_then(median)?;
    Some(podperf / cells.get(at).and_then(median)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sensors::SUBJECTS;

    fn cell(extra: f64, programs: &[f64]) -> Cell {
        Cell { without: vec![100.0], extra: vec![extra], programs: programs.to_vec(), failure: None }
    }

    #[test]
    fn podperf_is_compared_with_empty_programs_and_with_each_other_watcher() {
        let calls = SUBJECTS.iter().find(|subject| subject.title == "System calls").unwrap();
        let text = of(calls, &[cell(80.0, &[50.0]), cell(120.0, &[90.0]), cell(600.0, &[300.0]), cell(10_000.0, &[])]);
        for line in [
            "| an empty program at the return | +80 (+80..+80) | 50 (50..50) | - | - |",
            "| podperf: calls | +120 (+120..+120) | 90 (90..90) | +40 | - |",
            "| strace -c | +10000 (+10000..+10000) | - | - | 0.012 |",
            "| podperf / the shape of perf trace -s --bpf-summary, by cgroup | 0.25 | 0.200 | holds |",
            "| podperf / strace -c | 0.01 | 0.012 | missed |",
        ] {
            assert!(text.contains(line), "no `{line}` in\n{text}");
        }
    }

    #[test]
    fn a_watcher_that_failed_says_why_and_has_no_goal() {
        let mut cells = [cell(80.0, &[50.0]), Cell::default(), cell(600.0, &[300.0])];
        cells[1].failure = Some("no such tracepoint".into());
        let text = of(&SUBJECTS[0], &cells);
        assert!(text.contains("| podperf: interrupts | not measured: no such tracepoint | | | |"), "{text}");
        assert!(text.contains("above the empty ones, ns | 100 | not measured |  |"), "{text}");
    }
}
