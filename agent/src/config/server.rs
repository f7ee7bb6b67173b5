//! The section `server:`, and the checks across its keys.

use std::{path::PathBuf, time::Duration};

use serde::{Deserialize, Serialize};

use super::ConfigError;

/// `server:`
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase", expecting = "a mapping of keys")]
#[expect(missing_docs, reason = "documented where users read it: config/podperf.yaml")]
pub struct Server {
    pub tls: ServerTls,
    pub authorization: Authorization,
    pub limits: ServerLimits,
}

/// `server.tls:`
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase", expecting = "a mapping of keys")]
#[expect(missing_docs, reason = "documented where users read it: config/podperf.yaml")]
pub struct ServerTls {
    pub cert_file: PathBuf,
    pub key_file: PathBuf,
}

/// `server.authorization:`
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase", expecting = "a mapping of keys")]
#[expect(missing_docs, reason = "documented where users read it: config/podperf.yaml")]
pub struct Authorization {
    pub enabled: bool,
    pub audiences: Vec<String>,
}

/// `server.limits:`
#[derive(Clone, Copy, Debug, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase", expecting = "a mapping of keys")]
#[expect(missing_docs, reason = "documented where users read it: config/podperf.yaml")]
pub struct ServerLimits {
    pub connections: usize,
    pub requests_per_second: u32,
    pub max_percent: f64,
    pub header_bytes: usize,
    #[serde(with = "super::duration")]
    pub header_timeout: Duration,
}

/// The files of `server.tls:`.
#[derive(Clone, Debug)]
pub struct TlsFiles {
    /// The certificate, followed by the intermediate certificates.
    pub cert: PathBuf,
    /// The key of the certificate.
    pub key: PathBuf,
}

impl Server {
    /// Returns the certificate and its key; `None` without TLS.
    #[must_use]
    pub fn tls_files(&self) -> Option<TlsFiles> {
        let ServerTls { cert_file, key_file } = &self.tls;
        (!cert_file.as_os_str().is_empty()).then(|| TlsFiles { cert: cert_file.clone(), key: key_file.clone() })
    }

    pub(super) fn check(&self) -> Result<(), ConfigError> {
        let empty = |path: &PathBuf| path.as_os_str().is_empty();
        let limits = &self.limits;
        let bad = [
            (
                "server.tls",
                empty(&self.tls.cert_file) != empty(&self.tls.key_file),
                "needs both `certFile` and `keyFile`, or neither",
            ),
            (
                "server.authorization.enabled",
                self.authorization.enabled && empty(&self.tls.cert_file),
                "tokens would be sent in clear text (set `server.tls.certFile` and `server.tls.keyFile`)",
            ),
            (
                "server.authorization.audiences",
                !self.authorization.enabled && !self.authorization.audiences.is_empty(),
                "no tokens are asked for (set `server.authorization.enabled: true`)",
            ),
            // Leaves room for the kubelet, a Prometheus, and a person who looks for the reason of their failures.
            ("server.limits.connections", !(4..=4096).contains(&limits.connections), "needs 4 to 4096"),
            // NaN is in no range.
            ("server.limits.maxPercent", !(0.0..=100.0).contains(&limits.max_percent), "needs 0 to 100"),
            // hyper accepts no smaller buffer.
            ("server.limits.headerBytes", !(8192..=1 << 20).contains(&limits.header_bytes), "needs 8192 to 1048576"),
            ("server.limits.headerTimeout", limits.header_timeout < Duration::from_secs(1), "needs at least 1s"),
        ];
        match bad.into_iter().find(|(_, bad, _)| *bad) {
            Some((key, _, message)) => Err(ConfigError::Value { key, message: message.into() }),
            None => Ok(()),
        }
    }
}
