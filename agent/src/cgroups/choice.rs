//! What two lists of patterns choose, whether cgroups or namespaces. Pure.

use regex::Regex;
use thiserror::Error;

/// A list of regular expressions that match whole texts, as Prometheus' do.
#[derive(Clone, Debug, Default)]
pub struct Patterns(Vec<Regex>);

/// A choice by two lists.
#[derive(Clone, Debug, Default)]
pub struct Choice {
    /// Chosen are those that match one of these, or all when there is none.
    pub include: Patterns,
    /// But none that matches one of these.
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
    /// When a pattern is no regular expression.
    pub fn new(list: &[String]) -> Result<Self, PatternError> {
        list.iter().map(|pattern| anchored(pattern)).collect::<Result<_, _>>().map(Self)
    }

    fn match_any(&self, text: &str) -> bool {
        self.0.iter().any(|pattern| pattern.is_match(text))
    }
}

impl Choice {
    /// Whether `text` is chosen.
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
