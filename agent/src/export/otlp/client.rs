//! The task that sends: one window at a time, over one connection, with retries.
//!
//! Which failures are worth another attempt follows the OTLP specification ("Failures", OTLP/gRPC). Everything a
//! receiver can do wrong ends in a counter and in one of two states; only the change of state is logged.

use std::{
    error::Error,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime},
};

use opentelemetry_proto::tonic::collector::profiles::v1development::{
    ExportProfilesServiceRequest, profiles_service_client::ProfilesServiceClient,
};
use prost::Message;
use tokio::{
    sync::{mpsc, watch},
    time::Instant,
};
use tonic::{
    Code, Extensions, Request, Status,
    codec::CompressionEncoding,
    metadata::{AsciiMetadataKey, AsciiMetadataValue, MetadataMap},
    transport::{Channel, ClientTlsConfig, Endpoint, Uri},
};

use super::{Cause, Health, Settings, random, request};
use crate::stacks::profile::Profile;

/// An endpoint or a header that can never work.
#[derive(Debug, thiserror::Error)]
pub enum EndpointError {
    /// None of the three forms.
    #[error("failed to parse endpoint `{endpoint}` (write `http://host:4317`, `https://host:4317` or `host:4317`)")]
    Syntax {
        /// As configured.
        endpoint: String,
    },
    /// Neither `http` nor `https`.
    #[error("endpoint `{endpoint}` has scheme `{scheme}` (use `http` or `https`; both are gRPC)")]
    Scheme {
        /// As configured.
        endpoint: String,
        /// What it begins with.
        scheme: String,
    },
    /// No default is assumed.
    #[error("endpoint `{endpoint}` has no port (OTLP over gRPC is 4317)")]
    Port {
        /// As configured.
        endpoint: String,
    },
    /// gRPC names the path itself.
    #[error("endpoint `{endpoint}` has a path (only host and port; OTLP over HTTP is not supported)")]
    Path {
        /// As configured.
        endpoint: String,
    },
    /// Not repeated here, nor anywhere else.
    #[error("endpoint has a user name or password in it (use `headers`)")]
    Credentials,
    /// Not a name or value that HTTP/2 can carry. The value stays out of the message: it may be a token.
    #[error("header `{name}` is not valid (lower-case name, printable ASCII value)")]
    Header {
        /// As configured.
        name: String,
    },
    /// Most likely there are no root certificates.
    #[error("failed to set up TLS for endpoint `{endpoint}` (install root certificates or set SSL_CERT_FILE)")]
    Tls {
        /// As configured.
        endpoint: String,
        /// What the TLS library says.
        source: tonic::transport::Error,
    },
}

/// How long a window is worth trying.
#[derive(Clone, Copy, Debug)]
pub(super) struct Retry {
    /// Before the second attempt; doubles with each further one.
    pub(super) first: Duration,
    /// Between two attempts at most, unless the receiver asks for more.
    pub(super) most: Duration,
    /// From the moment the window was queued. Each window is tried once, however old it is.
    pub(super) max_age: Duration,
}

impl Default for Retry {
    fn default() -> Self {
        Self {
            first: Duration::from_secs(1),
            most: Duration::from_secs(30),
            // Long enough for a receiver's rolling restart.
            max_age: Duration::from_secs(120),
        }
    }
}

/// Written by the task and by [`super::Exporter::send`], read by anyone.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) exports: AtomicU64,
    failures: [AtomicU64; Cause::ALL.len()],
    pub(super) lost: AtomicU64,
    pub(super) dropped: AtomicU64,
    pub(super) rejected_profiles: AtomicU64,
    /// Windows in the queue and in work.
    pub(super) unsent: AtomicU64,
}

impl Counters {
    pub(super) fn failures(&self, cause: Cause) -> u64 {
        self.failures[cause as usize].load(Ordering::Relaxed)
    }
}

/// A window in the queue.
#[derive(Debug)]
pub(super) struct Queued {
    pub(super) profile: Profile,
    pub(super) since: Instant,
}

