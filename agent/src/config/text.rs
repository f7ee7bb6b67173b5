//! The text of a configuration file: its syntax, then its keys, and the line of a key. Pure.

use serde::de::{DeserializeOwned, IgnoredAny};
use serde_yaml::Value;
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

/// Returns the line of a key, counted from 1; the line of its section if the section is written in one line. `None` if
/// the text does not set the key.
#[must_use]
pub fn line_of(text: &str, key: &str) -> Option<usize> {
    let indent = |line: &str| line.len() - line.trim_start().len();
    let is_content = |line: &str| !line.trim().is_empty() && !line.trim_start().starts_with('#');
    let mut rest: Vec<(usize, &str)> = (1..).zip(text.lines()).filter(|(_, line)| is_content(line)).collect();
    let mut section: Option<(usize, &str)> = None;
    for part in key.split('.') {
        // The first line is one of the section's own keys, and deeper lines belong to sections in it.
        let own = rest.first().map_or(0, |(_, line)| indent(line));
        let is_key = |(_, line): &&(usize, &str)| {
            let after = line.trim_start().strip_prefix(part);
            indent(line) == own && after.is_some_and(|after| after.trim_start().starts_with(':'))
        };
        let Some(&(number, line)) = rest.iter().find(is_key) else {
            return section.filter(|(_, line)| line.contains(&format!("{part}:"))).map(|(number, _)| number);
        };
        let below = rest.into_iter().skip_while(|(other, _)| *other <= number);
        rest = below.take_while(|(_, below)| indent(below) > indent(line)).collect();
        section = Some((number, line));
    }
    section.map(|(number, _)| number)
}

/// Returns the paths of all keys of this name.
fn keys_named(name: &str) -> Vec<String> {
    fn walk(value: &Value, above: &str, name: &str, found: &mut Vec<String>) {
        let Value::Mapping(keys) = value else { return };
        for (key, value) in keys.iter().filter_map(|(key, value)| Some((key.as_str()?, value))) {
            let path = if above.is_empty() { key.to_owned() } else { format!("{above}.{key}") };
            walk(value, &path, name, found);
            found.extend((key == name).then_some(path));
        }
    }
    let mut found = Vec::new();
    // The defaults have all keys, and writing them does not fail.
    walk(&serde_yaml::to_value(Config::default()).unwrap_or_default(), "", name, &mut found);
    found
}

/// Adds the nearest key to the library's ``unknown field `x`, expected one of `a`, `b` at line 3``, or else the only
/// key of this name in another section. Adds all keys where there is none, and the reason if the key was removed.
fn with_hint(message: &str) -> String {
    if message.starts_with("counters.groups") && message.contains("expected a sequence") {
        return format!("{message} (a list of groups, each a list of events, as in `[[cycles, instructions]]`)");
    }
    let Some((before, after)) = message.split_once("unknown field `") else { return message.to_owned() };
    let Some((unknown, rest)) = after.split_once('`') else { return message.to_owned() };
    let known: Vec<_> = rest.split('`').skip(1).step_by(2).collect();
    let position = rest.rfind(" at line").map_or("", |at| &rest[at..]);
    let path = format!("{}{unknown}", before.replace(": ", "."));
    let elsewhere = keys_named(unknown);
    let removed = REMOVED.iter().find(|(key, _)| *key == path);
    let hint = match nearest(unknown, &known) {
        _ if let Some((_, instead)) = removed => format!("this key was removed: {instead}"),
        Some(nearest) => format!("did you mean `{nearest}`?"),
        None if let [elsewhere] = &*elsewhere => format!("did you mean `{elsewhere}`?"),
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
    fn groups_that_are_no_lists_are_refused_with_an_example() {
        for text in ["counters: {groups: [cycles]}", "counters:\n  groups: cycles"] {
            assert!(refusal(text).contains("as in `[[cycles, instructions]]`)"), "{}", refusal(text));
        }
        assert!(!refusal("cgroups: {include: x}").contains("cycles"));
    }

    #[test]
    fn a_name_is_no_address_to_listen_on_and_the_error_has_an_example() {
        let says = refusal("listen: localhost:9799");
        assert!(says.contains("listen: `localhost:9799`: expected an address and a port"), "{says}");
        assert!(says.contains("such as `127.0.0.1:9799`"), "{says}");
        assert_eq!(read("listen: '[::]:1'").unwrap().listen.port(), 1);
    }

    #[test]
    fn the_line_of_a_key_is_found_in_its_own_section() {
        let text = "listen: x # otlp:\notlp:\n  # interval: 1s\n  metrics:\n    interval: 1s\n\n  interval: 2s\n\
                    stacks: {longWait: 1s, filter: x}\ncgroups:\n  depth: 2\nx:\n  max: 1\n";
        for (key, line) in [
            ("listen", Some(1)),
            ("otlp", Some(2)),
            ("otlp.metrics", Some(4)),
            ("otlp.metrics.interval", Some(5)),
            ("otlp.interval", Some(7)),
            ("stacks.filter", Some(8)),
            ("stacks.unwind", None),
            ("cgroups.depth", Some(10)),
            ("cgroups.max", None),
            ("interval", None),
            ("nodeName", None),
        ] {
            assert_eq!(line_of(text, key), line, "{key}");
        }
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
        for (text, key) in [
            ("level: pod", "metrics.level"),
            ("endpoint: x", "otlp.endpoint"),
            ("stacks: {leaveFree: 2}", "pmu.leaveFree"),
        ] {
            let message = refusal(text);
            assert!(message.contains(&format!("(did you mean `{key}`?)")), "{text}: {message}");
        }
        // Several sections have this key.
        for text in ["a: 1", "x: 1", "image: podperf", "enabled: true"] {
            let message = refusal(text);
            assert!(!message.contains("did you mean") && message.contains("(one of `listen`, `server`, "), "{message}");
            assert!(message.ends_with("(every key is explained in config/podperf.yaml)"), "{message}");
        }
    }
}
