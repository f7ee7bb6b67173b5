//! The report for people: aligned, wrapped, the remedy on lines of its own. Pure.

use super::{Check, Report, Verdict};

/// Width of the table in characters: it fits any terminal.
const WIDTH: usize = 80;
/// The start of a line with a remedy.
const FIX: &str = "    fix: ";

/// Renders the report; `colours` are for terminals.
#[must_use]
pub fn render(report: &Report, colours: bool) -> String {
    let column = |width: fn(&Check) -> usize| report.checks.iter().map(width).max().unwrap_or(0) + 2;
    let (names, states) = (column(|check| check.check.chars().count()), column(|check| check.state.len()));
    let mut table = String::new();
    for (index, check) in report.checks.iter().enumerate() {
        let (before, after) = if colours { colour(check.verdict) } else { ("", "") };
        let (name, state) = (&check.check, check.state);
        // The escape sequences of colours have no width.
        let head = format!("{name:names$}{before}{state}{after}{:1$}", "", states - state.len());
        wrapped(&mut table, &head, names + states, &check.detail);
        // Lines with the same detail and remedy print the remedy once, after the last of them.
        let next = report.checks.get(index + 1);
        let again = next.is_some_and(|next| (&next.detail, &next.fix) == (&check.detail, &check.fix));
        if let Some(fix) = check.fix.as_ref().filter(|_| !again) {
            wrapped(&mut table, FIX, FIX.len(), &fix.to_string());
        }
    }
    table.push('\n');
    wrapped(&mut table, "", 0, &summary(report));
    table
}

fn summary(report: &Report) -> String {
    let names = || {
        let worst = report.checks.iter().filter(|check| check.verdict == report.verdict);
        worst.map(|check| check.check.as_str()).collect::<Vec<_>>().join(", ")
    };
    let means = match report.verdict {
        Verdict::Usable => "all that was asked for works".to_owned(),
        Verdict::Degraded => format!("the agent would start, but without all that was asked for ({})", names()),
        Verdict::Unusable => format!("the agent would refuse to start ({})", names()),
    };
    format!("{}: {means}", report.verdict.name())
}

/// Returns green, yellow or red, and the sequence that ends the colour.
const fn colour(verdict: Verdict) -> (&'static str, &'static str) {
    match verdict {
        Verdict::Usable => ("\x1b[32m", "\x1b[0m"),
        Verdict::Degraded => ("\x1b[33m", "\x1b[0m"),
        Verdict::Unusable => ("\x1b[31m", "\x1b[0m"),
    }
}

/// Appends `head`, which is `indent` wide, and then `text`, on as many lines as needed. A word is never broken, so that
/// commands and addresses can be copied.
fn wrapped(table: &mut String, head: &str, indent: usize, text: &str) {
    let mut line = head.to_owned();
    let mut width = indent;
    let mut first = true;
    for word in text.split(' ') {
        let letters = word.chars().count();
        if !first && width + 1 + letters > WIDTH {
            table.push_str(line.trim_end());
            table.push('\n');
            line = " ".repeat(indent);
            width = indent;
            first = true;
        }
        if !first {
            line.push(' ');
            width += 1;
        }
        line.push_str(word);
        width += letters;
        first = false;
    }
    table.push_str(line.trim_end());
    table.push('\n');
}

#[cfg(test)]
mod tests {
    use super::{
        super::{Code, Remedy},
        *,
    };

    fn check(name: &str, detail: &str, fix: Option<&str>) -> Check {
        Check::degraded(Code::BtfMissing, name, (detail.into(), fix.map(|fix| Remedy::Words(fix.into()))))
    }

    #[test]
    fn columns_are_aligned_and_long_texts_wrapped() {
        let long = "what failed and why it did, in more words than there is room for on one line";
        let report =
            Report::from(vec![Check::healthy(Code::BtfFound, "a", "there"), check("a long name", long, Some(long))]);
        assert_eq!(
            render(&report, false),
            "\
a            healthy   there
a long name  degraded  what failed and why it did, in more words than there is
                       room for on one line
    fix: what failed and why it did, in more words than there is room for on one
         line

degraded: the agent would start, but without all that was asked for (a long
name)
"
        );
    }

    #[test]
    fn no_line_is_wider_than_a_terminal_and_no_word_is_broken() {
        let word = "x".repeat(100);
        let text = format!("{} {word} end", "word ".repeat(30).trim_end());
        let table = render(&Report::from(vec![check("a", &text, None)]), false);
        assert!(table.lines().all(|line| line.chars().count() <= WIDTH || line.trim() == word), "{table}");
        assert!(table.contains(&word));
    }

    #[test]
    fn the_same_way_out_of_lines_that_follow_each_other_is_said_once() {
        let same = || vec![check("a", "none", Some("mend")), check("b", "none", Some("mend"))];
        let table = render(&Report::from(same()), false);
        assert_eq!(table.matches("fix:").count(), 1);
        assert!(table.find("fix:") > table.find("\nb "), "{table}");
        let mut others = same();
        others.insert(1, check("c", "another", Some("mend")));
        assert_eq!(render(&Report::from(others), false).matches("fix:").count(), 3);
    }

    #[test]
    fn colours_change_nothing_else() {
        let report =
            Report::from(vec![Check::healthy(Code::BtfFound, "a", "there"), check("b", "away", Some("bring it"))]);
        let coloured = render(&report, true);
        assert!(coloured.contains("\x1b[32mhealthy\x1b[0m"), "{coloured}");
        let plain =
            ["\x1b[32m", "\x1b[33m", "\x1b[31m", "\x1b[0m"].iter().fold(coloured, |text, code| text.replace(code, ""));
        assert_eq!(plain, render(&report, false));
    }
}
