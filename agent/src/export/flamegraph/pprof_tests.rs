use super::{super::fixture::*, *};
use crate::{
    model::wait::WaitReason,
    recording::{Judgement, MergedSubject},
    stacks::{self, profile::FrameKind},
};

fn cgroup(path: &str) -> SubjectName {
    SubjectName::Cgroup(path.into())
}

fn profile(merged: &Merged) -> Profile {
    let mut bytes = Vec::new();
    let gzipped = gzipped(merged);
    std::io::Read::read_to_end(&mut flate2::read::GzDecoder::new(&*gzipped), &mut bytes).unwrap();
    Profile::decode(&*bytes).unwrap()
}

/// Returns the samples of the written profile: values, labels, and functions from the leaf on.
fn read(merged: &Merged) -> Vec<(Vec<i64>, Vec<String>, Vec<String>)> {
    let profile = profile(merged);
    assert_eq!(profile.string_table[0], "");
    let text = |place: i64| profile.string_table[usize::try_from(place).unwrap()].clone();
    let at = |id: u64| usize::try_from(id - 1).unwrap();
    let functions = |sample: &Sample| {
        let lines = sample.location_id.iter().flat_map(|id| &profile.location[at(*id)].line);
        lines.map(|line| text(profile.function[at(line.function_id)].name)).collect()
    };
    let labels = |sample: &Sample| {
        sample.label.iter().map(|label| format!("{}={}", text(label.key), text(label.text))).collect()
    };
    profile.sample.iter().map(|sample| (sample.value.clone(), labels(sample), functions(sample))).collect()
}

#[test]
fn a_wait_has_time_count_labels_and_its_stack_from_the_leaf_on() {
    let merged = recording(vec![wait(WaitReason::Disk, &["io_schedule"], &["read", "main"], 42)]);
    let [(values, labels, functions)] = &*read(&merged) else { panic!("not one sample") };
    assert_eq!((values, &**functions), (&vec![42, 1], &["io_schedule", "read", "main"].map(str::to_owned)[..]));
    assert_eq!(labels, &["cgroup=/a", "reason=disk", "state=interruptible"]);
}

#[test]
fn time_on_the_cpu_is_as_pprof_has_it() {
    let merged = recording(vec![on_cpu(&["inlined", "f"], 42)]);
    let [(values, labels, functions)] = &*read(&merged) else { panic!("not one sample") };
    assert_eq!((values, &**functions), (&vec![1, 42], &["inlined", "f"].map(str::to_owned)[..]));
    assert_eq!(labels, &["cgroup=/a"]);
    let profile = profile(&merged);
    assert_eq!((profile.period, profile.location.len()), (10_000_000, 1));
}

#[test]
fn a_wait_for_a_lock_has_its_own_type_and_the_lock() {
    let merged = waiting_for_mutex(42);
    let [(values, labels, _)] = &*read(&merged) else { panic!("not one sample") };
    assert_eq!((values, &labels[2..]), (&vec![42, 1], &["lock=mutex", "state=interruptible"].map(str::to_owned)[..]));
    let profile = profile(&merged);
    let text = |place: i64| &*profile.string_table[usize::try_from(place).unwrap()];
    let types: Vec<_> = profile.sample_type.iter().map(|it| (text(it.kind), text(it.unit))).collect();
    assert_eq!(types, [("lock_wait", "nanoseconds"), ("waits", "count")]);
    assert_eq!(text(profile.default_sample_type), "lock_wait");
}

#[test]
fn a_judged_wait_has_labels_of_its_own_and_keeps_its_reason() {
    let mut sample = wait(WaitReason::Poll, &[], &["main"], 42);
    sample.judgement = Some(Arc::new(Judgement::Trouble(Cause::Peer("shop/payments".into()))));
    let [(_, labels, _)] = &*read(&recording(vec![sample])) else { panic!("not one sample") };
    let expected = ["reason=poll", "state=interruptible", "judgement=trouble", "waits_for=shop/payments"];
    assert_eq!(labels[1..], expected);
}

#[test]
fn the_first_mapping_is_the_program() {
    let mut sample = wait(WaitReason::Disk, &[], &[], 1);
    let frame = |kind, path: &str| {
        let mapping = Mapping { path: path.into(), ..Mapping::default() };
        Arc::new(Frame { address: 1, kind, mapping: Some(Arc::new(mapping)), functions: vec![] })
    };
    let frames = vec![
        frame(FrameKind::Kernel, "[kernel]"),
        frame(FrameKind::Native, "/lib/libc.so.6"),
        frame(FrameKind::Native, "/bin/cart"),
    ];
    sample.stack = Arc::new(crate::stacks::profile::Stack { frames, unwind: Unwind::Whole });
    let profile = profile(&recording(vec![sample]));
    let files = profile.mapping.iter().map(|file| &*profile.string_table[usize::try_from(file.filename).unwrap()]);
    assert_eq!(files.collect::<Vec<_>>(), ["/bin/cart", "[kernel]", "/lib/libc.so.6"]);
}

