//! Writes a recording of system calls: a table for people, or JSON. Pure.

use std::{borrow::Cow, fmt::Write};

use serde_json::{Value, json};

use crate::{
    kernel::MOST_CGROUPS,
    model::{
        call_names,
        recorded_calls::{CallSum, RecordedCalls},
    },
    recording::{CallReport, EndedEarly},
};

/// The form of a recording of system calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallsFormat {
    /// A table, and sentences about what it lacks.
    Table,
    /// JSON.
    Json,
}

/// The name of the calls without a number: those of 32-bit programs.
const OTHER: &str = "(other)";

impl CallsFormat {
    /// Returns the format of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        [Self::Table, Self::Json].into_iter().find(|format| format.name() == name)
    }

    /// Returns the name in requests.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Table => "table",
            Self::Json => "json",
        }
    }

    /// Returns the media type.
    #[must_use]
    pub const fn content_type(self) -> &'static str {
        match self {
            Self::Table => "text/plain; charset=utf-8",
            Self::Json => "application/json",
        }
    }

    /// Writes a recording.
    #[must_use]
    pub fn render(self, report: &CallReport) -> String {
        match self {
            Self::Table => table(report),
            Self::Json => format!("{:#}\n", value(report)),
        }
    }
}

fn name(sum: &CallSum) -> Cow<'static, str> {
    sum.number.map_or(OTHER.into(), call_names::name)
}

/// Returns the numbers of calls that are in no row, each with its reason.
fn not_counted(calls: &RecordedCalls) -> impl Iterator<Item = (u64, &'static str)> {
    let RecordedCalls { sums: _, in_progress, began_before, not_entered, lost } = calls;
    let all = [
        (*began_before, "began before the recording or in another cgroup"),
        (*in_progress, "had not returned at the end"),
        (*not_entered, "were answered by a seccomp filter or a debugger, before the kernel entered the call"),
        (*lost, "are lost: the kernel had no memory to note them, or their return was not seen"),
    ];
    all.into_iter().filter(|(number, _)| *number > 0)
}

fn table(report: &CallReport) -> String {
    let mut text = format!(
        "System calls of {} in {:.1} s, by the time from entry to return, in ms\n\n",
        report.title,
        report.duration.as_secs_f64()
    );
    let heads = ["calls", "errors", "total", "min", "avg", "max"];
    row(&mut text, "syscall", heads.map(str::to_owned));
    for sum in &report.calls.sums {
        let times = [sum.total_ns, sum.min_ns, sum.total_ns / sum.calls.max(1), sum.max_ns].map(milliseconds);
        let [total, min, avg, max] = times;
        row(&mut text, &name(sum), [sum.calls.to_string(), sum.errors.to_string(), total, min, avg, max]);
    }
    let mut missing: Vec<_> = not_counted(&report.calls).map(|(number, why)| format!("{number:>9} {why}")).collect();
    if !missing.is_empty() {
        missing.insert(0, "Calls that are not in the table:".to_owned());
    }
    if report.ended_early == Some(EndedEarly::Cost) {
        missing.push("The recording ended early: it took more CPU time than `overhead.maxPercent`.".to_owned());
    }
    if report.came_later > 0 {
        let came = report.came_later;
        missing.push(format!("Cgroups that came meanwhile, without their first half second: {came}"));
    }
    if report.left_out > 0 {
        let left_out = report.left_out;
        missing.push(format!("Cgroups that are left out, beyond the {MOST_CGROUPS} of a recording: {left_out}"));
    }
    if !missing.is_empty() {
        text.push('\n');
    }
    for line in missing {
        text.push_str(&line);
        text.push('\n');
    }
    text
}

fn row(text: &mut String, name: &str, columns: [String; 6]) {
    let [calls, errors, total, min, avg, max] = columns;
    // Writing to a string does not fail.
    writeln!(text, "{name:<24} {calls:>9} {errors:>9} {total:>12} {min:>10} {avg:>10} {max:>10}").ok();
}

