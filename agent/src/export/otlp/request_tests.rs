use std::{collections::HashSet, sync::Arc};

use super::*;
use crate::stacks::{
    profile::{Frame, FrameKind, Function, Mapping, Stack, SubjectProfile, Unwind, WaitState},
    reason::WaitReason,
};

fn start() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000)
}

fn frame(kind: FrameKind, name: &str, mapping: Option<&Arc<Mapping>>) -> Frame {
    let function = Function { name: name.into(), file: "main.c".into(), line: 7 };
    let address = u64::try_from(name.len()).unwrap();
    Frame { address, kind, mapping: mapping.cloned(), functions: vec![function] }
}

fn sample(stack: Vec<Frame>, state: WaitState, nanoseconds: u64) -> Sample {
    let last = start() + Duration::from_nanos(nanoseconds);
    let frames: Vec<_> = stack.into_iter().map(Arc::new).collect();
    let activity = Activity::OffCpu { state, reason: WaitReason::Other, waker: None };
    let stack = Arc::new(Stack { frames, unwind: Unwind::Whole });
    Sample { stack, activity, nanoseconds, count: 1, last }
}

fn profile(cgroups: Vec<(&str, Vec<Sample>)>) -> Profile {
    let cgroups = cgroups.into_iter().map(|(path, samples)| SubjectProfile {
        resource: vec![
            ("service.name".to_owned(), "shop".to_owned()),
            ("podperf.cgroup.path".to_owned(), path.to_owned()),
        ],
        samples,
    });
    Profile {
        subjects: cgroups.collect(),
        start: Some(start()),
        duration: Duration::from_secs(10),
        losses: vec![("stack_full", 3)],
        sample_period: None,
    }
}

fn two_cgroups() -> Profile {
    let binary = Arc::new(Mapping {
        path: "/usr/bin/shop".to_owned(),
        build_id: Some("c0ffee".to_owned()),
        htlhash: Some("0123".to_owned()),
        ..Mapping::default()
    });
    let kernel = frame(FrameKind::Kernel, "schedule", None);
    let user = frame(FrameKind::Native, "main", Some(&binary));
    let unknown = Frame { functions: Vec::new(), ..frame(FrameKind::Native, "", None) };
    let inlined = Function { name: "inner".into(), file: "".into(), line: 0 };
    let mut outer = user.clone();
    outer.functions.insert(0, inlined);
    profile(vec![
        (
            "/a",
            vec![
                sample(vec![kernel.clone(), user.clone()], WaitState::Interruptible, 10),
                sample(vec![kernel.clone(), user.clone()], WaitState::Interruptible, 5),
                sample(vec![kernel.clone(), user], WaitState::Uninterruptible, 7),
                sample(Vec::new(), WaitState::Preempted, 1),
            ],
        ),
        ("/b", vec![sample(vec![kernel, outer, unknown], WaitState::Preempted, 100)]),
    ])
}

/// `count` samples with a stack of their own, `depth` frames each; the root is shared.
fn many(count: usize, depth: usize) -> Vec<Sample> {
    let stacks = (0..count).map(|row| {
        let names = (1..depth).map(|level| format!("function_{row}_{level}"));
        let mut frames: Vec<_> = names.map(|name| frame(FrameKind::Native, &name, None)).collect();
        frames.push(frame(FrameKind::Native, "main", None));
        sample(frames, WaitState::Interruptible, 1 + u64::try_from(row).unwrap())
    });
    stacks.collect()
}

fn profiles(request: &ExportProfilesServiceRequest) -> impl Iterator<Item = &proto::Profile> {
    let scopes = request.resource_profiles.iter().flat_map(|resource| &resource.scope_profiles);
    scopes.flat_map(|scope| &scope.profiles)
}

fn total(requests: &[ExportProfilesServiceRequest]) -> u64 {
    let samples = requests.iter().flat_map(profiles).flat_map(|profile| &profile.samples);
    samples.map(|sample| u64::try_from(sample.values[0]).unwrap()).sum()
}

fn nanoseconds_of(profile: &Profile) -> u64 {
    profile.subjects.iter().flat_map(|subject| &subject.samples).map(|sample| sample.nanoseconds).sum()
}

fn at<T>(table: &[T], index: i32) -> &T {
    &table[usize::try_from(index).unwrap()]
}

fn text(dictionary: &proto::ProfilesDictionary, attribute: i32) -> (&str, &str) {
    let attribute = at(&dictionary.attribute_table, attribute);
    let Some(Value::StringValue(value)) = &attribute.value.as_ref().unwrap().value else {
        panic!("not a string: {attribute:?}");
    };
    (at(&dictionary.string_table, attribute.key_strindex).as_str(), value)
}

/// The zero value first, and no row twice.
fn assert_table<T: Message + Default + PartialEq>(table: &[T]) {
    assert!(table.first() == Some(&T::default()));
    let distinct: HashSet<_> = table.iter().map(Message::encode_to_vec).collect();
    assert_eq!(distinct.len(), table.len());
}

