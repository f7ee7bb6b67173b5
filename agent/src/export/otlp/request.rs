//! Converts a [`Profile`] to OTLP requests. Pure, but for the random profile ids.
//!
//! A request has one `ResourceProfiles` per container or row of cgroups; each holds an `off_cpu`/`nanoseconds` profile,
//! a `samples`/`count` profile and a `lock_wait`/`nanoseconds` profile, but never an empty one. Receivers reject messages over 4 MiB (the default of
//! gRPC servers, decompressed) and profiles over 16,000 samples (Pyroscope), so a window is split until each part fits:
//! by subject first, then by samples. No sample is left out, except those that only filters of recordings pass.

use std::{
    collections::{HashMap, hash_map::Entry},
    time::SystemTime,
};

use opentelemetry_proto::tonic::{
    collector::profiles::v1development::ExportProfilesServiceRequest,
    common::v1::{AnyValue, InstrumentationScope, KeyValue, any_value::Value},
    profiles::v1development as proto,
    resource::v1::Resource,
};
use prost::Message;

use super::{
    dictionary::Dictionary,
    resource::resource,
    settings::{Preset, SampleAttribute, Shape},
};
use crate::{
    attribution::Subject,
    model::{duration::nanoseconds, random::random, slot::Slot, wait::Unwind},
    stacks::profile::{Activity, Profile, Sample},
};

/// The header that says which development version of OTLP profiles a request has, and the version of the messages of
/// this module. A receiver that takes another one refuses the request, so the header goes away with a stable version.
pub(super) const PROFILES_VERSION: (&str, &str) = ("otlp-profiles-development-version", "1");

/// The largest request, encoded and uncompressed: 4 MiB less room for the data that a proxy on the way adds.
const MAX_REQUEST_BYTES: usize = 3_584 * 1024;
const MAX_PROFILE_SAMPLES: usize = 16_000;
/// The most timestamps of one sample, about ten bytes each: no sample may fill a request by itself.
const MAX_TIMESTAMPS: usize = 100_000;

/// The limits of one request.
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

/// Returns the requests for one window of a node, none of them empty. A single sample over the size limit gets a request
/// of its own, which the receiver may accept or reject.
///
/// `profile.losses` are the losses of the whole window on the whole node and are repeated on every profile: they show
/// how complete it is, and must not be added up.
pub(super) fn requests(profile: &Profile, shape: &Shape, node_name: &str) -> Vec<ExportProfilesServiceRequest> {
    split(profile, shape, node_name, Limits::default())
}

pub(super) fn split(
    profile: &Profile,
    shape: &Shape,
    node_name: &str,
    limits: Limits,
) -> Vec<ExportProfilesServiceRequest> {
    let window = Window::of(profile, shape, node_name);
    let own: Vec<(_, Vec<_>)> =
        profile.subjects.iter().map(|subject| (&subject.subject, own(&subject.samples))).collect();
    let groups = own.iter().filter(|(_, samples)| !samples.is_empty());
    let groups: Vec<_> = groups.map(|(subject, samples)| Group { subject, samples }).collect();

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

/// Returns the samples that the filter of the agent's own profiles passes.
fn own(samples: &[Sample]) -> Vec<&Sample> {
    samples.iter().filter(|sample| Slot::OWN.let_pass(sample.passed)).collect()
}

fn fits(request: &ExportProfilesServiceRequest, limits: Limits) -> bool {
    let scopes = request.resource_profiles.iter().flat_map(|resource| &resource.scope_profiles);
    let mut profiles = scopes.flat_map(|scope| &scope.profiles);
    profiles.all(|profile| profile.samples.len() <= limits.samples) && request.encoded_len() < limits.bytes
}

/// Samples of one subject that go into one request.
#[derive(Clone, Copy, Debug)]
struct Group<'a> {
    subject: &'a Subject,
    samples: &'a [&'a Sample],
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

/// The time of the samples, the losses, the node, and the form of the message.
#[derive(Debug)]
struct Window<'a> {
    start_ns: u64,
    duration_ns: u64,
    sample_period_ns: u64,
    losses: &'a [(&'static str, u64)],
    shape: &'a Shape,
    node_name: &'a str,
}

impl<'a> Window<'a> {
    fn of(profile: &'a Profile, shape: &'a Shape, node_name: &'a str) -> Self {
        let ends = profile.subjects.iter().flat_map(|subject| &subject.samples).map(|sample| sample.last);
        let start = profile.start.or_else(|| ends.max()?.checked_sub(profile.duration));
        Self {
            start_ns: unix_ns(start.unwrap_or(SystemTime::UNIX_EPOCH)),
            duration_ns: nanoseconds(profile.duration),
            sample_period_ns: nanoseconds(profile.sample_period.unwrap_or_default()),
            losses: &profile.losses,
            shape,
            node_name,
        }
    }

