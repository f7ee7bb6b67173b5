//! Checks of a message against the rules of receivers: the rules of the signal itself, and of each receiver that has a
//! preset. Only tests use it.
//!
//! The rules of the signal are those of the profiling group's own tool, profcheck, with all its checks. The tool itself
//! checks the messages of an agent in `tests/e2e/conformance.rs`; here a test can check any message quickly.

use std::collections::HashSet;

use opentelemetry_proto::tonic::{
    collector::profiles::v1development::ExportProfilesServiceRequest, common::v1::any_value::Value,
    profiles::v1development as proto,
};
use prost::Message;

/// All violations, one line each.
pub(super) type Violations = Vec<String>;

/// The default limit of a gRPC server.
const MAX_REQUEST_BYTES: usize = 4 * 1024 * 1024;
/// The frame types that devfiler knows; it rejects a request with any other.
const DEVFILER_FRAMES: [&str; 13] = [
    "native",
    "kernel",
    "jvm",
    "perl",
    "cpython",
    "php",
    "phpjit",
    "ruby",
    "dotnet",
    "v8js",
    "beam",
    "go",
    "abort-marker",
];

/// Checks the rules of the signal.
pub(super) fn signal(request: &ExportProfilesServiceRequest) -> Violations {
    let mut broken = Vec::new();
    let Some(dictionary) = &request.dictionary else { return vec!["no dictionary".to_owned()] };
    let resources = &request.resource_profiles;
    let scopes = || resources.iter().flat_map(|resource| &resource.scope_profiles);
    let mut hold = |holds: bool, what: &dyn Fn() -> String| {
        if !holds {
            broken.push(what());
        }
    };
    hold(!resources.is_empty(), &|| "no resource".to_owned());
    hold(resources.iter().all(|resource| !resource.scope_profiles.is_empty()), &|| "a resource without a scope".into());
    hold(scopes().all(|scope| !scope.profiles.is_empty()), &|| "a scope without a profile".to_owned());
    tables(dictionary, &mut hold);
    let mut used = Used::default();
    for profile in scopes().flat_map(|scope| &scope.profiles) {
        profile_rules(profile, dictionary, &mut used, &mut hold);
    }
    references(dictionary, used, &mut hold);
    broken
}

type Hold<'a> = dyn FnMut(bool, &dyn Fn() -> String) + 'a;

/// Checks that each table begins with the zero value and has no row twice, and that the values of rows are possible.
fn tables(dictionary: &proto::ProfilesDictionary, hold: &mut Hold<'_>) {
    fn table<T: Message + Default + PartialEq>(name: &str, rows: &[T], hold: &mut Hold<'_>) {
        hold(rows.first() == Some(&T::default()), &|| format!("{name}[0] is not the zero value"));
        let distinct: HashSet<_> = rows.iter().map(Message::encode_to_vec).collect();
        hold(distinct.len() == rows.len(), &|| format!("{name} has rows twice"));
    }
    table("mappings", &dictionary.mapping_table, hold);
    table("locations", &dictionary.location_table, hold);
    table("functions", &dictionary.function_table, hold);
    table("attributes", &dictionary.attribute_table, hold);
    table("stacks", &dictionary.stack_table, hold);
    table("strings", &dictionary.string_table, hold);
    table("links", &dictionary.link_table, hold);
    for mapping in &dictionary.mapping_table {
        let (start, limit) = (mapping.memory_start, mapping.memory_limit);
        hold(start < limit || (start, limit) == (0, 0), &|| format!("a mapping from {start:#x} to {limit:#x}"));
        keys_once("a mapping", &mapping.attribute_indices, dictionary, hold);
    }
    for location in &dictionary.location_table {
        let lines = || location.lines.iter().all(|line| line.line >= 0 && line.column >= 0);
        hold(lines(), &|| "a line below 0".to_owned());
        keys_once("a location", &location.attribute_indices, dictionary, hold);
    }
    hold(dictionary.function_table.iter().all(|function| function.start_line >= 0), &|| "a start below 0".to_owned());
    let links = dictionary.link_table.iter().skip(1);
    hold(links.into_iter().all(|link| (link.trace_id.len(), link.span_id.len()) == (16, 8)), &|| "a bad link".into());
}

fn keys_once(whose: &str, attributes: &[i32], dictionary: &proto::ProfilesDictionary, hold: &mut Hold<'_>) {
    let keys: HashSet<_> = attributes.iter().map(|&index| attribute(dictionary, index).0).collect();
    hold(keys.len() == attributes.len(), &|| format!("{whose} has a key twice"));
}

/// The indices to which profiles refer.
#[derive(Default)]
struct Used {
    strings: Vec<i32>,
    attributes: Vec<i32>,
    stacks: Vec<i32>,
    links: Vec<i32>,
}

