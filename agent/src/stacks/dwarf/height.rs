//! Guesses the caller of x86-64 code without tables, such as musl's, from its instructions.
//!
//! The agent takes a place where the code before it ends as the start of a function: such libraries are stripped. From there it
//! follows the *height*, the number of bytes between the stack pointer and the return address. [`super::caller`] judges which
//! start is the right one.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind, Register};

use super::{
    machine::REGISTERS,
    rule::{Cfa, Rule, Saved},
};

/// The most bytes from the start of a function to an address in it, and from there to the function's end.
pub(in crate::stacks) const MAX_FUNCTION: u64 = 4096;
/// Number of bytes that are looked at before a return address. The outermost function sets the frame pointer to 0 there.
pub(in crate::stacks) const MAX_BEFORE: usize = 64;
/// Number of bytes in which a call is looked for. Longer calls have prefixes, and their last 7 bytes are a call, too.
const MAX_CALL: usize = 7;
/// The shortest call instruction, in bytes.
const MIN_CALL: usize = 2;
/// The most starts that are tried.
const MAX_STARTS: usize = 64;
/// The most instructions that are looked at for an address.
const MAX_INSTRUCTIONS: usize = 8192;
/// The most different heights that are followed for one instruction.
const MAX_STACKS: usize = 2;
/// The most guesses for an address, and the most jumps out of a function.
const MAX_FOUND: usize = 32;
/// The largest height of a frame, in bytes.
const MAX_HEIGHT: i32 = 1 << 20;
/// The callee-saved registers, with their DWARF numbers.
const KEPT: [(Register, u8); 6] = [
    (Register::RBX, 3),
    (Register::RBP, 6),
    (Register::R12, 12),
    (Register::R13, 13),
    (Register::R14, 14),
    (Register::R15, 15),
];

/// A function that an address may be in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::stacks) struct Guess {
    /// Number of bytes from its start to the address.
    pub(super) distance: u64,
    pub(super) stack: Stack,
}

/// A call, or the place where a function goes on in another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::stacks) enum Call {
    /// To an address that is this far away, in bytes.
    To(i64),
    /// To an address in a register or in memory.
    Anywhere,
}

/// The code before a return address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::stacks) struct Before {
    /// The call that the return address is of; `None` if there is none.
    pub(super) call: Option<Call>,
    /// Set if the code sets the frame pointer to 0, as the first function of a program or thread does.
    pub(super) clears_frame_pointer: bool,
    /// Set if the code of x86-64 loads the stack pointer, as functions do that call others on another stack.
    pub(super) switches_stack: bool,
}

/// The stack below the return address at an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Stack {
    /// Number of bytes.
    pub(super) height: i32,
    /// The height at which each register of [`KEPT`] is saved; 0 if it is not saved.
    saved: [i32; KEPT.len()],
}

/// Looks at the last [`MAX_BEFORE`] bytes of `code`, which ends before a return address.
pub(in crate::stacks) fn before(code: &[u8]) -> Before {
    let code = code.rchunks(MAX_BEFORE).next().unwrap_or_default();
    // `xor ebp, ebp` in its two forms.
    let clears_frame_pointer = code.windows(2).any(|bytes| matches!(bytes, [0x31 | 0x33, 0xed]));
    // `mov rsp, x` in its two forms.
    let loads_sp = |bytes: &[u8]| match bytes {
        [0x48 | 0x49, 0x8b, operands] => operands & 0x38 == 0x20,
        [0x48 | 0x4c, 0x89, operands] => operands & 0xc7 == 0xc4,
        _ => false,
    };
    let switches_stack = code.windows(3).any(loads_sp);
    Before { call: call_before(code), clears_frame_pointer, switches_stack }
}

/// Returns where the function at the begin of `code` goes on in another one without a stack of its own, as far from its begin
/// as [`Call`] says.
pub(in crate::stacks) fn jumps(code: &[u8]) -> Arc<[Call]> {
    let mut left = MAX_INSTRUCTIONS;
    follow(code, u64::MAX, &mut left).jumps.into()
}

