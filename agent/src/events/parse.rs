//! Parses one configured event in perf's syntax: a name, `rNNNN`, or `pmu/term=value,.../`, with `:u` or `:k`.
//!
//! Only the text is checked here; [`super::pmu`] checks whether this machine has the PMU and its terms. Rejected:
//! perf's modifiers for sampling and guests, tracepoints, and globs of PMUs.

use thiserror::Error;

use super::{
    catalogue::{self, Event},
    did_you_mean,
};

/// A parsed event of the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spec {
    /// The configured text, without blanks around it.
    pub text: String,
    /// The label of the event: the given name, or the text without its modifier.
    pub label: String,
    /// The CPU mode that is counted; `None` counts all modes.
    pub mode: Option<Mode>,
    /// The way in which the event is named.
    pub target: Target,
}

/// The three ways to name an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// A row of the catalogue.
    Named(&'static Event),
    /// `rNNNN`: the `config` of a raw event of the CPU's PMU.
    Raw(u64),
    /// `pmu/terms/`.
    Pmu(PmuSpec),
}

/// An event in the terms of a PMU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PmuSpec {
    /// The PMU's name: one path component.
    pub pmu: String,
    /// At least one term, each name once; without `name=`.
    pub terms: Vec<Term>,
}

/// `name=value`, or a `name` alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Term {
    /// A format field, an event of the PMU, or one of `config`, `config1`, ...
    pub name: String,
    /// `None` if there is no `=`.
    pub value: Option<u64>,
    /// The position in the event's text, in characters from 1.
    pub position: usize,
}

/// The CPU mode that is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum Mode {
    /// `:u`.
    User,
    /// `:k`.
    Kernel,
}

/// A mistake in the text of an event.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum ParseError {
    /// The text is empty.
    #[error("empty event name (remove it, or name an event, e.g. `cycles`)")]
    Empty,
    /// The name is not in the catalogue.
    #[error("unknown event `{event}` ({})", did_you_mean(*.nearest, "name one of the catalogue, or write `rNNNN` or `pmu/term=value/`"))]
    UnknownEvent {
        /// The name.
        event: String,
        /// The most similar name of the catalogue.
        nearest: Option<&'static str>,
    },
    /// A modifier other than `u` and `k`.
    #[error("unknown modifier `{modifier}` of event `{event}` (use `u` for user mode, `k` for kernel mode, or none)")]
    UnknownModifier {
        /// The whole event.
        event: String,
        /// The text after the event's name.
        modifier: String,
    },
    /// A raw code of more than 64 bits.
    #[error("too long raw event `{event}` (at most 16 hexadecimal digits after `r`)")]
    RawTooLong {
        /// The name.
        event: String,
    },
    /// A text without the closing `/`, such as `cpu/event=1`.
    #[error("missing closing `/` of event `{event}` (write `{event}/`)")]
    Unclosed {
        /// The whole event.
        event: String,
    },
    /// The PMU's name is empty, or is no valid name.
    #[error("bad PMU name `{pmu}` in event `{event}` (see {})", super::SYSFS)]
    BadPmu {
        /// The text before the `/`.
        pmu: String,
        /// The whole event.
        event: String,
    },
    /// A term such as `event=`, `=1`, `event=x`.
    #[error("malformed term `{term}` at position {position} of event `{event}`: {problem}")]
    MalformedTerm {
        /// The term.
        term: String,
        /// The position in the event's text, in characters from 1.
        position: usize,
        /// The whole event.
        event: String,
        /// The mistake, and the remedy.
        problem: &'static str,
    },
}

/// Parses one event.
///
/// # Errors
///
/// When the text cannot be an event on any machine.
pub fn parse(text: &str) -> Result<Spec, ParseError> {
    let text = text.trim();
    if text.is_empty() {
        return Err(ParseError::Empty);
    }
    let (target, label, modifier) = match text.split_once('/') {
        Some((pmu, rest)) => parse_pmu(text, pmu, rest)?,
        None => {
            let (name, modifier) = text.split_once(':').map_or((text, None), |(name, rest)| (name, Some(rest)));
            (parse_name(name)?, name, modifier)
        }
    };
    let label = label.to_owned();
    Ok(Spec { text: text.to_owned(), label, mode: parse_mode(text, modifier)?, target })
}

impl Mode {
    /// Returns the value of the label `mode`.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.into()
    }

    /// Returns perf's modifier.
    #[must_use]
    pub const fn letter(self) -> char {
        match self {
            Self::User => 'u',
            Self::Kernel => 'k',
        }
    }
}

/// Returns the digits of `rNNNN` or `r0xNNNN`; `None` for another text.
pub(super) fn raw_digits(name: &str) -> Option<&str> {
    let digits = name.strip_prefix('r')?;
    let digits = digits.strip_prefix("0x").unwrap_or(digits);
    (!digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_hexdigit())).then_some(digits)
}

