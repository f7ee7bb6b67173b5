//! The section `server:`, and the checks across its keys.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use serde::{Deserialize, Deserializer, Serialize, de};

use super::ConfigError;

/// `server:`
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase", expecting = "a mapping of keys")]
#[expect(missing_docs, reason = "documented where users read it: config/podperf.yaml")]
pub struct Server {
    pub tls: ServerTls,
    pub authorization: Authorization,
    pub limits: ServerLimits,
    pub any_function: bool,
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
    pub requests_per_second: u32,
    pub max_percent: f64,
}

/// Parses `listen`, which the key and the flag have in common.
///
/// # Errors
///
/// An example, if the text is no address with a port.
pub fn parse_listen(text: &str) -> Result<SocketAddr, String> {
    let example = |_error| {
        "expected an address and a port, such as `127.0.0.1:9799` or `[::]:9799` (names of hosts are not looked up)"
            .to_owned()
    };
    text.parse().map_err(example)
}

pub(super) fn read_listen<'de, D: Deserializer<'de>>(deserializer: D) -> Result<SocketAddr, D::Error> {
    let text = String::deserialize(deserializer)?;
    parse_listen(&text).map_err(|says| de::Error::custom(format_args!("listen: `{text}`: {says}")))
}

/// All limits of the server: the keys of `server.limits`, and those that only tests change.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Maximum number of open connections.
    pub connections: usize,
    /// Maximum rate of requests of one reader; 0 is no limit.
    pub requests_per_second: u32,
    /// Maximum CPU time of answering, in percent of the time of all CPUs together; 0 is no limit.
    pub max_percent: f64,
    /// Maximum time for a TLS handshake, and for the headers of a request.
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
            // NaN is in no range.
            ("server.limits.maxPercent", !(0.0..=100.0).contains(&limits.max_percent), "needs 0 to 100"),
        ];
        match bad.into_iter().find(|(_, bad, _)| *bad) {
            Some((key, _, message)) => Err(ConfigError::Value { key, message: message.into() }),
            None => Ok(()),
        }
    }
}
