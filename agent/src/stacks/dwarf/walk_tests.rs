use std::{collections::BTreeMap, sync::Arc};

use proptest::prelude::*;

use super::*;
use crate::stacks::dwarf::{
    hex::hex,
    machine::REGISTERS,
    rule::{Cfa, Saved},
    stub,
};

#[path = "kept_pointer_tests.rs"]
mod kept_pointer;

/// A stack of words.
#[derive(Clone, Default)]
struct Stack(BTreeMap<u64, u64>);

impl Memory for Stack {
    fn word(&self, address: u64) -> Option<u64> {
        self.0.get(&address).copied()
    }
}

/// Code from 0x1000 to 0x9000, with rules for pages of 0x100 bytes.
#[derive(Default)]
struct Program(BTreeMap<u64, Found>, Vec<u64>);

impl Code for Program {
    fn rule(&mut self, address: u64) -> Found {
        self.1.push(address);
        let missing = if self.is_code(address) == Some(true) { Found::NoRule } else { Found::Nowhere };
        self.0.get(&(address & !0xff)).cloned().unwrap_or(missing)
    }

    fn is_code(&mut self, address: u64) -> Option<bool> {
        Some((0x1000..0x9000).contains(&address))
    }
}

const SP: u64 = 0x7f00_0000;

fn x86_64(pc: u64) -> Registers {
    registers(Machine::X86_64, pc)
}

fn registers(machine: Machine, pc: u64) -> Registers {
    let mut registers = Registers::unknown(machine);
    for register in 0..32 {
        registers.set(register, Some(u64::from(register)));
    }
    registers.set(machine.sp(), Some(SP));
    registers.set(machine.pc(), Some(pc));
    registers
}

fn rule(cfa: Cfa<'_>, return_register: u8, saved: &[(u8, Saved<'_>)]) -> Rule {
    let mut all = [Saved::Same; REGISTERS];
    saved.iter().for_each(|(register, saved)| all[usize::from(*register)] = *saved);
    Rule::new(cfa, return_register, &all).unwrap()
}

/// The usual rule of x86-64: the return address is above `size` bytes.
fn frame(size: i32) -> Found {
    found(rule(Cfa::Register(7, size + 8), 16, &[(16, Saved::At(-8))]))
}

fn end() -> Found {
    found(rule(Cfa::Register(7, 8), 16, &[(16, Saved::Undefined)]))
}

fn found(rule: Rule) -> Found {
    Found::Rule(Arc::new(rule))
}

fn program(rules: &[(u64, Found)]) -> Program {
    Program(rules.iter().cloned().collect(), Vec::new())
}

/// Makes a stack of words at distances from the first stack pointer.
fn stack(words: &[(u64, u64)]) -> Stack {
    Stack(words.iter().map(|(at, word)| (SP + at, *word)).collect())
}

fn walked(frames: &[u64], slots: &[u64], end: End, guessed: bool) -> Walked {
    let slots = slots.iter().map(|at| SP + at).collect();
    Walked { frames: frames.to_vec(), slots, links: Vec::new(), end, guessed }
}

/// Walks a stack, and leaves out the links, which few tests are about.
fn walk(registers: Registers, program: &mut Program, memory: &Stack) -> Walked {
    Walked { links: Vec::new(), ..super::walk(registers, program, memory) }
}

#[test]
fn the_words_that_lead_to_guessed_frames_and_that_show_the_end_are_links() {
    let mut program = program(&[(0x1200, frame(0))]);
    let mut registers = x86_64(0x1010);
    registers.set(6, Some(SP + 0x20));
    // The rule of the third frame does not need the frame pointer at 0x40.
    let memory = stack(&[(0x20, SP + 0x40), (0x28, 0x1110), (0x40, 0x5555), (0x48, 0x1210), (0x50, 0)]);
    let found = super::walk(registers, &mut program, &memory);
    assert_eq!((found.slots, found.end), (vec![SP + 0x28, SP + 0x48], End::Whole));
    assert_eq!(found.links, [SP + 0x20, SP + 0x50]);
    for outermost in [vec![(0x20, 0), (0x28, 0)], vec![(0x20, 0), (0x28, 0x1110)]] {
        let mut program = Program::default();
        let mut registers = x86_64(0x1010);
        registers.set(6, Some(SP + 0x20));
        let found = super::walk(registers, &mut program, &stack(&outermost));
        assert_eq!((found.links[0], found.end), (SP + 0x20, End::Whole));
    }
    let mut registers = x86_64(0x1010);
    registers.set(6, Some(SP + 0x20));
    let found = super::walk(registers, &mut program, &stack(&[(0x20, 0), (0x28, 0)]));
    assert_eq!((found.slots, found.links, found.end), (vec![], vec![SP + 0x20, SP + 0x28], End::Whole));
}

