//! Reads what a receiver says of a request that it accepted, over HTTP. Pure.
//!
//! Follows the OTLP specification ("Full Success" and "Partial Success", OTLP/HTTP).

use std::borrow::Cow;

use bytes::Bytes;
use http::{HeaderMap, header::CONTENT_TYPE, response::Parts};
use opentelemetry_proto::tonic::collector::profiles::v1development::ExportProfilesServiceResponse;
use prost::Message;
use serde::Deserialize;

use super::failure::Failure;
use crate::transport::http::BadBody;

/// The only media type that this agent sends.
pub(super) const PROTOBUF: &str = "application/x-protobuf";
/// The registered name of the same type.
const REGISTERED: &str = "application/protobuf";
const JSON: &str = "application/json";
const HTML: &str = "text/html";

/// A request that the receiver accepted.
#[derive(Debug, Default, PartialEq, Eq)]
pub(in crate::export) struct Accepted {
    /// Number of profiles, or points of metrics, that the receiver rejected from the request.
    pub(in crate::export) rejected: u64,
    /// The receiver's reason for them, or why the reason is unknown. Empty if nothing was rejected.
    pub(in crate::export) message: String,
}

impl Accepted {
    pub(super) fn of(rejected: i64, message: &str) -> Self {
        // 0 with a message is a warning of the receiver, which is ignored. No request has so many that a sum overflows.
        let rejected = u64::try_from(rejected).unwrap_or(0).min(u32::MAX.into());
        let message = if rejected == 0 { String::new() } else { format!("{rejected} rejected: {message}") };
        Self { rejected, message }
    }

    pub(super) fn unread(why: &str) -> Self {
        Self { rejected: 0, message: format!("accepted, but what was rejected of it cannot be told: {why}") }
    }
}

/// Reads the answer to a request, whose status is a success. An answer that is not OTLP is a failure: a login page or a
/// web server also says 200.
pub(super) fn read(head: &Parts, body: Result<Bytes, BadBody>) -> Result<Accepted, Failure> {
    let kind = media_type(&head.headers);
    let is_empty = body.as_ref().is_ok_and(Bytes::is_empty);
    // An empty body is an empty message. Receivers give it any type or none.
    if is_empty && kind != HTML {
        return Ok(Accepted::default());
    }
    if ![PROTOBUF, REGISTERED, JSON].contains(&kind.as_str()) {
        return Err(not_otlp(head, &kind));
    }
    let body = match body {
        Ok(body) => body,
        Err(bad) => return Ok(Accepted::unread(&bad.to_string())),
    };
    let read = if kind == JSON { in_json(&body) } else { in_protobuf(body) };
    Ok(read.unwrap_or_else(|| Accepted::unread(&format!("the answer is not the `{kind}` that it says"))))
}

/// Returns the media type in lower case without its parameters, or an empty text.
pub(super) fn media_type(headers: &HeaderMap) -> String {
    let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
}

fn not_otlp(head: &Parts, kind: &str) -> Failure {
    let kind = if kind.is_empty() { "a text without a type".to_owned() } else { format!("`{kind}`") };
    let status = head.status.as_u16();
    let text = format!("HTTP {status}: answers with {kind}, not OTLP: is this a login page or a web server?");
    let way_out = " (set `otlp.endpoint` and `otlp.path` to where an OTLP receiver is)";
    Failure { way_out: Cow::Borrowed(way_out), ..Failure::own(text) }
}

/// The answers of all signals have the same fields.
fn in_protobuf(body: Bytes) -> Option<Accepted> {
    let partial = ExportProfilesServiceResponse::decode(body).ok()?.partial_success.unwrap_or_default();
    Some(Accepted::of(partial.rejected_profiles, &partial.error_message))
}