/// Returns the functions that the address `pc` may be in. `code` begins at the address `first`. Both may be offsets in a file.
pub(in crate::stacks) fn guesses(code: &[u8], first: u64, pc: u64) -> Arc<[Guess]> {
    let Some(end) = pc.checked_sub(first).and_then(|end| usize::try_from(end).ok()).filter(|end| *end <= code.len())
    else {
        return Arc::default();
    };
    let mut left = MAX_INSTRUCTIONS;
    let found = starts(code, first, end).flat_map(|start| {
        let distance = (end - start) as u64;
        let ways = follow(code.get(start..).unwrap_or_default(), distance, &mut left);
        ways.stacks.into_iter().map(move |stack| Guess { distance, stack })
    });
    found.take(MAX_FOUND).collect()
}

/// Returns the call at the end of `code`, as far from there as [`Call`] says; `None` if there is none.
fn call_before(code: &[u8]) -> Option<Call> {
    (MIN_CALL..=MAX_CALL).rev().find_map(|length| {
        let bytes = code.get(code.len().checked_sub(length)?..)?;
        let instruction = Decoder::with_ip(64, bytes, 0, DecoderOptions::NONE).decode();
        match instruction.flow_control() {
            _ if instruction.len() != length => None,
            FlowControl::Call if instruction.is_call_near() => {
                Some(Call::To(instruction.near_branch_target().wrapping_sub(length as u64).cast_signed()))
            }
            FlowControl::IndirectCall => Some(Call::Anywhere),
            _ => None,
        }
    })
}

/// Returns the places in `code` before `end` where a function may start, the last one first. The code begins at `first`.
fn starts(code: &[u8], first: u64, end: usize) -> impl Iterator<Item = usize> {
    let ends_before = move |at: usize| {
        let before = |distance: usize| at.checked_sub(distance).and_then(|at| code.get(at)).copied();
        // `ret`, `hlt`, `int3`, `nop`; jumps; and the end of a longer `nop`.
        matches!(before(1), Some(0xc3 | 0xf4 | 0xcc | 0x90))
            || before(5) == Some(0xe9)
            || before(2) == Some(0xeb)
            || before(1) == Some(0) && (first + at as u64).is_multiple_of(16)
    };
    (1..=end).rev().filter(move |at| ends_before(*at)).take(MAX_STARTS)
}

/// The ways through a function.
#[derive(Debug, Default)]
struct Ways {
    /// The stacks that an address may have. There is more than one if a way goes on behind a call that does not return. There
    /// is none if no way leads there, or if its stack is not understood.
    stacks: Vec<Stack>,
    /// Jumps while only the return address is on the stack: calls at the end of the function are made so.
    jumps: Vec<Call>,
}

/// Follows the ways of the function at the begin of `code` to the place `goal`, in bytes from there. At most `left`
/// instructions are looked at.
fn follow(code: &[u8], goal: u64, left: &mut usize) -> Ways {
    let mut found = Ways::default();
    // The nearest branches first: ways behind a call that does not return go on in other functions, and come back late.
    let mut ways = VecDeque::from([(0, Stack { height: 0, saved: [0; KEPT.len()] })]);
    let mut known: HashMap<u64, Vec<Stack>> = HashMap::new();
    let mut decoder = Decoder::with_ip(64, code, 0, DecoderOptions::NONE);
    while let Some((mut at, mut stack)) = ways.pop_front() {
        while *left > 0 {
            *left -= 1;
            let here = known.entry(at).or_default();
            if here.len() == MAX_STACKS || here.contains(&stack) {
                break;
            }
            here.push(stack);
            if at == goal {
                // The stack pointer of compiled code is a multiple of 8.
                found.stacks.extend((stack.height % 8 == 0).then_some(stack));
                break;
            }
            let offset = usize::try_from(at).ok().filter(|offset| *offset < code.len());
            if offset.is_none_or(|offset| decoder.set_position(offset).is_err()) {
                break;
            }
            decoder.set_ip(at);
            let instruction = decoder.decode();
            if instruction.is_invalid() {
                break;
            }
            let target = instruction.near_branch_target();
            at = instruction.next_ip();
            let mut jump = |to| {
                if stack.height == 0 && found.jumps.len() < MAX_FOUND {
                    found.jumps.push(to);
                }
            };
            match instruction.flow_control() {
                FlowControl::Next => match stack.after(&instruction) {
                    Some(after) => stack = after,
                    None => break,
                },
                FlowControl::Call | FlowControl::IndirectCall => {}
                FlowControl::ConditionalBranch => {
                    jump(Call::To(target.cast_signed()));
                    ways.push_back((target, stack));
                }
                FlowControl::UnconditionalBranch => {
                    jump(Call::To(target.cast_signed()));
                    at = target;
                }
                FlowControl::IndirectBranch => {
                    jump(Call::Anywhere);
                    break;
                }
                _ => break,
            }
        }
    }
    found
}

