//! The text of a configuration file: its syntax, then its keys. Pure.

use serde::de::{DeserializeOwned, IgnoredAny};
use thiserror::Error;

use super::Config;

/// The keys that older versions had, and the remedy.
const REMOVED: [(&str, &str); 9] = [
    ("scheduling", "delete it, podperf chooses the tracepoint"),
    ("facts", "delete it; without facts set `metrics.facts: []` and `stacks.enabled: false`"),
    ("counters.enabled", "delete it; without events set `counters.groups: []`"),
    ("stacks.maxStacks", "delete it, the stack cache has twice the entries of `stacks.maxSamples`"),
    ("sandbox", "delete it, podperf always gives up what it does not need"),
    ("stacks.shadow", "delete it, only tests of podperf used it"),
    ("server.limits.connections", "delete it, the limit is 64"),
    ("server.limits.headerBytes", "delete it, the limit is 16 KiB"),
    ("server.limits.headerTimeout", "delete it, the limit is 10 s"),
];

/// The reasons why a text is no configuration. Each names a line and a column where possible.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum BadText {
    /// The text is no YAML.
    #[error("bad YAML syntax: {0}")]
    Syntax(String),
    /// An unknown key, or a value of a wrong type.
    #[error("{0} (every key is explained in config/podperf.yaml)")]
    Keys(String),
}

/// Reads a text. A text without keys makes no changes to the defaults.
pub(super) fn read(text: &str) -> Result<Config, BadText> {
    // This check comes first: the library reports an unknown key even if the text behind it is no YAML.
    serde_yaml::from_str::<IgnoredAny>(text).map_err(|error| BadText::Syntax(error.to_string()))?;
    Ok(keys::<Config>(text).map_err(BadText::Keys)?.unwrap_or_default())
}

/// Reads the keys of a text; `None` if it has none. The error names the key, and the nearest one to an unknown key.
pub(super) fn keys<T: DeserializeOwned>(text: &str) -> Result<Option<T>, String> {
    serde_yaml::from_str(text).map_err(|error| with_hint(&error.to_string()))
}

/// Adds the nearest key to the library's ``unknown field `x`, expected one of `a`, `b` at line 3``. Adds all keys where
/// none is near, and the reason if the key was removed.
fn with_hint(message: &str) -> String {
    let Some((before, after)) = message.split_once("unknown field `") else { return message.to_owned() };
    let Some((unknown, rest)) = after.split_once('`') else { return message.to_owned() };
    let known: Vec<_> = rest.split('`').skip(1).step_by(2).collect();
    let position = rest.rfind(" at line").map_or("", |at| &rest[at..]);
    let path = format!("{}{unknown}", before.replace(": ", "."));
    let removed = REMOVED.iter().find(|(key, _)| *key == path);
    let hint = match nearest(unknown, &known) {
        _ if let Some((_, instead)) = removed => format!("this key was removed: {instead}"),
        Some(nearest) => format!("did you mean `{nearest}`?"),
        None if known.is_empty() => return message.to_owned(),
        None => format!("one of `{}`", known.join("`, `")),
    };
    format!("{before}unknown key `{unknown}`{position} ({hint})")
}

/// Returns the nearest known key, if at most a third of the letters of the unknown key must change.
fn nearest<'a>(unknown: &str, known: &[&'a str]) -> Option<&'a str> {
    let most = unknown.chars().count().max(3) / 3;
    let lower = unknown.to_lowercase();
    let distance = |key: &str| strsim::damerau_levenshtein(&lower, &key.to_lowercase());
    let (distance, nearest) = known.iter().map(|key| (distance(key), *key)).min()?;
    (distance <= most).then_some(nearest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(text: &str) -> String {
        read(text).unwrap_err().to_string()
    }

    #[test]
    fn broken_yaml_is_named_as_such_with_its_place_before_any_key() {
        for (text, place) in [
            ("a: [1,", "at line 2 column 1"),
            ("listn: x\nb: {", "at line 3 column 1"),
            ("a: 'x\n", "at line 2 column 1"),
            ("a: b: c", "at line 1 column 5"),
            ("a:\n\t- b", "at line 2 column 1"),
        ] {
            let message = refusal(text);
            assert!(message.starts_with("bad YAML syntax: ") && message.contains(place), "{text}: {message}");
            assert!(!message.contains("unknown key") && !message.contains("config/podperf.yaml"), "{text}: {message}");
        }
    }

    #[test]
    fn a_removed_key_is_refused_with_the_remedy() {
        for (key, instead) in REMOVED {
            let text = key.split('.').map(|key| format!("{{{key}: ")).collect::<String>() + "x";
            let message = refusal(&(text + &"}".repeat(key.split('.').count())));
            let unknown = key.rsplit('.').next().unwrap();
            assert!(message.contains(&format!("unknown key `{unknown}` at line 1 column ")), "{message}");
            assert!(message.contains(&format!("(this key was removed: {instead})")), "{message}");
        }
        // The same word elsewhere is a mistake of another kind.
        assert!(!refusal("metrics: {shadow: true}").contains("removed"));
    }

    #[test]
    fn only_a_near_key_is_suggested() {
        for (text, key) in [
            ("listn: x", "listen"),
            ("cgroups: {dept: 3}", "depth"),
            ("loglevel: info", "logLevel"),
            ("metrics: {maxContaners: 3}", "maxContainers"),
            ("node_name: x", "nodeName"),
        ] {
            let message = refusal(text);
            assert!(message.contains(&format!("(did you mean `{key}`?)")), "{text}: {message}");
        }
        for text in ["a: 1", "x: 1", "image: podperf", "endpoint: x"] {
            let message = refusal(text);
            assert!(!message.contains("did you mean") && message.contains("(one of `listen`, `server`, "), "{message}");
            assert!(message.ends_with("(every key is explained in config/podperf.yaml)"), "{message}");
        }
    }
}
