//! The selectors of a PromQL expression: enough of the language to find names of metrics. Prometheus itself checks the
//! rest.

use std::{iter::Peekable, str::Chars};

/// A selector and its surroundings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selector {
    /// The metric's name.
    pub metric: String,
    /// The text between its braces.
    pub matchers: String,
    /// The text between its brackets.
    pub range: Option<String>,
    /// The functions and aggregations around it, the innermost last.
    pub inside: Vec<String>,
}

/// Words that are followed by labels, not by a vector.
const LISTS: [&str; 6] = ["by", "without", "on", "ignoring", "group_left", "group_right"];
/// Words that are not names.
const WORDS: [&str; 8] = ["and", "or", "unless", "bool", "offset", "inf", "nan", "atan2"];

/// Returns all selectors, in their order.
#[must_use]
pub fn selectors(expression: &str) -> Vec<Selector> {
    let mut found: Vec<Selector> = Vec::new();
    let (mut inside, mut last): (Vec<String>, String) = (Vec::new(), String::new());
    let mut rest = expression.chars().peekable();
    while let Some(&next) = rest.peek() {
        match next {
            '#' => while rest.next_if(|c| *c != '\n').is_some() {},
            '"' | '\'' | '`' => drop(quoted(&mut rest)),
            '(' => {
                rest.next();
                inside.push(std::mem::take(&mut last));
            }
            ')' => {
                rest.next();
                inside.pop();
            }
            '[' => {
                let range = until(&mut rest, ']');
                if let Some(selector) = found.last_mut() {
                    selector.range = Some(range);
                }
            }
            '0'..='9' => while rest.next_if(|c| c.is_ascii_alphanumeric() || *c == '.').is_some() {},
            c if c.is_ascii_alphabetic() || c == '_' || c == ':' => {
                let mut word = String::new();
                while let Some(c) = rest.next_if(|c| c.is_ascii_alphanumeric() || *c == '_' || *c == ':') {
                    word.push(c);
                }
                while rest.next_if(|c| c.is_whitespace()).is_some() {}
                let opens = rest.peek() == Some(&'(');
                if LISTS.contains(&word.as_str()) {
                    if opens {
                        until(&mut rest, ')');
                    }
                } else if opens || is_aggregation(&word, &rest) {
                    last = word;
                } else if !WORDS.contains(&word.as_str()) {
                    let matchers = if rest.peek() == Some(&'{') { until(&mut rest, '}') } else { String::new() };
                    let inside = inside.iter().filter(|name| !name.is_empty()).cloned().collect();
                    found.push(Selector { metric: word, matchers, range: None, inside });
                }
            }
            _ => drop(rest.next()),
        }
    }
    found
}

/// Returns whether the word is an aggregation such as `sum` in `sum by (pod) (...)`.
fn is_aggregation(word: &str, rest: &Peekable<Chars<'_>>) -> bool {
    const AGGREGATIONS: [&str; 10] =
        ["sum", "avg", "min", "max", "count", "group", "quantile", "topk", "bottomk", "stddev"];
    let rest: String = rest.clone().take(7).collect();
    AGGREGATIONS.contains(&word) && (rest.starts_with("by") || rest.starts_with("without"))
}

/// Returns the text up to a closing bracket. The opening bracket is the next character.
fn until(rest: &mut Peekable<Chars<'_>>, close: char) -> String {
    let mut text = String::new();
    rest.next();
    while let Some(&next) = rest.peek() {
        if matches!(next, '"' | '\'' | '`') {
            text.push_str(&quoted(rest));
            continue;
        }
        rest.next();
        if next == close {
            break;
        }
        text.push(next);
    }
    text
}

/// Returns a string with its quotes. Its first quote is the next character.
fn quoted(rest: &mut Peekable<Chars<'_>>) -> String {
    let mut text = String::new();
    let Some(quote) = rest.next() else { return text };
    text.push(quote);
    while let Some(next) = rest.next() {
        text.push(next);
        if next == '\\' {
            text.extend(rest.next());
        } else if next == quote {
            break;
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metrics(expression: &str) -> Vec<String> {
        selectors(expression).into_iter().map(|selector| selector.metric).collect()
    }

    #[test]
    fn names_are_told_from_functions_labels_numbers_and_words() {
        let expression = "clamp_min(sum by (pod, node) (rate(a_total{pod=\"x) y{\", b='c'}[5m] offset 1h)) / 3e8, 0) # d\n\
                          and on (cluster) group_left (workload)\n e:f:rate5m > bool 0.5 or vector(1)";
        assert_eq!(metrics(expression), ["a_total", "e:f:rate5m"]);
    }

    #[test]
    fn a_selector_knows_its_matchers_its_range_and_what_it_is_in() {
        let found = selectors("sum(rate(a_total{pod=\"}\"}[$__rate_interval])) - topk by (x) (3, b)");
        assert_eq!(found[0].matchers, "pod=\"}\"");
        assert_eq!(found[0].range.as_deref(), Some("$__rate_interval"));
        assert_eq!(found[0].inside, ["sum", "rate"]);
        assert_eq!((found[1].metric.as_str(), &found[1].inside[..]), ("b", &["topk".to_owned()][..]));
    }
}
