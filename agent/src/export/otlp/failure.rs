//! The cause of a failed attempt, and whether a retry may succeed; rejections over gRPC. Pure.
//!
//! Follows the OTLP specification ("Failures", OTLP/gRPC).

use std::{borrow::Cow, error::Error, time::Duration};

use prost::Message;
use tonic::{Code, Status};

use super::{Cause, request::PROFILES_VERSION, secrets::Secrets};
use crate::transport::{http::causes, proxy::Proxy};

/// The most bytes of an answer. An answer is empty, or has a few words.
pub(super) const ANSWER_BYTES: usize = 64 * 1024;
/// The most characters of a failure in the log and on the status page.
pub(super) const LINE_CHARS: usize = 300;

/// The remedy for a receiver that limits the rate of requests.
pub(super) const SEND_LESS: &str =
    " (the receiver asks to send less, and the agent tries again; a longer interval sends less)";

/// The remedy for a proxy that asks who the agent is.
pub(super) const LOGIN: &str =
    " (write the proxy's address with a user and a password: `http://USER:PASSWORD@HOST:PORT`)";

/// The description of a failed attempt.
#[derive(Debug)]
pub(in crate::export) struct Failure {
    pub(in crate::export) cause: Cause,
    /// The failure in words, which may be the receiver's. After [`Failure::told`] it has the remedy and no secrets.
    pub(in crate::export) text: String,
    /// The remedy, with a space and brackets, or nothing.
    pub(super) way_out: Cow<'static, str>,
    /// `None` if a retry would fail the same way, else the wait that the receiver asks for, or zero.
    pub(in crate::export) retry: Option<Duration>,
    /// True if the receiver answered, so the connection works.
    pub(in crate::export) answered: bool,
    /// True if the receiver cannot read the compression, or may have failed because of it.
    pub(in crate::export) encoding_refused: bool,
    /// True if the receiver serves nothing at this path: HTTP 404.
    pub(in crate::export) not_found: bool,
}

impl Failure {
    pub(super) fn silence(timeout: Duration) -> Self {
        Self { cause: Cause::Timeout, ..Self::without_answer(format!("no answer within {timeout:?}")) }
    }

    /// Returns the failure for a connection that could not be opened, or that broke.
    pub(super) fn unreachable(error: &(dyn Error + 'static)) -> Self {
        let text = chain(error);
        let way_out = Cow::Borrowed(way_out(&text));
        Self { way_out, ..Self::without_answer(text) }
    }

    /// Adds a remedy, if the failure has none.
    pub(super) fn or_way_out(mut self, way_out: &'static str) -> Self {
        if self.way_out.is_empty() {
            self.way_out = Cow::Borrowed(way_out);
        }
        self
    }

    /// Names the proxy that the connection goes through.
    pub(super) fn through(self, proxy: &Proxy) -> Self {
        let through = Self { text: format!("through {proxy}: {}", self.text), ..self };
        through.or_way_out(" (check that the proxy is there; `NO_PROXY` lists the receivers without a proxy)")
    }

    /// Returns the failure as people read it. The remedy is never cut, however long the receiver's words are.
    pub(super) fn told(self, secrets: &Secrets) -> Self {
        let room = LINE_CHARS.saturating_sub(self.way_out.chars().count());
        let said: String = secrets.hide(&self.text).chars().take(room).collect();
        Self { text: format!("{said}{}", self.way_out), way_out: Cow::Borrowed(""), ..self }
    }

    /// Returns the failure for an error of the agent itself, which a retry would repeat.
    pub(super) fn own(text: String) -> Self {
        Self { cause: Cause::Rejected, retry: None, answered: true, ..Self::without_answer(text) }
    }

    const fn without_answer(text: String) -> Self {
        Self {
            cause: Cause::Unavailable,
            text,
            way_out: Cow::Borrowed(""),
            retry: Some(Duration::ZERO),
            answered: false,
            encoding_refused: false,
            not_found: false,
        }
    }

    /// Returns whether the receiver accepted the request, and only its answer is over [`ANSWER_BYTES`]. A receiver may
    /// send the same message about a request, but no receiver has a limit this low.
    pub(super) fn is_of_answer(status: &Status) -> bool {
        let compressed = format!("Error decompressing: size limit, of {ANSWER_BYTES} bytes, exceeded");
        match status.code() {
            Code::OutOfRange => status.message().ends_with(&format!("limit is: {ANSWER_BYTES} bytes")),
            Code::ResourceExhausted => status.message().starts_with(&compressed),
            _ => false,
        }
    }

    pub(super) fn of(status: &Status) -> Self {
        let message = status.message();
        // tonic attaches a source to the statuses that it makes itself. A status from the receiver has none.
        if let Some(source) = status.source() {
            return Self::unreachable(source);
        }
        let asked = retry_delay(status.details());
        // gRPC for Go and Java answer ResourceExhausted, tonic OutOfRange, to a message over their limit.
        let too_large =
            ["larger than max", "too large", "exceeds maximum size"].iter().any(|hint| message.contains(hint));
        let other_version = other_version(message);
        let is_limited = status.code() == Code::ResourceExhausted && asked.is_some() && !too_large;
        let (cause, retry) = match status.code() {
            Code::ResourceExhausted | Code::OutOfRange if too_large => (Cause::TooLarge, None),
            // Without RetryInfo this code means that the receiver cannot recover.
            Code::ResourceExhausted if asked.is_none() => (Cause::Rejected, None),
            Code::DeadlineExceeded => (Cause::Timeout, Some(asked.unwrap_or_default())),
            Code::Unavailable
            | Code::ResourceExhausted
            | Code::Aborted
            | Code::OutOfRange
            | Code::DataLoss
            | Code::Cancelled => (Cause::Unavailable, Some(asked.unwrap_or_default())),
            _ => (Cause::Rejected, None),
        };
        Self {
            cause,
            text: format!("{:?}: {message}", status.code()),
            way_out: other_version.unwrap_or(Cow::Borrowed(if is_limited { SEND_LESS } else { "" })),
            retry,
            // The generated client turns a broken channel into Unknown.
            answered: status.code() != Code::Unknown,
            encoding_refused: status.code() == Code::Unimplemented
                && (message.to_lowercase().contains("compress")
                    || status.metadata().contains_key("grpc-accept-encoding")),
            not_found: false,
        }
    }
}

/// Returns the remedy if a receiver's words name the header of the version, as those of Collectors do since 0.163.
pub(super) fn other_version(said: &str) -> Option<Cow<'static, str>> {
    let (header, version) = PROFILES_VERSION;
    let way_out = || {
        format!(
            " (the receiver takes another development version of OTLP profiles than {version}: use a podperf or a \
             receiver of the same version; Collector 0.163 takes {version})"
        )
    };
    said.to_ascii_lowercase().contains(header).then(|| way_out().into())
}

