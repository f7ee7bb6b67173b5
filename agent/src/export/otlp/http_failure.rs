//! The meaning of a rejection over HTTP. Pure, but for the clock that a date is compared with.
//!
//! Follows the OTLP specification ("Failures", OTLP/HTTP).

use std::{
    borrow::Cow,
    time::{Duration, SystemTime},
};

use http::{
    StatusCode,
    header::{LOCATION, RETRY_AFTER},
    response::Parts,
};
use prost::Message;

use super::{
    Cause,
    answer::{PROTOBUF, media_type},
    failure::{Failure, LOGIN, SEND_LESS, other_version, rpc},
};
use crate::transport::compression::Compression;

pub(super) fn of(head: &Parts, body: &[u8], compression: Compression) -> Failure {
    let status = head.status;
    let (cause, retry) = match status {
        StatusCode::TOO_MANY_REQUESTS
        | StatusCode::BAD_GATEWAY
        | StatusCode::SERVICE_UNAVAILABLE
        | StatusCode::GATEWAY_TIMEOUT => {
            (Cause::Unavailable, Some(retry_after(head, SystemTime::now()).unwrap_or_default()))
        }
        StatusCode::PAYLOAD_TOO_LARGE => (Cause::TooLarge, None),
        _ => (Cause::Rejected, None),
    };
    let said = said(head, body);
    let other_version = other_version(&said);
    // A receiver that cannot decompress a request may fail to parse it and answer 400.
    let encoding_refused = compression != Compression::None
        && other_version.is_none()
        && matches!(status, StatusCode::UNSUPPORTED_MEDIA_TYPE | StatusCode::BAD_REQUEST);
    Failure {
        cause,
        text: format!("HTTP {}: {said}", status.as_u16()),
        way_out: other_version.unwrap_or(Cow::Borrowed(way_out(status))),
        retry,
        answered: true,
        encoding_refused,
        not_found: status == StatusCode::NOT_FOUND,
    }
}

/// Returns the receiver's message: that of a `google.rpc.Status`, a text, or the standard phrase of the status.
fn said(head: &Parts, body: &[u8]) -> String {
    let text = match media_type(&head.headers).as_str() {
        PROTOBUF => rpc::Status::decode(body).map(|status| status.message).unwrap_or_default(),
        "text/plain" | "application/json" => String::from_utf8_lossy(body).trim().to_owned(),
        _ => String::new(),
    };
    if let Some(to) = head.headers.get(LOCATION).and_then(|to| to.to_str().ok()) {
        return format!("moved to {to}");
    }
    if text.is_empty() { head.status.canonical_reason().unwrap_or("no reason").to_owned() } else { text }
}

fn way_out(status: StatusCode) -> &'static str {
    match status {
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => " (set `otlp.headers` to what the receiver asks for)",
        StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED => {
            " (set `otlp.path` to where the receiver takes profiles)"
        }
        StatusCode::TOO_MANY_REQUESTS => SEND_LESS,
        StatusCode::PROXY_AUTHENTICATION_REQUIRED => LOGIN,
        _ => "",
    }
}

/// Returns the time of the `Retry-After` header, which holds seconds or a date.
fn retry_after(head: &Parts, now: SystemTime) -> Option<Duration> {
    let text = head.headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    match text.parse() {
        Ok(seconds) => Some(Duration::from_secs(seconds)),
        Err(_) => Some(httpdate::parse_http_date(text).ok()?.duration_since(now).unwrap_or_default()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(status: u16, headers: &[(&'static str, &str)]) -> Parts {
        let mut response = http::Response::builder().status(status);
        for (name, value) in headers {
            response = response.header(*name, *value);
        }
        response.body(()).unwrap().into_parts().0
    }

    fn failure(status: u16, headers: &[(&'static str, &str)], body: &[u8]) -> Failure {
        of(&head(status, headers), body, Compression::Gzip)
    }

    #[test]
    fn what_is_worth_another_attempt_is_what_the_specification_says() {
        for status in [429, 502, 503, 504] {
            assert_eq!(failure(status, &[], b"").retry, Some(Duration::ZERO), "{status}");
        }
        for status in [301, 400, 401, 404, 408, 413, 415, 422, 500, 501] {
            assert_eq!(failure(status, &[], b"").retry, None, "{status}");
        }
        assert_eq!(failure(413, &[], b"").cause, Cause::TooLarge);
        assert_eq!(failure(500, &[], b"").cause, Cause::Rejected);
    }

    #[test]
    fn the_wait_that_is_asked_for_is_read_as_seconds_or_as_a_date() {
        assert_eq!(failure(503, &[("retry-after", "7")], b"").retry, Some(Duration::from_secs(7)));
        assert_eq!(failure(503, &[("retry-after", "soon")], b"").retry, Some(Duration::ZERO));
        let date = head(429, &[("retry-after", "Thu, 01 Jan 2026 00:01:00 GMT")]);
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_767_225_600);
        assert_eq!(retry_after(&date, now), Some(Duration::from_secs(60)));
        assert_eq!(retry_after(&date, now + Duration::from_secs(90)), Some(Duration::ZERO));
    }

    #[test]
    fn only_what_may_be_the_compression_is_tried_without() {
        assert!(failure(415, &[], b"").encoding_refused && failure(400, &[], b"").encoding_refused);
        assert!(!failure(404, &[], b"").encoding_refused);
        assert!(!of(&head(400, &[]), b"", Compression::None).encoding_refused);
    }

    #[test]
    fn the_receivers_words_are_told_and_what_would_help() {
        let status = rpc::Status { message: "no dictionary".to_owned(), details: Vec::new() }.encode_to_vec();
        for kind in [PROTOBUF, "Application/X-Protobuf; charset=utf-8"] {
            assert_eq!(failure(400, &[("content-type", kind)], &status).text, "HTTP 400: no dictionary");
        }
        assert_eq!(failure(503, &[("content-type", "text/plain")], b"later\n").text, "HTTP 503: later");
        assert_eq!(failure(503, &[("content-type", "text/html")], b"<html>").text, "HTTP 503: Service Unavailable");
        assert_eq!(failure(308, &[("location", "https://x/")], b"").text, "HTTP 308: moved to https://x/");
        assert!(failure(404, &[], b"").way_out.contains("(set `otlp.path`"));
        assert!(failure(401, &[], b"").way_out.contains("(set `otlp.headers`"));
        assert!(failure(429, &[], b"").way_out.contains("asks to send less, and the agent tries again"));
    }
}