#[derive(Debug)]
pub(super) struct Worker {
    endpoint: Endpoint,
    client: ProfilesServiceClient<Channel>,
    headers: MetadataMap,
    gzip: bool,
    timeout: Duration,
    retry: Retry,
    counters: Arc<Counters>,
    health: watch::Sender<Health>,
    stopped: watch::Receiver<bool>,
}

impl Worker {
    pub(super) fn new(
        settings: Settings,
        retry: Retry,
        counters: Arc<Counters>,
        health: watch::Sender<Health>,
        stopped: watch::Receiver<bool>,
    ) -> Result<Self, EndpointError> {
        let endpoint = parse(&settings.endpoint)?.connect_timeout(settings.timeout);
        let headers = parse_headers(&settings.headers)?;
        let client = connect(&endpoint, true);
        Ok(Self { endpoint, client, headers, gzip: true, timeout: settings.timeout, retry, counters, health, stopped })
    }

    pub(super) async fn run(mut self, mut windows: mpsc::Receiver<Queued>) {
        while let Some(window) = windows.recv().await {
            let expires = window.since + self.retry.max_age;
            let profile = window.profile;
            // Symbol names are hashed by the megabyte here: not on a thread that serves sockets.
            match tokio::task::spawn_blocking(move || request::requests(&profile)).await {
                Ok(requests) => self.deliver(requests, expires).await,
                Err(err) => self.degrade(format!("failed to build the request: {err}")),
            }
            self.counters.unsent.fetch_sub(1, Ordering::Relaxed);
        }
    }

    async fn deliver(&mut self, requests: Vec<ExportProfilesServiceRequest>, expires: Instant) {
        let mut whole = !requests.is_empty();
        let mut requests = requests.into_iter();
        while let Some(request) = requests.next() {
            match self.persist(request, expires).await {
                Delivery::Accepted => {}
                Delivery::Partial => whole = false,
                Delivery::Refused => {
                    whole = false;
                    self.counters.lost.fetch_add(1, Ordering::Relaxed);
                }
                Delivery::Expired => {
                    // The others are as old, and the receiver is not answering.
                    let lost = 1 + u64::try_from(requests.len()).unwrap_or(u64::MAX);
                    self.counters.lost.fetch_add(lost, Ordering::Relaxed);
                    return;
                }
            }
        }
        if whole {
            self.recover();
        }
    }

    /// One request, until it is accepted, refused for good or too old.
    async fn persist(&mut self, request: ExportProfilesServiceRequest, expires: Instant) -> Delivery {
        let mut backoff = self.retry.first;
        loop {
            let failure = match self.attempt(request.clone()).await {
                Ok(delivery) => return delivery,
                Err(failure) => failure,
            };
            if failure.uncompressed && self.gzip {
                self.gzip = false;
                self.client = connect(&self.endpoint, self.gzip);
                continue;
            }
            self.counters.failures[failure.cause as usize].fetch_add(1, Ordering::Relaxed);
            self.degrade(failure.text);
            if !failure.answered {
                // The connection may lead nowhere; the next attempt gets a new one.
                self.client = connect(&self.endpoint, self.gzip);
            }
            let Some(at_least) = failure.retry else {
                return Delivery::Refused;
            };
            let wait = jittered(backoff).max(at_least);
            if Instant::now().checked_add(wait).is_none_or(|next| next > expires) {
                return Delivery::Expired;
            }
            backoff = (backoff * 2).min(self.retry.most);
            self.rest(wait).await;
        }
    }

