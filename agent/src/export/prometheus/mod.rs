//! Prometheus exposition: families of metrics, and the formats they are negotiated into.
//!
//! [`workload`] and [`agent`] turn an observation into plain [`Family`]s (pure); this file has prometheus-client
//! write them. [`mod@reference`] tells of all families that there can be, from the same tables.

mod agent;
mod families;
mod format;
pub mod reference;
mod workload;

use std::{borrow::Cow, fmt, sync::Arc, time::SystemTime};

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder},
    metrics::{MetricType, counter::ConstCounter, gauge::ConstGauge},
    registry::Unit,
};

pub use agent::AgentFacts;
pub use format::Format;

use crate::collector::Observation;
use crate::model::facts;
use families::{Definition, EXPORTED_SERIES};

/// One metric family. The name is without unit and `_total`.
#[derive(Clone, Debug, PartialEq)]
pub struct Family {
    /// Such as `podperf_cgroup_oncpu`.
    pub name: Cow<'static, str>,
    /// One sentence without its full stop.
    pub help: Cow<'static, str>,
    /// The unit, which becomes the name's suffix.
    pub unit: Option<BaseUnit>,
    /// Counter or gauge.
    pub kind: Kind,
    /// The names of its own labels, where all of its series have the same.
    pub labels: &'static [&'static str],
    /// The series.
    pub samples: Vec<Sample>,
}

/// One series.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// The labels that tell its row, which all series of a row share.
    pub row: Arc<[Label]>,
    /// Its own labels, after those.
    pub labels: Vec<Label>,
    /// The value; integers stay integers.
    pub value: Value,
    /// When the value was zero; `None` where that is not known, or the value is no counter.
    pub created: Option<SystemTime>,
}

/// A label's name and value. Only labels of pods have names that are not ours.
pub type Label = (Cow<'static, str>, Cow<'static, str>);

/// The base units in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BaseUnit {
    /// `_seconds`
    Seconds,
    /// `_bytes`
    Bytes,
}

/// The types in use. Information is a gauge of value 1, which all formats have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Only grows.
    Counter,
    /// Goes up and down.
    Gauge,
}

impl BaseUnit {
    /// That of a family of [`crate::model::facts`].
    pub(super) const fn of(unit: facts::Unit) -> Option<Self> {
        match unit {
            facts::Unit::Seconds => Some(Self::Seconds),
            facts::Unit::Things(_) => None,
        }
    }

    /// The name's suffix.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Seconds => "seconds",
            Self::Bytes => "bytes",
        }
    }
}

impl Kind {
    /// As in the line `# TYPE`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
        }
    }
}

/// A number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value {
    /// A count.
    Count(u64),
    /// A measure.
    Real(f64),
}

impl Value {
    /// Seconds of nanoseconds.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "53 bits of nanoseconds are 104 days without an error")]
    pub fn seconds(nanoseconds: u64) -> Self {
        Self::Real(nanoseconds as f64 / 1e9)
    }

    fn encode(self, kind: Kind, series: MetricEncoder<'_>) -> fmt::Result {
        match (kind, self) {
            (Kind::Counter, Self::Count(value)) => ConstCounter::new(value).encode(series),
            (Kind::Counter, Self::Real(value)) => ConstCounter::new(value).encode(series),
            (Kind::Gauge, Self::Count(value)) => ConstGauge::new(value).encode(series),
            (Kind::Gauge, Self::Real(value)) => ConstGauge::new(value).encode(series),
        }
    }
}

impl Family {
    fn new(name: impl Into<Cow<'static, str>>, help: impl Into<Cow<'static, str>>, kind: Kind) -> Self {
        Self { name: name.into(), help: help.into(), unit: None, kind, labels: &[], samples: Vec::new() }
    }

    /// Adds a series; there is a value for each of the labels.
    fn push(&mut self, labels: &[&str], value: Value) {
        debug_assert_eq!(self.labels.len(), labels.len(), "{}", self.name);
        let labels = self.labels.iter().zip(labels).map(|(&name, &value)| (name.into(), value.to_owned().into()));
        self.push_of_row(&Arc::default(), labels.collect(), value, None);
    }

    fn push_of_row(&mut self, row: &Arc<[Label]>, labels: Vec<Label>, value: Value, created: Option<SystemTime>) {
        self.samples.push(Sample { row: Arc::clone(row), labels, value, created });
    }

    /// Returns the family with this start for all of its series.
    fn created(mut self, created: SystemTime) -> Self {
        self.samples.iter_mut().for_each(|sample| sample.created = Some(created));
        self
    }
}

impl Definition {
    /// Without a series.
    fn family(&self) -> Family {
        Family { unit: self.unit, labels: self.labels, ..Family::new(self.name, self.help, self.kind) }
    }

    /// With one series, which has these values of its labels.
    fn with(&self, labels: &[&str], value: Value) -> Family {
        let mut family = self.family();
        family.push(labels, value);
        family
    }

    /// With one series that has no labels.
    fn of(&self, value: Value) -> Family {
        self.with(&[], value)
    }
}

/// All families of one scrape, in the format that the client asked for. With `zero_first`, series that are new to those
/// who scrape are zero.
///
/// # Errors
///
/// Never in practice: writing to a string does not fail.
pub fn render(
    observation: &Observation,
    facts: &AgentFacts<'_>,
    format: Format,
    zero_first: bool,
) -> Result<Vec<u8>, fmt::Error> {
    let mut families = workload::families(&observation.snapshot, &observation.counters, &facts.families, zero_first);
    families.extend(agent::families(observation, facts));
    let with_created = facts.created_series && format == Format::OpenMetrics;
    let samples = families.iter().flat_map(|family| &family.samples);
    let series = samples.map(|sample| 1 + u64::from(with_created && sample.created.is_some())).sum();
    families.push(EXPORTED_SERIES.of(Value::Count(series)));
    format.encode(families, with_created)
}

/// Families as prometheus-client collects them.
#[derive(Debug)]
struct Families(Vec<Family>);

impl Collector for Families {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        for family in &self.0 {
            let unit = family.unit.map(|unit| match unit {
                BaseUnit::Seconds => Unit::Seconds,
                BaseUnit::Bytes => Unit::Bytes,
            });
            let kind = match family.kind {
                Kind::Counter => MetricType::Counter,
                Kind::Gauge => MetricType::Gauge,
            };
            let mut metric = encoder.encode_descriptor(&family.name, &family.help, unit.as_ref(), kind)?;
            for sample in &family.samples {
                if sample.row.is_empty() && sample.labels.is_empty() {
                    // An empty label set would be written as `{}`. A series without labels is its family's only one.
                    sample.value.encode(family.kind, metric)?;
                    break;
                }
                sample.value.encode(family.kind, metric.encode_family(&(&*sample.row, sample.labels.as_slice()))?)?;
            }
        }
        Ok(())
    }
}
