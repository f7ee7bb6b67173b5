use std::{collections::HashSet, sync::Arc, time::Duration};

use super::{
    super::rules::{self, at, profiles, string},
    *,
};
use crate::{
    attribution::Subject,
    model::wait::{Unwind, WaitReason, WaitState},
    stacks::profile::{Frame, FrameKind, Function, Mapping, Stack, SubjectProfile, Waker},
};

#[path = "lock_tests.rs"]
mod locks;
#[path = "preset_tests.rs"]
mod presets;

const DEFAULT: [SampleAttribute; 3] = [SampleAttribute::State, SampleAttribute::Reason, SampleAttribute::Unwind];
const NODE: &str = "node-1";

fn shape(preset: Preset) -> Shape {
    Shape { preset, sample_attributes: DEFAULT.to_vec(), resource: Vec::new() }
}

fn requests(profile: &Profile) -> Vec<ExportProfilesServiceRequest> {
    super::requests(profile, &shape(Preset::Generic), NODE)
}

fn split(profile: &Profile, limits: Limits) -> Vec<ExportProfilesServiceRequest> {
    super::split(profile, &shape(Preset::Generic), NODE, limits)
}

fn text(dictionary: &proto::ProfilesDictionary, index: i32) -> (&str, &str) {
    rules::attribute(dictionary, index)
}

fn start() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000)
}

fn frame(kind: FrameKind, name: &str, mapping: Option<&Arc<Mapping>>) -> Frame {
    let function = Function { name: name.into(), file: "main.c".into(), line: 7 };
    let address = name.bytes().fold(0, |sum: u64, byte| sum.wrapping_mul(31) + u64::from(byte));
    Frame { address, kind, mapping: mapping.cloned(), functions: vec![function] }
}

fn sample(stack: Vec<Frame>, state: WaitState, nanoseconds: u64) -> Sample {
    let last = start() + Duration::from_nanos(nanoseconds);
    let frames: Vec<_> = stack.into_iter().map(Arc::new).collect();
    let activity = Activity::OffCpu { state, reason: WaitReason::Other, waker: None, lock: None };
    let stack = Arc::new(Stack { frames, unwind: Unwind::Whole });
    Sample { stack, activity, nanoseconds, so_far_ns: 0, count: 1, last, passed: 1 }
}

fn profile(cgroups: Vec<(&str, Vec<Sample>)>) -> Profile {
    let cgroups =
        cgroups.into_iter().map(|(path, samples)| SubjectProfile { subject: Subject::Cgroup(path.into()), samples });
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
                sample(Vec::new(), WaitState::RunQueue, 1),
            ],
        ),
        ("/b", vec![sample(vec![kernel, outer, unknown], WaitState::RunQueue, 100)]),
    ])
}

/// Returns `count` samples with a stack of their own, `depth` frames each; the root is shared.
fn many(count: usize, depth: usize) -> Vec<Sample> {
    let stacks = (0..count).map(|row| {
        let names = (1..depth).map(|level| format!("function_{row}_{level}"));
        let mut frames: Vec<_> = names.map(|name| frame(FrameKind::Native, &name, None)).collect();
        frames.push(frame(FrameKind::Native, "main", None));
        sample(frames, WaitState::Interruptible, 1 + u64::try_from(row).unwrap())
    });
    stacks.collect()
}

fn total(requests: &[ExportProfilesServiceRequest]) -> u64 {
    let samples = requests.iter().flat_map(profiles).flat_map(|profile| &profile.samples);
    samples.map(|sample| u64::try_from(sample.values[0]).unwrap()).sum()
}

fn nanoseconds_of(profile: &Profile) -> u64 {
    profile.subjects.iter().flat_map(|subject| &subject.samples).map(|sample| sample.nanoseconds).sum()
}