#[test]
fn a_stack_is_walked_to_the_outermost_frame() {
    // The middle frame returns to the last byte of a function that never returns, and has saved rbx.
    let middle = rule(Cfa::Register(7, 24), 16, &[(3, Saved::At(-16)), (16, Saved::At(-8))]);
    let last = rule(Cfa::Register(3, 16), 16, &[(16, Saved::At(-8))]);
    let mut program = program(&[(0x1000, frame(16)), (0x1100, found(middle)), (0x1200, found(last)), (0x1300, end())]);
    let memory = stack(&[(16, 0x1180), (32, SP + 0x100), (40, 0x1300), (0x108, 0x1310)]);
    let expected = walked(&[0x1010, 0x1180, 0x1300, 0x1310], &[16, 40, 0x108], End::Whole, false);
    assert_eq!(walk(x86_64(0x1010), &mut program, &memory), expected);
    assert_eq!(program.1, [0x1010, 0x117f, 0x12ff, 0x130f]);
}

#[test]
fn code_of_a_virtual_machine_is_walked_by_the_size_of_its_frames() {
    let mut program = program(&[
        (0x1000, frame(0)),
        (0x1100, Found::Words(4)),
        (0x1200, Found::Interpreted),
        (0x1300, Found::Words(2)),
        (0x1400, end()),
    ]);
    // The caller of the interpreted function has its stack pointer at 0x80, since arguments lie between both frames.
    let interpreted = [(0x58, SP + 0x80), (0x60, SP + 0xa0), (0x68, 0x1310)];
    let compiled = [(24, SP + 0x60), (32, 0x1210), (0x80, 7), (0x88, 0x1410)];
    let memory = stack(&[&[(0, 0x1110)][..], &compiled, &interpreted].concat());
    let found = super::walk(x86_64(0x1010), &mut program, &memory);
    let expected = walked(&[0x1010, 0x1110, 0x1210, 0x1310, 0x1410], &[0, 32, 0x68, 0x88], End::Whole, true);
    assert_eq!(found.links, [SP + 24, SP + 0x58]);
    assert_eq!(Walked { links: Vec::new(), ..found }, expected);
}

#[test]
fn a_frame_of_a_virtual_machine_that_is_not_complete_has_its_return_address_below() {
    for (words, slot) in [(vec![(0, 0x1110)], 0), (vec![(0, 6), (8, 0x1110)], 8)] {
        let mut program = program(&[(0x1000, Found::Words(6)), (0x1100, end())]);
        let memory = stack(&[&words[..], &[(40, 0x5555_0000)]].concat());
        let expected = walked(&[0x1010, 0x1110], &[slot], End::Whole, true);
        assert_eq!(walk(x86_64(0x1010), &mut program, &memory), expected);
    }
    // A function that made a call has all of its frame.
    let mut program = program(&[(0x1000, frame(0)), (0x1100, Found::Words(6))]);
    let memory = stack(&[(0, 0x1110), (8, 0x1210), (16, 0x1210), (48, 0x5555_0000)]);
    assert_eq!(walk(x86_64(0x1010), &mut program, &memory), walked(&[0x1010, 0x1110], &[0], End::NoRule, true));
}

/// Code whose mappings cannot be read again: of other addresses, it is not known whether they are code.
struct Unread(Program);

impl Code for Unread {
    fn rule(&mut self, address: u64) -> Found {
        self.0.rule(address)
    }

    fn is_code(&mut self, address: u64) -> Option<bool> {
        self.is_known_code(address).then_some(true)
    }

