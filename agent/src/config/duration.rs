//! Durations in the configuration: a number with a unit, such as `500ms` or `5s`. Pure.

use std::{fmt, time::Duration};

use humantime_serde::re::humantime;
use serde::{Deserializer, Serializer, de};

const EXAMPLE: &str = "a duration such as `5s`";

pub(super) fn serialize<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    humantime_serde::serialize(duration, serializer)
}

/// Accepts 0 without a unit, and rejects any other number: YAML's `5` could mean seconds or milliseconds.
pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    struct Visitor;

    impl de::Visitor<'_> for Visitor {
        type Value = Duration;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(EXAMPLE)
        }

        fn visit_u64<E: de::Error>(self, number: u64) -> Result<Duration, E> {
            if number == 0 { Ok(Duration::ZERO) } else { Err(without_unit(number)) }
        }

        fn visit_i64<E: de::Error>(self, number: i64) -> Result<Duration, E> {
            Err(without_unit(number))
        }

        fn visit_f64<E: de::Error>(self, number: f64) -> Result<Duration, E> {
            Err(without_unit(number))
        }

        fn visit_str<E: de::Error>(self, text: &str) -> Result<Duration, E> {
            match humantime::parse_duration(text) {
                Ok(duration) => Ok(duration),
                Err(_) if text.parse::<f64>().is_ok() => Err(without_unit(text)),
                Err(_) => Err(E::invalid_value(de::Unexpected::Str(text), &self)),
            }
        }
    }

    deserializer.deserialize_any(Visitor)
}

fn without_unit<E: de::Error>(number: impl fmt::Display) -> E {
    E::custom(format_args!("`{number}` has no unit, expected {EXAMPLE}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, serde::Deserialize, serde::Serialize)]
    struct One(#[serde(with = "super")] Duration);

    #[test]
    fn a_duration_is_a_number_with_a_unit() {
        for (yaml, milliseconds) in
            [("5s", 5_000), ("500ms", 500), ("1m 30s", 90_000), ("'2s'", 2_000), ("0", 0), ("0s", 0)]
        {
            let read: One = serde_yaml::from_str(yaml).unwrap();
            assert_eq!(read, One(Duration::from_millis(milliseconds)), "{yaml}");
            assert_eq!(serde_yaml::from_str::<One>(&serde_yaml::to_string(&read).unwrap()).unwrap(), read, "{yaml}");
        }
    }

    #[test]
    fn a_number_without_a_unit_is_refused_with_an_example() {
        for yaml in ["5", "'5'", "-5", "0.5"] {
            let error = serde_yaml::from_str::<One>(yaml).unwrap_err().to_string();
            assert!(error.contains("has no unit, expected a duration such as `5s`"), "{yaml}: {error}");
        }
        for yaml in ["ten", "[5s]", "10 parsecs", "true"] {
            let error = serde_yaml::from_str::<One>(yaml).unwrap_err().to_string();
            assert!(error.starts_with("invalid ") && error.contains("such as `5s`"), "{yaml}: {error}");
        }
    }
}
