//! The ways to spoil an expression: change a number or an offset slightly, remove a label from its list or an
//! alternative from a regular expression, or replace a function by a similar one.

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
    ("max_over_time", "avg_over_time"),
    ("max_over_time", "min_over_time"),
    ("count_over_time", "sum_over_time"),
    ("stddev_over_time", "avg_over_time"),
    ("clamp_min", "clamp_max"),
    ("absent", ""),
    ("abs", ""),
    ("and", "unless"),
    ("unless", "and"),
    ("or", "and"),
];
/// Functions without a quantile, each after the function whose place it takes.
const WITHOUT_QUANTILE: &[(&str, &str)] = &[
    ("quantile", "avg"),
    ("quantile", "max"),
    ("quantile_over_time", "avg_over_time"),
    ("quantile_over_time", "max_over_time"),
    ("quantile_over_time", "min_over_time"),
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
                for to in moved(said) {
                    add(format!("offset {said} -> {to}"), replaced(text, word, &to));
                }
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
                for (_, to) in WITHOUT_QUANTILE.iter().filter(|(from, _)| *from == said) {
                    add(format!("{said} -> {to}"), without_quantile(text, &words[index..], to));
                }
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
            Kind::Text if ["=~", "!~"].contains(&before) => {
                for (left_out, changed) in without_alternatives(said) {
                    add(format!("{left_out} out of {said}"), replaced(text, word, &changed));
                }
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
    format!("{}s", seconds(duration) / 2)
}

/// Returns an offset that is an hour smaller, and one that is an hour larger. An offset of less than two hours moves by
/// its half.
fn moved(offset: &str) -> [String; 2] {
    let seconds = seconds(offset);
    let by = if seconds < 7200 { seconds / 2 } else { 3600 };
    [seconds - by, seconds + by].map(|seconds| format!("{}m", seconds / 60))
}

fn seconds(duration: &str) -> u32 {
    let (number, unit) = duration.split_at(duration.len() - 1);
    let number: u32 = number.parse().unwrap_or(0);
    number
        * match unit {
            "d" => 86_400,
            "h" => 3600,
            "m" => 60,
            _ => 1,
        }
}

/// Returns `quantile by (a) (0.5, x)` as `to by (a) (x)`.
fn without_quantile(text: &str, words: &[Word], to: &str) -> String {
    let is_number = |word: &&Word| word.kind == Kind::Number;
    let number = words.iter().find(is_number).map_or(words[0].at.end..words[0].at.end, |word| word.at.clone());
    let after = text[number.end..].strip_prefix(',').map_or(&text[number.end..], str::trim_start);
    format!("{}{to}{}{after}", &text[..words[0].at.start], &text[words[0].at.end..number.start])
}

/// Returns a regular expression without one of its alternatives, for each of them, together with the alternative. An
/// optional group has one alternative to leave out: nothing.
fn without_alternatives(regex: &str) -> Vec<(String, String)> {
    let mut changed = Vec::new();
    // The starts of the alternatives in each open group. The quotes are a group.
    let mut groups: Vec<Vec<usize>> = Vec::new();
    for (at, byte) in regex.bytes().enumerate() {
        let is_first = at == 0;
        let is_last = at + 1 == regex.len();
        match byte {
            b'(' => groups.push(vec![at + 1]),
            b'"' if is_first => groups.push(vec![at + 1]),
            b'|' => groups.last_mut().into_iter().for_each(|starts| starts.push(at + 1)),
            b')' | b'"' if byte == b')' || is_last => {
                let starts = groups.pop().unwrap_or_default();
                let ends = starts.iter().skip(1).map(|start| start - 1).chain([at]);
                let alternatives: Vec<_> = starts.iter().copied().zip(ends).collect();
                for &(start, end) in alternatives.iter().filter(|_| alternatives.len() > 1) {
                    // The first alternative takes the bar after it along, any later one the bar before it.
                    let (from, to) = if start == starts[0] { (start, end + 1) } else { (start - 1, end) };
                    changed.push((regex[start..end].to_owned(), format!("{}{}", &regex[..from], &regex[to..])));
                }
                if regex[at + 1..].starts_with('?') {
                    changed.push(("?".into(), format!("{}{}", &regex[..=at], &regex[at + 2..])));
                }
            }
            _ => {}
        }
    }
    changed
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
            [
                "avg by (p) (a)",
                "max by (p) (a)",
                "quantile by () (0.5, a)",
                "quantile by (p) (0.3, a)",
                "quantile by (p) (0.7, a)"
            ]
        );
    }

    #[test]
    fn functions_become_similar_ones() {
        assert_eq!(
            of("max_over_time(a[2s])"),
            ["avg_over_time(a[2s])", "min_over_time(a[2s])", "max_over_time(a[1s])"]
        );
        assert_eq!(
            of("quantile_over_time(0.1, a[2s])")[..3],
            ["avg_over_time(a[2s])", "max_over_time(a[2s])", "min_over_time(a[2s])"]
        );
    }

    #[test]
    fn alternatives_leave_a_regular_expression_one_by_one() {
        assert_eq!(of("a{b=~\"x|y|z\"}"), ["a", "a{b=~\"y|z\"}", "a{b=~\"x|z\"}", "a{b=~\"x|y\"}"]);
        assert_eq!(
            of("a{b!~\"(x|y)(:z)?\"}"),
            ["a", "a{b!~\"(y)(:z)?\"}", "a{b!~\"(x)(:z)?\"}", "a{b!~\"(x|y)(:z)\"}"]
        );
        assert_eq!(of("a{b=\"x|y\"}"), ["a"]);
    }

    #[test]
    fn labels_leave_their_lists_one_by_one() {
        assert_eq!(of("a + on (x, y) b"), ["a - on (x, y) b", "a + on (y) b", "a + on (x) b"]);
    }

    #[test]
    fn ranges_are_halved_and_offsets_dropped_or_moved() {
        assert_eq!(of("rate(a[5m])"), ["increase(a[5m])", "rate(a[150s])"]);
        assert_eq!(of("a offset 1h"), ["a ", "a offset 30m", "a offset 90m"]);
        assert_eq!(of("a offset 23h"), ["a ", "a offset 1320m", "a offset 1440m"]);
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