    fn is_known_code(&self, address: u64) -> bool {
        (0x1000..0x9000).contains(&address)
    }
}

#[test]
fn a_size_that_leads_to_known_code_needs_no_new_mappings() {
    let of_frame = (40, 0x5555_0000);
    let walk = |words: &[(u64, u64)]| {
        let mut code = Unread(program(&[(0x1000, Found::Words(6)), (0x1100, end())]));
        let found = super::walk(x86_64(0x1010), &mut code, &stack(words));
        (found.frames, found.end)
    };
    assert_eq!(walk(&[(0, 0x1110), of_frame]), (vec![0x1010, 0x1110], End::Whole));
    assert_eq!(walk(&[(0, 6), (8, 0x1110), of_frame]), (vec![0x1010, 0x1110], End::Whole));
    assert_eq!(walk(&[(0, 6), (8, 7), of_frame]), (vec![0x1010], End::NotNow));
    // The word of the whole frame is not in the copy, and the other one may be left from an earlier call.
    assert_eq!(walk(&[(0, 0x1110)]), (vec![0x1010], End::Missing(SP + 40)));
}

#[test]
fn registers_that_the_callee_may_change_are_unknown() {
    // The caller's frame depends on rax, which the callee does not keep.
    let last = rule(Cfa::Register(0, 16), 16, &[(16, Saved::At(-8))]);
    let mut program = program(&[(0x1000, frame(0)), (0x1100, found(last))]);
    let expected = walked(&[0x1010, 0x1180], &[0], End::Odd, false);
    assert_eq!(walk(x86_64(0x1010), &mut program, &stack(&[(0, 0x1180)])), expected);
}

#[test]
fn missing_memory_is_named() {
    let mut program = program(&[(0x1000, frame(0)), (0x1100, frame(0x5000))]);
    let expected = walked(&[0x1010, 0x1180], &[0], End::Missing(SP + 0x5008), false);
    assert_eq!(walk(x86_64(0x1010), &mut program, &stack(&[(0, 0x1180)])), expected);
}

#[test]
fn a_return_address_of_zero_is_the_end() {
    let mut program = program(&[(0x1000, frame(0))]);
    assert_eq!(walk(x86_64(0x1010), &mut program, &stack(&[(0, 0)])), walked(&[0x1010], &[], End::Whole, false));
}

#[test]
fn recursion_is_cut_at_127_frames() {
    let words = |depth: u64| (0..depth).map(|at| (at * 8, 0x1010)).chain([(depth * 8, 0x1110)]).collect::<Vec<_>>();
    let mut program = program(&[(0x1000, frame(0)), (0x1100, end())]);
    let whole = walk(x86_64(0x1010), &mut program, &stack(&words(125)));
    assert_eq!((whole.frames.len(), whole.slots.len(), whole.end), (127, 126, End::Whole));
    let deep = walk(x86_64(0x1010), &mut program, &stack(&words(126)));
    assert_eq!((deep.frames.len(), deep.slots.len(), deep.end), (127, 126, End::Deep));
}

#[test]
fn a_stack_that_does_not_grow_is_odd() {
    for offset in [0, -8] {
        let still = found(rule(Cfa::Register(7, offset), 16, &[(16, Saved::At(0))]));
        let mut program = program(&[(0x1000, frame(0)), (0x1100, still)]);
        let memory = stack(&[(0, 0x1110), (8, 0x1110)]);
        assert_eq!(walk(x86_64(0x1010), &mut program, &memory), walked(&[0x1010, 0x1110], &[0], End::Odd, false));
    }
}

#[test]
fn a_return_address_outside_of_code_is_no_frame() {
    let mut program = program(&[(0x1000, frame(0))]);
    let expected = walked(&[0x1010], &[], End::Odd, false);
    assert_eq!(walk(x86_64(0x1010), &mut program, &stack(&[(0, 0xffff_0000)])), expected);
}

#[test]
fn a_walk_stops_where_a_rule_is_late_and_shows_no_unknown_word() {
    let mut program = program(&[(0x1000, frame(0)), (0x1100, Found::NotNow)]);
    let expected = walked(&[0x1010], &[], End::NotNow, false);
    assert_eq!(walk(x86_64(0x1010), &mut program, &stack(&[(0, 0x1110)])), expected);
}

