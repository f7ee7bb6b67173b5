//! `sensors:`, with one key for each folder of `ebpf/sensors`.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize};

use super::{Config, ConfigError};
use crate::model::sensors::{ALL, Sensor, named};

/// `sensors.NAME:`
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", expecting = "a mapping of keys")]
#[expect(missing_docs, reason = "documented where users read it: config/podperf.yaml")]
pub struct SensorKeys {
    pub enabled: bool,
}

/// Returns the keys of all sensors with their defaults.
pub(super) fn defaults() -> BTreeMap<String, SensorKeys> {
    ALL.into_iter().map(|sensor| (sensor.names.sensor.to_owned(), SensorKeys { enabled: sensor.is_default })).collect()
}

/// Reads the keys of some sensors. All other sensors have their defaults.
pub(super) fn read<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeMap<String, SensorKeys>, D::Error> {
    let given = BTreeMap::deserialize(deserializer)?;
    Ok(defaults().into_iter().chain(given).collect())
}

/// Returns true if the configuration turns this sensor on.
pub(super) fn is_on(config: &Config, sensor: &Sensor) -> bool {
    config.sensors.get(sensor.names.sensor).is_some_and(|keys| keys.enabled)
}

pub(super) fn check(config: &Config) -> Result<(), ConfigError> {
    let bad = |message: String| Err(ConfigError::Value { key: "sensors", message });
    if let Some(unknown) = config.sensors.keys().find(|name| named(name).is_none()) {
        let known = ALL.map(|sensor| sensor.names.sensor).join("`, `");
        return bad(format!("no sensor has the name `{unknown}` (there is `{known}`)"));
    }
    Ok(())
}
