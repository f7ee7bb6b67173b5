use std::fs;

use super::*;
use crate::{
    kernel::copies::{CopyOf, REGISTERS},
    model::{
        ids::{CgroupId, StackId},
        wait::Unwind,
    },
    stacks::code::HERE,
};

const HOUR: Duration = Duration::from_secs(3600);

fn own() -> Pid {
    Pid(std::process::id())
}

/// Returns the address of the function in which this program began (`AT_ENTRY`). Its unwind table says that it has no
/// caller.
fn entry() -> u64 {
    let vector = fs::read("/proc/self/auxv").unwrap();
    let words: Vec<u64> = vector.chunks_exact(8).map(|word| u64::from_ne_bytes(word.try_into().unwrap())).collect();
    words.chunks_exact(2).find(|pair| pair[0] == 9).unwrap()[1]
}

/// Returns a copy of a thread of this process that is at its outermost function.
fn copy() -> Copy {
    let mut registers = [0; REGISTERS];
    registers[usize::from(HERE.pc())] = entry();
    registers[usize::from(HERE.sp())] = 0x7fff_0000_0f00;
    let of = CopyOf::Wait { id: StackId(2), site: StackId(2), path: StackId(4), is_named: false };
    let (process, program) = (own(), Life::of(own()).unwrap().program());
    let (cgroup, at_ns) = (CgroupId(3), monotonic_ns());
    Copy { of, kernel: None, process, cgroup, at_ns, program, registers, pages: vec![], stack: vec![] }
}

fn turns() -> Turns {
    Turns::new(Reader::start(true).unwrap())
}

fn asker(owner: &str) -> Asker {
    Asker { owner: owner.into(), process: own() }
}

/// Returns the ends of the stacks; `None` for a stack that was not walked.
fn ends(tries: &[Tried]) -> Vec<Option<Unwind>> {
    tries.iter().map(|tried| tried.unwinding.as_ref().map(|unwinding| unwinding.end)).collect()
}

#[test]
fn a_copy_whose_turn_had_no_time_is_whole_after_the_next_turn() {
    let (mut turns, asker) = (turns(), asker("a"));
    turns.allowances.used("a".into(), HOUR);
    assert!(turns.unwind(&asker, vec![copy().into()], None).is_empty());
    assert!(turns.take_kept().is_empty(), "the owner still has no time");
    turns.allowances = Allowances::default();
    let kept = turns.take_kept();
    assert_eq!(kept.len(), 1);
    let done = turns.unwind(&asker, kept, None);
    assert_eq!(ends(&done), [Some(Unwind::Whole)]);
    assert!(turns.take_all_kept().is_empty());
}

#[test]
fn a_window_ends_with_borrowed_time_and_without_kept_copies() {
    let soon = Some(Instant::now() + HOUR);
    let (mut turns, asker) = (turns(), asker("a"));
    let spent = turns.allowances.left("a").unwrap();
    turns.allowances.used("a".into(), spent);
    let done = turns.unwind(&asker, vec![copy().into()], soon);
    assert_eq!(ends(&done), [Some(Unwind::Whole)], "a loan is enough");
    turns.allowances.used("a".into(), HOUR);
    let done = turns.unwind(&asker, vec![copy().into()], soon);
    assert_eq!((ends(&done), turns.take_all_kept()), (vec![None], vec![]), "it is given up");
    turns.allowances = Allowances::default();
    let done = turns.unwind(&asker, vec![copy().into()], Some(Instant::now()));
    assert_eq!((ends(&done), turns.take_all_kept()), (vec![None], vec![]), "the window must not wait longer");
}

#[test]
fn a_copy_of_a_process_that_has_ended_is_not_kept() {
    let mut turns = turns();
    let other_program = || Tried::from(Copy { program: [7; 3], ..copy() });
    turns.allowances.used("a".into(), HOUR);
    for (owner, tried) in [("", copy().into()), ("a", other_program()), ("b", other_program())] {
        let given_up = turns.unwind(&asker(owner), vec![tried], None);
        assert_eq!((ends(&given_up), turns.take_all_kept()), (vec![None], vec![]), "owner `{owner}`");
    }
}

#[test]
fn a_copy_is_given_up_if_no_thread_for_files_starts() {
    let mut turns = Turns::new(Reader::without_threads());
    let given_up = turns.unwind(&asker("a"), vec![copy().into()], None);
    assert_eq!((ends(&given_up), turns.take_all_kept()), (vec![None], vec![]), "each turn would warn again");
}

#[test]
fn tables_that_are_forgotten_take_no_memory() {
    let mut turns = turns();
    let tables = Arc::downgrade(&turns.code);
    turns.forget_code();
    assert!(tables.upgrade().is_none());
}

#[test]
fn walks_end_when_no_time_is_left_or_another_program_runs() {
    let walk = |program: [u64; 3], until: Duration, left: Duration| {
        let pulse = Pulse::new(Instant::now() + left, Place::Own);
        let results = Mutex::new(Vec::new());
        let copies = [Copy { program, ..copy() }, Copy { program, ..copy() }];
        let is_there = unwind_all(&mut AllCode::new(), own(), &copies, &results, until, &pulse);
        (is_there, results.into_inner().unwrap().len(), pulse.is_late())
    };
    let program = copy().program;
    assert_eq!(walk(program, Duration::MAX, HOUR), (true, 2, false));
    assert_eq!(walk(program, Duration::ZERO, HOUR), (true, 0, false), "the CPU time is used up");
    assert_eq!(walk(program, Duration::MAX, Duration::ZERO), (false, 0, true), "the mappings cannot be read in time");
    assert_eq!(walk([7; 3], Duration::MAX, HOUR), (false, 0, false));
}

#[test]
fn a_walk_is_late_if_no_time_was_left_and_not_if_its_code_cannot_be_read() {
    let pulse = |left: Duration| Pulse::new(Instant::now() + left, Place::Own);
    let (in_time, late) = (pulse(HOUR), pulse(Duration::ZERO));
    assert!(in_time.beat().is_ok() && late.beat().is_err());
    // No mapping has this address, and mappings that are newer than the copy cannot be read.
    let mut unreadable = Copy { at_ns: u64::MAX, ..copy() };
    unreadable.registers[usize::from(HERE.pc())] = 0x2000;
    let results = Mutex::new(Vec::new());
    unwind_all(&mut AllCode::new(), own(), &[unreadable, copy()], &results, Duration::MAX, &in_time);
    let walks = results.into_inner().unwrap();
    let ends: Vec<_> = walks.iter().map(|(walk, is_late)| (walk.end, walk.is_not_now, *is_late)).collect();
    assert_eq!(ends, [(Unwind::Cut, true, false), (Unwind::Whole, false, false)]);
    let (stopped, whole) = (&walks[0].0, &walks[1].0);
    assert!(is_late(stopped, Duration::ZERO, &in_time) && is_late(stopped, Duration::MAX, &late));
    assert!(!is_late(whole, Duration::ZERO, &late));
}