fn profile_rules(
    profile: &proto::Profile,
    dictionary: &proto::ProfilesDictionary,
    used: &mut Used,
    hold: &mut Hold<'_>,
) {
    for kind in [profile.sample_type, profile.period_type].into_iter().flatten() {
        used.strings.extend([kind.type_strindex, kind.unit_strindex]);
    }
    keys_once("a profile", &profile.attribute_indices, dictionary, hold);
    used.attributes.extend(&profile.attribute_indices);
    let window = profile.time_unix_nano..profile.time_unix_nano.saturating_add(profile.duration_nano);
    let mut distinct = HashSet::new();
    let mut shapes = HashSet::new();
    for sample in &profile.samples {
        let (values, times) = (sample.values.len(), sample.timestamps_unix_nano.len());
        hold(sample.timestamps_unix_nano.iter().all(|time| window.contains(time)), &|| "outside the window".into());
        hold(values == times || times == 0 && values == 1 || values == 0, &|| {
            format!("{values} values, {times} times")
        });
        hold((values, times) != (0, 0), &|| "a sample of nothing".to_owned());
        shapes.insert((values > 0, times > 0));
        keys_once("a sample", &sample.attribute_indices, dictionary, hold);
        let mut attributes = sample.attribute_indices.clone();
        attributes.sort_unstable();
        let own = distinct.insert((sample.stack_index, attributes, sample.link_index));
        hold(own, &|| format!("stack {} twice with the same attributes", sample.stack_index));
        used.attributes.extend(&sample.attribute_indices);
        used.stacks.push(sample.stack_index);
        used.links.push(sample.link_index);
    }
    hold(shapes.len() <= 1, &|| "samples of several shapes".to_owned());
    hold(profile.profile_id.len() == 16, &|| "no id of 16 bytes".to_owned());
}

/// Checks that each row but the first is referred to, and that no index is out of range.
fn references(dictionary: &proto::ProfilesDictionary, used: Used, hold: &mut Hold<'_>) {
    let (locations, mappings) = (&dictionary.location_table, &dictionary.mapping_table);
    let (functions, attributes) = (&dictionary.function_table, &dictionary.attribute_table);
    let mut read = |name: &str, rows: usize, readers: Vec<i32>| {
        let mut found: HashSet<_> = readers.into_iter().map(|index| usize::try_from(index).ok()).collect();
        found.insert(Some(0));
        let all: HashSet<_> = (0..rows).map(Some).collect();
        hold(found.is_subset(&all), &|| format!("{name}: an index is outside of {rows} rows"));
        hold(all.is_subset(&found), &|| format!("{name}: a row without a reader"));
    };
    read("stacks", dictionary.stack_table.len(), used.stacks);
    read("links", dictionary.link_table.len(), used.links);
    let of_stacks = dictionary.stack_table.iter().flat_map(|stack| stack.location_indices.clone());
    read("locations", locations.len(), of_stacks.collect());
    read("mappings", mappings.len(), locations.iter().map(|location| location.mapping_index).collect());
    let lines = locations.iter().flat_map(|location| &location.lines);
    read("functions", functions.len(), lines.map(|line| line.function_index).collect());
    let of_attributes = used.attributes.into_iter();
    let of_attributes = of_attributes.chain(locations.iter().flat_map(|location| location.attribute_indices.clone()));
    let of_attributes = of_attributes.chain(mappings.iter().flat_map(|mapping| mapping.attribute_indices.clone()));
    read("attributes", attributes.len(), of_attributes.collect());
    let strings = used.strings.into_iter();
    let strings = strings.chain(attributes.iter().flat_map(|row| [row.key_strindex, row.unit_strindex]));
    let strings = strings.chain(mappings.iter().map(|mapping| mapping.filename_strindex));
    let names = |row: &proto::Function| [row.name_strindex, row.system_name_strindex, row.filename_strindex];
    read("strings", dictionary.string_table.len(), strings.chain(functions.iter().flat_map(names)).collect());
}

/// Checks the rules of all receivers beyond those of the signal: they drop or reject a violation.
pub(super) fn any_receiver(request: &ExportProfilesServiceRequest) -> Violations {
    let dictionary = request.dictionary.clone().unwrap_or_default();
    let mut broken = Vec::new();
    if request.encoded_len() >= MAX_REQUEST_BYTES {
        broken.push(format!("{} bytes", request.encoded_len()));
    }
    if dictionary
        .attribute_table
        .iter()
        .skip(1)
        .any(|row| !matches!(row.value.as_ref().and_then(|value| value.value.as_ref()), Some(Value::StringValue(_))))
    {
        broken.push("an attribute that is no string".to_owned());
    }
    for location in dictionary.location_table.iter().skip(1) {
        if !location.attribute_indices.iter().any(|&index| attribute(&dictionary, index).0 == "profile.frame.type") {
            broken.push("a location without a frame type".to_owned());
        }
    }
    for profile in profiles(request) {
        if profile.samples.is_empty() {
            broken.push("a profile without samples".to_owned());
        }
        if profile.sample_type.is_none() || profile.period_type.is_none() {
            broken.push("a profile without a type".to_owned());
        }
        let unit = |kind: Option<proto::ValueType>| {
            let kind = kind.unwrap_or_default();
            (string(&dictionary, kind.type_strindex), string(&dictionary, kind.unit_strindex))
        };
        let types = (unit(profile.sample_type), unit(profile.period_type), profile.period > 0);
        let known = [
            (("off_cpu", "nanoseconds"), ("", ""), false),
            (("samples", "count"), ("cpu", "nanoseconds"), true),
            (("lock_wait", "nanoseconds"), ("lock_wait", "count"), true),
        ];
        if !known.contains(&types) {
            broken.push(format!("unknown types {types:?}"));
        }
    }
    broken
}