    /// Returns a timestamp within the window. The window excludes its end (`[start, start + duration)`), and clocks may
    /// differ slightly: a timestamp outside is moved to the nearest edge.
    fn clamp(&self, time: SystemTime) -> u64 {
        let last = self.start_ns.saturating_add(self.duration_ns.saturating_sub(1));
        unix_ns(time).clamp(self.start_ns, last)
    }

    fn wants(&self, attribute: SampleAttribute) -> bool {
        self.shape.sample_attributes.contains(&attribute)
    }
}

/// The kind of a profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    OffCpu,
    OnCpu,
    /// The waits for locks, which are in the profile for off-CPU time, too.
    Locks,
}

impl Kind {
    const ALL: [Self; 3] = [Self::OffCpu, Self::OnCpu, Self::Locks];

    const fn has(self, activity: &Activity) -> bool {
        match (self, activity) {
            (Self::OffCpu, Activity::OffCpu { .. }) | (Self::OnCpu, Activity::OnCpu) => true,
            (Self::Locks, Activity::OffCpu { lock, .. }) => lock.is_some(),
            _ => false,
        }
    }

    fn sample_type(self, dictionary: &mut Dictionary<'_>) -> proto::ValueType {
        match self {
            Self::OffCpu => dictionary.value_type("off_cpu", "nanoseconds"),
            Self::OnCpu => dictionary.value_type("samples", "count"),
            Self::Locks => dictionary.value_type("lock_wait", "nanoseconds"),
        }
    }

    /// Returns the period, which waits need too, although they are not sampled: Parca rejects the request without it,
    /// and Pyroscope accepts a profile for off-CPU time only when the period is 0. For types that it does not know,
    /// Pyroscope takes the profile's name from the type of the period, so waits for locks have one.
    fn period(self, window: &Window<'_>, dictionary: &mut Dictionary<'_>) -> (proto::ValueType, i64) {
        match self {
            Self::OffCpu => (proto::ValueType::default(), 0),
            Self::OnCpu => (dictionary.value_type("cpu", "nanoseconds"), signed(window.sample_period_ns)),
            Self::Locks => (dictionary.value_type("lock_wait", "count"), 1),
        }
    }

    fn value(self, sample: &Sample) -> i64 {
        signed(match self {
            Self::OffCpu => sample.nanoseconds,
            Self::OnCpu => sample.count,
            // The sensor counts a wait when it ends, and so does this profile: no earlier sample has the lock.
            Self::Locks => sample.nanoseconds.saturating_add(sample.so_far_ns),
        })
    }
}

fn build(part: &[Group<'_>], window: &Window<'_>) -> ExportProfilesServiceRequest {
    let mut dictionary = Dictionary::new(window.shape.preset);
    let profiles = part.iter().map(|group| resource_profiles(group, window, &mut dictionary)).collect();
    ExportProfilesServiceRequest { resource_profiles: profiles, dictionary: Some(dictionary.finish()) }
}

fn resource_profiles<'a>(
    group: &Group<'a>,
    window: &Window<'_>,
    dictionary: &mut Dictionary<'a>,
) -> proto::ResourceProfiles {
    let own = resource(group.subject, window.node_name);
    let more = window.shape.resource.iter().filter(|(key, _)| own.iter().all(|(known, _)| known != key));
    let more = more.map(|(key, value)| (key.as_str(), value.clone()));
    let attributes = own.iter().cloned().chain(more).map(|(key, value)| KeyValue {
        key: key.to_owned(),
        value: Some(AnyValue { value: Some(Value::StringValue(value)) }),
        ..KeyValue::default()
    });
    let scope = InstrumentationScope {
        name: "podperf".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        ..InstrumentationScope::default()
    };
    let profiles = Kind::ALL.into_iter().filter_map(|kind| profile(kind, group, window, dictionary));
    proto::ResourceProfiles {
        scope_profiles: vec![proto::ScopeProfiles {
            scope: Some(scope),
            profiles: profiles.collect(),
            schema_url: String::new(),
        }],
        resource: Some(Resource { attributes: attributes.collect(), ..Resource::default() }),
        schema_url: String::new(),
    }
}

