//! The setting `overhead.maxMemory:`, in bytes as Kubernetes writes them. Pure.
//!
//! It does not use a crate's parser: such parsers accept forms that Kubernetes rejects (`200mb`), and read Kubernetes'
//! `200m`, which is a fifth of a byte, as megabytes.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

const UNITS: [(&str, u64); 8] = [
    ("Ki", 1 << 10),
    ("Mi", 1 << 20),
    ("Gi", 1 << 30),
    ("Ti", 1 << 40),
    ("k", 1_000),
    ("M", 1_000_000),
    ("G", 1_000_000_000),
    ("T", 1_000_000_000_000),
];

/// Limit of podperf's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MaxMemory {
    /// A share of the container's limit, if the container has one.
    #[default]
    Share,
    /// No limit.
    None,
    /// A number of bytes.
    Bytes(u64),
}

impl FromStr for MaxMemory {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const ERROR: &str = "needs bytes, as in 200Mi, 0 for none, or nothing for a share of the container's limit";
        if text.is_empty() {
            return Ok(Self::Share);
        }
        let unit = UNITS.iter().find_map(|(unit, bytes)| Some((text.strip_suffix(unit)?, *bytes)));
        let (number, unit) = unit.unwrap_or((text, 1));
        if !number.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(ERROR);
        }
        let bytes = number.parse::<u64>().ok().and_then(|number| number.checked_mul(unit)).ok_or(ERROR)?;
        Ok(if bytes == 0 { Self::None } else { Self::Bytes(bytes) })
    }
}

impl fmt::Display for MaxMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Share => Ok(()),
            Self::None => f.write_str("0"),
            Self::Bytes(bytes) => {
                let whole = |(_, unit): &&(&str, u64)| bytes % unit == 0;
                let (name, unit) = UNITS[..4].iter().rev().find(whole).unwrap_or(&("", 1));
                write!(f, "{}{name}", bytes / unit)
            }
        }
    }
}

impl Serialize for MaxMemory {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for MaxMemory {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;

        impl de::Visitor<'_> for Visitor {
            type Value = MaxMemory;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("bytes, as in 200Mi")
            }

            fn visit_u64<E: de::Error>(self, bytes: u64) -> Result<MaxMemory, E> {
                Ok(if bytes == 0 { MaxMemory::None } else { MaxMemory::Bytes(bytes) })
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<MaxMemory, E> {
                text.parse().map_err(|error| E::custom(format_args!("`{text}` {error}")))
            }
        }

        deserializer.deserialize_any(Visitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_those_of_kubernetes() {
        for (text, bytes) in [("200Mi", 200 << 20), ("1Gi", 1 << 30), ("3k", 3000), ("5M", 5_000_000), ("7", 7)] {
            assert_eq!(text.parse(), Ok(MaxMemory::Bytes(bytes)), "{text}");
        }
        assert_eq!("".parse(), Ok(MaxMemory::Share));
        assert_eq!("0Mi".parse(), Ok(MaxMemory::None));
        for text in ["200m", "200mb", "-1", "1.5Gi", "Mi", "200 Mi", "+2", "99999999999Ti"] {
            assert!(text.parse::<MaxMemory>().is_err(), "{text}");
        }
    }

    #[test]
    fn what_is_written_reads_the_same() {
        for text in ["", "0", "200Mi", "1Gi", "1025Ki", "7"] {
            assert_eq!(text.parse::<MaxMemory>().unwrap().to_string(), text);
        }
        for yaml in ["200Mi", "'200Mi'", "209715200"] {
            assert_eq!(serde_yaml::from_str::<MaxMemory>(yaml).unwrap(), MaxMemory::Bytes(200 << 20), "{yaml}");
        }
        assert_eq!(serde_yaml::from_str::<MaxMemory>("0").unwrap(), MaxMemory::None);
    }
}
