//! The ways to spoil an expression: change a number slightly, remove a label from its list, or replace a function by a
//! similar one.

use super::lexer::{Kind, Word, words};

/// Functions, aggregations and set operators, each with a similar one.
const NEIGHBOURS: &[(&str, &str)] = &[
    ("sum", "max"),
    ("max", "sum"),
    ("max", "min"),
    ("min", "max"),
    ("count", "sum"),
    ("group", "count"),
    ("topk", "bottomk"),
    ("rate", "increase"),
    ("increase", "rate"),
    ("resets", "changes"),
    ("sum_over_time", "avg_over_time"),
    ("avg_over_time", "max_over_time"),
    ("count_over_time", "sum_over_time"),
    ("stddev_over_time", "avg_over_time"),
    ("clamp_min", "clamp_max"),
    ("absent", ""),
    ("abs", ""),
    ("and", "unless"),
    ("unless", "and"),
    ("or", "and"),
];
const SIGNS: &[(&str, &str)] =
    &[(">", ">="), (">=", ">"), ("<", "<="), ("==", "!="), ("+", "-"), ("-", "+"), ("*", "/"), ("/", "*")];
/// Words before a list of labels.
const LISTS: [&str; 3] = ["by", "on", "group_left"];

/// Returns each mutant of an expression, together with its description.
pub(super) fn mutants(text: &str) -> Vec<(String, String)> {
    let words = words(text);
    let mut made: Vec<(String, String)> = Vec::new();
    // The n-th of equal changes has its number, so that each description is unique.
    let mut add = |what: String, changed: String| {
        let earlier = made.iter().filter(|(other, _)| other.split(" #").next() == Some(&what)).count();
        let what = if earlier == 0 { what } else { format!("{what} #{}", earlier + 1) };
        made.push((what, changed));
    };
    let indent: String = text.chars().take_while(|c| *c == ' ').collect();
    add("never".into(), format!("{indent}vector(0) > 1"));
    for (index, word) in words.iter().enumerate() {
        let said = &text[word.at.clone()];
        let before = index.checked_sub(1).map_or("", |index| &text[words[index].at.clone()]);
        let mut change = |to: &str| add(format!("{said} -> {to}"), replaced(text, word, to));
        match word.kind {
            Kind::Number => {
                let is_quantile = index >= 2 && is_quantile(text, &words[..index]);
                numbers(said, is_quantile).iter().for_each(|number| change(number));
            }
            Kind::Duration if before == "offset" => {
                let both = words[index - 1].at.start..word.at.end;
                let changed = format!("{}{}", &text[..both.start], &text[both.end..]);
                add(format!("offset {said} dropped"), changed);
            }
            Kind::Duration => change(&halved(said)),
            Kind::Name if said == "last_over_time" => {
                add("last_over_time dropped".into(), without_range(text, &words[index..]));
            }
            Kind::Name if LISTS.contains(&said) => {
                for label in list(text, &words[index + 1..]) {
                    add(format!("{} out of {said}", &text[label.at.clone()]), without_label(text, label));
                }
            }
            Kind::Name => {
                let neighbours = NEIGHBOURS.iter().filter(|(from, _)| *from == said);
                neighbours.for_each(|(_, to)| change(to));
            }
            Kind::Sign if said == "{" => {
                let end = words[index..].iter().find(|word| &text[word.at.clone()] == "}");
                if let Some(end) = end {
                    let changed = format!("{}{}", &text[..word.at.start], &text[end.at.end..]);
                    add(format!("{} dropped", &text[word.at.start..end.at.end]), changed);
                }
            }
            Kind::Sign => {
                // An equals sign in braces belongs to a matcher.
                let signs = SIGNS.iter().filter(|(from, _)| *from == said);
                signs.for_each(|(_, to)| change(to));
            }
            Kind::Text => {}
        }
    }
    made
}

fn replaced(text: &str, word: &Word, to: &str) -> String {
    format!("{}{to}{}", &text[..word.at.start], &text[word.at.end..])
}