/// Reads a decimal number, or a hexadecimal number after `0x`.
pub(super) fn number(text: &str) -> Option<u64> {
    let hexadecimal = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X"));
    let (digits, radix) = hexadecimal.map_or((text, 10), |digits| (digits, 16));
    // `from_str_radix` accepts a sign, so the first character is checked.
    digits.starts_with(|first: char| first.is_digit(radix)).then(|| u64::from_str_radix(digits, radix).ok())?
}

fn parse_name(name: &str) -> Result<Target, ParseError> {
    if let Some(event) = catalogue::find(name) {
        return Ok(Target::Named(event));
    }
    match raw_digits(name).map(|digits| u64::from_str_radix(digits, 16)) {
        Some(Ok(config)) => Ok(Target::Raw(config)),
        Some(Err(_)) => Err(ParseError::RawTooLong { event: name.to_owned() }),
        None => Err(ParseError::UnknownEvent { event: name.to_owned(), nearest: catalogue::nearest(name) }),
    }
}

fn parse_mode(event: &str, modifier: Option<&str>) -> Result<Option<Mode>, ParseError> {
    match modifier {
        None | Some("uk" | "ku") => Ok(None),
        Some("u") => Ok(Some(Mode::User)),
        Some("k") => Ok(Some(Mode::Kernel)),
        Some(other) => Err(ParseError::UnknownModifier { event: event.to_owned(), modifier: other.to_owned() }),
    }
}

/// Parses a PMU's event; `rest` is the text after the first `/` of `event`.
fn parse_pmu<'a>(event: &'a str, pmu: &str, rest: &'a str) -> Result<(Target, &'a str, Option<&'a str>), ParseError> {
    // A name of dots would lead out of sysfs.
    if !is_word(pmu) || pmu.starts_with('.') {
        return Err(ParseError::BadPmu { pmu: pmu.to_owned(), event: event.to_owned() });
    }
    let Some((terms, after)) = rest.split_once('/') else {
        return Err(ParseError::Unclosed { event: event.to_owned() });
    };
    let (terms, name) = parse_terms(event, pmu.chars().count() + 2, terms)?;
    let whole = event.strip_suffix(after).unwrap_or(event);
    let modifier = Some(after.strip_prefix(':').unwrap_or(after)).filter(|_| !after.is_empty());
    Ok((Target::Pmu(PmuSpec { pmu: pmu.to_owned(), terms }), name.unwrap_or(whole), modifier))
}

/// Returns the terms and the value of `name=`; `start` is the position of the first term.
fn parse_terms<'a>(event: &str, start: usize, text: &'a str) -> Result<(Vec<Term>, Option<&'a str>), ParseError> {
    let mut terms: Vec<Term> = Vec::new();
    let mut label = None;
    let mut position = start;
    for term in text.split(',') {
        let malformed = |problem| ParseError::MalformedTerm {
            term: term.trim().to_owned(),
            position,
            event: event.to_owned(),
            problem,
        };
        let (name, value) = match term.split_once('=') {
            Some((name, value)) => (name.trim(), Some(value.trim())),
            None => (term.trim(), None),
        };
        if name.is_empty() {
            return Err(malformed("it has no name (write `name=value`)"));
        }
        if !is_word(name) {
            return Err(malformed("not a name (letters, digits, `_`, `-` and `.`)"));
        }
        if value == Some("") {
            return Err(malformed("it has no value (write `name=value`)"));
        }
        if terms.iter().any(|known| known.name == name) || (name == "name" && label.is_some()) {
            return Err(malformed("given twice (remove one)"));
        }
        if name == "name" {
            let value = value.filter(|value| value.chars().all(|char| is_word_char(char) || char == ':'));
            label = Some(value.ok_or_else(|| malformed("not a name (letters, digits, `_`, `-`, `.` and `:`)"))?);
        } else {
            let value = match value {
                Some(value) => {
                    Some(number(value).ok_or_else(|| malformed("not a number of 64 bits (write `10` or `0x0a`)"))?)
                }
                None => None,
            };
            terms.push(Term { name: name.to_owned(), value, position });
        }
        position += term.chars().count() + 1;
    }
    if terms.is_empty() {
        return Err(ParseError::MalformedTerm {
            term: text.trim().to_owned(),
            position: start,
            event: event.to_owned(),
            problem: "a name alone counts nothing (add `event=...`)",
        });
    }
    Ok((terms, label))
}

fn is_word(text: &str) -> bool {
    !text.is_empty() && text.chars().all(is_word_char)
}

