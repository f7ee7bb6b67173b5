//! The section `otlp:`, and the checks across its keys.

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use serde::{Deserialize, Deserializer, Serialize, de::Error as _};

use super::ConfigError;
use crate::export::otlp::{self, Compression, Preset, Protocol, SampleAttribute, Shape, TlsSettings};

/// `otlp:`
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase", expecting = "a mapping of keys")]
#[expect(missing_docs, reason = "documented where users read it: config/podperf.yaml")]
pub struct Otlp {
    pub endpoint: String,
    pub profiles: bool,
    pub protocol: Protocol,
    pub path: String,
    pub preset: Preset,
    pub compression: Compression,
    #[serde(with = "super::duration")]
    pub interval: Duration,
    #[serde(with = "super::duration")]
    pub timeout: Duration,
    pub queue: usize,
    #[serde(deserialize_with = "headers")]
    pub headers: BTreeMap<String, String>,
    pub sample_attributes: Vec<SampleAttribute>,
    pub resource_attributes: BTreeMap<String, String>,
    pub tls: Tls,
    pub metrics: PushedMetrics,
}

/// Reads the headers. The error does not show them, as serde's own would: they may be a token.
fn headers<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeMap<String, String>, D::Error> {
    let bad = || D::Error::custom("`headers` is not a mapping of names to texts, as in {x-tenant: \"7\"}");
    BTreeMap::deserialize(deserializer).ok().ok_or_else(bad)
}

/// `otlp.tls:`
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase", expecting = "a mapping of keys")]
#[expect(missing_docs, reason = "documented where users read it: config/podperf.yaml")]
pub struct Tls {
    pub ca_file: PathBuf,
    pub cert_file: PathBuf,
    pub key_file: PathBuf,
    pub server_name: String,
    pub insecure_skip_verify: bool,
}

/// `otlp.metrics:`
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase", expecting = "a mapping of keys")]
#[expect(missing_docs, reason = "documented where users read it: config/podperf.yaml")]
pub struct PushedMetrics {
    pub enabled: bool,
    #[serde(with = "super::duration")]
    pub interval: Duration,
    pub path: String,
}

impl Otlp {
    /// Returns the settings of the exporter of profiles.
    #[must_use]
    pub fn settings(&self) -> otlp::Settings {
        let file = |path: &PathBuf| (!path.as_os_str().is_empty()).then(|| path.clone());
        let pairs =
            |map: &BTreeMap<String, String>| map.iter().map(|(key, value)| (key.clone(), value.clone())).collect();
        otlp::Settings {
            endpoint: self.endpoint.clone(),
            protocol: self.protocol,
            path: self.path.clone(),
            compression: self.compression,
            timeout: self.timeout,
            queue: self.queue,
            headers: pairs(&self.headers),
            tls: TlsSettings {
                ca_file: file(&self.tls.ca_file),
                cert_file: file(&self.tls.cert_file),
                key_file: file(&self.tls.key_file),
                server_name: Some(self.tls.server_name.clone()).filter(|name| !name.is_empty()),
                insecure_skip_verify: self.tls.insecure_skip_verify,
            },
            shape: Shape {
                preset: self.preset,
                sample_attributes: self.sample_attributes.clone(),
                resource: pairs(&self.resource_attributes),
            },
        }
    }

    /// Returns the settings of the exporter of metrics, which uses the same receiver.
    #[must_use]
    pub fn metrics_settings(&self) -> otlp::Settings {
        otlp::Settings { path: self.metrics.path.clone(), ..self.settings() }
    }

    pub(super) fn check(&self) -> Result<(), ConfigError> {
        let bad = |key, message: String| Err(ConfigError::Value { key, message });
        if self.endpoint.is_empty() {
            return match self.metrics.enabled {
                true => bad("otlp.metrics.enabled", "needs `otlp.endpoint`".into()),
                false => Ok(()),
            };
        }
        let used = self.metrics.enabled.then(|| self.metrics_settings());
        for settings in [Some(self.settings()), used].into_iter().flatten() {
            otlp::endpoint::check(&settings).or_else(|error| bad("otlp", error.to_string()))?;
        }
        let (given, most) = (self.resource_attributes.len(), self.preset.max_resource_attributes());
        if given > most {
            return bad("otlp.resourceAttributes", format!("{given} are too many for this preset (at most {most})"));
        }
        Ok(())
    }
}
