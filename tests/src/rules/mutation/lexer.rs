//! Splits a PromQL expression into words with their places, so that a mutation can replace a word.

use std::ops::Range;

/// A word's kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A number, except a duration.
    Number,
    /// A duration: a range without its brackets, or an offset.
    Duration,
    /// A name, a keyword, a function or a label.
    Name,
    /// A string with its quotes.
    Text,
    /// An operator or a bracket.
    Sign,
}

/// A word.
#[derive(Clone, Debug)]
pub(super) struct Word {
    pub(super) kind: Kind,
    pub(super) at: Range<usize>,
}

/// Returns the words of an expression, without comments.
pub(super) fn words(text: &str) -> Vec<Word> {
    let bytes = text.as_bytes();
    let mut words: Vec<Word> = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let start = at;
        let run = |from: usize, keep: &dyn Fn(u8) -> bool| {
            bytes[from..].iter().position(|byte| !keep(*byte)).map_or(bytes.len(), |length| from + length)
        };
        let kind = match bytes[at] {
            b'#' => {
                at = run(at, &|byte| byte != b'\n');
                continue;
            }
            byte if byte.is_ascii_whitespace() => {
                at += 1;
                continue;
            }
            b'"' => {
                at = run(at + 1, &|byte| byte != b'"') + 1;
                Kind::Text
            }
            byte if byte.is_ascii_digit() => {
                at = run(at, &|byte| byte.is_ascii_alphanumeric() || byte == b'.');
                let is_time = text[start..at].ends_with(['s', 'm', 'h', 'd']);
                if is_time { Kind::Duration } else { Kind::Number }
            }
            byte if byte.is_ascii_alphabetic() || byte == b'_' => {
                at = run(at, &|byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b':');
                Kind::Name
            }
            byte => {
                let is_pair =
                    matches!(bytes.get(at + 1), Some(b'=' | b'~')) && matches!(byte, b'=' | b'!' | b'<' | b'>');
                at += if is_pair { 2 } else { 1 };
                Kind::Sign
            }
        };
        words.push(Word { kind, at: start..at });
    }
    words
}