    /// Cut short once by a shutdown; afterwards no wait is longer than the first.
    async fn rest(&mut self, wait: Duration) {
        if *self.stopped.borrow_and_update() {
            tokio::time::sleep(wait.min(self.retry.first)).await;
            return;
        }
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            changed = self.stopped.changed() => if changed.is_err() {
                // The handle is gone without a shutdown: nobody is in a hurry.
                tokio::time::sleep(wait).await;
            }
        }
    }

    async fn attempt(&mut self, request: ExportProfilesServiceRequest) -> Result<Delivery, Failure> {
        let request = Request::from_parts(self.headers.clone(), Extensions::default(), request);
        let answer = tokio::time::timeout(self.timeout, self.client.export(request)).await;
        let Ok(answer) = answer else {
            return Err(Failure::silence(self.timeout));
        };
        let partial = answer.map_err(|status| Failure::of(&status))?.into_inner().partial_success;
        self.counters.exports.fetch_add(1, Ordering::Relaxed);
        let Some(partial) = partial else {
            return Ok(Delivery::Accepted);
        };
        // 0 with a message is a warning of the receiver's.
        let rejected = u64::try_from(partial.rejected_profiles).unwrap_or(0);
        if rejected == 0 {
            return Ok(Delivery::Accepted);
        }
        self.counters.rejected_profiles.fetch_add(rejected, Ordering::Relaxed);
        self.degrade(format!("{rejected} profiles rejected: {}", partial.error_message));
        Ok(Delivery::Partial)
    }

    fn degrade(&self, error: String) {
        let error = one_line(&error);
        let since = match &*self.health.borrow() {
            Health::Degraded { since, .. } => Some(*since),
            Health::Healthy => None,
        };
        if since.is_none() {
            let endpoint = self.endpoint.uri();
            tracing::warn!(%endpoint, %error, state = "degraded", "failed to export profiles");
        }
        self.health.send_replace(Health::Degraded { since: since.unwrap_or_else(SystemTime::now), error });
    }

    fn recover(&self) {
        if self.health.send_replace(Health::Healthy) != Health::Healthy {
            tracing::info!(endpoint = %self.endpoint.uri(), state = "healthy", "exporting profiles again");
        }
    }
}

/// What became of a request.
enum Delivery {
    Accepted,
    /// Accepted, but for some of its profiles.
    Partial,
    /// Not accepted, and never will be.
    Refused,
    /// Not accepted in time.
    Expired,
}

/// What came of an attempt that failed.
#[derive(Debug)]
struct Failure {
    cause: Cause,
    text: String,
    /// `None` when another attempt would fail the same way, else the wait that the receiver asks for, or zero.
    retry: Option<Duration>,
    /// By the receiver, so the connection works.
    answered: bool,
    /// The receiver cannot read gzip.
    uncompressed: bool,
}

impl Failure {
    fn silence(timeout: Duration) -> Self {
        Self {
            cause: Cause::Timeout,
            text: format!("no answer within {timeout:?}"),
            retry: Some(Duration::ZERO),
            answered: false,
            uncompressed: false,
        }
    }

    fn of(status: &Status) -> Self {
        let message = status.message();
        // tonic attaches a source to what it made up itself; what came over the wire has none.
        if let Some(source) = status.source() {
            return Self {
                cause: Cause::Unavailable,
                text: chain(source),
                retry: Some(Duration::ZERO),
                answered: false,
                uncompressed: false,
            };
        }
        let asked = retry_delay(status.details());
        // gRPC for Go and Java answer ResourceExhausted, tonic OutOfRange, to a message over their limit.
        let too_large =
            ["larger than max", "too large", "exceeds maximum size"].iter().any(|hint| message.contains(hint));
        let (cause, retry) = match status.code() {
            Code::ResourceExhausted | Code::OutOfRange if too_large => (Cause::TooLarge, None),
            // Without RetryInfo it means that the receiver cannot recover.
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
            retry,
            // The generated client turns a broken channel into Unknown.
            answered: status.code() != Code::Unknown,
            uncompressed: status.code() == Code::Unimplemented && message.to_lowercase().contains("compress"),
        }
    }
}

fn parse(endpoint: &str) -> Result<Endpoint, EndpointError> {
    let text = endpoint.trim();
    if text.contains('@') {
        return Err(EndpointError::Credentials);
    }
    let endpoint = || text.to_owned();
    let url = if text.contains("://") { text.to_owned() } else { format!("http://{text}") };
    let syntax = |_| EndpointError::Syntax { endpoint: endpoint() };
    let uri: Uri = url.parse().map_err(syntax)?;
    let tls = match uri.scheme_str() {
        Some("http") => false,
        Some("https") => true,
        scheme => {
            let scheme = scheme.unwrap_or_default().to_owned();
            return Err(EndpointError::Scheme { endpoint: endpoint(), scheme });
        }
    };
    if uri.host().is_none_or(str::is_empty) {
        return Err(EndpointError::Syntax { endpoint: endpoint() });
    }
    if uri.port_u16().is_none_or(|port| port == 0) {
        return Err(EndpointError::Port { endpoint: endpoint() });
    }
    if uri.path_and_query().is_some_and(|path| path != "/") {
        return Err(EndpointError::Path { endpoint: endpoint() });
    }
    let built = Endpoint::from(uri)
        .user_agent(concat!("podperf/", env!("CARGO_PKG_VERSION")))
        .and_then(|built| if tls { built.tls_config(ClientTlsConfig::new().with_native_roots()) } else { Ok(built) });
    built.map_err(|source| EndpointError::Tls { endpoint: endpoint(), source })
}

