//! `sensors:`, with one key for each folder of `ebpf/sensors`. The descriptions there name the keys of each sensor.

use std::{collections::BTreeMap, fmt};

use serde::{
    Deserializer, Serialize,
    de::{DeserializeSeed, Error, MapAccess, Visitor},
};

use super::{Config, ConfigError, Identity};
use crate::{
    cgroups::Patterns,
    model::{
        sensors::{ALL, Sensor, Setting, SettingKind, named},
        settings::SettingValue,
    },
};

/// `sensors.NAME:`
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[expect(missing_docs, reason = "documented where users read it: config/podperf.yaml")]
pub struct SensorKeys {
    pub enabled: bool,
    /// The values of the settings by name. One that is not there has its default.
    #[serde(flatten)]
    pub settings: BTreeMap<&'static str, SettingValue>,
}

/// The key that all sensors have.
const ENABLED: &str = "enabled";
const EXPECTED: &str = "a mapping of keys";

/// Returns the keys of all sensors with their defaults.
pub(super) fn defaults() -> BTreeMap<String, SensorKeys> {
    let keys = |sensor: &Sensor| SensorKeys { enabled: sensor.is_default, settings: settings_of(sensor) };
    ALL.into_iter().map(|sensor| (sensor.names.sensor.to_owned(), keys(sensor))).collect()
}

/// Returns the defaults of a sensor's settings.
fn settings_of(sensor: &Sensor) -> BTreeMap<&'static str, SettingValue> {
    sensor.settings.iter().map(|setting| (setting.key.name, SettingValue::default_of(setting))).collect()
}

/// Reads the keys of some sensors. All other sensors have their defaults.
pub(super) fn read<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeMap<String, SensorKeys>, D::Error> {
    deserializer.deserialize_map(All)
}

struct All;

impl<'de> Visitor<'de> for All {
    type Value = BTreeMap<String, SensorKeys>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(EXPECTED)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut all = defaults();
        while let Some(name) = map.next_key::<String>()? {
            let Some(sensor) = named(&name) else {
                let known = ALL.map(|sensor| sensor.names.sensor).join("`, `");
                return Err(A::Error::custom(format!("no sensor has the name `{name}` (there is `{known}`)")));
            };
            all.insert(name, map.next_value_seed(Keys(sensor))?);
        }
        Ok(all)
    }
}

/// Reads the keys of a sensor.
struct Keys(&'static Sensor);

impl<'de> DeserializeSeed<'de> for Keys {
    type Value = SensorKeys;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<SensorKeys, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Keys {
    type Value = SensorKeys;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(EXPECTED)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<SensorKeys, A::Error> {
        let (mut enabled, mut given) = (None::<bool>, BTreeMap::new());
        while let Some(key) = map.next_key_seed(Key(self.0))? {
            let (name, is_twice) = match key {
                None => (ENABLED, enabled.replace(map.next_value()?).is_some()),
                Some(setting) => {
                    let value = match setting.kind {
                        SettingKind::Flag { .. } => SettingValue::Flag(map.next_value()?),
                        SettingKind::Number { .. } => SettingValue::Number(map.next_value()?),
                        SettingKind::Namespaces { .. } | SettingKind::Names { .. } => {
                            SettingValue::List(map.next_value()?)
                        }
                    };
                    (setting.key.name, given.insert(setting.key.name, value).is_some())
                }
            };
            if is_twice {
                return Err(A::Error::duplicate_field(name));
            }
        }
        let mut settings = settings_of(self.0);
        settings.extend(given);
        Ok(SensorKeys { enabled: enabled.ok_or_else(|| A::Error::missing_field(ENABLED))?, settings })
    }
}

/// Reads the name of one of a sensor's keys: a setting, or `None` for `enabled`.
struct Key(&'static Sensor);

impl<'de> DeserializeSeed<'de> for Key {
    type Value = Option<&'static Setting>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for Key {
    type Value = Option<&'static Setting>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<Self::Value, E> {
        let settings = self.0.settings;
        match settings.iter().find(|setting| setting.key.name == name) {
            None if name == ENABLED => Ok(None),
            None => {
                let known = std::iter::once(ENABLED).chain(settings.iter().map(|setting| setting.key.name));
                // The words of the library, which `text` turns into a hint.
                let known = known.collect::<Vec<_>>().join("`, `");
                Err(E::custom(format!("unknown field `{name}`, expected one of `{known}`")))
            }
            setting => Ok(setting),
        }
    }
}

/// Returns true if the configuration turns this sensor on.
pub(super) fn is_on(config: &Config, sensor: &Sensor) -> bool {
    config.sensors.get(sensor.names.sensor).is_some_and(|keys| keys.enabled)
}

/// Returns the values of a sensor's settings.
pub(super) fn values(config: &Config, sensor: &'static Sensor) -> Vec<(&'static Setting, SettingValue)> {
    let keys = config.sensors.get(sensor.names.sensor);
    let given = |setting: &Setting| keys.and_then(|keys| keys.settings.get(setting.key.name)).cloned();
    let value =
        |setting: &'static Setting| (setting, given(setting).unwrap_or_else(|| SettingValue::default_of(setting)));
    sensor.settings.iter().map(value).collect()
}

pub(super) fn check(config: &Config) -> Result<(), ConfigError> {
    for sensor in ALL {
        for (setting, value) in values(config, sensor) {
            let bad = |message| ConfigError::Value { key: setting.key.path, message };
            value.check(setting.kind).map_err(bad)?;
            let (SettingKind::Namespaces { .. }, SettingValue::List(list)) = (setting.kind, value) else { continue };
            Patterns::new(&list).map_err(|error| bad(error.to_string()))?;
            if !list.is_empty() && is_on(config, sensor) && config.identity == Identity::None {
                let way = "set `identity: kubernetes`, or leave the list empty";
                return Err(bad(format!("with `identity: none` no namespace is known ({way})")));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
#[path = "sensors_tests.rs"]
mod tests;