/// Returns the profile of one kind; `None` without samples, since receivers reject an empty profile.
fn profile<'a>(
    kind: Kind,
    group: &Group<'a>,
    window: &Window<'_>,
    dictionary: &mut Dictionary<'a>,
) -> Option<proto::Profile> {
    let samples = samples(kind, group.samples, window, dictionary);
    if samples.is_empty() {
        return None;
    }
    let (period_type, period) = kind.period(window, dictionary);
    let losses = window.losses.iter();
    let losses =
        losses.map(|(reason, count)| dictionary.attribute(format!("podperf.lost.{reason}"), count.to_string()));
    let attribute_indices = losses.collect();
    Some(proto::Profile {
        sample_type: Some(kind.sample_type(dictionary)),
        samples,
        time_unix_nano: window.start_ns,
        duration_nano: window.duration_ns,
        period_type: Some(period_type),
        period,
        profile_id: [random(), random()].map(u64::to_le_bytes).concat(),
        attribute_indices,
        ..proto::Profile::default()
    })
}

/// Merges the samples of processes that share a stack and attributes. The process is not part of the message, since
/// every distinct set of sample attributes is a series of its own in Pyroscope.
fn samples<'a>(
    kind: Kind,
    samples: &'a [&'a Sample],
    window: &Window<'_>,
    dictionary: &mut Dictionary<'a>,
) -> Vec<proto::Sample> {
    let mut merged: Vec<proto::Sample> = Vec::new();
    let mut places = HashMap::new();
    for sample in samples.iter().copied().filter(|sample| kind.has(&sample.activity)) {
        let stack = dictionary.stack(&sample.stack);
        let attributes = attributes(kind, sample, window, dictionary);
        let value = kind.value(sample);
        let timestamp = window.clamp(sample.last);
        match places.entry((stack, attributes)) {
            Entry::Vacant(place) => {
                merged.push(proto::Sample {
                    stack_index: stack,
                    attribute_indices: place.key().1.clone(),
                    link_index: 0,
                    values: vec![value],
                    timestamps_unix_nano: vec![timestamp],
                });
                place.insert(merged.len() - 1);
            }
            Entry::Occupied(place) => {
                let earlier = &mut merged[*place.get()];
                earlier.values[0] = earlier.values[0].saturating_add(value);
                earlier.timestamps_unix_nano[0] = earlier.timestamps_unix_nano[0].max(timestamp);
            }
        }
    }
    if kind == Kind::OnCpu && window.shape.preset == Preset::Devfiler {
        merged.iter_mut().for_each(one_by_one);
    }
    merged
}

/// Returns the attributes of a sample in a profile of this kind. A wait for a lock has the lock in place of the state,
/// which follows from the lock.
fn attributes<'a>(kind: Kind, sample: &'a Sample, window: &Window<'_>, dictionary: &mut Dictionary<'a>) -> Vec<i32> {
    let mut attributes = Vec::new();
    let mut push = |key: &'static str, value: &'a str| attributes.push(dictionary.attribute(key, value));
    if let Activity::OffCpu { state, reason, waker, lock } = &sample.activity {
        let lock = lock.filter(|_| kind == Kind::Locks);
        if let Some(lock) = lock {
            push("podperf.lock", lock.name());
        } else if window.wants(SampleAttribute::State) {
            push("podperf.offcpu.state", state.name());
        }
        if window.wants(SampleAttribute::Reason) {
            push("podperf.offcpu.reason", reason.name());
        }
        if let Some(waker) = waker.as_ref().filter(|_| window.wants(SampleAttribute::Waker)) {
            push("podperf.waker.thread", &waker.thread);
            push("podperf.waker.subject", &waker.subject);
            if let Some(stack) = &waker.stack {
                push("podperf.waker.stack", stack);
            }
        }
    }
    if sample.stack.unwind != Unwind::Whole && window.wants(SampleAttribute::Unwind) {
        push("podperf.stack.unwind", sample.stack.unwind.name());
    }
    attributes
}

/// Writes a timestamp per sample, for a receiver that counts timestamps and not values.
fn one_by_one(sample: &mut proto::Sample) {
    let count = usize::try_from(sample.values[0]).unwrap_or(0).clamp(1, MAX_TIMESTAMPS);
    sample.values = vec![1; count];
    sample.timestamps_unix_nano = vec![sample.timestamps_unix_nano[0]; count];
}

fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

fn unix_ns(time: SystemTime) -> u64 {
    nanoseconds(time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default())
}

#[cfg(test)]
#[path = "request_tests.rs"]
mod tests;
