use super::*;
use crate::{
    kernel::{
        copies::{Copy, REGISTERS},
        records::{RawActivity, RawSample, SampleKey},
    },
    model::ids::CgroupId,
};

fn copy(process: u32, program: u64, at_ns: u64) -> Tried {
    let of = CopyOf::Wait { id: StackId(at_ns * 2), site: StackId(2), path: StackId(4), is_named: false };
    let (process, cgroup, program, registers) = (Pid(process), CgroupId(3), [program; 3], [0; REGISTERS]);
    Copy { of, kernel: None, process, cgroup, at_ns, program, registers, pages: vec![], stack: vec![] }.into()
}

#[test]
fn copies_of_two_programs_of_one_process_are_not_unwound_together() {
    let groups = by_process(vec![copy(1, 1, 1), copy(2, 1, 2), copy(1, 2, 3), copy(1, 1, 4)]);
    let times = groups.iter().map(|(pid, tries)| (pid.0, tries.iter().map(|tried| tried.copy.at_ns).collect()));
    let times: Vec<(u32, Vec<u64>)> = times.collect();
    assert_eq!(times, [(1, vec![1, 4]), (2, vec![2]), (1, vec![3])]);
}

#[test]
fn a_stack_that_was_not_unwound_has_the_cause() {
    let (own, own_program) = (std::process::id(), Life::of(Pid(std::process::id())).unwrap().program());
    let of = |program, unwinding, is_late| {
        let mut tried = Tried { unwinding, is_late, ..copy(own, 0, 1) };
        tried.copy.program = program;
        cut_cause(&tried)
    };
    let walked = |end, cut| Some(Unwinding { frames: vec![1], end, cut, words: None, wanted: None, is_not_now: false });
    let unreadable = || walked(Unwind::Cut, Some(CutCause::Unreadable));
    assert_eq!(of([7; 3], None, false), Some(CutCause::ProcessGone));
    assert_eq!(of(own_program, None, false), Some(CutCause::Unreadable), "its files hang");
    assert_eq!([of([7; 3], None, true), of([7; 3], unreadable(), true)], [Some(CutCause::NoTime); 2]);
    assert_eq!(of([7; 3], unreadable(), false), Some(CutCause::Unreadable));
    assert_eq!(of([7; 3], walked(Unwind::Whole, None), true), None);
}

#[test]
fn a_sample_by_the_code_of_a_relative_is_guessed_and_has_the_names_of_the_relative() {
    let key = SampleKey {
        stack: None,
        seen: None,
        cgroup: CgroupId(3),
        waker: None,
        process: Pid(8),
        activity: RawActivity::OnCpu,
        lock: None,
        filters: 0,
    };
    let of = |unwinding| {
        let mut tried = Tried { unwinding, ..copy(8, 1, 1) };
        tried.copy.of = CopyOf::Sample(RawSample { key, ns: 1, queued_ns: 0, so_far_ns: 0, count: 1, last_ns: 1 });
        let Tried { copy, unwinding, .. } = by_relative(tried, Pid(7));
        let CopyOf::Sample(sample) = copy.of else { panic!("{copy:?}") };
        (copy.process, sample.key.process, unwinding.map(|unwinding| unwinding.end))
    };
    let walked = |end| {
        let frames = vec![1];
        Some(Unwinding { frames, end, cut: None, words: None, wanted: None, is_not_now: false })
    };
    for (end, expected) in [(Unwind::Whole, Unwind::Guessed), (Unwind::Cut, Unwind::Cut)] {
        assert_eq!(of(walked(end)), (Pid(7), Pid(7), Some(expected)));
    }
    assert_eq!(of(None), (Pid(8), Pid(8), None), "it is gone");
}
