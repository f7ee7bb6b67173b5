//! Rules of code that has no call frame information but always looks the same.

use super::{
    machine::{AARCH64_LINK, Machine, REGISTERS},
    rule::{Cfa, Rule, Saved},
};

/// `mov $15, %rax; syscall`: musl's and Go's return from a signal handler.
const X86_64_SIGNAL_RETURN: [u8; 9] = [0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05];
/// `mov x8, #139; svc #0`: the vDSO's return from a signal handler.
const AARCH64_SIGNAL_RETURN: [u8; 8] = [0x68, 0x11, 0x80, 0xd2, 0x01, 0, 0, 0xd4];
/// The places of the registers 0 to 16 in `struct ucontext` of x86-64, where the stack pointer is.
const X86_64_CONTEXT: [i32; 17] = [144, 136, 152, 128, 112, 104, 120, 160, 40, 48, 56, 64, 72, 80, 88, 96, 168];
/// The place of x0 in `struct rt_sigframe` of aarch64, where the stack pointer is. The other registers, the stack
/// pointer and the program counter follow.
const AARCH64_CONTEXT: i32 = 312;
/// `stp x16, x30, [sp, #-16]!`.
const PUSH_LINK: [u8; 4] = [0xf0, 0x7b, 0xbf, 0xa9];
/// The longest entry of a procedure linkage table that [`plt`] needs, in bytes: the first one of aarch64.
pub(super) const PLT_ENTRY: u64 = 32;

/// Returns the rule of a place in a procedure linkage table (PLT). `code` is the table from a multiple of
/// [`PLT_ENTRY`], and the place is `offset` bytes behind. lld writes no call frame information for its tables.
pub(super) fn plt(machine: Machine, code: &[u8], offset: usize) -> Option<Rule> {
    match machine {
        Machine::X86_64 => {
            // All entries that push something have 16 bytes.
            let (entry, offset) = (code.get(offset & !15..)?, offset & 15);
            let (pushed, after) = match entry {
                // The first entry: `push x(%rip)`. The entry that jumps here has pushed its number.
                [0xff, 0x35, ..] => (8, 6),
                // `jmp *x(%rip); push number; jmp first`.
                [0xff, 0x25, _, _, _, _, 0x68, ..] => (0, 11),
                // `endbr64; push number; jmp first`.
                [0xf3, 0x0f, 0x1e, 0xfa, 0x68, ..] => (0, 9),
                _ => (0, 16),
            };
            let pushed = if offset >= after { pushed + 8 } else { pushed };
            Rule::new(Cfa::Register(machine.sp(), 8 + pushed), machine.pc(), &returns_at(machine.pc()))
        }
        Machine::Aarch64 => {
            let push = code.chunks_exact(4).position(|instruction| instruction == PUSH_LINK);
            let is_pushed = push.is_some_and(|push| offset > push * 4);
            let (cfa, saved) = if is_pushed { (16, returns_at(AARCH64_LINK)) } else { (0, [Saved::Same; REGISTERS]) };
            Rule::new(Cfa::Register(machine.sp(), cfa), AARCH64_LINK, &saved)
        }
    }
}

fn returns_at(register: u8) -> [Saved<'static>; REGISTERS] {
    let mut saved = [Saved::Same; REGISTERS];
    if let Some(saved) = saved.get_mut(usize::from(register)) {
        *saved = Saved::At(-8);
    }
    saved
}

/// Returns the rule of the return from a signal handler, if `code` is one. The handler returns to it, and the kernel
/// has put all registers on the stack.
pub(super) fn signal_return(machine: Machine, code: &[u8]) -> Option<Rule> {
    let mut saved = [Saved::Same; REGISTERS];
    match machine {
        Machine::X86_64 if code.starts_with(&X86_64_SIGNAL_RETURN) => {
            saved.iter_mut().zip(X86_64_CONTEXT).for_each(|(saved, at)| *saved = Saved::At(at));
        }
        Machine::Aarch64 if code.starts_with(&AARCH64_SIGNAL_RETURN) => {
            let places = (AARCH64_CONTEXT..).step_by(8);
            saved.iter_mut().zip(places).for_each(|(saved, at)| *saved = Saved::At(at));
        }
        _ => return None,
    }
    let rule = Rule::new(Cfa::Register(machine.sp(), 0), machine.pc(), saved.get(..machine.registers())?)?;
    Some(rule.with_signal(true))
}
