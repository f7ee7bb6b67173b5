//! The environment variables of OpenTelemetry, which set the keys that the file does not set. Pure.
//!
//! A key that has its default counts as not set. So the variables still apply beside a copy of the whole example file.
//! A variable of the signal (`OTEL_EXPORTER_OTLP_PROFILES_*`) takes precedence over the general one. An empty variable
//! counts as not set, by OpenTelemetry's rules. A bad variable is an error, because profiles must not go to a wrong
//! place.

use std::{borrow::Cow, collections::BTreeMap, time::Duration};

use percent_encoding::percent_decode_str;
use serde::de::{DeserializeOwned, IntoDeserializer, value::StrDeserializer};

use super::{ConfigError, Otlp};
use crate::export::otlp::{Protocol, endpoint::is_header};

const GENERAL: &str = "OTEL_EXPORTER_OTLP_";
const PROFILES: &str = "OTEL_EXPORTER_OTLP_PROFILES_";

/// A key, and the variable that may set it.
struct Row {
    /// The part of the variable's name after one of the two prefixes.
    name: &'static str,
    is_set: fn(&Otlp, &Otlp) -> bool,
    set: fn(&mut Otlp, Text<'_>) -> Result<(), String>,
}

/// A variable's value.
#[derive(Clone, Copy)]
struct Text<'a> {
    text: &'a str,
    /// `true` for the variable of the signal, and `false` for the general one.
    of_signal: bool,
}

/// The order matters: the meaning of an endpoint depends on the protocol.
const ROWS: [Row; 9] = [
    Row {
        name: "PROTOCOL",
        is_set: |otlp, default| otlp.protocol != default.protocol,
        set: |otlp, value| word(value.text, "`grpc` or `http/protobuf`").map(|protocol| otlp.protocol = protocol),
    },
    Row { name: "ENDPOINT", is_set: |otlp, default| otlp.endpoint != default.endpoint, set: set_endpoint },
    Row {
        name: "HEADERS",
        // Without a receiver nothing sends them, so a bad one does no harm.
        is_set: |otlp, default| otlp.endpoint.is_empty() || otlp.headers != default.headers,
        set: |otlp, value| headers(value.text).map(|headers| otlp.headers = headers),
    },
    Row {
        name: "TIMEOUT",
        is_set: |otlp, default| otlp.timeout != default.timeout,
        set: |otlp, value| {
            let milliseconds = value.text.parse().ok().ok_or_else(|| "not a number of milliseconds".to_owned())?;
            otlp.timeout = Duration::from_millis(milliseconds);
            Ok(())
        },
    },
    Row {
        name: "COMPRESSION",
        is_set: |otlp, default| otlp.compression != default.compression,
        set: |otlp, value| {
            word(value.text, "`gzip`, `zstd` or `none`").map(|compression| otlp.compression = compression)
        },
    },
    Row {
        name: "CERTIFICATE",
        is_set: |otlp, default| otlp.tls.ca_file != default.tls.ca_file,
        set: |otlp, value| {
            otlp.tls.ca_file = value.text.into();
            Ok(())
        },
    },
    Row {
        name: "CLIENT_CERTIFICATE",
        is_set: |otlp, default| otlp.tls.cert_file != default.tls.cert_file,
        set: |otlp, value| {
            otlp.tls.cert_file = value.text.into();
            Ok(())
        },
    },
    Row {
        name: "CLIENT_KEY",
        is_set: |otlp, default| otlp.tls.key_file != default.tls.key_file,
        set: |otlp, value| {
            otlp.tls.key_file = value.text.into();
            Ok(())
        },
    },
    Row {
        name: "INSECURE",
        // The variable gives a scheme to any endpoint without one, including the file's.
        is_set: |otlp, _| otlp.endpoint.is_empty() || otlp.endpoint.contains("://"),
        set: |otlp, value| {
            let scheme = match value.text.to_ascii_lowercase().as_str() {
                "true" => "http",
                "false" => "https",
                _ => return Err("neither `true` nor `false`".to_owned()),
            };
            otlp.endpoint = format!("{scheme}://{}", otlp.endpoint);
            Ok(())
        },
    },
];