/// Grafana Pyroscope: function names, at most 16,000 samples a profile, at most 30 label names a series, which include
/// its own.
pub(super) fn pyroscope(request: &ExportProfilesServiceRequest) -> Violations {
    const OWN_LABELS: usize = 8;
    let dictionary = request.dictionary.clone().unwrap_or_default();
    let mut broken = Vec::new();
    for resource in &request.resource_profiles {
        let attributes = resource.resource.as_ref().map_or(0, |resource| resource.attributes.len());
        for profile in resource.scope_profiles.iter().flat_map(|scope| &scope.profiles) {
            if profile.samples.len() > 16_000 {
                broken.push(format!("{} samples", profile.samples.len()));
            }
            let most = profile.samples.iter().map(|sample| sample.attribute_indices.len()).max().unwrap_or(0);
            if attributes + most + OWN_LABELS > 30 {
                broken.push(format!("{attributes} and {most} label names"));
            }
        }
        let has = |key: &str| resource.resource.iter().flat_map(|it| &it.attributes).any(|it| it.key == key);
        if !has("service.name") {
            broken.push("no `service.name`: it would be in `unspecified`".to_owned());
        }
    }
    if dictionary.function_table.len() < 2 {
        broken.push("no function names".to_owned());
    }
    broken
}

/// Parca: rejects a request with an empty profile, a missing period type or a link that is not empty, and assigns the
/// lines of user frames to the wrong functions.
pub(super) fn parca(request: &ExportProfilesServiceRequest) -> Violations {
    let dictionary = request.dictionary.clone().unwrap_or_default();
    let mut broken = Vec::new();
    if dictionary.link_table != [proto::Link::default()] {
        broken.push("a link that is not empty".to_owned());
    }
    for location in &dictionary.location_table {
        let native = location
            .attribute_indices
            .iter()
            .any(|&index| attribute(&dictionary, index) == ("profile.frame.type", "native"));
        if native && !location.lines.is_empty() {
            broken.push("a user frame with lines".to_owned());
        }
    }
    broken
}

/// Elastic devfiler: counts timestamps instead of values; needs its own build id if a mapping has attributes.
pub(super) fn devfiler(request: &ExportProfilesServiceRequest) -> Violations {
    let dictionary = request.dictionary.clone().unwrap_or_default();
    let mut broken = Vec::new();
    for mapping in &dictionary.mapping_table {
        let mut ids = mapping.attribute_indices.iter().map(|&index| attribute(&dictionary, index).0);
        if !mapping.attribute_indices.is_empty() && !ids.any(|key| key == "process.executable.build_id.htlhash") {
            broken.push("a mapping with attributes, but without an htlhash".to_owned());
        }
    }
    for row in dictionary.attribute_table.iter().enumerate().skip(1) {
        let (key, value) = attribute(&dictionary, i32::try_from(row.0).unwrap());
        if key == "profile.frame.type" && !DEVFILER_FRAMES.contains(&value) {
            broken.push(format!("frame type `{value}`"));
        }
    }
    for profile in profiles(request) {
        let kind = string(&dictionary, profile.sample_type.unwrap_or_default().type_strindex);
        for sample in &profile.samples {
            let counted = i64::try_from(sample.timestamps_unix_nano.len()).unwrap();
            if counted == 0 || (kind == "samples" && sample.values.iter().sum::<i64>() != counted) {
                broken.push(format!("{counted} timestamps for {:?}", sample.values));
            }
        }
    }
    broken
}

pub(super) fn profiles(request: &ExportProfilesServiceRequest) -> impl Iterator<Item = &proto::Profile> {
    let scopes = request.resource_profiles.iter().flat_map(|resource| &resource.scope_profiles);
    scopes.flat_map(|scope| &scope.profiles)
}

pub(super) fn at<T>(table: &[T], index: i32) -> &T {
    &table[usize::try_from(index).unwrap()]
}

pub(super) fn string(dictionary: &proto::ProfilesDictionary, index: i32) -> &str {
    at(&dictionary.string_table[..], index).as_str()
}

/// Returns the key and text of an attribute.
pub(super) fn attribute(dictionary: &proto::ProfilesDictionary, index: i32) -> (&str, &str) {
    let attribute = at(&dictionary.attribute_table, index);
    let value = match attribute.value.as_ref().and_then(|value| value.value.as_ref()) {
        Some(Value::StringValue(value)) => value.as_str(),
        _ => "",
    };
    (string(dictionary, attribute.key_strindex), value)
}
