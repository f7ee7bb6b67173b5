use super::*;
use crate::{
    kernel::copies::{CopyOf, REGISTERS},
    model::ids::{CgroupId, Pid, StackId},
    stacks::dwarf::Found,
};

/// Code that keeps frame pointers from `CODE` on.
struct FramePointers;

const CODE: u64 = 0x40_0000;
const SP: u64 = 0x7fff_0000_0f00;

impl Code for FramePointers {
    fn rule(&mut self, address: u64) -> Found {
        if address >= CODE { Found::FramePointer } else { Found::Nowhere }
    }

    fn is_code(&mut self, address: u64) -> Option<bool> {
        Some(address >= CODE)
    }
}

/// Returns a copy of these pages of a stack whose frames are at `frames` above [`SP`].
fn copy(frames: &[u64], pages: &[u16]) -> Copy {
    let base = SP & !(PAGE - 1);
    let mut stack = vec![0; pages.len() * usize::try_from(PAGE).unwrap()];
    let mut set = |address: u64, word: u64| {
        let page = u16::try_from((address - base) / PAGE).unwrap();
        if let Some(index) = pages.iter().position(|copied| *copied == page) {
            let at = index * 4096 + usize::try_from(address % PAGE).unwrap();
            stack[at..at + 8].copy_from_slice(&word.to_le_bytes());
        }
    };
    for (number, frame) in (1..).zip(frames) {
        let outer = frames.get(number).map_or(0, |outer| SP + outer);
        set(SP + frame, outer);
        set(SP + frame + 8, if outer == 0 { 0 } else { CODE + number as u64 });
    }
    let mut registers = [0; REGISTERS];
    registers[usize::from(HERE.pc())] = CODE;
    registers[usize::from(HERE.sp())] = SP;
    registers[if HERE == crate::stacks::dwarf::Machine::X86_64 { 6 } else { 29 }] = SP + frames[0];
    let of = CopyOf::Wait { id: StackId(2), site: StackId(4), path: StackId(6), is_named: false };
    let (process, cgroup, pages) = (Pid(1), CgroupId(3), pages.to_vec());
    Copy { of, kernel: None, process, cgroup, at_ns: 1, program: [0; 3], registers, pages, stack }
}

#[test]
fn a_stack_gives_its_frames_and_the_words_that_prove_them() {
    let found = unwind(&copy(&[0x10, 0x80, 0x2000], &[0, 1, 2]), &mut FramePointers);
    assert_eq!((found.frames, found.end), (vec![CODE, CODE + 1, CODE + 2], Unwind::Whole));
    let page_3 = u32::try_from((3 * PAGE - SP % PAGE) / 8).unwrap();
    let word = |(at, value, is_pointer)| Word { at, value, is_pointer };
    let links = [(2, 0x80, true), (16, 0x2000, true), (0x400, 0, false), (0x401, 0, false)];
    let words = [(3, CODE + 1, false), (17, CODE + 2, false)].into_iter().chain(links).map(word).collect();
    assert_eq!(found.words, Some((words, page_3)));
    assert_eq!(found.wanted, None);
}

#[test]
fn a_missing_page_is_wanted_with_those_that_were_read() {
    // The second frame is in page 3, the third in page 20, the fourth in page 21.
    let frames = [0x10, 0x2f00, 0x1_4000, 0x1_5000];
    let first = unwind(&copy(&frames, &[0, 1, 2, 3]), &mut FramePointers);
    assert_eq!((first.frames.len(), first.end), (3, Unwind::Cut));
    let wanted = first.wanted.unwrap();
    assert_eq!(wanted, [3, 20, 21, 22, 23, 24]);
    let pages: Vec<u16> = [0].into_iter().chain(wanted).collect();
    let second = unwind(&copy(&frames, &pages), &mut FramePointers);
    assert_eq!((second.frames.len(), second.end), (4, Unwind::Whole));
}

#[test]
fn a_stack_on_more_pages_than_a_copy_has_wants_none() {
    let frames: Vec<u64> = (0..10).map(|number| number * 0x2000 + 0x100).collect();
    let found = unwind(&copy(&frames, &[0, 1, 3, 5, 7, 9, 11]), &mut FramePointers);
    assert_eq!((found.end, found.cut, found.wanted), (Unwind::Cut, Some(CutCause::NotCopied), None));
    assert!(!found.is_not_now);
    assert_eq!(found.words.unwrap().0.len(), 2 * (found.frames.len() - 1));
}

#[test]
fn words_below_the_red_zone_and_across_pages_are_not_read() {
    let copy = copy(&[0x10, 0x80], &[0]);
    let memory = CopiedMemory { copy: &copy, sp: SP, read: RefCell::default() };
    assert_eq!((memory.word(SP - 136), memory.word(SP + 0xfc), memory.word(u64::MAX)), (None, None, None));
    assert_eq!((memory.word(SP), memory.word(SP - 128)), (Some(0), Some(0)));
    assert!(memory.read.borrow().len() == 1);
    // A part of the red zone is in the page before, which is not copied.
    let sp = (SP & !(PAGE - 1)) + 8;
    let memory = CopiedMemory { copy: &copy, sp, read: RefCell::default() };
    assert_eq!((memory.word(sp - 8), memory.word(sp - 16)), (Some(0), None));
}

#[test]
fn a_walk_that_must_be_repeated_teaches_nothing() {
    struct Late;
    impl Code for Late {
        fn rule(&mut self, _: u64) -> Found {
            Found::NotNow
        }
        fn is_code(&mut self, _: u64) -> Option<bool> {
            Some(true)
        }
    }
    let found = unwind(&copy(&[0x10, 0x80], &[0]), &mut Late);
    assert!(found.is_not_now);
    assert_eq!((found.end, found.cut), (Unwind::Cut, Some(CutCause::Unreadable)));
    assert_eq!((found.frames, found.words, found.wanted), (vec![CODE], None, None));
}

#[test]
fn a_stack_without_a_copy_and_a_caller_on_another_stack_have_causes_of_their_own() {
    let without = unwind(&copy(&[0x10, 0x80], &[]), &mut FramePointers);
    assert_eq!((without.end, without.cut), (Unwind::Cut, Some(CutCause::NoCopy)));
    // Frame pointers are followed for almost 1 MiB, and the last page of that is too far for a copy.
    let mut far = copy(&[0x10, 0x80], &[0]);
    far.registers[if HERE == crate::stacks::dwarf::Machine::X86_64 { 6 } else { 29 }] = SP + (1 << 20) - 0x20;
    let far = unwind(&far, &mut FramePointers);
    assert_eq!((far.end, far.cut), (Unwind::Cut, Some(CutCause::Elsewhere)));
    let whole = unwind(&copy(&[0x10, 0x80], &[0]), &mut FramePointers);
    assert_eq!((whole.end, whole.cut), (Unwind::Whole, None));
}
