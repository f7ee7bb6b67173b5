//! Hides the values of headers, and the users in URLs, in texts that others chose. Pure.
//!
//! A receiver may repeat what it refuses: in a message of gRPC, in the body of an answer, or in an address.

use std::{collections::HashSet, fmt};

use base64::prelude::{BASE64_STANDARD, Engine as _};
use http::HeaderValue;
use percent_encoding::percent_decode_str;

/// The text in the place of a secret.
const HIDDEN: &str = "***";
/// A part of a value is hidden from half of its length on, since receivers cut what they repeat. The half counts as at
/// least and at most as many bytes as this.
const PART: (usize, usize) = (8, 16);
/// A value of fewer bytes is hidden only as a whole word: it is inside of too many others.
const SHORT: usize = 4;

/// The values that no text may show.
pub(super) struct Secrets {
    /// In lower case, none of them empty.
    values: Vec<Vec<u8>>,
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Secrets").finish_non_exhaustive()
    }
}

impl Secrets {
    pub(super) fn of<'a>(values: impl Iterator<Item = &'a HeaderValue>) -> Self {
        let values = values.filter_map(|value| value.to_str().ok()).flat_map(secrets);
        Self { values: values.map(|value| value.to_ascii_lowercase().into_bytes()).collect() }
    }

    /// Returns the text without secrets, percent-encoded ones included.
    pub(super) fn hide(&self, text: &str) -> String {
        let shown = without_users(&self.without_values(text));
        let decoded = percent_decode_str(&shown).decode_utf8_lossy().into_owned();
        let hidden = without_users(&self.without_values(&decoded));
        if hidden == decoded { shown } else { hidden }
    }

    fn without_values(&self, text: &str) -> String {
        let lower = text.to_ascii_lowercase().into_bytes();
        let mut is_hidden = vec![false; lower.len()];
        for value in &self.values {
            let (least, most) = PART;
            let length = (value.len() / 2).clamp(least, most).min(value.len());
            let parts: HashSet<_> = value.windows(length).collect();
            for (start, part) in lower.windows(length).enumerate() {
                let end = start + length;
                if parts.contains(part) && (value.len() >= SHORT || is_word(&lower, start, end)) {
                    is_hidden[start..end].fill(true);
                }
            }
        }
        // The space before a token is a part of the whole value, too.
        for at in 0..is_hidden.len() {
            is_hidden[at] &= lower[at] != b' ' || at > 0 && is_hidden[at - 1];
        }
        let mut shown = Vec::with_capacity(text.len());
        for (at, &byte) in text.as_bytes().iter().enumerate() {
            match is_hidden[at] {
                false => shown.push(byte),
                true if at == 0 || !is_hidden[at - 1] => shown.extend_from_slice(HIDDEN.as_bytes()),
                true => {}
            }
        }
        String::from_utf8_lossy(&shown).into_owned()
    }
}

/// Returns the value, the token behind a word such as `Bearer`, and the password behind `Basic`.
fn secrets(value: &str) -> Vec<String> {
    let mut secrets = vec![value.trim().to_owned()];
    if let Some((scheme, token)) = value.trim().split_once(' ') {
        secrets.push(token.trim().to_owned());
        let decoded = BASE64_STANDARD.decode(token.trim()).ok().and_then(|bytes| String::from_utf8(bytes).ok());
        if let Some(login) = decoded.filter(|_| scheme.eq_ignore_ascii_case("basic")) {
            secrets.extend(login.split_once(':').map(|(_, password)| password.to_owned()));
            secrets.push(login);
        }
    }
    secrets.retain(|secret| !secret.is_empty());
    secrets
}

/// Returns whether no letter or digit is beside these bytes.
fn is_word(text: &[u8], start: usize, end: usize) -> bool {
    let before = start.checked_sub(1).and_then(|at| text.get(at));
    [before, text.get(end)].into_iter().flatten().all(|byte| !byte.is_ascii_alphanumeric())
}

/// Hides the user and the password in each URL of a text.
fn without_users(text: &str) -> String {
    let mut parts = text.split("://");
    let mut shown = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let is_end = |letter: char| matches!(letter, '/' | '?' | '#') || letter.is_whitespace();
        let end = part.find(is_end).unwrap_or(part.len());
        shown.push_str("://");
        match part[..end].rfind('@') {
            Some(at) => {
                shown.push_str(HIDDEN);
                shown.push_str(&part[at..]);
            }
            None => shown.push_str(part),
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKEN: &str = "sk-case-0123456789abcdef";

    fn hide(value: &str, text: &str) -> String {
        Secrets::of([HeaderValue::from_str(value).unwrap()].iter()).hide(text)
    }

    #[test]
    fn a_value_is_hidden_whole_in_part_and_encoded() {
        let bearer = format!("Bearer {TOKEN}");
        let hidden = |text: &str| hide(&bearer, text);
        assert_eq!(hidden(&format!("no match: {bearer}")), "no match: ***");
        assert_eq!(hidden(&format!("no match: `{TOKEN}`!")), "no match: `***`!");
        assert_eq!(hidden(&format!("no match: `{}...`", &TOKEN[..14])), "no match: `***...`");
        assert_eq!(hidden(&format!("no match: bearer%20{TOKEN}")), "no match: bearer%20***");
        assert_eq!(hidden(&format!("twice {TOKEN} and {}", TOKEN.to_uppercase())), "twice *** and ***");
        let encoded: String = TOKEN.bytes().map(|byte| format!("%{byte:02x}")).collect();
        assert_eq!(hidden(&format!("100% wrong: {encoded}")), "100% wrong: ***");
        let other = "Bearer scheme required, 100%25 sure";
        assert_eq!(hidden(other), other);
    }

    #[test]
    fn a_short_value_is_hidden_without_harm_to_other_words() {
        assert_eq!(hide("7", "tenant 7 is not among 77 (7)"), "tenant *** is not among 77 (***)");
        assert_eq!(hide("abcd", "key=abcd, abcdabcd"), "key=***, ***");
        assert_eq!(hide("Bearer abc", "no token abc in abcd"), "no token *** in abcd");
        assert_eq!(hide("", "all of it"), "all of it");
    }

    #[test]
    fn a_login_is_hidden_decoded_too() {
        let value = format!("Basic {}", BASE64_STANDARD.encode("shop:pässword"));
        assert_eq!(hide(&value, "shop: bad password `pässword`"), "shop: bad password `***`");
        assert_eq!(hide(&value, "shop:pässword is not known"), "*** is not known");
        assert_eq!(hide(&value, &value), "***");
    }

    #[test]
    fn users_in_urls_are_hidden() {
        let shown = "moved to https://***@host/p?a@b, or http://host/";
        assert_eq!(hide("x", "moved to https://shop:p@ss@host/p?a@b, or http://host/"), shown);
    }

    #[test]
    fn secrets_are_never_printed() {
        let secrets = Secrets::of([HeaderValue::from_static(TOKEN)].iter());
        assert_eq!(format!("{secrets:?}"), "Secrets { .. }");
    }
}