/// Whether endpoint and headers can be used.
pub(super) fn check(settings: &Settings) -> Result<(), EndpointError> {
    parse(&settings.endpoint)?;
    parse_headers(&settings.headers)?;
    Ok(())
}

fn parse_headers(headers: &[(String, String)]) -> Result<MetadataMap, EndpointError> {
    let mut parsed = MetadataMap::new();
    for (name, value) in headers {
        let key = AsciiMetadataKey::from_bytes(name.as_bytes()).ok();
        let value = AsciiMetadataValue::try_from(value.as_str()).ok();
        let (Some(key), Some(mut value)) = (key, value) else {
            return Err(EndpointError::Header { name: name.clone() });
        };
        value.set_sensitive(true);
        parsed.append(key, value);
    }
    Ok(parsed)
}

/// Opens no connection; the first request does.
fn connect(endpoint: &Endpoint, gzip: bool) -> ProfilesServiceClient<Channel> {
    // gRPC for Go answers in the encoding of the request without asking whether that is understood.
    let client = ProfilesServiceClient::new(endpoint.connect_lazy()).accept_compressed(CompressionEncoding::Gzip);
    if gzip { client.send_compressed(CompressionEncoding::Gzip) } else { client }
}

/// Half to one and a half times, so that the agents of a cluster do not come back all at once.
fn jittered(wait: Duration) -> Duration {
    let thousandths = u32::try_from(500 + random() % 1000).unwrap_or(1000);
    wait * thousandths / 1000
}

/// The innermost errors name the cause; the outer ones are tonic's layers.
fn chain(error: &dyn Error) -> String {
    let mut texts = vec![error.to_string()];
    let mut next = error.source();
    while let Some(error) = next {
        let text = error.to_string();
        if texts.last() != Some(&text) {
            texts.push(text);
        }
        next = error.source();
    }
    texts.join(": ")
}

/// For a log line and a status page; the receiver chooses the text, and how much of it.
fn one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(300).collect()
}

/// The `retry_delay` of a `google.rpc.RetryInfo` among the details of a `google.rpc.Status`.
fn retry_delay(details: &[u8]) -> Option<Duration> {
    let status = rpc::Status::decode(details).ok()?;
    let info = status.details.iter().find(|any| any.type_url.ends_with("/google.rpc.RetryInfo"))?;
    let delay = rpc::RetryInfo::decode(info.value.as_slice()).ok()?.retry_delay.unwrap_or_default();
    let nanos = u32::try_from(delay.nanos).unwrap_or(0).min(999_999_999);
    Some(Duration::new(u64::try_from(delay.seconds).unwrap_or(0), nanos))
}

/// The few fields of googleapis' `google/rpc/{status,error_details}.proto` that carry a wait.
mod rpc {
    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct Status {
        #[prost(message, repeated, tag = "3")]
        pub(super) details: Vec<Any>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct Any {
        #[prost(string, tag = "1")]
        pub(super) type_url: String,
        #[prost(bytes = "vec", tag = "2")]
        pub(super) value: Vec<u8>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(super) struct RetryInfo {
        #[prost(message, optional, tag = "1")]
        pub(super) retry_delay: Option<Delay>,
    }

    #[derive(Clone, Copy, PartialEq, prost::Message)]
    pub(super) struct Delay {
        #[prost(int64, tag = "1")]
        pub(super) seconds: i64,
        #[prost(int32, tag = "2")]
        pub(super) nanos: i32,
    }
}

#[cfg(test)]
#[path = "client_tests.rs"]
mod tests;
