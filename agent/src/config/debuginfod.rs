//! The section `stacks.debuginfod:`, and the checks of its keys.

use std::path::PathBuf;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

use super::ConfigError;
use crate::{limits::max_memory::MaxMemory, model::mode::Mode, stacks::debuginfod};

/// The smallest cache. One file may take a quarter of it, and those of common libraries have some MiB.
const LEAST_CACHE: u64 = 64 << 20;

/// `stacks.debuginfod:`
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase", expecting = "a mapping of keys")]
#[expect(missing_docs, reason = "documented where users read it: config/podperf.yaml")]
pub struct Debuginfod {
    pub urls: Vec<String>,
    pub cache_dir: PathBuf,
    #[serde(deserialize_with = "read_bytes", serialize_with = "write_bytes")]
    pub max_cache: u64,
    pub pods: bool,
}

/// Reads bytes as Kubernetes writes them.
fn read_bytes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    match MaxMemory::deserialize(deserializer) {
        Ok(MaxMemory::Bytes(bytes)) => Ok(bytes),
        _ => Err(D::Error::custom("`maxCache` needs bytes, as in 1Gi")),
    }
}

fn write_bytes<S: Serializer>(bytes: &u64, serializer: S) -> Result<S::Ok, S::Error> {
    MaxMemory::Bytes(*bytes).serialize(serializer)
}

impl Debuginfod {
    /// Returns the settings of the requests; `None` without servers, and in a mode without user frames.
    #[must_use]
    pub fn settings(&self, mode: Mode) -> Option<debuginfod::Settings> {
        (mode == Mode::Profiles && !self.urls.is_empty()).then(|| debuginfod::Settings {
            urls: self.urls.clone(),
            cache_dir: self.cache_dir.clone(),
            max_cache: self.max_cache,
            pods: self.pods,
        })
    }

    pub(super) fn check(&self) -> Result<(), ConfigError> {
        let bad = |key, message: String| Err(ConfigError::Value { key, message });
        for url in &self.urls {
            if let Err(error) = debuginfod::parse_url(url) {
                return bad("stacks.debuginfod.urls", error.to_string());
            }
        }
        if !self.cache_dir.is_absolute() {
            return bad("stacks.debuginfod.cacheDir", format!("`{}` is no absolute path", self.cache_dir.display()));
        }
        if self.max_cache < LEAST_CACHE {
            return bad("stacks.debuginfod.maxCache", "needs at least 64Mi".into());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    #[test]
    fn no_server_is_asked_in_a_mode_without_user_frames() {
        let config = Config::parse("stacks: {debuginfod: {urls: ['https://x.example']}}").unwrap();
        let asks = |mode| config.stacks.debuginfod.settings(mode).is_some();
        assert_eq!([Mode::Metrics, Mode::Reasons, Mode::Profiles].map(asks), [false, false, true]);
        assert!(Config::default().stacks.debuginfod.settings(Mode::Profiles).is_none());
    }
}