/// Each row but the first has a reader, and no reader points outside.
fn assert_read(name: &str, rows: usize, readers: impl IntoIterator<Item = i32>) {
    let mut read: HashSet<_> = readers.into_iter().map(|index| usize::try_from(index).unwrap()).collect();
    read.insert(0);
    assert_eq!(read, (0..rows).collect(), "{name}");
}

fn assert_rules(request: &ExportProfilesServiceRequest) {
    let dictionary = request.dictionary.as_ref().unwrap();
    assert_table(&dictionary.mapping_table);
    assert_table(&dictionary.location_table);
    assert_table(&dictionary.function_table);
    assert_table(&dictionary.attribute_table);
    assert_table(&dictionary.stack_table);
    assert_table(&dictionary.string_table);
    assert_eq!(dictionary.link_table, [proto::Link::default()]);

    let all: Vec<_> = profiles(request).collect();
    let samples = || all.iter().flat_map(|profile| &profile.samples);
    let locations = &dictionary.location_table;
    let mappings = &dictionary.mapping_table;
    assert_read("stacks", dictionary.stack_table.len(), samples().map(|sample| sample.stack_index));
    let stacks = dictionary.stack_table.iter();
    assert_read("locations", locations.len(), stacks.flat_map(|stack| stack.location_indices.clone()));
    assert_read("mappings", mappings.len(), locations.iter().map(|location| location.mapping_index));
    let lines = locations.iter().flat_map(|location| &location.lines);
    assert_read("functions", dictionary.function_table.len(), lines.map(|line| line.function_index));
    let attributes = (all.iter().flat_map(|profile| &profile.attribute_indices))
        .chain(samples().flat_map(|sample| &sample.attribute_indices))
        .chain(locations.iter().flat_map(|location| &location.attribute_indices))
        .chain(mappings.iter().flat_map(|mapping| &mapping.attribute_indices));
    assert_read("attributes", dictionary.attribute_table.len(), attributes.copied());
    let types = all.iter().flat_map(|profile| [profile.sample_type.unwrap(), profile.period_type.unwrap()]);
    let strings = (dictionary.attribute_table.iter().map(|attribute| attribute.key_strindex))
        .chain(mappings.iter().map(|mapping| mapping.filename_strindex))
        .chain(dictionary.function_table.iter().flat_map(|f| [f.name_strindex, f.filename_strindex]))
        .chain(types.flat_map(|kind| [kind.type_strindex, kind.unit_strindex]));
    assert_read("strings", dictionary.string_table.len(), strings);

    for location in &locations[1..] {
        let [kind] = location.attribute_indices[..] else { panic!("{location:?}") };
        assert_eq!(text(dictionary, kind).0, "profile.frame.type");
    }
    assert!(!all.is_empty());
    for profile in all {
        assert_profile(profile, dictionary);
    }
}

fn assert_profile(profile: &proto::Profile, dictionary: &proto::ProfilesDictionary) {
    assert!(!profile.samples.is_empty());
    assert_eq!(profile.profile_id.len(), 16);
    assert_eq!((profile.period_type, profile.period), (Some(proto::ValueType::default()), 0));
    let kind = profile.sample_type.unwrap();
    assert_eq!(at(&dictionary.string_table, kind.type_strindex), "off_cpu");
    assert_eq!(at(&dictionary.string_table, kind.unit_strindex), "nanoseconds");
    let window = profile.time_unix_nano..profile.time_unix_nano + profile.duration_nano;
    let mut distinct = HashSet::new();
    for sample in &profile.samples {
        assert_eq!((sample.values.len(), sample.timestamps_unix_nano.len()), (1, 1));
        assert!(window.contains(&sample.timestamps_unix_nano[0]));
        assert!(distinct.insert((sample.stack_index, sample.attribute_indices.clone())));
    }
}

#[test]
fn a_request_keeps_all_rules_of_the_message() {
    let profile = two_cgroups();
    let requests = requests(&profile);
    let [request] = &requests[..] else { panic!("{} requests", requests.len()) };
    assert_rules(request);
    assert_eq!(total(&requests), nanoseconds_of(&profile));
    let paths: Vec<_> = request
        .resource_profiles
        .iter()
        .map(|resource| {
            let attribute = &resource.resource.as_ref().unwrap().attributes[1];
            (attribute.key.as_str(), attribute.value.clone().unwrap().value.unwrap())
        })
        .collect();
    let path = |path: &str| ("podperf.cgroup.path", Value::StringValue(path.to_owned()));
    assert_eq!(paths, [path("/a"), path("/b")]);
    let scope = request.resource_profiles[0].scope_profiles[0].scope.as_ref().unwrap();
    assert_eq!((scope.name.as_str(), scope.version.as_str()), ("podperf", env!("CARGO_PKG_VERSION")));
    let ids: HashSet<_> = profiles(request).map(|profile| &profile.profile_id).collect();
    assert_eq!(ids.len(), 2);
}