/// Sets the keys that the file left at their defaults.
pub(super) fn apply(otlp: &mut Otlp, variable: impl Fn(&str) -> Option<String>) -> Result<(), ConfigError> {
    let default = Otlp::default();
    let given = |name: &str| variable(name).map(|text| text.trim().to_owned()).filter(|text| !text.is_empty());
    for row in ROWS {
        if (row.is_set)(otlp, &default) {
            continue;
        }
        for (prefix, of_signal) in [(PROFILES, true), (GENERAL, false)] {
            let name = format!("{prefix}{}", row.name);
            if let Some(text) = given(&name) {
                (row.set)(otlp, Text { text: &text, of_signal })
                    .map_err(|message| ConfigError::Variable { name, message })?;
                break;
            }
        }
    }
    let attributes = "OTEL_RESOURCE_ATTRIBUTES";
    let more = given(attributes)
        .map(|text| pairs(&text))
        .transpose()
        .map_err(|message| ConfigError::Variable { name: attributes.to_owned(), message })?;
    let mut more: BTreeMap<_, _> = more.into_iter().flatten().collect();
    // `OTEL_SERVICE_NAME` takes precedence over `service.name` in `OTEL_RESOURCE_ATTRIBUTES`.
    more.extend(given("OTEL_SERVICE_NAME").map(|name| ("service.name".to_owned(), name)));
    for (key, value) in more {
        otlp.resource_attributes.entry(key).or_insert(value);
    }
    Ok(())
}

/// Sets the endpoint. The general variable is the base of all signals, each under its own path. The variable of the
/// signal is the whole address. An address with a user stays whole, since the check refuses it without showing it.
fn set_endpoint(otlp: &mut Otlp, value: Text<'_>) -> Result<(), String> {
    otlp.endpoint = value.text.to_owned();
    let has_user = value.text.contains('@');
    if !has_user && value.of_signal && otlp.protocol == Protocol::Http && otlp.path == Otlp::default().path {
        let host = value.text.find("://").map_or(0, |at| at + 3);
        let end = value.text[host..].find('/').map_or(value.text.len(), |at| host + at);
        value.text[..end].clone_into(&mut otlp.endpoint);
        otlp.path = if end == value.text.len() { "/".to_owned() } else { value.text[end..].to_owned() };
    }
    Ok(())
}

/// Parses a word in the form that the file uses.
fn word<T: DeserializeOwned>(text: &str, known: &str) -> Result<T, String> {
    let deserializer: StrDeserializer<'_, serde::de::value::Error> = text.into_deserializer();
    T::deserialize(deserializer).ok().ok_or_else(|| format!("unknown `{text}` (one of {known})"))
}

/// Parses headers. Their names may be in any case, as the documents of receivers write them.
fn headers(text: &str) -> Result<BTreeMap<String, String>, String> {
    let headers = pairs(text)?.into_iter().map(|(name, value)| (name.to_ascii_lowercase(), value)).enumerate();
    let checked = headers.map(|(index, (name, value))| match is_header(&name, &value) {
        true => Ok((name, value)),
        false => Err(format!("item {} is not a header (`name=value`, in printable ASCII)", index + 1)),
    });
    checked.collect()
}

/// Parses `key=value,key=value` with percent-encoding such as `%20`. Errors contain no text of it: it may be a token.
fn pairs(text: &str) -> Result<Vec<(String, String)>, String> {
    let items = text.split(',').map(str::trim).filter(|item| !item.is_empty());
    let pairs = items.enumerate().map(|(index, item)| {
        let (key, value) = item.split_once('=').unwrap_or_default();
        let key = decode(key.trim()).filter(|key| !key.is_empty());
        key.zip(decode(value.trim())).ok_or_else(|| format!("item {} is not `key=value`", index + 1))
    });
    pairs.collect()
}

/// Decodes percent-encoding; `None` if the result is no text.
fn decode(text: &str) -> Option<String> {
    percent_decode_str(text).decode_utf8().ok().map(Cow::into_owned)
}

#[cfg(test)]
#[path = "variables_tests.rs"]
mod tests;