/// The rule of glibc's `__restore_rt`: rsp and rip are at the results of expressions over rsp.
fn restore_rt() -> Found {
    // DW_OP_breg7 160; DW_OP_deref, and the places of rip, rsp and rax.
    let at = |expression| Saved::AtExpression(expression);
    let saved = [(16, at(&[0x77, 0xa8, 1][..])), (7, at(&[0x77, 0xa0, 1])), (0, at(&[0x77, 0x90, 1]))];
    found(rule(Cfa::Expression(&[0x77, 0xa0, 1, 0x06]), 16, &saved).with_signal(true))
}

#[test]
fn all_registers_are_restored_below_a_signal_handler() {
    // The interrupted function begins at 0x1200, has its frame by rax, and its caller's is the last.
    let by_rax = rule(Cfa::Register(0, 16), 16, &[(16, Saved::At(-8))]);
    for trampoline in [restore_rt(), found(stub::signal_return(Machine::X86_64, &hex("48c7c00f0000000f05")).unwrap())] {
        let rules = [(0x1000, frame(0)), (0x1100, trampoline), (0x1200, found(by_rax.clone())), (0x1300, end())];
        let mut program = program(&rules);
        let context = (0..32).map(|at| (8 + 8 * at, 0)).collect::<Vec<_>>();
        let mut memory = stack(&context);
        memory.0.extend([(SP, 0x1110), (SP + 8 + 168, 0x1200), (SP + 8 + 160, SP + 0x800)]);
        memory.0.extend([(SP + 8 + 144, SP + 0x900), (SP + 0x908, 0x1310)]);
        let expected = walked(&[0x1010, 0x1110, 0x1200, 0x1310], &[0, 176, 0x908], End::Whole, false);
        assert_eq!(walk(x86_64(0x1010), &mut program, &memory), expected);
        // The interrupted address is looked up as it is.
        assert_eq!(program.1, [0x1010, 0x110f, 0x1200, 0x130f]);
    }
}

#[test]
fn signal_frames_lead_to_a_lower_stack_twice_at_most() {
    // Each signal frame is interrupted by itself, on the same stack.
    let saved = [(16, Saved::At(0)), (7, Saved::At(8))];
    let again = found(rule(Cfa::Register(7, 0), 16, &saved).with_signal(true));
    let mut program = program(&[(0x1000, again)]);
    let expected = walked(&[0x1010; 3], &[0, 0], End::Odd, false);
    assert_eq!(walk(x86_64(0x1010), &mut program, &stack(&[(0, 0x1010), (8, SP)])), expected);
}

#[test]
fn code_without_a_rule_is_walked_by_its_frame_pointer_and_marked() {
    for nothing in [Found::NoRule, Found::NoFile] {
        let mut program = program(&[(0x1000, frame(0)), (0x1100, nothing), (0x1200, end())]);
        let mut registers = x86_64(0x1010);
        registers.set(6, Some(SP + 0x20));
        let memory = stack(&[(0, 0x1110), (0x20, SP + 0x40), (0x28, 0x1210)]);
        let expected = walked(&[0x1010, 0x1110, 0x1210], &[0, 0x28], End::Whole, true);
        assert_eq!(walk(registers, &mut program, &memory), expected);
    }
}

#[test]
fn a_frame_pointer_is_not_believed_without_checks() {
    let ends = |fp: u64, words: &[(u64, u64)]| {
        let mut registers = x86_64(0x1010);
        registers.set(6, Some(fp));
        walk(registers, &mut program(&[]), &stack(words)).end
    };
    let words = [(0x20, SP + 0x40), (0x28, 0x1210)];
    assert_eq!(ends(SP + 0x20, &words), End::Missing(SP + 0x40));
    // Not aligned, below the stack pointer, more than 1 MiB above, and a word that is no address of code.
    for fp in [SP + 0x21, SP - 8, SP + (1 << 20), 0, u64::MAX - 7] {
        assert_eq!(ends(fp, &words), End::NoRule, "{fp:#x}");
    }
    assert_eq!(ends(SP + 0x20, &[(0x20, SP + 0x40), (0x28, 0xffff_0000)]), End::NoRule);
    assert_eq!(ends(SP + 0x20, &[(0x20, SP + 0x40)]), End::Missing(SP + 0x28));
    assert_eq!(ends(SP + 0x20, &[(0x20, 0), (0x28, 0)]), End::Whole);
}

