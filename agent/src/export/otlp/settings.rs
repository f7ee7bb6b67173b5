//! The settings of the exporter: the receiver, and the shape of messages. Plain values.

use std::{fmt, path::PathBuf, time::Duration};

use serde::{Deserialize, Serialize};

use crate::transport::compression::Compression;

/// The receiver and the limits on time and memory.
#[derive(Clone)]
pub struct Settings {
    /// `http://host:4317`, `https://host` or `host:4317` (the same as `http`). Without a port, it has that of its
    /// scheme. Over HTTP it may have a path.
    pub endpoint: String,
    /// The protocol of the receiver.
    pub protocol: Protocol,
    /// The path that is added to the endpoint's own path, over HTTP.
    pub path: String,
    /// The compression of requests, until the receiver refuses it.
    pub compression: Compression,
    /// The longest time of one attempt at one request, with connecting.
    pub timeout: Duration,
    /// The largest number of windows that wait while one is being sent; at least 1.
    pub queue: usize,
    /// Headers that are sent with every request, such as a token or a tenant.
    pub headers: Vec<(String, String)>,
    /// The TLS settings for endpoints with `https`.
    pub tls: TlsSettings,
    /// The shape of messages.
    pub shape: Shape,
}

/// Prints only the names of headers, since their values are often secrets.
impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.headers.iter().map(|(name, _)| name).collect();
        f.debug_struct("Settings")
            .field("endpoint", &self.endpoint)
            .field("protocol", &self.protocol)
            .field("path", &self.path)
            .field("compression", &self.compression)
            .field("timeout", &self.timeout)
            .field("queue", &self.queue)
            .field("headers", &names)
            .field("tls", &self.tls)
            .field("shape", &self.shape)
            .finish()
    }
}

/// The key `otlp.protocol`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub enum Protocol {
    /// gRPC over HTTP/2; gRPC sets the path itself.
    #[serde(rename = "grpc")]
    Grpc,
    /// Protobuf over HTTP/1.1.
    #[serde(rename = "http/protobuf")]
    Http,
}

/// The keys of `otlp.tls`, without empty values.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsSettings {
    /// The file of the authority that signed the receiver's certificate; `None` is the system's roots.
    pub ca_file: Option<PathBuf>,
    /// The file of the agent's own certificate, with the intermediate certificates.
    pub cert_file: Option<PathBuf>,
    /// The file of the key of the agent's certificate.
    pub key_file: Option<PathBuf>,
    /// The name in the receiver's certificate; `None` is the endpoint's host.
    pub server_name: Option<String>,
    /// True to accept any certificate.
    pub insecure_skip_verify: bool,
}

/// The shape of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shape {
    /// The receiver for which messages are made.
    pub preset: Preset,
    /// The attributes that each sample has.
    pub sample_attributes: Vec<SampleAttribute>,
    /// Attributes that each resource has beside its own; an attribute of its own with the same name stays.
    pub resource: Vec<(String, String)>,
}

/// The key `otlp.preset`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Preset {
    /// All known data, for the OpenTelemetry Collector and the receivers behind it.
    Generic,
    /// The same as generic, within Pyroscope's limits.
    Pyroscope,
    /// User frames without names. Parca finds the names by the build ids, but would assign the lines of user frames to
    /// the wrong functions.
    Parca,
    /// Mappings with devfiler's build ids or without ids, and a timestamp for each sample on the CPU, since devfiler
    /// counts timestamps.
    Devfiler,
}

impl Preset {
    /// Returns the largest number of attributes that a resource may have beside its own.
    ///
    /// Pyroscope accepts 30 label names a series. The resource of a container uses 10, the sample at most 6, and
    /// Pyroscope itself 8.
    #[must_use]
    pub const fn max_resource_attributes(self) -> usize {
        match self {
            Self::Pyroscope => 30 - 10 - SampleAttribute::MOST - 8,
            Self::Generic | Self::Parca | Self::Devfiler => 128,
        }
    }
}

/// The values of `otlp.sampleAttributes`: attributes of a sample. Each distinct set is a series of its own in
/// Pyroscope.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum SampleAttribute {
    /// `podperf.offcpu.state`; waits for locks have `podperf.lock` instead.
    State,
    /// `podperf.offcpu.reason`.
    Reason,
    /// `podperf.stack.unwind`, on stacks that are not whole.
    Unwind,
    /// `podperf.waker.thread` and `podperf.waker.subject`, on waits whose waker is known, and `podperf.waker.stack` if
    /// the waker's stack was taken.
    Waker,
}

impl SampleAttribute {
    /// The most attributes of one sample: three of [`Self::Waker`], and one of each other value.
    pub(super) const MOST: usize = 6;
}
