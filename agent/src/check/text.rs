//! Splits the agent's error texts, which end with the remedy in brackets. Pure.

use super::{Remedy, report::Finding};

/// Number of characters shown from the start and from the end of a long text, such as the verifier's log.
const LONGEST: (usize, usize) = (200, 300);

/// Splits `what failed (the way out)` into `what failed` and `the way out`, the remedy.
pub(super) fn way_out(text: &str) -> Finding {
    let text = text.trim_end();
    let whole = || (one_line(text), None);
    let Some(inside) = text.strip_suffix(')') else { return whole() };
    let mut depth = 1;
    // Brackets may contain brackets, as in `(write `x(y)`)`.
    let open = inside.char_indices().rev().find(|(_, letter)| {
        depth += match letter {
            ')' => 1,
            '(' => -1,
            _ => 0,
        };
        depth == 0
    });
    match open.map(|(at, _)| (inside[..at].strip_suffix(' '), &inside[at + 1..])) {
        // The standard library appends brackets with `os error` to the system's errors.
        Some((Some(what), way)) if !what.is_empty() && !way.starts_with("os error ") => {
            (one_line(what), Some(Remedy::Words(one_line(way))))
        }
        _ => whole(),
    }
}

/// Splits an error's text in the same way, and appends the error's causes to the first part.
pub(super) fn way_out_of(error: &anyhow::Error) -> Finding {
    let (mut what, way) = way_out(&error.to_string());
    for cause in error.chain().skip(1) {
        what.push_str(": ");
        what.push_str(&one_line(&cause.to_string()));
    }
    (what, way)
}

/// Returns a text of any size and shape as part of one line.
pub(super) fn one_line(text: &str) -> String {
    let letters: Vec<char> = text.split_whitespace().collect::<Vec<_>>().join(" ").chars().collect();
    let (first, last) = LONGEST;
    if letters.len() <= first + last {
        return letters.into_iter().collect();
    }
    let (head, tail) = (&letters[..first], &letters[letters.len() - last..]);
    head.iter().chain(&[' ', '.', '.', '.', ' ']).chain(tail).collect()
}

#[cfg(test)]
mod tests {
    use anyhow::Context;

    use super::*;

    fn split(text: &str) -> Finding {
        way_out(text)
    }

    fn parts(what: &str, way: Option<&str>) -> Finding {
        (what.into(), way.map(|way| Remedy::Words(way.into())))
    }

    #[test]
    fn the_last_brackets_are_the_way_out() {
        assert_eq!(split("no X (mount it)"), parts("no X", Some("mount it")));
        assert_eq!(
            split("missing A (for a) and B (for b) (run as root)"),
            parts("missing A (for a) and B (for b)", Some("run as root"))
        );
        assert_eq!(split("no X (write `x(y)` (or `z`))"), parts("no X", Some("write `x(y)` (or `z`)")));
    }

    #[test]
    fn other_brackets_are_not() {
        for text in ["plain", "Permission denied (os error 13)", "f()", "a) b)", "(all)", "no X (mount it), ever", ""] {
            assert_eq!(split(text), parts(text, None));
        }
    }

    #[test]
    fn causes_go_behind_what_failed() {
        let error = Err::<(), _>(std::io::Error::from_raw_os_error(13)).context("failed to open `x` (set `y`)");
        assert_eq!(
            way_out_of(&error.unwrap_err()),
            parts("failed to open `x`: Permission denied (os error 13)", Some("set `y`"))
        );
    }

    #[test]
    fn long_texts_keep_their_ends_on_one_line() {
        let log = format!("start\n{}\nend", "x ".repeat(1000));
        let line = one_line(&log);
        assert!(line.starts_with("start x") && line.contains(" ... ") && line.ends_with("x end"), "{line}");
        assert!(line.chars().count() < 520 && !line.contains('\n'));
        assert_eq!(one_line("ä ö"), "ä ö");
    }
}