/// Formats a time in milliseconds, cut after the microseconds.
fn milliseconds(nanoseconds: u64) -> String {
    format!("{}.{:03}", nanoseconds / 1_000_000, nanoseconds / 1_000 % 1_000)
}

fn value(report: &CallReport) -> Value {
    let call = |sum: &CallSum| {
        json!({
            "syscall": name(sum),
            "number": sum.number,
            "calls": sum.calls,
            "errors": sum.errors,
            "total_ns": sum.total_ns,
            "min_ns": sum.min_ns,
            "max_ns": sum.max_ns,
        })
    };
    let RecordedCalls { sums, in_progress, began_before, not_entered, lost } = &report.calls;
    let ended_early = report.ended_early.map(|why| match why {
        EndedEarly::Asked => "asked",
        EndedEarly::Cost => "cost",
    });
    json!({
        "subject": report.title,
        "seconds": report.duration.as_secs_f64(),
        "ended_early": ended_early,
        "calls": sums.iter().map(call).collect::<Vec<_>>(),
        "not_counted": {
            "in_progress": in_progress,
            "began_before": began_before,
            "not_entered": not_entered,
            "lost": lost,
        },
        "cgroups": report.cgroups,
        "cgroups_that_came_later": report.came_later,
        "cgroups_left_out": report.left_out,
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn report() -> CallReport {
        let number = |call: libc::c_long| u32::try_from(call).ok();
        let read = CallSum {
            number: number(libc::SYS_read),
            calls: 4,
            errors: 1,
            total_ns: 12_345_678,
            min_ns: 999,
            max_ns: 9_000_000,
        };
        let other = CallSum { number: None, calls: 1, total_ns: 1_000, min_ns: 1_000, max_ns: 1_000, errors: 0 };
        CallReport {
            title: "shop/cart-0".into(),
            duration: Duration::from_millis(2040),
            ended_early: None,
            calls: RecordedCalls { sums: vec![read, other], ..RecordedCalls::default() },
            cgroups: Some(2),
            came_later: 0,
            left_out: 0,
        }
    }

    #[test]
    fn the_table_has_calls_errors_and_times_of_each_call() {
        let text = table(&report());
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[0], "System calls of shop/cart-0 in 2.0 s, by the time from entry to return, in ms");
        let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(words(lines[2]), ["syscall", "calls", "errors", "total", "min", "avg", "max"]);
        assert_eq!(words(lines[3]), ["read", "4", "1", "12.345", "0.000", "3.086", "9.000"]);
        assert_eq!(words(lines[4]), ["(other)", "1", "0", "0.001", "0.001", "0.001", "0.001"]);
        assert_eq!(lines.len(), 5, "nothing is missing");
        assert!(lines[2..].iter().all(|line| line.len() == lines[2].len()), "{text}");
    }

    #[test]
    fn the_table_says_what_it_lacks() {
        let calls = RecordedCalls { in_progress: 2, began_before: 3, not_entered: 5, lost: 7, ..report().calls };
        let ended_early = Some(EndedEarly::Cost);
        let text = table(&CallReport { calls, ended_early, came_later: 11, left_out: 13, ..report() });
        for says in [
            "3 began before the recording",
            "2 had not returned",
            "5 were answered by a seccomp filter",
            "7 are lost",
            "`overhead.maxPercent`",
            "half second: 11",
            "1024 of a recording: 13",
        ] {
            assert!(text.contains(says), "{says}: {text}");
        }
    }

    #[test]
    fn the_json_has_nanoseconds() {
        let parsed: Value = serde_json::from_str(&CallsFormat::Json.render(&report())).unwrap();
        assert_eq!((&parsed["subject"], &parsed["cgroups"]), (&json!("shop/cart-0"), &json!(2)));
        assert_eq!((&parsed["calls"][0]["syscall"], &parsed["calls"][0]["min_ns"]), (&json!("read"), &json!(999)));
        assert_eq!(parsed["calls"][1]["number"], Value::Null);
        assert_eq!(parsed["not_counted"]["lost"], json!(0));
    }
}
