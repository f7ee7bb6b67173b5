//! The values of the settings of sensors, which the descriptions of the sensors name. Pure.

use std::fmt;

use serde::Serialize;

use super::sensors::{Sensor, Setting, SettingKind};

/// The longest pattern of a namespace, in bytes.
pub const LONGEST_PATTERN: usize = 253;

/// The value of a setting, in the form that its kind asks for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum SettingValue {
    /// For [`SettingKind::Flag`].
    Flag(bool),
    /// For [`SettingKind::Number`].
    Number(u64),
    /// For [`SettingKind::Namespaces`] and [`SettingKind::Names`].
    List(Vec<String>),
}

/// The value of a constant of the programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Constant {
    /// A `bool`.
    Flag(bool),
    /// A `__u64`.
    Number(u64),
}

impl SettingValue {
    /// Returns the default of a setting.
    #[must_use]
    pub const fn default_of(setting: &Setting) -> Self {
        match setting.kind {
            SettingKind::Flag { default } => Self::Flag(default),
            SettingKind::Number { default, .. } => Self::Number(default),
            SettingKind::Namespaces { .. } | SettingKind::Names { .. } => Self::List(Vec::new()),
        }
    }

    /// Returns the constant for a setting of this kind.
    fn constant(&self, kind: SettingKind) -> Constant {
        match (self, kind) {
            (Self::Flag(flag), _) => Constant::Flag(*flag),
            (Self::Number(number), _) => Constant::Number(*number),
            (Self::List(list), SettingKind::Names { names }) => {
                let is_chosen = |name: &&str| list.is_empty() || list.iter().any(|chosen| chosen == name);
                let bits = names.iter().rev().map(|name| u64::from(is_chosen(name)));
                Constant::Number(bits.fold(0, |mask, bit| mask << 1 | bit))
            }
            (Self::List(list), _) => Constant::Flag(!list.is_empty()),
        }
    }

    /// Checks the bounds of a setting of this kind.
    ///
    /// # Errors
    ///
    /// When the value is out of bounds: the bounds.
    pub fn check(&self, kind: SettingKind) -> Result<(), String> {
        match (self, kind) {
            (Self::Number(number), SettingKind::Number { least, most, unit, .. })
                if !(least..=most).contains(number) =>
            {
                Err(format!("needs {least} to {most} {unit}").trim_end().to_owned())
            }
            (Self::List(list), SettingKind::Namespaces { most, .. }) if list.len() > most => {
                Err(format!("{} patterns (at most {most})", list.len()))
            }
            (Self::List(list), SettingKind::Namespaces { .. })
                if list.iter().any(|pattern| pattern.is_empty() || pattern.len() > LONGEST_PATTERN) =>
            {
                Err(format!("a pattern needs 1 to {LONGEST_PATTERN} bytes (an empty list chooses all namespaces)"))
            }
            (Self::List(list), SettingKind::Names { names }) => {
                list.iter().find(|name| !names.contains(&name.as_str())).map_or(Ok(()), |name| {
                    Err(format!("no `{name}` (there is `{}`; an empty list is all of them)", names.join("`, `")))
                })
            }
            _ => Ok(()),
        }
    }
}

/// Formats as in YAML.
impl fmt::Display for SettingValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag(flag) => write!(f, "{flag}"),
            Self::Number(number) => write!(f, "{number}"),
            Self::List(list) => write!(f, "[{}]", list.join(", ")),
        }
    }
}

