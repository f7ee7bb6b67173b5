//! Formats times and shares for people, and escapes names. Pure.

use std::time::Duration;

/// Escapes a text for use between tags and in quoted attributes. Characters that XML does not allow, and characters
/// that change the direction of the following text, become `U+FFFD`.
#[must_use]
pub fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{fffe}' | '\u{ffff}' => escaped.push('\u{fffd}'),
            c if c.is_control() => escaped.push('\u{fffd}'),
            c => escaped.push(c),
        }
    }
    escaped
}

/// Formats a time with three digits and a unit.
#[must_use]
pub fn time(nanoseconds: u64) -> String {
    let value = real(nanoseconds);
    let (value, unit) = match nanoseconds {
        0..1_000 => return format!("{nanoseconds} ns"),
        1_000..1_000_000 => (value / 1e3, "µs"),
        1_000_000..1_000_000_000 => (value / 1e6, "ms"),
        _ => (value / 1e9, "s"),
    };
    let digits = if value < 9.995 {
        2
    } else if value < 99.95 {
        1
    } else {
        0
    };
    format!("{value:.digits$} {unit}")
}

/// Formats `part` of `whole` in percent. The result needs no escaping.
#[must_use]
pub fn percent(part: u64, whole: u64) -> String {
    match share(part, whole) * 100.0 {
        share if share > 0.0 && share < 0.1 => "under 0.1 %".into(),
        share if share < 9.95 => format!("{share:.1} %"),
        share => format!("{share:.0} %"),
    }
}

/// Returns `part` of `whole`, from 0 to 1.
pub(super) fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { real(part) / real(whole) }
}

/// Formats a time span in seconds.
pub(super) fn seconds(span: Duration) -> String {
    match span.as_secs_f64() {
        seconds if seconds < 99.95 => format!("{seconds:.1} s"),
        seconds => format!("{seconds:.0} s"),
    }
}

/// Returns a count or a number of nanoseconds as a floating-point number.
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "53 bits of nanoseconds are 104 days without an error")]
pub fn real(count: u64) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_a_browser_acts_on_is_left() {
        let escaped = escape("<script>alert(\"1\")</script>&'\u{0}\u{1b}\u{202e}é");
        assert_eq!(escaped, "&lt;script&gt;alert(&quot;1&quot;)&lt;/script&gt;&amp;&#39;\u{fffd}\u{fffd}\u{fffd}é");
    }

    #[test]
    fn times_have_three_digits() {
        for (nanoseconds, expected) in [
            (0, "0 ns"),
            (999, "999 ns"),
            (1_500, "1.50 µs"),
            (12_340_000, "12.3 ms"),
            (999_600_000, "1000 ms"),
            (5_000_000_000, "5.00 s"),
            (250_000_000_000, "250 s"),
        ] {
            assert_eq!(time(nanoseconds), expected);
        }
    }

    #[test]
    fn a_share_of_nothing_is_nothing() {
        assert_eq!(
            [percent(1, 3), percent(1, 100_000), percent(3, 3), percent(1, 0)],
            ["33 %", "under 0.1 %", "100 %", "0.0 %"]
        );
    }
}
