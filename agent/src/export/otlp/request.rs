//! From a [`Profile`] to the requests that carry it. Pure, but for the random profile ids.
//!
//! One `ResourceProfiles` per container or row of cgroups, one `off_cpu`/`nanoseconds` profile in each. Receivers refuse messages over 4 MiB
//! (the default of gRPC servers, decompressed) and profiles over 16,000 samples (Pyroscope), so a window is split until
//! each part fits: by subject first, then by samples. No sample is left out.

use std::{
    collections::{HashMap, hash_map::Entry},
    time::{Duration, SystemTime},
};

use opentelemetry_proto::tonic::{
    collector::profiles::v1development::ExportProfilesServiceRequest,
    common::v1::{AnyValue, InstrumentationScope, KeyValue, any_value::Value},
    profiles::v1development as proto,
    resource::v1::Resource,
};
use prost::Message;

use super::{dictionary::Dictionary, random};
use crate::stacks::profile::{Activity, Profile, Sample};

/// Encoded, uncompressed: 4 MiB less room for what a proxy on the way adds.
const MAX_REQUEST_BYTES: usize = 3_584 * 1024;
const MAX_PROFILE_SAMPLES: usize = 16_000;

/// What one request has room for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub(super) bytes: usize,
    pub(super) samples: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { bytes: MAX_REQUEST_BYTES, samples: MAX_PROFILE_SAMPLES }
    }
}

/// The requests for one window, none of them empty. A single sample that is over the size limit by itself gets a
/// request of its own, for the receiver to judge.
///
/// `profile.losses` are those of the whole window on the whole node and are repeated on every profile: they say how far
/// it can be trusted, and must not be added up.
pub(super) fn requests(profile: &Profile) -> Vec<ExportProfilesServiceRequest> {
    split(profile, Limits::default())
}

pub(super) fn split(profile: &Profile, limits: Limits) -> Vec<ExportProfilesServiceRequest> {
    let window = Window::of(profile);
    let groups = profile.subjects.iter().filter(|subject| !subject.samples.is_empty());
    let groups: Vec<_> =
        groups.map(|subject| Group { resource: &subject.resource, samples: &subject.samples }).collect();

    let mut requests = Vec::new();
    let mut parts = vec![groups];
    while let Some(part) = parts.pop() {
        if part.is_empty() {
            continue;
        }
        let request = build(&part, &window);
        if fits(&request, limits) {
            requests.push(request);
            continue;
        }
        match halves(part) {
            Ok((first, second)) => parts.extend([second, first]),
            Err(Indivisible) => requests.push(request),
        }
    }
    requests
}

fn fits(request: &ExportProfilesServiceRequest, limits: Limits) -> bool {
    let scopes = request.resource_profiles.iter().flat_map(|resource| &resource.scope_profiles);
    let mut profiles = scopes.flat_map(|scope| &scope.profiles);
    profiles.all(|profile| profile.samples.len() <= limits.samples) && request.encoded_len() < limits.bytes
}

/// Samples of one subject that go into one request.
#[derive(Clone, Copy, Debug)]
struct Group<'a> {
    resource: &'a [(String, String)],
    samples: &'a [Sample],
}

struct Indivisible;

fn halves(mut part: Vec<Group<'_>>) -> Result<(Vec<Group<'_>>, Vec<Group<'_>>), Indivisible> {
    if let [group] = part[..] {
        if group.samples.len() < 2 {
            return Err(Indivisible);
        }
        let (first, second) = group.samples.split_at(group.samples.len() / 2);
        return Ok((vec![Group { samples: first, ..group }], vec![Group { samples: second, ..group }]));
    }
    let second = part.split_off(part.len() / 2);
    Ok((part, second))
}

/// When the samples were taken, and what is missing from them.
#[derive(Debug)]
struct Window<'a> {
    start_ns: u64,
    duration_ns: u64,
    losses: &'a [(&'static str, u64)],
}

impl<'a> Window<'a> {
    fn of(profile: &'a Profile) -> Self {
        let ends = profile.subjects.iter().flat_map(|subject| &subject.samples).map(|sample| sample.last);
        let start = profile.start.or_else(|| ends.max()?.checked_sub(profile.duration));
        Self {
            start_ns: unix_ns(start.unwrap_or(SystemTime::UNIX_EPOCH)),
            duration_ns: nanoseconds(profile.duration),
            losses: &profile.losses,
        }
    }

