//! The compression of requests.

use std::io::Write;

use serde::{Deserialize, Serialize};

/// The key `otlp.compression`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Compression {
    /// gzip, which every receiver should read.
    Gzip,
    /// zstd: smaller than gzip, and takes less CPU time.
    Zstd,
    /// No compression.
    None,
}

impl Compression {
    /// Returns the compression to try when a receiver cannot read this one.
    #[must_use]
    pub const fn lower(self) -> Option<Self> {
        match self {
            Self::Zstd => Some(Self::Gzip),
            Self::Gzip => Some(Self::None),
            Self::None => None,
        }
    }

    /// Returns the name in the configuration.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Gzip => "gzip",
            Self::Zstd => "zstd",
            Self::None => "none",
        }
    }

    /// Compresses a message. Megabytes take milliseconds, so this must not run on a thread that serves sockets.
    pub(crate) fn compress(self, message: Vec<u8>) -> std::io::Result<Vec<u8>> {
        match self {
            Self::None => Ok(message),
            Self::Gzip => {
                let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
                encoder.write_all(&message)?;
                encoder.finish()
            }
            Self::Zstd => zstd::encode_all(message.as_slice(), zstd::DEFAULT_COMPRESSION_LEVEL),
        }
    }
}