/// Returns a slightly lower and a slightly higher number. Counts are whole, and quantiles are between 0 and 1.
fn numbers(said: &str, is_quantile: bool) -> Vec<String> {
    let Ok(number) = said.parse::<f64>() else { return Vec::new() };
    let is_count = said.len() == 1;
    let (low, high) = if is_quantile {
        ((number - 0.2).max(0.0), (number + 0.2).min(1.0))
    } else if number == 0.0 {
        (-0.1, 0.1)
    } else if is_count {
        (number - 1.0, number + 1.0)
    } else {
        (number * 0.85, number * 1.15)
    };
    // A number has few digits, so that the description of a mutant is readable.
    let short = |number: f64| format!("{}", (number * 1e6).round() / 1e6);
    vec![short(low), short(high)]
}

fn is_quantile(text: &str, before: &[Word]) -> bool {
    let opened = before.iter().rposition(|word| &text[word.at.clone()] == "(");
    let is_first = opened == Some(before.len() - 1);
    let names = before.iter().rev().skip(1).take_while(|word| word.kind != Kind::Number).take(14);
    is_first && names.into_iter().any(|word| text[word.at.clone()].starts_with("quantile"))
}

fn halved(duration: &str) -> String {
    let (number, unit) = duration.split_at(duration.len() - 1);
    let number: u32 = number.parse().unwrap_or(0);
    let seconds = number
        * match unit {
            "d" => 86_400,
            "h" => 3600,
            "m" => 60,
            _ => 1,
        };
    format!("{}s", seconds / 2)
}

/// Returns `last_over_time(x[5m])` as `(x)`.
fn without_range(text: &str, words: &[Word]) -> String {
    let opened = words.iter().find(|word| &text[word.at.clone()] == "[").map_or(0, |word| word.at.start);
    let closed = words.iter().find(|word| &text[word.at.clone()] == "]").map_or(0, |word| word.at.end);
    format!("{}{}{}", &text[..words[0].at.start], &text[words[0].at.end..opened], &text[closed..])
}

/// Returns the labels in the brackets that come next.
fn list<'a>(text: &str, words: &'a [Word]) -> Vec<&'a Word> {
    let is_open = words.first().is_some_and(|word| &text[word.at.clone()] == "(");
    let inside = words.iter().skip(1).take_while(|word| &text[word.at.clone()] != ")");
    inside.filter(|word| is_open && word.kind == Kind::Name).collect()
}

/// Returns the text without a label and a comma beside it.
fn without_label(text: &str, label: &Word) -> String {
    let (before, after) = (&text[..label.at.start], &text[label.at.end..]);
    match after.strip_prefix(", ") {
        Some(after) => format!("{before}{after}"),
        None => format!("{}{after}", before.strip_suffix(", ").unwrap_or(before)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(expression: &str) -> Vec<String> {
        mutants(expression).into_iter().skip(1).map(|(_, text)| text).collect()
    }

    #[test]
    fn numbers_change_a_little_up_and_down() {
        assert_eq!(of("a > 0.4"), ["a >= 0.4", "a > 0.34", "a > 0.46"]);
        assert_eq!(of("a == 1 # 5"), ["a != 1 # 5", "a == 0 # 5", "a == 2 # 5"]);
        assert_eq!(
            of("quantile by (p) (0.5, a)"),
            ["quantile by () (0.5, a)", "quantile by (p) (0.3, a)", "quantile by (p) (0.7, a)"]
        );
    }

    #[test]
    fn labels_leave_their_lists_one_by_one() {
        assert_eq!(of("a + on (x, y) b"), ["a - on (x, y) b", "a + on (y) b", "a + on (x) b"]);
    }

    #[test]
    fn ranges_are_halved_and_offsets_dropped() {
        assert_eq!(of("rate(a[5m])"), ["increase(a[5m])", "rate(a[150s])"]);
        assert_eq!(of("a offset 1h"), ["a "]);
        assert_eq!(of("last_over_time(a[5m])"), ["(a)", "last_over_time(a[150s])"]);
    }

    #[test]
    fn matchers_are_dropped() {
        assert_eq!(of("a{b=\"c\"}"), ["a"]);
    }

    #[test]
    fn each_mutant_has_its_own_words() {
        let words: Vec<String> = mutants("1 + a + 1").into_iter().map(|(what, _)| what).collect();
        assert_eq!(words, ["never", "1 -> 0", "1 -> 2", "+ -> -", "+ -> - #2", "1 -> 0 #2", "1 -> 2 #2"]);
    }
}