    /// The end is outside (`[start, start + duration)`), and clocks may disagree by a little: a timestamp outside is
    /// moved to the nearest edge.
    fn clamp(&self, time: SystemTime) -> u64 {
        let last = self.start_ns.saturating_add(self.duration_ns.saturating_sub(1));
        unix_ns(time).clamp(self.start_ns, last)
    }
}

fn build(part: &[Group<'_>], window: &Window<'_>) -> ExportProfilesServiceRequest {
    let mut dictionary = Dictionary::new();
    let profiles = part.iter().map(|group| resource_profiles(group, window, &mut dictionary)).collect();
    ExportProfilesServiceRequest { resource_profiles: profiles, dictionary: Some(dictionary.finish()) }
}

fn resource_profiles<'a>(
    group: &Group<'a>,
    window: &Window<'_>,
    dictionary: &mut Dictionary<'a>,
) -> proto::ResourceProfiles {
    let attributes = group.resource.iter().map(|(key, value)| KeyValue {
        key: key.clone(),
        value: Some(AnyValue { value: Some(Value::StringValue(value.clone())) }),
        ..KeyValue::default()
    });
    let scope = InstrumentationScope {
        name: "podperf".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        ..InstrumentationScope::default()
    };
    let losses = window.losses.iter();
    let losses =
        losses.map(|(reason, count)| dictionary.attribute(format!("podperf.lost.{reason}"), count.to_string()));
    let attribute_indices = losses.collect();
    let profile = proto::Profile {
        sample_type: Some(dictionary.value_type("off_cpu", "nanoseconds")),
        samples: samples(group.samples, window, dictionary),
        time_unix_nano: window.start_ns,
        duration_nano: window.duration_ns,
        // Must be there, although nothing is sampled: Parca refuses the request without it, and Pyroscope takes a
        // profile for off-CPU time only when the period is 0.
        period_type: Some(proto::ValueType::default()),
        period: 0,
        profile_id: [random(), random()].map(u64::to_le_bytes).concat(),
        attribute_indices,
        ..proto::Profile::default()
    };
    proto::ResourceProfiles {
        resource: Some(Resource { attributes: attributes.collect(), ..Resource::default() }),
        scope_profiles: vec![proto::ScopeProfiles {
            scope: Some(scope),
            profiles: vec![profile],
            schema_url: String::new(),
        }],
        schema_url: String::new(),
    }
}

/// Processes that share a stack and a state become one sample: the process is not part of the message, since every
/// distinct set of sample attributes is a series of its own in Pyroscope.
fn samples<'a>(samples: &'a [Sample], window: &Window<'_>, dictionary: &mut Dictionary<'a>) -> Vec<proto::Sample> {
    let mut merged: Vec<proto::Sample> = Vec::with_capacity(samples.len());
    let mut places = HashMap::new();
    for sample in samples {
        let stack = dictionary.stack(&sample.stack);
        let Activity::OffCpu { state, reason, .. } = &sample.activity else { continue };
        let state = dictionary.attribute("podperf.offcpu.state", state.name());
        let reason = dictionary.attribute("podperf.offcpu.reason", reason.name());
        let value = i64::try_from(sample.nanoseconds).unwrap_or(i64::MAX);
        let timestamp = window.clamp(sample.last);
        match places.entry((stack, state, reason)) {
            Entry::Vacant(place) => {
                place.insert(merged.len());
                merged.push(proto::Sample {
                    stack_index: stack,
                    attribute_indices: vec![state, reason],
                    link_index: 0,
                    values: vec![value],
                    timestamps_unix_nano: vec![timestamp],
                });
            }
            Entry::Occupied(place) => {
                let earlier = &mut merged[*place.get()];
                earlier.values[0] = earlier.values[0].saturating_add(value);
                earlier.timestamps_unix_nano[0] = earlier.timestamps_unix_nano[0].max(timestamp);
            }
        }
    }
    merged
}

fn unix_ns(time: SystemTime) -> u64 {
    nanoseconds(time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default())
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
#[path = "request_tests.rs"]
mod tests;