fn is_word_char(char: char) -> bool {
    char.is_ascii_alphanumeric() || matches!(char, '_' | '-' | '.')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::events::fixture::random_texts;

    fn target(text: &str) -> Target {
        parse(text).unwrap().target
    }

    fn error(text: &str) -> String {
        parse(text).unwrap_err().to_string()
    }

    #[test]
    fn an_alias_is_the_event_it_stands_for() {
        for (alias, name) in [("cpu-cycles", "cycles"), ("cs", "context-switches"), ("llc-loads", "LLC-loads")] {
            assert_eq!(target(alias), Target::Named(catalogue::find(name).unwrap()), "{alias}");
        }
    }

    #[test]
    fn a_raw_event_is_hexadecimal() {
        assert_eq!(target("r1A8"), Target::Raw(0x1a8));
        assert_eq!(target("r0x1a8:u"), Target::Raw(0x1a8));
        assert_eq!(target("rffffffffffffffff"), Target::Raw(u64::MAX));
        assert_eq!(
            error("r10000000000000000"),
            "too long raw event `r10000000000000000` (at most 16 hexadecimal digits after `r`)"
        );
    }

    #[test]
    fn modifiers_choose_the_mode() {
        for (text, mode) in [
            ("cycles", None),
            (" cycles:u ", Some(Mode::User)),
            ("cycles:k", Some(Mode::Kernel)),
            ("cycles:uk", None),
            ("cycles:ku", None),
            ("cpu/event=1/", None),
            ("cpu/event=1/u", Some(Mode::User)),
            ("cpu/event=1/:k", Some(Mode::Kernel)),
            ("cpu/event=1/uk", None),
        ] {
            assert_eq!(parse(text).unwrap().mode, mode, "{text}");
        }
    }

    #[test]
    fn modifiers_of_sampling_and_guests_are_refused() {
        for text in
            ["cycles:", "cycles:p", "cycles:uh", "cycles:u:k", "cpu/event=1/pp", "cpu/event=1/u/", "cpu/event=1/:"]
        {
            assert!(matches!(parse(text), Err(ParseError::UnknownModifier { .. })), "{text}");
        }
        assert_eq!(
            error("cycles:p"),
            "unknown modifier `p` of event `cycles:p` (use `u` for user mode, `k` for kernel mode, or none)"
        );
    }

    #[test]
    fn the_label_is_the_given_name_or_the_text_without_modifier() {
        for (text, label) in [
            ("faults:u", "faults"),
            ("r1a8:k", "r1a8"),
            ("cpu/event=1,umask=2/u", "cpu/event=1,umask=2/"),
            ("cpu/event=1/:u", "cpu/event=1/"),
            ("cpu/event=1,name=L2:hits/u", "L2:hits"),
        ] {
            assert_eq!(parse(text).unwrap().label, label, "{text}");
        }
    }

    #[test]
    fn terms_are_numbers_flags_and_events() {
        let Target::Pmu(spec) = target("cpu/event=0x3c, umask=1,inv,config1=0XFF,name=x/") else { panic!() };
        let terms: Vec<_> = spec.terms.iter().map(|term| (term.name.as_str(), term.value)).collect();
        assert_eq!(spec.pmu, "cpu");
        assert_eq!(terms, [("event", Some(0x3c)), ("umask", Some(1)), ("inv", None), ("config1", Some(0xff))]);
    }

    #[test]
    fn a_misspelt_event_names_the_nearest() {
        assert_eq!(error("cylces"), "unknown event `cylces` (did you mean `cycles`?)");
        assert_eq!(error("LLC-misses:u"), "unknown event `LLC-misses` (did you mean `LLC-load-misses`?)");
        assert_eq!(
            error("zzz"),
            "unknown event `zzz` (name one of the catalogue, or write `rNNNN` or `pmu/term=value/`)"
        );
        assert_eq!(error(" "), "empty event name (remove it, or name an event, e.g. `cycles`)");
    }

    #[test]
    fn a_malformed_term_is_named_with_its_position() {
        assert_eq!(
            error("cpu/event=1,umask=/"),
            "malformed term `umask=` at position 13 of event `cpu/event=1,umask=/`: \
             it has no value (write `name=value`)"
        );
        for (text, at) in [
            ("cpu//", 5),
            ("cpu/event=1,/", 13),
            ("cpu/=1/", 5),
            ("cpu/event=1,event=2/", 13),
            ("cpu/event=-1/", 5),
            ("cpu/event=+1/", 5),
            ("cpu/event=0x/", 5),
            ("cpu/event=0x10000000000000000/", 5),
            ("cpu/event=1,e v=1/", 13),
            ("cpu/name=x/", 5),
            ("cpu/event=1,name=a b/", 13),
            ("cpu/event=1,name/", 13),
            ("cpu/event=1,name=x,name=x/", 20),
        ] {
            let Err(ParseError::MalformedTerm { position, .. }) = parse(text) else { panic!("{text}") };
            assert_eq!(position, at, "{text}");
        }
    }

    #[test]
    fn a_pmu_name_cannot_leave_its_directory() {
        for text in ["../x/", "./x/", "/x/", "a b/x/", "\0/x/"] {
            assert!(matches!(parse(text), Err(ParseError::BadPmu { .. })), "{text}");
        }
        assert_eq!(error("cpu/event=1"), "missing closing `/` of event `cpu/event=1` (write `cpu/event=1/`)");
    }

    #[test]
    fn no_text_makes_it_panic() {
        for text in random_texts() {
            if let Ok(spec) = parse(&text) {
                assert_eq!(spec.text, text.trim());
            }
        }
    }
}
