//! The machines, their registers, and copied memory.

use object::elf::{EM_AARCH64, EM_X86_64};

/// The number of registers that are followed. No stack depends on others, such as those of floating point.
pub(super) const REGISTERS: usize = 33;
/// The number of the program counter by "DWARF for the Arm 64-bit Architecture".
pub(super) const AARCH64_PC: u8 = 32;
const AARCH64_SP: u8 = 31;
pub(super) const AARCH64_LINK: u8 = 30;
const X86_64_PC: u8 = 16;
/// The lowest bit that differs between the addresses of programs and the kernel, whether they are signed or not.
const KERNEL_BIT: u64 = 1 << 55;
/// The bits of the addresses of programs. Larger ones exist only for programs that ask `mmap` for them.
const USER_BITS: u64 = (1 << 48) - 1;

/// A machine whose stacks can be unwound.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in crate::stacks) enum Machine {
    X86_64,
    Aarch64,
}

/// Copied memory of a program.
pub(in crate::stacks) trait Memory {
    /// Returns the eight bytes at `address` as a little-endian number; `None` if they are not in the copy.
    fn word(&self, address: u64) -> Option<u64>;
}

/// Registers by their DWARF number. Unknown ones are `None`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::stacks) struct Registers {
    machine: Machine,
    values: [Option<u64>; REGISTERS],
}

/// The reason why a step failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// This was the outermost frame. The word at this address shows it; `None`: the rule alone does.
    Outermost(Option<u64>),
    /// The word at this address is not in the copied memory.
    Missing(u64),
    /// The rule needs a register that is unknown, or it makes no sense.
    Odd,
}

impl Machine {
    pub(super) fn of_elf(machine: u16) -> Option<Self> {
        match machine {
            EM_X86_64 => Some(Self::X86_64),
            EM_AARCH64 => Some(Self::Aarch64),
            _ => None,
        }
    }

    pub(in crate::stacks) fn pc(self) -> u8 {
        if self == Self::X86_64 { X86_64_PC } else { AARCH64_PC }
    }

    pub(in crate::stacks) fn sp(self) -> u8 {
        if self == Self::X86_64 { 7 } else { AARCH64_SP }
    }

    pub(super) fn fp(self) -> u8 {
        if self == Self::X86_64 { 6 } else { 29 }
    }

    /// Returns the number of registers with a rule.
    pub(in crate::stacks) fn registers(self) -> usize {
        usize::from(self.pc()) + 1
    }

    /// Returns whether functions keep the register for their callers, by the calling convention.
    pub(super) fn is_kept(self, register: u8) -> bool {
        match self {
            Self::X86_64 => matches!(register, 3 | 6 | 12..=15),
            Self::Aarch64 => matches!(register, 19..=29),
        }
    }

    /// Removes the signature (pointer authentication) of an address in code.
    pub(in crate::stacks) fn without_signature(self, address: u64) -> u64 {
        if self == Self::Aarch64 && address & KERNEL_BIT == 0 { address & USER_BITS } else { address }
    }
}

impl Registers {
    /// Returns registers that are all unknown.
    pub(in crate::stacks) fn unknown(machine: Machine) -> Self {
        Self { machine, values: [None; REGISTERS] }
    }

    pub(in crate::stacks) fn machine(&self) -> Machine {
        self.machine
    }

    pub(in crate::stacks) fn get(&self, register: u8) -> Option<u64> {
        self.values.get(usize::from(register)).copied().flatten()
    }

    /// Sets a register. The program counter is 16 on x86-64 and 32 on aarch64. Other numbers are ignored.
    pub(in crate::stacks) fn set(&mut self, register: u8, value: Option<u64>) {
        if let Some(slot) = self.values.get_mut(usize::from(register)) {
            *slot = value;
        }
    }

    pub(super) fn pc(&self) -> Option<u64> {
        self.get(self.machine.pc())
    }

    pub(super) fn sp(&self) -> Option<u64> {
        self.get(self.machine.sp())
    }

    pub(super) fn fp(&self) -> Option<u64> {
        self.get(self.machine.fp())
    }

    /// Makes these the registers of a caller. Only three of them are known.
    pub(super) fn forget_but(&mut self, pc: u64, sp: u64, fp: u64) {
        *self = Self::unknown(self.machine);
        self.set(self.machine.pc(), Some(pc));
        self.set(self.machine.sp(), Some(sp));
        self.set(self.machine.fp(), Some(fp));
    }
}