fn assert_rules(request: &ExportProfilesServiceRequest) {
    assert_eq!(rules::signal(request), Vec::<String>::new());
    assert_eq!(rules::any_receiver(request), Vec::<String>::new());
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
            let attribute = &resource.resource.as_ref().unwrap().attributes[2];
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
    assert_eq!(rows, [(15, 10, key, "interruptible"), (7, 7, key, "uninterruptible"), (1, 1, key, "run_queue")]);
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
fn samples_that_only_a_recordings_filter_passes_are_not_sent() {
    let mut profile = profile(vec![("/a", many(3, 2)), ("/b", many(2, 2))]);
    profile.subjects[0].samples[1].passed = 0b10;
    profile.subjects[0].samples[2].passed = 0b11;
    profile.subjects[1].samples.iter_mut().for_each(|sample| sample.passed = 0b10);
    let requests = requests(&profile);
    assert_rules(&requests[0]);
    assert_eq!((requests[0].resource_profiles.len(), total(&requests)), (1, 1 + 3));
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

/// Returns a profile with both kinds of samples, and with each field that only some samples have.
fn everything() -> Profile {
    let mut profile = two_cgroups();
    let first = &mut profile.subjects[0].samples;
    let mut running = first[1].clone();
    (running.activity, running.count, running.nanoseconds) = (Activity::OnCpu, 3, 30_000_000);
    let mut deep = running.clone();
    deep.stack = Arc::new(Stack { unwind: Unwind::NoFramePointers, ..(*deep.stack).clone() });
    let mut woken = first[0].clone();
    if let Activity::OffCpu { waker, .. } = &mut woken.activity {
        *waker = Some(Arc::new(Waker {
            thread: "redis".to_owned(),
            subject: "shop/cart-0/redis".to_owned(),
            stack: Some("main;write".to_owned()),
        }));
    }
    let without_hash = Arc::new(Mapping { build_id: Some("beef".to_owned()), ..Mapping::default() });
    let mut elsewhere = first[0].clone();
    let frame = Arc::new(frame(FrameKind::Native, "elsewhere", Some(&without_hash)));
    elsewhere.stack = Arc::new(Stack { frames: vec![frame], unwind: Unwind::Whole });
    first.extend([running, deep, woken, elsewhere]);
    profile.subjects[1].samples.truncate(1);
    profile.sample_period = Some(Duration::from_millis(10));
    profile
}

#[test]
fn samples_on_the_cpu_are_a_profile_of_their_own_with_their_period() {
    let request = requests(&everything()).remove(0);
    assert_rules(&request);
    let dictionary = request.dictionary.as_ref().unwrap();
    let kinds: Vec<_> = profiles(&request)
        .map(|profile| {
            let kind = profile.sample_type.unwrap();
            let of = profile.period_type.unwrap();
            let name = |index| string(dictionary, index);
            let values: Vec<_> = profile.samples.iter().map(|sample| sample.values[0]).collect();
            (name(kind.type_strindex), name(kind.unit_strindex), name(of.type_strindex), profile.period, values)
        })
        .collect();
    // The second subject never ran on a CPU, so it has no on-CPU profile.
    assert_eq!(
        kinds,
        [
            ("off_cpu", "nanoseconds", "", 0, vec![25, 7, 1, 10]),
            ("samples", "count", "cpu", 10_000_000, vec![3, 3]),
            ("off_cpu", "nanoseconds", "", 0, vec![100]),
        ]
    );
}

#[test]
fn a_stack_that_is_not_whole_says_so_unless_that_is_not_wanted() {
    let unwinds = |wanted: &[SampleAttribute]| {
        let shape = Shape { sample_attributes: wanted.to_vec(), ..shape(Preset::Generic) };
        let request = super::requests(&everything(), &shape, NODE).remove(0);
        assert_rules(&request);
        let dictionary = request.dictionary.as_ref().unwrap();
        let rows = (0..i32::try_from(dictionary.attribute_table.len()).unwrap()).map(|row| text(dictionary, row));
        let unwinds = rows.filter(|(key, _)| *key == "podperf.stack.unwind").map(|(_, value)| value.to_owned());
        unwinds.collect::<Vec<_>>()
    };
    assert_eq!(unwinds(&DEFAULT), ["no_frame_pointers"]);
    assert_eq!(unwinds(&[]), Vec::<String>::new());
}

#[test]
fn wakers_are_told_only_when_asked_for() {
    let waits = |wanted: &[SampleAttribute]| {
        let shape = Shape { sample_attributes: wanted.to_vec(), ..shape(Preset::Generic) };
        let request = super::requests(&everything(), &shape, NODE).remove(0);
        assert_rules(&request);
        let dictionary = request.dictionary.as_ref().unwrap();
        let samples = profiles(&request).next().unwrap().samples.iter();
        let attributes = |sample: &proto::Sample| {
            let attributes = sample.attribute_indices.iter().map(|&index| text(dictionary, index));
            attributes.map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(" ")
        };
        samples.map(|sample| (attributes(sample), sample.values[0])).collect::<Vec<_>>()
    };
    let with = waits(&[SampleAttribute::Waker]);
    let waker = "podperf.waker.thread=redis podperf.waker.subject=shop/cart-0/redis podperf.waker.stack=main;write";
    assert!(with.contains(&(waker.to_owned(), 10)) && with.len() == 4, "{with:?}");
    // Without state and reason, samples that differed only in these become one.
    assert_eq!(waits(&[]), [(String::new(), 32), (String::new(), 1), (String::new(), 10)]);
    assert!(waits(&DEFAULT).iter().all(|(attributes, _)| !attributes.contains("waker")));
}

#[test]
fn attributes_from_the_configuration_never_replace_a_resources_own() {
    let more = [("service.name", "podperf"), ("deployment.environment.name", "prod")];
    let resource = more.map(|(key, value)| (key.to_owned(), value.to_owned())).to_vec();
    let request = super::requests(&two_cgroups(), &Shape { resource, ..shape(Preset::Generic) }, NODE).remove(0);
    assert_rules(&request);
    for (resource, name) in request.resource_profiles.iter().zip(["a", "b"]) {
        let attributes = &resource.resource.as_ref().unwrap().attributes;
        let found: Vec<_> = attributes.iter().map(|attribute| attribute.key.as_str()).collect();
        assert_eq!(found, ["host.name", "service.name", "podperf.cgroup.path", "deployment.environment.name"]);
        let Some(Value::StringValue(service)) = &attributes[1].value.as_ref().unwrap().value else { panic!() };
        assert_eq!(service, name);
    }
}

/// Breaks each rule in one message: the checks must find it.
#[test]
fn broken_rules_are_found() {
    type Break = fn(&mut ExportProfilesServiceRequest);
    fn dictionary(request: &mut ExportProfilesServiceRequest) -> &mut proto::ProfilesDictionary {
        request.dictionary.as_mut().unwrap()
    }
    fn first(request: &mut ExportProfilesServiceRequest) -> &mut proto::Profile {
        &mut request.resource_profiles[0].scope_profiles[0].profiles[0]
    }
    let breaks: [(&str, Break); 20] = [
        ("no resource", |it| it.resource_profiles.clear()),
        ("without a scope", |it| it.resource_profiles[0].scope_profiles.clear()),
        ("without a profile", |it| it.resource_profiles[0].scope_profiles[0].profiles.clear()),
        ("no dictionary", |it| it.dictionary = None),
        ("not the zero value", |it| dictionary(it).stack_table[0].location_indices.push(1)),
        ("strings has rows twice", |it| dictionary(it).string_table[2] = "off_cpu".to_owned()),
        ("a mapping from 0x5", |it| dictionary(it).mapping_table[1].memory_start = 5),
        ("a line below 0", |it| dictionary(it).location_table[1].lines[0].line = -1),
        ("a bad link", |it| dictionary(it).link_table.push(proto::Link { trace_id: vec![1], span_id: vec![] })),
        ("a profile has a key twice", |it| first(it).attribute_indices = vec![1, 1]),
        ("a sample has a key twice", |it| first(it).samples[0].attribute_indices = vec![1, 1]),
        ("outside the window", |it| first(it).samples[0].timestamps_unix_nano[0] = 1),
        ("2 values, 1 times", |it| first(it).samples[0].values.push(1)),
        ("a sample of nothing", |it| first(it).samples[0] = proto::Sample::default()),
        ("several shapes", |it| first(it).samples[0].timestamps_unix_nano.clear()),
        ("twice with the same", |it| {
            let sample = first(it).samples[0].clone();
            first(it).samples.push(sample);
        }),
        ("no id", |it| first(it).profile_id.clear()),
        ("an index is outside", |it| first(it).samples[0].stack_index = 99),
        ("a row without a reader", |it| dictionary(it).string_table.push("orphan".to_owned())),
        ("a row without a reader", |it| {
            let more = proto::Function { start_line: 1, ..proto::Function::default() };
            dictionary(it).function_table.push(more);
        }),
    ];
    for (rule, break_it) in breaks {
        let mut request = requests(&everything()).remove(0);
        break_it(&mut request);
        let found = rules::signal(&request);
        assert!(found.iter().any(|found| found.contains(rule)), "{rule}: {found:?}");
    }
    let mut request = requests(&everything()).remove(0);
    first(&mut request).samples.clear();
    first(&mut request).period_type = None;
    first(&mut request).period = 1;
    let found = rules::any_receiver(&request);
    for rule in ["without samples", "without a type", "unknown types"] {
        assert!(found.iter().any(|found| found.contains(rule)), "{rule}: {found:?}");
    }
}
