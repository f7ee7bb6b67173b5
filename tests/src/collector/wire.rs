//! OTLP's JSON, as far as the tests use it. Zeros and empty fields are omitted there.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};
use serde::{Deserialize, Deserializer};

use super::{Frame, Profile as Arrived, Sample as Taken};

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Request {
    resource_profiles: Vec<ResourceProfiles>,
    dictionary: Dictionary,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ResourceProfiles {
    resource: Resource,
    scope_profiles: Vec<ScopeProfiles>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Resource {
    attributes: Vec<Attribute>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ScopeProfiles {
    profiles: Vec<Profile>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Profile {
    profile_id: String,
    sample_type: ValueType,
    samples: Vec<Sample>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ValueType {
    type_strindex: usize,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Sample {
    stack_index: usize,
    attribute_indices: Vec<usize>,
    #[serde(deserialize_with = "numbers")]
    values: Vec<u64>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Dictionary {
    string_table: Vec<String>,
    attribute_table: Vec<Attribute>,
    stack_table: Vec<Stack>,
    location_table: Vec<Location>,
    mapping_table: Vec<Mapping>,
    function_table: Vec<Function>,
}

/// An attribute with its key as text from the sender. The Collector moves a resource's strings into the dictionary.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Attribute {
    key: String,
    key_strindex: usize,
    value: Value,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Value {
    string_value: String,
    string_value_strindex: usize,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Stack {
    location_indices: Vec<usize>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Location {
    mapping_index: usize,
    lines: Vec<Line>,
    attribute_indices: Vec<usize>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Mapping {
    filename_strindex: usize,
    attribute_indices: Vec<usize>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Line {
    function_index: usize,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Function {
    name_strindex: usize,
}

impl Request {
    pub(super) fn profiles(&self, number: usize) -> Result<Vec<Arrived>> {
        let dictionary = &self.dictionary;
        let mut arrived = Vec::new();
        for resource in &self.resource_profiles {
            let attributes = resource.resource.attributes.iter();
            let attributes: BTreeMap<_, _> =
                attributes.map(|attribute| dictionary.attribute(attribute)).collect::<Result<_>>()?;
            for profile in resource.scope_profiles.iter().flat_map(|scope| &scope.profiles) {
                arrived.push(Arrived {
                    id: profile.profile_id.clone(),
                    request: number,
                    resource: attributes.clone(),
                    sample_type: dictionary.string(profile.sample_type.type_strindex)?,
                    samples: profile.samples.iter().map(|it| dictionary.sample(it)).collect::<Result<_>>()?,
                });
            }
        }
        Ok(arrived)
    }
}

impl Dictionary {
    fn sample(&self, sample: &Sample) -> Result<Taken> {
        let stack = at(&self.stack_table, sample.stack_index)?;
        let locations = stack.location_indices.iter().map(|index| at(&self.location_table, *index));
        let frames = locations.map(|location| self.frames(location?)).collect::<Result<Vec<_>>>()?;
        Ok(Taken {
            state: self.attribute_of(&sample.attribute_indices, "podperf.offcpu.state")?,
            reason: self.attribute_of(&sample.attribute_indices, "podperf.offcpu.reason")?,
            value: sample.values.iter().sum(),
            frames: frames.concat(),
        })
    }

    fn frames(&self, location: &Location) -> Result<Vec<Frame>> {
        let kind = self.attribute_of(&location.attribute_indices, "profile.frame.type")?;
        let unknown = Mapping::default();
        let mapping = self.mapping_table.get(location.mapping_index).unwrap_or(&unknown);
        let nameless = Frame {
            kind,
            function: String::new(),
            file: self.string(mapping.filename_strindex)?,
            build_id: self.attribute_of(&mapping.attribute_indices, "process.executable.build_id.gnu")?,
            htlhash: self.attribute_of(&mapping.attribute_indices, "process.executable.build_id.htlhash")?,
        };
        if location.lines.is_empty() {
            return Ok(vec![nameless]);
        }
        let lines = location.lines.iter();
        let functions = lines.map(|line| {
            let function = at(&self.function_table, line.function_index)?;
            Ok(Frame { function: self.string(function.name_strindex)?, ..nameless.clone() })
        });
        functions.collect()
    }

    /// Returns the value of the attribute with this key; empty if there is none.
    fn attribute_of(&self, indices: &[usize], key: &str) -> Result<String> {
        for index in indices {
            let (found, value) = self.attribute(at(&self.attribute_table, *index)?)?;
            if found == key {
                return Ok(value);
            }
        }
        Ok(String::new())
    }

    fn attribute(&self, attribute: &Attribute) -> Result<(String, String)> {
        let text = |plain: &str, index| if plain.is_empty() { self.string(index) } else { Ok(plain.to_owned()) };
        let value = &attribute.value;
        Ok((text(&attribute.key, attribute.key_strindex)?, text(&value.string_value, value.string_value_strindex)?))
    }

    fn string(&self, index: usize) -> Result<String> {
        Ok(at(&self.string_table, index)?.clone())
    }
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct MetricsRequest {
    resource_metrics: Vec<ResourceMetrics>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ResourceMetrics {
    scope_metrics: Vec<ScopeMetrics>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ScopeMetrics {
    metrics: Vec<Metric>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Metric {
    name: String,
    sum: Sum,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Sum {
    data_points: Vec<Point>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Point {
    attributes: Vec<Attribute>,
    as_double: f64,
    /// A string, like all 64-bit numbers.
    as_int: String,
}

impl MetricsRequest {
    pub(super) fn series(&self, name: &str) -> Vec<(String, f64)> {
        let scopes = self.resource_metrics.iter().flat_map(|resource| &resource.scope_metrics);
        let metrics = scopes.flat_map(|scope| &scope.metrics).filter(|metric| metric.name == name);
        let points = metrics.flat_map(|metric| &metric.sum.data_points);
        points.map(|point| (point.labels(), point.as_int.parse().unwrap_or(point.as_double))).collect()
    }
}

impl Point {
    fn labels(&self) -> String {
        let pairs = self.attributes.iter().map(|it| format!("{}={}", it.key, it.value.string_value));
        let mut pairs: Vec<_> = pairs.collect();
        pairs.sort();
        pairs.join(" ")
    }
}

fn at<T>(table: &[T], index: usize) -> Result<&T> {
    table.get(index).with_context(|| format!("index {index} is outside a table of {}", table.len()))
}

/// Parses 64-bit numbers, which are strings in protobuf's JSON.
fn numbers<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u64>, D::Error> {
    let texts = Vec::<String>::deserialize(deserializer)?;
    texts.iter().map(|text| text.parse().map_err(serde::de::Error::custom)).collect()
}