#[test]
fn waits_that_share_stack_and_state_are_one_sample_with_the_last_time() {
    let request = requests(&two_cgroups()).remove(0);
    let dictionary = request.dictionary.as_ref().unwrap();
    let samples = &profiles(&request).next().unwrap().samples;
    let rows: Vec<_> = samples
        .iter()
        .map(|sample| {
            let state = text(dictionary, sample.attribute_indices[0]);
            let last = sample.timestamps_unix_nano[0] - unix_ns(start());
            (sample.values[0], last, state.0, state.1)
        })
        .collect();
    let key = "podperf.offcpu.state";
    assert_eq!(rows, [(15, 10, key, "interruptible"), (7, 7, key, "uninterruptible"), (1, 1, key, "preempted")]);
}

#[test]
fn frames_are_leaf_first_with_inlined_functions_and_mappings() {
    let request = requests(&two_cgroups()).remove(0);
    let dictionary = request.dictionary.as_ref().unwrap();
    let sample = &profiles(&request).nth(1).unwrap().samples[0];
    let frames: Vec<_> = at(&dictionary.stack_table, sample.stack_index)
        .location_indices
        .iter()
        .map(|&index| {
            let location = at(&dictionary.location_table, index);
            let names: Vec<_> = location
                .lines
                .iter()
                .map(|line| {
                    let function = at(&dictionary.function_table, line.function_index);
                    at(&dictionary.string_table, function.name_strindex).as_str()
                })
                .collect();
            let mapping = at(&dictionary.mapping_table, location.mapping_index);
            let ids: Vec<_> = mapping.attribute_indices.iter().map(|&id| text(dictionary, id)).collect();
            let path = at(&dictionary.string_table, mapping.filename_strindex).as_str();
            (text(dictionary, location.attribute_indices[0]).1, names, path, ids)
        })
        .collect();
    let ids = vec![("process.executable.build_id.gnu", "c0ffee"), ("process.executable.build_id.htlhash", "0123")];
    assert_eq!(
        frames,
        [
            ("kernel", vec!["schedule"], "[kernel]", Vec::new()),
            ("native", vec!["inner", "main"], "/usr/bin/shop", ids),
            ("native", Vec::new(), "", Vec::new()),
        ]
    );
}

#[test]
fn losses_are_attributes_of_each_profile() {
    let request = requests(&two_cgroups()).remove(0);
    let dictionary = request.dictionary.as_ref().unwrap();
    for profile in profiles(&request) {
        let losses: Vec<_> = profile.attribute_indices.iter().map(|&loss| text(dictionary, loss)).collect();
        assert_eq!(losses, [("podperf.lost.stack_full", "3")]);
    }
}

#[test]
fn nothing_is_sent_for_cgroups_without_samples() {
    assert_eq!(requests(&Profile::default()), []);
    assert_eq!(requests(&profile(vec![("/idle", Vec::new())])), []);
    let mixed = profile(vec![("/idle", Vec::new()), ("/busy", many(1, 2))]);
    assert_eq!(requests(&mixed)[0].resource_profiles.len(), 1);
}

#[test]
fn times_outside_the_window_are_moved_to_its_edge() {
    let mut profile = profile(vec![("/a", many(2, 2))]);
    profile.subjects[0].samples[0].last = start() - Duration::from_secs(1);
    profile.subjects[0].samples[1].last = start() + profile.duration;
    assert_rules(&requests(&profile)[0]);
    profile.start = None;
    assert_rules(&requests(&profile)[0]);
}

#[test]
fn a_large_window_is_split_by_cgroup_then_by_sample_and_keeps_every_nanosecond() {
    let profile = profile(vec![("/a", many(500, 6)), ("/b", many(3, 6)), ("/c", many(200, 6)), ("/d", many(1, 2))]);
    for limits in [Limits { bytes: 20_000, samples: 16_000 }, Limits { bytes: usize::MAX, samples: 40 }] {
        let requests = split(&profile, limits);
        assert!(requests.len() > 8, "{}", requests.len());
        assert_eq!(total(&requests), nanoseconds_of(&profile));
        for request in &requests {
            assert_rules(request);
            assert!(fits(request, limits));
        }
    }
}

#[test]
fn the_limits_of_the_receivers_are_kept() {
    let profile = profile(vec![("/a", many(16_001, 2)), ("/b", many(4_000, 20))]);
    let requests = requests(&profile);
    assert!(requests.len() > 2);
    assert_eq!(total(&requests), nanoseconds_of(&profile));
    for request in &requests {
        assert!(request.encoded_len() < 3_670_016);
        assert!(profiles(request).all(|profile| profile.samples.len() <= 16_000));
    }
}

#[test]
fn a_sample_over_the_size_limit_is_left_to_the_receiver() {
    let profile = profile(vec![("/a", many(3, 6))]);
    let requests = split(&profile, Limits { bytes: 10, samples: 1 });
    assert_eq!((requests.len(), total(&requests)), (3, nanoseconds_of(&profile)));
}
