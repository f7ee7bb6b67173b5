//! Where profiles go and in which shape, as the configuration has it. Plain values.

use std::{fmt, path::PathBuf, time::Duration};

use serde::{Deserialize, Serialize};

/// Where profiles go, and how long to wait.
#[derive(Clone)]
pub struct Settings {
    /// `http://host:4317`, `https://host:4317` or `host:4317` (the same as `http`). Over HTTP it may have a path.
    pub endpoint: String,
    /// What the receiver speaks.
    pub protocol: Protocol,
    /// What comes after the endpoint's own path, over HTTP.
    pub path: String,
    /// How requests are compressed, until the receiver refuses that.
    pub compression: Compression,
    /// For one attempt at one request, connecting included.
    pub timeout: Duration,
    /// How many windows wait while one is being sent; at least 1.
    pub queue: usize,
    /// Sent with every request, for receivers that want a token or a tenant.
    pub headers: Vec<(String, String)>,
    /// For endpoints with `https`.
    pub tls: TlsSettings,
    /// What the message looks like.
    pub shape: Shape,
}

/// Header values are secrets more often than not.
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

/// `otlp.protocol:`
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub enum Protocol {
    /// HTTP/2, the path is gRPC's own.
    #[serde(rename = "grpc")]
    Grpc,
    /// HTTP/1.1.
    #[serde(rename = "http/protobuf")]
    Http,
}

/// `otlp.compression:`
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Compression {
    /// What every receiver is to read.
    Gzip,
    /// Smaller, and cheaper to make.
    Zstd,
    /// As it is.
    None,
}

impl Compression {
    /// What to try when a receiver cannot read this.
    #[must_use]
    pub const fn lower(self) -> Option<Self> {
        match self {
            Self::Zstd => Some(Self::Gzip),
            Self::Gzip => Some(Self::None),
            Self::None => None,
        }
    }

    /// As configured.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Gzip => "gzip",
            Self::Zstd => "zstd",
            Self::None => "none",
        }
    }
}

/// `otlp.tls:`, empty values taken out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsSettings {
    /// Who signed the receiver's certificate; `None` is the system's roots.
    pub ca_file: Option<PathBuf>,
    /// The agent's own certificate, and those between it and the authority.
    pub cert_file: Option<PathBuf>,
    /// Its key.
    pub key_file: Option<PathBuf>,
    /// The name in the receiver's certificate; `None` is the endpoint's host.
    pub server_name: Option<String>,
    /// Takes any certificate.
    pub insecure_skip_verify: bool,
}

/// What a message looks like.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shape {
    /// For which receiver.
    pub preset: Preset,
    /// What each sample says of itself.
    pub sample_attributes: Vec<SampleAttribute>,
    /// What each resource says beside its own; what it says itself stays.
    pub resource: Vec<(String, String)>,
}

/// `otlp.preset:`
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Preset {
    /// All that is known, for the OpenTelemetry Collector and whoever is behind it.
    Generic,
    /// As generic, within Pyroscope's limits.
    Pyroscope,
    /// User frames without names, which Parca finds by the build ids: from the lines of user frames it would take the
    /// wrong ones.
    Parca,
    /// Mappings with devfiler's build ids or none, and a timestamp for each sample on the CPU: it counts those.
    Devfiler,
}

impl Preset {
    /// How many attributes a resource may have beside its own.
    ///
    /// Pyroscope takes 30 label names a series. Of those the resource of a container has 10, the sample 5 at most, and
    /// 8 are Pyroscope's own.
    #[must_use]
    pub const fn max_resource_attributes(self) -> usize {
        match self {
            Self::Pyroscope => 30 - 10 - SampleAttribute::MOST - 8,
            Self::Generic | Self::Parca | Self::Devfiler => 128,
        }
    }
}

/// `otlp.sampleAttributes:` what a sample can say of itself. Each distinct set is a series of its own in Pyroscope.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum SampleAttribute {
    /// `podperf.offcpu.state`.
    State,
    /// `podperf.offcpu.reason`.
    Reason,
    /// `podperf.stack.unwind`, of stacks that are not whole.
    Unwind,
    /// `podperf.waker.thread` and `podperf.waker.subject`, of waits whose waker is known, and `podperf.waker.stack` if
    /// that was taken.
    Waker,
}

impl SampleAttribute {
    /// Attributes of one sample at most: one each, and three of [`Self::Waker`].
    const MOST: usize = 6;
}