/// The values of the settings of the sensors that are on.
#[derive(Clone, Debug, Default)]
pub struct SettingValues(Vec<(&'static Setting, SettingValue)>);

impl FromIterator<(&'static Setting, SettingValue)> for SettingValues {
    fn from_iter<I: IntoIterator<Item = (&'static Setting, SettingValue)>>(values: I) -> Self {
        Self(values.into_iter().collect())
    }
}

impl SettingValues {
    /// Returns the constants of the programs, each with its value.
    pub fn constants(&self) -> impl Iterator<Item = (&'static str, Constant)> {
        self.0.iter().filter_map(|(setting, value)| Some((setting.constant?, value.constant(setting.kind))))
    }

    /// Returns the number with this path; `None` if its sensor is off.
    #[must_use]
    pub fn number(&self, path: &str) -> Option<u64> {
        self.0.iter().find_map(|(setting, value)| match value {
            SettingValue::Number(number) if setting.key.path == path => Some(*number),
            _ => None,
        })
    }

    /// Returns the maps of the sensors that count only some namespaces, each with its patterns.
    pub fn namespaces(&self) -> impl Iterator<Item = (&'static str, &[String])> {
        self.0.iter().filter_map(|(setting, value)| match (setting.kind, value) {
            (SettingKind::Namespaces { map, .. }, SettingValue::List(list)) if !list.is_empty() => {
                Some((map, list.as_slice()))
            }
            _ => None,
        })
    }

    /// Returns the sentence about a sensor, with its settings that differ from the defaults.
    #[must_use]
    pub fn about(&self, sensor: &Sensor) -> String {
        let is_own = |of: &&'static Setting| sensor.settings.iter().any(|own| own.key == of.key);
        let changed =
            self.0.iter().filter(|(setting, value)| is_own(setting) && *value != SettingValue::default_of(setting));
        let changed: Vec<_> = changed.map(|(setting, value)| format!("`{}: {value}`", setting.key.name)).collect();
        if changed.is_empty() { sensor.about.to_owned() } else { format!("{}; {}", sensor.about, changed.join(", ")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::sensors::{ALL, named};

    /// Returns a setting that a test needs no sensor for.
    fn number() -> SettingKind {
        SettingKind::Number { default: 5, least: 2, most: 7, unit: "things" }
    }

    #[test]
    fn values_out_of_bounds_are_refused_with_the_bounds() {
        for value in [2, 7] {
            assert_eq!(SettingValue::Number(value).check(number()), Ok(()));
        }
        for value in [1, 8] {
            assert_eq!(SettingValue::Number(value).check(number()), Err("needs 2 to 7 things".into()));
        }
        let list = |list: &[&str]| SettingValue::List(list.iter().map(ToString::to_string).collect());
        let kind = SettingKind::Namespaces { most: 2, map: "" };
        assert_eq!(list(&["a", "b"]).check(kind), Ok(()));
        assert_eq!(list(&["a", "b", "c"]).check(kind), Err("3 patterns (at most 2)".into()));
        for pattern in ["", &"x".repeat(LONGEST_PATTERN + 1)] {
            assert!(list(&[pattern]).check(kind).unwrap_err().starts_with("a pattern needs 1 to 253 bytes"));
        }
        let kind = SettingKind::Names { names: &["a", "b", "c"] };
        assert_eq!(list(&["c", "a"]).check(kind), Ok(()));
        let no = "no `d` (there is `a`, `b`, `c`; an empty list is all of them)";
        assert_eq!(list(&["a", "d"]).check(kind), Err(no.into()));
    }

    #[test]
    fn a_list_of_names_is_a_bit_for_each_and_all_bits_without_one() {
        let kind = SettingKind::Names { names: &["a", "b", "c"] };
        let of = |list: &[&str]| SettingValue::List(list.iter().map(ToString::to_string).collect()).constant(kind);
        assert_eq!([of(&["a"]), of(&["c", "a"]), of(&[])], [1, 0b101, 0b111].map(Constant::Number));
    }

    #[test]
    fn descriptions_are_whole_and_their_defaults_are_in_bounds() {
        for sensor in ALL {
            let name = sensor.names.sensor;
            for Setting { key, about, kind, constant } in sensor.settings {
                assert_eq!(key.path, format!("sensors.{name}.{}", key.name));
                assert!(key.name != "enabled" && !about.ends_with('.') && !about.contains('|'), "{}", key.path);
                assert!(constant.is_none_or(|constant| constant.starts_with(&format!("{name}_"))), "{}", key.path);
                match kind {
                    SettingKind::Namespaces { map, .. } => {
                        assert!(sensor.maps.iter().any(|own| own.name == *map), "{}", key.path);
                    }
                    SettingKind::Names { names } => assert!(names.len() <= 64, "{}", key.path),
                    SettingKind::Flag { .. } | SettingKind::Number { .. } => {}
                }
            }
            let defaults = sensor.settings.iter().map(|setting| (setting, SettingValue::default_of(setting)));
            assert!(defaults.clone().all(|(setting, value)| value.check(setting.kind).is_ok()), "{name}");
            assert_eq!(defaults.collect::<SettingValues>().about(sensor), sensor.about);
        }
    }

    #[test]
    fn a_sensor_that_is_on_tells_what_was_changed() {
        let calls = named("calls").unwrap();
        let values: SettingValues = calls
            .settings
            .iter()
            .map(|setting| match setting.kind {
                SettingKind::Namespaces { .. } => (setting, SettingValue::List(vec!["shop".into(), "team-.*".into()])),
                _ => (setting, SettingValue::default_of(setting)),
            })
            .collect();
        assert_eq!(values.about(calls), format!("{}; `namespaces: [shop, team-.*]`", calls.about));
        assert_eq!(values.about(named("locks").unwrap()), named("locks").unwrap().about);
        let chosen: Vec<_> = values.namespaces().map(|(map, list)| (map, list.len())).collect();
        assert_eq!(chosen, [("calls_chosen", 2)]);
    }
}