#[test]
fn a_guess_knows_no_other_registers() {
    let last = rule(Cfa::Register(3, 16), 16, &[(16, Saved::At(-8))]);
    let mut program = program(&[(0x1200, found(last))]);
    let mut registers = x86_64(0x1010);
    registers.set(6, Some(SP));
    registers.set(3, Some(SP + 0x100));
    let memory = stack(&[(0, 0), (8, 0x1210), (0x108, 0x1010)]);
    assert_eq!(walk(registers, &mut program, &memory), walked(&[0x1010, 0x1210], &[8], End::Odd, true));
}

#[test]
fn a_call_through_a_null_pointer_has_a_caller() {
    let mut program = program(&[(0x1100, frame(16)), (0x1200, end())]);
    let memory = stack(&[(0, 0x1110), (24, 0x1210)]);
    let expected = walked(&[0, 0x1110, 0x1210], &[0, 24], End::Whole, true);
    assert_eq!(walk(x86_64(0), &mut program, &memory), expected);
    // Only if code is there.
    assert_eq!(walk(x86_64(0), &mut program, &stack(&[(0, 0)])), walked(&[0], &[], End::Odd, true));
}

#[test]
fn a_call_through_a_null_pointer_below_a_signal_handler_has_a_caller() {
    let mut program = program(&[(0x1000, restore_rt()), (0x1100, end())]);
    let memory = stack(&[(144, 0), (160, SP + 0x800), (168, 0), (0x800, 0x1110)]);
    let expected = walked(&[0x1010, 0, 0x1110], &[168, 0x800], End::Whole, true);
    assert_eq!(walk(x86_64(0x1010), &mut program, &memory), expected);
}

#[test]
fn a_leaf_of_aarch64_returns_to_the_link_register_and_its_caller_does_not() {
    let leaf = || found(rule(Cfa::Register(31, 0), 30, &[]));
    let saved = [(29, Saved::At(-16)), (30, Saved::At(-8))];
    let middle = found(rule(Cfa::Register(31, 32), 30, &saved));
    let mut program = program(&[(0x1000, leaf()), (0x1100, middle), (0x1200, leaf())]);
    let mut registers = registers(Machine::Aarch64, 0x1010);
    // The link register and the saved one are signed.
    registers.set(30, Some(0x005a_0000_0000_1110));
    let memory = stack(&[(16, 0), (24, 0x7f12_0000_0000_1210)]);
    let expected = walked(&[0x1010, 0x1110, 0x1210], &[24], End::Odd, false);
    assert_eq!(walk(registers, &mut program, &memory), expected);
}

#[test]
fn only_a_leaf_of_aarch64_returns_to_a_register_and_needs_no_stack() {
    let leaf = found(rule(Cfa::Register(31, 0), 30, &[]));
    let larger = rule(Cfa::Register(31, 32), 30, &[]);
    let still = rule(Cfa::Register(31, 0), 30, &[(30, Saved::In(19))]);
    for odd in [larger, still] {
        let saved = [(19, Saved::At(-24)), (30, Saved::At(-8))];
        let middle = found(rule(Cfa::Register(31, 32), 30, &saved));
        let mut program = program(&[(0x1000, leaf.clone()), (0x1100, middle), (0x1200, found(odd))]);
        let mut registers = registers(Machine::Aarch64, 0x1010);
        registers.set(30, Some(0x1110));
        let memory = stack(&[(8, 0x1210), (24, 0x1210)]);
        let expected = walked(&[0x1010, 0x1110, 0x1210], &[24], End::Odd, false);
        assert_eq!(walk(registers, &mut program, &memory), expected);
    }
}