impl Stack {
    /// Returns the rule of the instruction.
    pub(super) fn rule(self) -> Option<Rule> {
        let mut saved = [Saved::Same; REGISTERS];
        saved[16] = Saved::At(-8);
        for ((_, number), height) in KEPT.iter().zip(self.saved).filter(|(_, height)| *height > 0) {
            saved[usize::from(*number)] = Saved::At(-8 - height);
        }
        Rule::new(Cfa::Register(7, self.height + 8), 16, &saved)
    }

    /// Returns the stack after an instruction; `None` if it is not understood.
    fn after(mut self, instruction: &Instruction) -> Option<Self> {
        let first = instruction.op0_register();
        let is_sp = |register: Register| register.full_register() == Register::RSP;
        let changes_sp = instruction.op0_kind() == OpKind::Register && is_sp(first);
        if changes_sp && first != Register::RSP {
            return None;
        }
        match instruction.mnemonic() {
            Mnemonic::Xchg | Mnemonic::Xadd if is_sp(instruction.op1_register()) => return None,
            Mnemonic::Push => {
                self.height -= instruction.stack_pointer_increment();
                let kept = KEPT.iter().position(|(register, _)| *register == first);
                if let Some(saved) = kept.and_then(|at| self.saved.get_mut(at)).filter(|saved| **saved == 0) {
                    *saved = self.height;
                }
            }
            Mnemonic::Pop if !changes_sp => self.height -= instruction.stack_pointer_increment(),
            Mnemonic::Sub | Mnemonic::Add if changes_sp => {
                if !matches!(instruction.op1_kind(), OpKind::Immediate8to64 | OpKind::Immediate32to64) {
                    return None;
                }
                let size = i32::try_from(instruction.immediate(1).cast_signed()).ok()?;
                let grows = instruction.mnemonic() == Mnemonic::Sub;
                self.height = if grows { self.height.checked_add(size)? } else { self.height.checked_sub(size)? };
            }
            Mnemonic::Lea if changes_sp => {
                let is_from_sp =
                    instruction.memory_base() == Register::RSP && instruction.memory_index() == Register::None;
                let size =
                    i32::try_from(instruction.memory_displacement64().cast_signed()).ok().filter(|_| is_from_sp)?;
                self.height = self.height.checked_sub(size)?;
            }
            Mnemonic::Leave | Mnemonic::Enter | Mnemonic::Popfq | Mnemonic::Pushfq => return None,
            Mnemonic::Cmp | Mnemonic::Test => {}
            _ if changes_sp => return None,
            _ => {}
        }
        // A register whose saved value is below the stack pointer is no longer saved.
        self.saved.iter_mut().filter(|saved| **saved > self.height).for_each(|saved| *saved = 0);
        (0..MAX_HEIGHT).contains(&self.height).then_some(self)
    }
}

#[cfg(test)]
#[path = "height_tests.rs"]
mod tests;
