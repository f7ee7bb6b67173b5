//! A configuration may be any text: a user who may write the agent's ConfigMap writes it.

use podperf::config::{Config, Settings};

/// The line breaks of YAML.
const LINE_BREAKS: [char; 5] = ['\n', '\r', '\u{85}', '\u{2028}', '\u{2029}'];

pub(crate) fn check(text: &str) {
    let config = match Config::parse(text) {
        Ok(config) => config,
        Err(error) => {
            let message = error.to_string();
            // A name in the text may look like a position, too.
            if !text.contains(" at line ") {
                // The position of a missing end is at most the line after the last one.
                let last = text.chars().filter(|c| LINE_BREAKS.contains(c)).count() + 2;
                assert!(line_of(&message).is_none_or(|line| line <= last), "{message}");
            }
            return;
        }
    };
    match Settings::try_from(config.clone()) {
        Ok(_) => {
            // A valid configuration can be written, and reads back as the same configuration.
            let written = serde_yaml::to_string(&config).unwrap();
            assert_eq!(Config::parse(&written).as_ref(), Ok(&config), "{written}");
            assert!(config.needs_restart(&config).is_empty());
        }
        Err(error) => assert!(error.to_string().starts_with("bad value for `"), "{error}"),
    }
}

/// Returns the last `at line N` of a message.
fn line_of(message: &str) -> Option<usize> {
    let (_, rest) = message.rsplit_once(" at line ")?;
    rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}
