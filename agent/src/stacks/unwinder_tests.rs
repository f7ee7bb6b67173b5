use super::*;
use crate::{
    kernel::copies::{Copy, REGISTERS},
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
fn a_stack_by_the_code_of_a_relative_is_guessed_and_teaches_nothing() {
    let unwinding = |end| {
        let (frames, words, wanted) = (vec![1, 2], Some((vec![], 1)), Some(vec![1]));
        Some(Unwinding { frames, end, cut: None, words, wanted, is_not_now: false })
    };
    for (end, expected) in [(Unwind::Whole, Unwind::Guessed), (Unwind::Cut, Unwind::Cut)] {
        let found = by_relative(Tried { unwinding: unwinding(end), ..copy(8, 1, 1) }, Pid(7));
        let unwinding = found.unwinding.unwrap();
        assert_eq!((found.copy.process, unwinding.end), (Pid(7), expected));
        assert_eq!((unwinding.words, unwinding.wanted), (None, None));
    }
    assert_eq!(by_relative(copy(8, 1, 1), Pid(7)).copy.process, Pid(8), "it is gone");
}
