//! A choice of cgroups or namespaces by two lists of patterns. Pure.

use regex::Regex;
use thiserror::Error;

/// A list of regular expressions that match whole texts, as in Prometheus.
#[derive(Clone, Debug, Default)]
pub struct Patterns(Vec<Regex>);

/// A choice by two lists.
#[derive(Clone, Debug, Default)]
pub struct Choice {
    /// A text must match one of these patterns. An empty list chooses all texts.
    pub include: Patterns,
    /// A text that matches one of these patterns is not chosen.
    pub exclude: Patterns,
}

/// A pattern that is no regular expression.
#[derive(Debug, Error)]
#[error("failed to parse pattern `{pattern}`: {message}")]
pub struct PatternError {
    pattern: String,
    message: String,
}

impl Patterns {
    /// Compiles a list.
    ///
    /// # Errors
    ///
    /// Fails if a pattern is no regular expression.
    pub fn new(list: &[String]) -> Result<Self, PatternError> {
        list.iter().map(|pattern| anchored(pattern)).collect::<Result<_, _>>().map(Self)
    }

    fn match_any(&self, text: &str) -> bool {
        self.0.iter().any(|pattern| pattern.is_match(text))
    }
}

impl Choice {
    /// Returns `true` if `text` is chosen.
    #[must_use]
    pub fn has(&self, text: &str) -> bool {
        (self.include.0.is_empty() || self.include.match_any(text)) && !self.exclude.match_any(text)
    }
}

fn anchored(pattern: &str) -> Result<Regex, PatternError> {
    Regex::new(&format!("^(?:{pattern})$")).map_err(|error| {
        // The library's message draws the pattern over several lines; its last line is the reason.
        let message = error.to_string().lines().last().unwrap_or_default().trim_start_matches("error: ").to_owned();
        PatternError { pattern: pattern.to_owned(), message }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bad_pattern_is_named() {
        let error = Patterns::new(&["/a(".into()]).unwrap_err().to_string();
        assert!(error.contains("`/a(`") && error.contains("unclosed group"), "{error}");
    }

    #[test]
    fn patterns_match_whole_texts_and_what_is_excluded_is_not_chosen() {
        let patterns =
            |list: &[&str]| Patterns::new(&list.iter().map(|&text| text.into()).collect::<Vec<_>>()).unwrap();
        let choice = Choice { include: patterns(&["team-.*", "shop"]), exclude: patterns(&["team-b"]) };
        assert!(choice.has("shop") && choice.has("team-a"));
        assert!(!choice.has("workshop") && !choice.has("team-b"));
        assert!(Choice::default().has("anything"));
    }
}