/// An answer in protobuf's JSON, in which a number of 64 bits is a text or a number.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Answer {
    partial_success: Option<Partial>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Partial {
    #[serde(alias = "rejectedDataPoints")]
    rejected_profiles: Option<Count>,
    error_message: Option<String>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Count {
    Number(i64),
    Text(String),
}

fn in_json(body: &[u8]) -> Option<Accepted> {
    let partial = serde_json::from_slice::<Answer>(body).ok()?.partial_success.unwrap_or_default();
    let rejected = match partial.rejected_profiles {
        None => 0,
        Some(Count::Number(number)) => number,
        Some(Count::Text(text)) => text.parse().ok()?,
    };
    Some(Accepted::of(rejected, &partial.error_message.unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use opentelemetry_proto::tonic::collector::profiles::v1development::ExportProfilesPartialSuccess;

    use super::*;
    use crate::export::otlp::Cause;

    /// Reads an answer of 200 with this `Content-Type`, or without one.
    fn answer(kind: &str, body: &[u8]) -> Result<Accepted, Failure> {
        let mut response = http::Response::builder();
        if !kind.is_empty() {
            response = response.header(CONTENT_TYPE, kind);
        }
        read(&response.body(()).unwrap().into_parts().0, Ok(Bytes::copy_from_slice(body)))
    }

    #[test]
    fn what_was_rejected_is_read_in_each_form() {
        let partial = ExportProfilesPartialSuccess { rejected_profiles: 2, error_message: "quota".to_owned() };
        let protobuf = ExportProfilesServiceResponse { partial_success: Some(partial) }.encode_to_vec();
        for kind in ["application/x-protobuf", "Application/X-Protobuf; charset=utf-8", "application/protobuf"] {
            assert_eq!(answer(kind, &protobuf).unwrap().message, "2 rejected: quota", "{kind}");
        }
        for json in [
            r#"{"partialSuccess":{"rejectedProfiles":"2","errorMessage":"quota"}}"#,
            r#"{"partialSuccess":{"rejectedProfiles":2,"errorMessage":"quota"},"more":1}"#,
            r#"{"partialSuccess":{"errorMessage":"quota","rejectedDataPoints":"2"}}"#,
        ] {
            let accepted = answer("application/json; charset=utf-8", json.as_bytes()).unwrap();
            assert_eq!((accepted.rejected, accepted.message.as_str()), (2, "2 rejected: quota"), "{json}");
        }
    }

    #[test]
    fn an_answer_that_rejects_nothing_is_a_success() {
        for (kind, body) in [
            ("", ""),
            ("text/plain; charset=utf-8", ""),
            ("application/x-protobuf", ""),
            ("application/json", ""),
            ("application/json", "{}"),
            ("application/json", r#"{"partialSuccess":null}"#),
            ("application/json", r#"{"partialSuccess":{"errorMessage":"a warning"}}"#),
        ] {
            assert_eq!(answer(kind, body.as_bytes()).unwrap(), Accepted::default(), "{kind}: {body}");
        }
    }

    #[test]
    fn an_answer_that_is_not_otlp_is_a_failure() {
        for (kind, body, named) in [
            ("text/html; charset=utf-8", "<!DOCTYPE html><title>Sign in</title>", "`text/html`"),
            ("text/html", "", "`text/html`"),
            ("", "ok", "a text without a type"),
            ("text/plain", "ok", "`text/plain`"),
        ] {
            let failure = answer(kind, body.as_bytes()).unwrap_err();
            let words = format!("HTTP 200: answers with {named}, not OTLP: is this a login page or a web server?");
            assert_eq!((failure.text, failure.cause, failure.retry), (words, Cause::Rejected, None));
        }
    }

    #[test]
    fn an_answer_that_cannot_be_read_is_not_called_healthy() {
        for (kind, body) in [
            ("application/x-protobuf", "<html>"),
            ("application/json", "<html>"),
            ("application/json", r#"{"partialSuccess":{"rejectedProfiles":"many"}}"#),
        ] {
            let accepted = answer(kind, body.as_bytes()).unwrap();
            let words = format!("cannot be told: the answer is not the `{kind}` that it says");
            assert!(accepted.rejected == 0 && accepted.message.ends_with(&words), "{accepted:?}");
        }
    }
}
