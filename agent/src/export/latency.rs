//! Writes the calls of a function as a table for people, as `perf ftrace latency` does. Pure.

use std::fmt::Write as _;

use crate::{model::sensors::Histogram, recording::Latency};

/// The length of the longest possible bar, which stands for all calls.
const BAR: u128 = 46;

/// Returns the table: a line for each bucket from the first to the last one with a call, and the sums. Minimum and
/// maximum are not counted: the borders of these two buckets bound them.
#[must_use]
pub fn table(latency: &Latency) -> String {
    let Latency { function, title, duration, calls, ended } = latency;
    let mut text = format!("# `{function}` in {title}, {:.1} s\n", duration.as_secs_f64());
    if let Some(why) = ended {
        line(&mut text, format_args!("# ended early: {why}"));
    }
    let Some(calls) = calls else {
        text.push_str("# no call returned\n");
        return text;
    };
    let count = calls.count();
    line(&mut text, format_args!("# {:^21} | {:>10} | {:<46} |", "DURATION", "COUNT", "GRAPH"));
    let is_used = |bucket: &u64| *bucket > 0;
    let first = calls.buckets.iter().position(is_used).unwrap_or(0);
    let last = calls.buckets.iter().rposition(is_used).unwrap_or(0);
    for (at, bucket) in calls.buckets.iter().enumerate().take(last + 1).skip(first) {
        let bar = u128::from(*bucket) * BAR / u128::from(count.max(1));
        let bar = "#".repeat(usize::try_from(bar).unwrap_or(0));
        let (from, to) = borders(calls, at);
        line(&mut text, format_args!("  {from:>9} - {to:>9} | {bucket:>10} | {bar:<46} |"));
    }
    let (total, average) = (shown(calls.sum_ns), shown(calls.sum_ns / u128::from(count.max(1))));
    line(&mut text, format_args!("# calls {count}, total {total}, average {average}"));
    text
}

/// Returns the lower and the upper border of a bucket. The last bucket has no upper border.
fn borders(calls: &Histogram, at: usize) -> (String, String) {
    let upper = |at: usize| shown(border_ns(calls.first.saturating_add(i32::try_from(at).unwrap_or(i32::MAX))));
    let from = at.checked_sub(1).map_or_else(|| shown(0), upper);
    let to = if at + 1 == calls.buckets.len() { "...".to_owned() } else { upper(at) };
    (from, to)
}

/// Returns 2^`power` seconds in nanoseconds, rounded down.
const fn border_ns(power: i32) -> u128 {
    let second: u128 = 1_000_000_000;
    let shift = power.unsigned_abs();
    if shift > 64 {
        return if power < 0 { 0 } else { u128::MAX };
    }
    if power < 0 { second >> shift } else { second << shift }
}

/// Returns a time with its unit, rounded to a tenth of it.
fn shown(ns: u128) -> String {
    let (unit, of) = match ns {
        0..1_000_000 => ("us", 1_000),
        1_000_000..1_000_000_000 => ("ms", 1_000_000),
        _ => ("s", 1_000_000_000),
    };
    let tenths = (ns.saturating_mul(10) + of / 2) / of;
    format!("{}.{} {unit}", tenths / 10, tenths % 10)
}

fn line(text: &mut String, line: std::fmt::Arguments<'_>) {
    // Writing to a string does not fail.
    writeln!(text, "{line}").ok();
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn latency(buckets: &[u64], sum_ns: u128) -> Latency {
        let calls = Histogram { sum_ns, buckets: buckets.to_vec(), first: -18 };
        Latency {
            function: "vfs_read".into(),
            title: "shop/cart-0".into(),
            duration: Duration::from_secs(10),
            calls: (calls.count() > 0).then_some(calls),
            ended: None,
        }
    }

    #[test]
    fn each_bucket_between_calls_has_a_line() {
        let bar = |marks: usize| format!("{:<46}", "#".repeat(marks));
        let expected = format!(
            "# `vfs_read` in shop/cart-0, 10.0 s\n\
             #       DURATION        |      COUNT | {:<46} |\n\
             {:2}   3.8 us -    7.6 us |          3 | {} |\n\
             {:2}   7.6 us -   15.3 us |          0 | {} |\n\
             {:2}  15.3 us -       ... |          1 | {} |\n\
             # calls 4, total 2.0 ms, average 500.0 us\n",
            "GRAPH",
            "",
            bar(34),
            "",
            bar(0),
            "",
            bar(11)
        );
        assert_eq!(table(&latency(&[0, 3, 0, 1], 2_000_000)), expected);
    }

    #[test]
    fn the_first_bucket_begins_at_zero_and_no_calls_have_no_table() {
        assert!(table(&latency(&[2, 0], 5_000)).contains("\n     0.0 us -    3.8 us |          2 | ####"));
        let none = Latency { ended: Some("too many calls".into()), ..latency(&[0, 0], 0) };
        let expected = "# `vfs_read` in shop/cart-0, 10.0 s\n# ended early: too many calls\n# no call returned\n";
        assert_eq!(table(&none), expected);
    }

    #[test]
    fn times_have_the_unit_of_their_size() {
        let texts = [0, 949, 999_940, 1_000_000, 12_340_000, 2_500_000_000].map(shown);
        assert_eq!(texts, ["0.0 us", "0.9 us", "999.9 us", "1.0 ms", "12.3 ms", "2.5 s"]);
        assert_eq!([-18, 0, 9].map(border_ns), [3_814, 1_000_000_000, 512_000_000_000]);
    }
}
