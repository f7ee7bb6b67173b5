use std::{collections::BTreeMap, sync::Arc};

use super::*;
use crate::stacks::dwarf::{
    Walked,
    code::Found,
    height::{Before, before, guesses, jumps},
    hex::hex,
    walk,
};

const SP: u64 = 0x7f00_0000;
const CODE: u64 = 0x1000;

/// Code at [`CODE`] without tables, and a stack.
struct Program {
    code: Vec<u8>,
    stack: BTreeMap<u64, u64>,
}

impl Code for Program {
    fn rule(&mut self, address: u64) -> Found {
        if self.is_code(address) == Some(true) { Found::NoRule } else { Found::Nowhere }
    }

    fn is_code(&mut self, address: u64) -> Option<bool> {
        Some(self.is_known_code(address))
    }

    fn is_known_code(&self, address: u64) -> bool {
        (CODE..CODE + self.code.len() as u64).contains(&address)
    }

    fn guesses(&mut self, address: u64) -> Option<Arc<[Guess]>> {
        Some(guesses(&self.code, CODE, address))
    }

    fn before(&mut self, return_address: u64) -> Option<Before> {
        Some(before(&self.code[..self.at(return_address)]))
    }

    fn jumps(&mut self, start: u64) -> Option<Arc<[Call]>> {
        Some(jumps(&self.code[self.at(start)..]))
    }
}

impl Program {
    fn at(&self, address: u64) -> usize {
        usize::try_from(address.saturating_sub(CODE)).unwrap().min(self.code.len())
    }
}

impl Memory for BTreeMap<u64, u64> {
    fn word(&self, address: u64) -> Option<u64> {
        self.get(&address).copied()
    }
}

/// Walks from `pc`, with this frame pointer and words above the stack pointer.
fn walked(code: &str, pc: u64, fp: u64, words: &[(u64, u64)]) -> Walked {
    let mut program = Program { code: hex(code), stack: words.iter().map(|(at, word)| (SP + at, *word)).collect() };
    let mut registers = Registers::unknown(Machine::X86_64);
    registers.set(7, Some(SP));
    registers.set(6, Some(fp));
    registers.set(16, Some(pc));
    let stack = std::mem::take(&mut program.stack);
    walk(registers, &mut program, &stack)
}

/// 1000: nop; ret
/// 1002: push rbp; push rbx; sub rsp, 24; test edi, edi; je 1011; call 1020; 1011: add rsp, 24; ...
const FUNCTION: &str = "90c3 55 53 4883ec18 85ff 7405 e8 0f000000";

#[test]
fn a_function_is_left_by_the_height_of_its_stack() {
    // 1011 is behind the call; 24 bytes, rbx and rbp are below the return address 1001, before which is no call.
    let code = FUNCTION.to_owned() + "4883c418 5b 5d c3 9090909090 e8e0ffffff c3";
    let pc = 0x1011;
    assert_eq!(walked(&code, pc, 1, &[(24, 7), (32, 0x5000), (40, 0x1001)]).frames, [pc]);
    // Before 1022 is `call 1002`.
    let returns_to = CODE + u64::try_from(hex(&code).len() - 1).unwrap();
    let found = walked(&code, pc, 1, &[(24, 7), (32, 0), (40, returns_to), (48, 0)]);
    assert_eq!(found.frames, [pc, returns_to]);
    assert_eq!((found.slots, found.guessed), (vec![SP + 40], true));
}

#[test]
fn a_jump_to_another_function_keeps_its_caller() {
    // 1000: call 1010; 1005: ret; 1010: jmp 1020; 1020: sub rsp, 8; 1024: nop
    let code = "e80b000000 c3 9090909090 9090909090 e90b000000 9090909090 9090909090 90 4883ec08 90";
    let found = walked(code, 0x1024, 0, &[(8, 0x1005), (16, 0)]);
    assert_eq!(found.frames[..2], [0x1024, 0x1005]);
    // 1000: call 1010; 1005: ret; 1010: push rax; pop rax; jmp rax; 1020: sub rsp, 8; 1024: nop
    let anywhere = "e80b000000 c3 9090909090 9090909090 50 58 ffe0 90909090 90909090 90909090 4883ec08 90";
    assert_eq!(walked(anywhere, 0x1024, 0, &[(8, 0x1005), (16, 0)]).frames[..2], [0x1024, 0x1005]);
    let within_frame = "e80b000000 c3 9090909090 9090909090 50 90 ffe0 90909090 90909090 90909090 4883ec08 90";
    assert_eq!(walked(within_frame, 0x1024, 0, &[(8, 0x1005), (16, 0)]).frames, [0x1024]);
    // The call at 1000 does not lead to 1006.
    let other = "e80b000000 c3 4883ec08 90";
    assert_eq!(walked(other, 0x100a, 0, &[(8, 0x1005)]).frames, [0x100a]);
}

#[test]
fn a_frame_pointer_of_zero_behind_a_function_without_tables_is_the_end() {
    // 1000: xor ebp, ebp; and rsp, -16; call 100d; 100b: hlt; 100c: ret; 100d: sub rsp, 8; 1011: nop
    let code = "31ed 4883e4f0 e8 02000000 f4 c3 4883ec08 90";
    let found = walked(code, 0x1011, 0, &[(8, 0x100b)]);
    assert_eq!((found.frames, found.end), (vec![0x1011, 0x100b], End::Whole));
    assert_eq!(walked(code, 0x1011, 5, &[(8, 0x100b)]).end, End::NoRule);
    // Elsewhere, 0 is any value.
    let without = "9090 4883e4f0 e8 02000000 f4 c3 4883ec08 90";
    assert_eq!(walked(without, 0x1011, 0, &[(8, 0x100b)]).end, End::NoRule);
}

#[test]
fn a_call_of_the_function_counts_more_than_any_call() {
    // 1000: ret; 1001: call 100a; 1006: ret; 1007: call rax; 1009: ret; 100a: sub rsp, 8; 100e: nop; 100f: ret
    let code = "c3 e804000000 c3 ffd0 c3 4883ec08 90 c3";
    // A function that begins behind the `nop` would return behind the call through a register.
    assert_eq!(walked(code, 0x100f, 0, &[(0, 0x1009), (8, 0x1006), (16, 0)]).frames[..2], [0x100f, 0x1006]);
    assert_eq!(walked(code, 0x100f, 0, &[(0, 0x1009), (8, 0x2000), (16, 0)]).frames[..2], [0x100f, 0x1009]);
}