#[test]
fn a_frame_has_the_source_line_of_its_address_and_the_share_of_lines_is_told() {
    let mapping = Arc::new(Mapping { path: "/bin/cart".into(), ..Mapping::default() });
    let frame = |address| {
        let function = stacks::profile::Function { name: "f".into(), file: "".into(), line: 0 };
        let (mapping, functions) = (Some(Arc::clone(&mapping)), vec![function]);
        Arc::new(Frame { address, kind: FrameKind::Native, mapping, functions })
    };
    let mut sample = wait(WaitReason::Disk, &[], &[], 1);
    let frames = vec![frame(1), frame(2), frame(3)];
    sample.stack = Arc::new(stacks::profile::Stack { frames, unwind: Unwind::Whole });
    let line = |line| SourceLine { file: "/src/f.c".into(), line };
    let mut lines = SourceLines::new(3);
    lines.add(FrameOwner::from(&cgroup("/a")), mapping, [(1, line(10)), (2, line(20))].into());
    let profile = profile(&Merged { lines, ..recording(vec![sample]) });
    let text = |place: i64| &*profile.string_table[usize::try_from(place).unwrap()];
    let file = |id: u64| text(profile.function[usize::try_from(id - 1).unwrap()].filename);
    let lines: Vec<_> = profile.location.iter().flat_map(|location| &location.line).collect();
    let lines: Vec<_> = lines.iter().map(|line| (file(line.function_id), line.line)).collect();
    assert_eq!(lines, [("/src/f.c", 10), ("/src/f.c", 20), ("", 0)]);
    assert!(profile.mapping[0].has_filenames && profile.mapping[0].has_line_numbers);
    let comments: Vec<_> = profile.comment.iter().map(|place| text(*place)).collect();
    assert!(comments.iter().any(|says| says.starts_with("Source lines: 2 of 3 addresses")), "{comments:?}");
    let without = self::profile(&recording(vec![wait(WaitReason::Disk, &[], &["main"], 1)]));
    assert!(!without.string_table.iter().any(|text| text.contains("Source lines")));
}

#[test]
fn the_same_frame_of_another_owner_has_no_line_of_this_one() {
    let mapping = Arc::new(Mapping { path: "/bin/cart".into(), ..Mapping::default() });
    let function = stacks::profile::Function { name: "f".into(), file: "".into(), line: 0 };
    let (kind, functions) = (FrameKind::Native, vec![function]);
    let frame = Frame { address: 1, kind, mapping: Some(Arc::clone(&mapping)), functions };
    let stack = Arc::new(stacks::profile::Stack { frames: vec![Arc::new(frame)], unwind: Unwind::Whole });
    let sample = MergedSample { stack, ..wait(WaitReason::Disk, &[], &[], 1) };
    let mut lines = SourceLines::new(2);
    for (path, line) in [("/a", 10), ("/b", 20)] {
        let line = SourceLine { file: "/src/f.c".into(), line };
        lines.add(FrameOwner::from(&cgroup(path)), Arc::clone(&mapping), [(1, line)].into());
    }
    let subject = |path| MergedSubject { name: cgroup(path), samples: vec![sample.clone(), sample.clone()] };
    let subjects = vec![subject("/a"), subject("/b"), subject("/c")];
    let profile = profile(&Merged { lines, subjects, ..recording(vec![]) });
    let line = |sample: &Sample| profile.location[usize::try_from(sample.location_id[0] - 1).unwrap()].line[0].line;
    assert_eq!(profile.sample.iter().map(line).collect::<Vec<_>>(), [10, 10, 20, 20, 0, 0]);
    assert_eq!(profile.location.len(), 3);
}

#[test]
fn what_is_the_same_is_there_once() {
    let samples = vec![
        wait(WaitReason::Disk, &["io_schedule"], &["main"], 1),
        wait(WaitReason::Pipe, &["io_schedule"], &["main"], 2),
    ];
    let profile = profile(&recording(samples));
    assert_eq!((profile.location.len(), profile.function.len(), profile.sample.len()), (2, 2, 2));
}

#[test]
fn samples_that_are_written_in_parts_are_one_profile() {
    let names: Vec<String> = (0..3 * SAMPLES_AT_ONCE).map(|number| format!("f{number}")).collect();
    let samples = names.iter().map(|name| wait(WaitReason::Disk, &[], &[name, "main"], 1));
    let read = read(&recording(samples.collect()));
    let functions: Vec<_> = read.iter().map(|(_, _, functions)| functions[0].clone()).collect();
    assert_eq!(functions, names);
}