#[test]
fn a_leaf_of_aarch64_below_a_signal_handler_returns_to_the_link_register() {
    let trampoline = found(stub::signal_return(Machine::Aarch64, &hex("681180d2010000d4")).unwrap());
    let leaf = found(rule(Cfa::Register(31, 0), 30, &[]));
    let last = found(rule(Cfa::Register(31, 0), 30, &[(30, Saved::Undefined)]));
    let mut program = program(&[(0x1000, trampoline), (0x1100, leaf), (0x1200, last)]);
    // `struct rt_sigframe`: x0 to x30 at 312, sp at 560, pc at 568.
    let mut memory = stack(&(0..33).map(|at| (312 + 8 * at, at)).collect::<Vec<_>>());
    memory.0.extend([(SP + 552, 0x1210), (SP + 560, SP + 0x800), (SP + 568, 0x1100)]);
    let expected = walked(&[0x1010, 0x1100, 0x1210], &[568], End::Whole, false);
    assert_eq!(walk(registers(Machine::Aarch64, 0x1010), &mut program, &memory), expected);
}

#[test]
fn aarch64_is_guessed_by_its_frame_record() {
    let last = found(rule(Cfa::Register(31, 0), 30, &[(30, Saved::Undefined)]));
    let mut program = program(&[(0x1200, last)]);
    let mut registers = registers(Machine::Aarch64, 0x1010);
    registers.set(29, Some(SP + 0x10));
    let memory = stack(&[(0x10, SP + 0x40), (0x18, 0x0012_0000_0000_1210)]);
    assert_eq!(walk(registers, &mut program, &memory), walked(&[0x1010, 0x1210], &[0x18], End::Whole, true));
}

#[test]
fn places_in_a_linkage_table_are_those_of_its_instructions() {
    let cfa = |machine, code: &str, offset| match stub::plt(machine, &hex(code), offset).unwrap().cfa() {
        Cfa::Register(_, offset) => offset,
        other @ Cfa::Expression(_) => panic!("{other:?}"),
    };
    // lld: the first entry and one other; with `endbr64`; and two entries of `.plt.got`.
    let lld = "ff3510000000ff25120000000f1f4000ff25140000006800000000e9e0ffffff";
    let offsets = [0, 5, 6, 15, 16, 22, 26, 27, 31];
    assert_eq!(offsets.map(|at| cfa(Machine::X86_64, lld, at)), [16, 16, 24, 24, 8, 8, 8, 16, 16]);
    let endbr = "f30f1efa6800000000e9e2ffffff6690f30f1efaf2ff2500000000".to_owned() + "0f1f440000";
    assert_eq!([4, 8, 9, 14, 16, 26].map(|at| cfa(Machine::X86_64, &endbr, at)), [8, 8, 16, 16, 8, 8]);
    let got = "ff25100000006690ff25100000006690";
    assert_eq!([0, 6, 8, 14].map(|at| cfa(Machine::X86_64, got, at)), [8; 4]);
    // aarch64: the first entry, and one other.
    let first = "f07bbfa910000090110a40f9105200911f0220d6".to_owned() + "1f2003d51f2003d51f2003d5";
    assert_eq!([0, 4, 16].map(|at| cfa(Machine::Aarch64, &first, at)), [0, 16, 16]);
    assert_eq!(cfa(Machine::Aarch64, "10000090110e40f91072009120021fd6", 8), 0);
}

proptest! {
    #[test]
    fn no_stack_does_harm(
        words in prop::collection::vec(prop_oneof![Just(0x1010), Just(0x1110), SP..SP + 0x100, any::<u64>()], 0..40),
        offset in any::<i32>(),
        fp in prop_oneof![SP..SP + 0x100, any::<u64>()],
    ) {
        let odd = rule(Cfa::Register(6, offset), 16, &[(16, Saved::At(-8)), (6, Saved::At(-16))]).with_signal(true);
        let mut program = program(&[(0x1000, frame(8)), (0x1100, found(odd))]);
        let words: Vec<_> = (0..).step_by(8).zip(words).collect();
        let mut registers = x86_64(0x1010);
        registers.set(6, Some(fp));
        let walked = walk(registers, &mut program, &stack(&words));
        prop_assert!(walked.frames.len() <= MAX_FRAMES && walked.slots.len() < walked.frames.len());
    }
}