/// Returns the remedy for a connection that failed, found by the messages of rustls, h2, hyper and hyper-util.
fn way_out(text: &str) -> &'static str {
    const AUTHORITY: &str = " (set `otlp.tls.caFile` to the authority that signed the receiver's certificate)";
    const NAME: &str = " (set `otlp.tls.serverName` to a name in the receiver's certificate)";
    const GRPC: &str = " (is it a receiver for HTTP? set `otlp.protocol: http/protobuf`)";
    const HTTP: &str = " (is it a receiver for gRPC? set `otlp.protocol: grpc`)";
    const WAYS_OUT: [(&str, &str); 13] = [
        ("UnknownIssuer", AUTHORITY),
        ("BadSignature", AUTHORITY),
        ("not valid for name", NAME),
        ("NotValidForName", NAME),
        ("certificate expired", " (renew the receiver's certificate)"),
        (
            "CertificateRequired",
            " (set `otlp.tls.certFile` and `otlp.tls.keyFile`: the receiver asks for a certificate)",
        ),
        ("InvalidContentType", " (write `http://` in `otlp.endpoint`: the receiver does not speak TLS there)"),
        ("frame with invalid size", GRPC),
        // The receiver answered in HTTP/1.1 and closed the connection while a large request was being sent.
        ("stream closed because of a broken pipe", GRPC),
        // The two messages differ in whether the receiver answered before the request or after it.
        ("unexpected message from connection", HTTP),
        ("invalid HTTP version", HTTP),
        ("tunnel error: unsuccessful", " (let the proxy connect to the receiver, or list the receiver in `NO_PROXY`)"),
        ("tunnel error: proxy authorization", LOGIN),
    ];
    WAYS_OUT.iter().find(|(words, _)| text.contains(words)).map_or("", |(_, way_out)| way_out)
}

/// Returns an error with its sources. The innermost errors name the cause; the outer ones are tonic's layers.
fn chain(error: &(dyn Error + 'static)) -> String {
    let mut texts: Vec<_> = causes(error).map(ToString::to_string).collect();
    texts.dedup();
    texts.join(": ")
}

/// Returns the `retry_delay` of a `google.rpc.RetryInfo` among the details of a `google.rpc.Status`.
fn retry_delay(details: &[u8]) -> Option<Duration> {
    let status = rpc::Status::decode(details).ok()?;
    let info = status.details.iter().find(|any| any.type_url.ends_with("/google.rpc.RetryInfo"))?;
    let delay = rpc::RetryInfo::decode(info.value.as_slice()).ok()?.retry_delay.unwrap_or_default();
    let nanos = u32::try_from(delay.nanos).unwrap_or(0).min(999_999_999);
    Some(Duration::new(u64::try_from(delay.seconds).unwrap_or(0), nanos))
}

/// The few fields of googleapis' `google/rpc/{status,error_details}.proto` that a retry delay needs.
pub(super) mod rpc {
    #[derive(Clone, PartialEq, prost::Message)]
    pub(in crate::export::otlp) struct Status {
        #[prost(string, tag = "2")]
        pub(in crate::export::otlp) message: String,
        #[prost(message, repeated, tag = "3")]
        pub(in crate::export::otlp) details: Vec<Any>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(in crate::export::otlp) struct Any {
        #[prost(string, tag = "1")]
        pub(in crate::export::otlp) type_url: String,
        #[prost(bytes = "vec", tag = "2")]
        pub(in crate::export::otlp) value: Vec<u8>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(in crate::export::otlp) struct RetryInfo {
        #[prost(message, optional, tag = "1")]
        pub(in crate::export::otlp) retry_delay: Option<Delay>,
    }

    #[derive(Clone, Copy, PartialEq, prost::Message)]
    pub(in crate::export::otlp) struct Delay {
        #[prost(int64, tag = "1")]
        pub(in crate::export::otlp) seconds: i64,
        #[prost(int32, tag = "2")]
        pub(in crate::export::otlp) nanos: i32,
    }
}
