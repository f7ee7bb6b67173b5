//! Prometheus exposition: families of metrics, and the formats in which they are written.
//!
//! [`workload`] and [`agent`] turn an observation into plain [`Family`] values (pure), and this file writes them with
//! prometheus-client. [`mod@reference`] lists all possible families, from the same tables.

mod agent;
mod families;
mod format;
mod histogram;
mod programs;
pub mod reference;
mod sensors;
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
use crate::model::{facts, sensors::Histogram};
use families::{Definition, EXPORTED_SERIES};

/// One metric family. The name has no unit and no `_total`.
#[derive(Clone, Debug, PartialEq)]
pub struct Family {
    /// The name, such as `podperf_cgroup_oncpu`.
    pub name: Cow<'static, str>,
    /// One sentence without its full stop.
    pub help: Cow<'static, str>,
    /// The unit, which becomes the name's suffix.
    pub unit: Option<BaseUnit>,
    /// Counter or gauge.
    pub kind: Kind,
    /// The names of its own labels, if all of its series have the same ones.
    pub labels: &'static [&'static str],
    /// True if only `metrics.own: all` exports it.
    pub detail: bool,
    /// The series.
    pub samples: Vec<Sample>,
}

/// One series.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// The labels that identify the row. All series of a row share them.
    pub row: Arc<[Label]>,
    /// The labels of the series itself, which follow those of the row.
    pub labels: Vec<Label>,
    /// The value; integers stay integers.
    pub value: Value,
    /// The time when the value was zero; `None` if it is unknown, or the value is not a counter.
    pub created: Option<SystemTime>,
}

/// The name and value of a label. Only labels of pods have names that podperf does not choose.
pub type Label = (Cow<'static, str>, Cow<'static, str>);

/// The base units in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum BaseUnit {
    /// Seconds, with the suffix `_seconds`.
    Seconds,
    /// Bytes, with the suffix `_bytes`.
    Bytes,
}

/// The types in use. Information is a gauge of value 1, which all formats have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum Kind {
    /// A value that only grows.
    Counter,
    /// A value that goes up and down.
    Gauge,
    /// The numbers of values in buckets, and their sum.
    Histogram,
}

impl BaseUnit {
    /// Returns the unit of a family of [`crate::model::facts`].
    pub(super) const fn of(unit: facts::Unit) -> Option<Self> {
        match unit {
            facts::Unit::Seconds => Some(Self::Seconds),
            facts::Unit::Things(_) => None,
        }
    }

    /// Returns the suffix of the name.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.into()
    }
}

impl Kind {
    /// Returns the type as in the line `# TYPE`.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.into()
    }
}

/// The value of a series.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// An integer.
    Count(u64),
    /// A real number.
    Real(f64),
    /// A histogram of times.
    Histogram(Arc<Histogram>),
}

impl Value {
    /// Returns nanoseconds as seconds.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "53 bits of nanoseconds are 104 days without an error")]
    pub fn seconds(nanoseconds: impl Into<u128>) -> Self {
        Self::Real(nanoseconds.into() as f64 / 1e9)
    }

    /// Returns a number of things: an integer if it has at most 64 bits.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "Prometheus keeps each number as a floating-point one")]
    pub fn count(things: u128) -> Self {
        u64::try_from(things).map_or(Self::Real(things as f64), Self::Count)
    }

    fn encode(&self, kind: Kind, series: MetricEncoder<'_>, form: histogram::Form) -> fmt::Result {
        match (kind, self) {
            (_, Self::Histogram(histogram)) => form.encode(histogram, series),
            (Kind::Gauge, Self::Count(value)) => ConstGauge::new(*value).encode(series),
            (Kind::Gauge, Self::Real(value)) => ConstGauge::new(*value).encode(series),
            (_, Self::Count(value)) => ConstCounter::new(*value).encode(series),
            (_, Self::Real(value)) => ConstCounter::new(*value).encode(series),
        }
    }
}

impl Family {
    fn new(name: impl Into<Cow<'static, str>>, help: impl Into<Cow<'static, str>>, kind: Kind) -> Self {
        Self { name: name.into(), help: help.into(), unit: None, kind, labels: &[], detail: false, samples: Vec::new() }
    }

    /// Adds a series with one value for each label.
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
    /// Returns the family without a series.
    fn family(&self) -> Family {
        let Self { unit, labels, detail, .. } = *self;
        Family { unit, labels, detail, ..Family::new(self.name, self.help, self.kind) }
    }

    /// Returns the family with one series that has these label values.
    fn with(&self, labels: &[&str], value: Value) -> Family {
        let mut family = self.family();
        family.push(labels, value);
        family
    }

    /// Returns the family with one series that has no labels.
    fn of(&self, value: Value) -> Family {
        self.with(&[], value)
    }
}

/// Returns all families of one scrape, in the format that the client asked for. With `zero_first`, series that scrapers
/// have not seen yet are zero.
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
    let form = histogram::Form { native: format == Format::Protobuf, classic: facts.classic_buckets };
    let of_sensors = sensors::families(&observation.snapshot, &facts.sensors).into_iter();
    families.extend(of_sensors.filter(|family| family.kind != Kind::Histogram || form.native || form.classic));
    families.extend(agent::families(observation, facts));
    let with_created = facts.created_series && format == Format::OpenMetrics;
    let lines = |sample: &Sample| match &sample.value {
        Value::Histogram(histogram) => form.lines(histogram) as u64,
        _ => 1 + u64::from(with_created && sample.created.is_some()),
    };
    let series = families.iter().flat_map(|family| &family.samples).map(lines).sum();
    families.push(EXPORTED_SERIES.of(Value::Count(series)));
    format.encode(families, form, with_created)
}

/// Families in the form that prometheus-client collects.
#[derive(Debug)]
struct Families(Vec<Family>, histogram::Form);

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
                Kind::Histogram => MetricType::Histogram,
            };
            let mut metric = encoder.encode_descriptor(&family.name, &family.help, unit.as_ref(), kind)?;
            for sample in &family.samples {
                if sample.row.is_empty() && sample.labels.is_empty() {
                    // An empty label set would be written as `{}`. A series without labels is the only one of its
                    // family.
                    sample.value.encode(family.kind, metric, self.1)?;
                    break;
                }
                let labels = (&*sample.row, sample.labels.as_slice());
                let series = metric.encode_family(&labels)?;
                sample.value.encode(family.kind, series, self.1)?;
            }
        }
        Ok(())
    }
}
