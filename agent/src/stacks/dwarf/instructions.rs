//! Executes call frame instructions (DWARF 5, chapter 6.4.2) up to an address.

use super::{
    bytes::Bytes,
    frame_entry::{Cie, Fde},
    machine::{Machine, REGISTERS},
    rule::{Cfa, Rule, Saved},
};

/// The most instructions of one rule. The longest functions of `node` have some hundred.
const MAX_INSTRUCTIONS: usize = 4096;
/// The most remembered states. Compilers write one.
const MAX_STATES: usize = 8;

/// Returns the rule for an address in the range of `fde`; `None` if an instruction is not understood.
pub(super) fn rule(machine: Machine, cie: &Cie<'_>, fde: &Fde<'_>, address: u64) -> Option<Rule> {
    let mut table = Table {
        machine,
        cie,
        at: fde.start,
        address,
        left: MAX_INSTRUCTIONS,
        row: Row { cfa: None, saved: [Saved::Same; REGISTERS] },
        initial: None,
        remembered: Vec::new(),
    };
    table.execute(Bytes::new(cie.instructions))?;
    table.initial = Some(table.row.clone());
    table.execute(Bytes::new(fde.instructions))?;
    let row = table.row;
    let rule = Rule::new(row.cfa?, cie.return_register, row.saved.get(..machine.registers())?)?;
    Some(rule.with_signal(cie.is_signal))
}

/// A row of the table of rules, which instructions change from address to address.
#[derive(Clone)]
struct Row<'a> {
    cfa: Option<Cfa<'a>>,
    saved: [Saved<'a>; REGISTERS],
}

struct Table<'a> {
    machine: Machine,
    cie: &'a Cie<'a>,
    /// The address where the current row begins.
    at: u64,
    /// The address whose row is wanted.
    address: u64,
    /// The number of instructions that may still be executed.
    left: usize,
    row: Row<'a>,
    /// The row after the CIE's instructions.
    initial: Option<Row<'a>>,
    remembered: Vec<Row<'a>>,
}

impl<'a> Table<'a> {
    /// Executes instructions until the row of the address is complete.
    fn execute(&mut self, mut bytes: Bytes<'a>) -> Option<()> {
        while !bytes.is_empty() && self.at <= self.address {
            self.left = self.left.checked_sub(1)?;
            let opcode = bytes.u8()?;
            let low = u64::from(opcode & 0x3f);
            match opcode >> 6 {
                // DW_CFA_advance_loc, DW_CFA_offset, DW_CFA_restore.
                1 => self.advance(low)?,
                2 => self.set(low, Saved::At(self.factored(&mut bytes)?)),
                3 => self.restore(low)?,
                _ => self.change(opcode, &mut bytes)?,
            }
        }
        Some(())
    }

    /// Executes an instruction that is a whole byte and its operands.
    fn change(&mut self, opcode: u8, bytes: &mut Bytes<'a>) -> Option<()> {
        match opcode {
            // DW_CFA_nop, DW_CFA_GNU_args_size: the size matters only to handlers of exceptions.
            0x00 => {}
            0x2e => drop(bytes.uleb()?),
            // DW_CFA_advance_loc1, 2 and 4.
            0x02 => self.advance(bytes.u8()?.into())?,
            0x03 => self.advance(bytes.u16()?.into())?,
            0x04 => self.advance(bytes.u32()?.into())?,
            // DW_CFA_offset_extended, _extended_sf, DW_CFA_GNU_negative_offset_extended.
            0x05 => self.set(bytes.uleb()?, Saved::At(self.factored(bytes)?)),
            0x11 => self.set(bytes.uleb()?, Saved::At(self.factored_signed(bytes)?)),
            0x2f => self.set(bytes.uleb()?, Saved::At(self.factored(bytes)?.checked_neg()?)),
            // DW_CFA_val_offset, DW_CFA_val_offset_sf.
            0x14 => self.set(bytes.uleb()?, Saved::Is(self.factored(bytes)?)),
            0x15 => self.set(bytes.uleb()?, Saved::Is(self.factored_signed(bytes)?)),
            // DW_CFA_restore_extended, DW_CFA_undefined, DW_CFA_same_value.
            0x06 => self.restore(bytes.uleb()?)?,
            0x07 => self.set(bytes.uleb()?, Saved::Undefined),
            0x08 => self.set(bytes.uleb()?, Saved::Same),
            // DW_CFA_register.
            0x09 => {
                let register = bytes.uleb()?;
                self.set(register, Saved::In(self.register(bytes)?));
            }
            // DW_CFA_expression, DW_CFA_val_expression.
            0x10 => self.set(bytes.uleb()?, Saved::AtExpression(bytes.block()?)),
            0x16 => self.set(bytes.uleb()?, Saved::IsExpression(bytes.block()?)),
            // DW_CFA_remember_state, DW_CFA_restore_state.
            0x0a if self.remembered.len() < MAX_STATES => self.remembered.push(self.row.clone()),
            0x0b => self.row = self.remembered.pop()?,
            // DW_CFA_def_cfa, DW_CFA_def_cfa_sf, DW_CFA_def_cfa_expression.
            0x0c => self.row.cfa = Some(Cfa::Register(self.register(bytes)?, bytes.small::<i32>()?)),
            0x12 => self.row.cfa = Some(Cfa::Register(self.register(bytes)?, self.factored_signed(bytes)?)),
            0x0f => self.row.cfa = Some(Cfa::Expression(bytes.block()?)),
            // DW_CFA_def_cfa_register, DW_CFA_def_cfa_offset, DW_CFA_def_cfa_offset_sf.
            0x0d => {
                let Some(Cfa::Register(_, offset)) = self.row.cfa else { return None };
                self.row.cfa = Some(Cfa::Register(self.register(bytes)?, offset));
            }
            0x0e | 0x13 => {
                let Some(Cfa::Register(register, _)) = self.row.cfa else { return None };
                let offset = if opcode == 0x0e { bytes.small()? } else { self.factored_signed(bytes)? };
                self.row.cfa = Some(Cfa::Register(register, offset));
            }
            // DW_CFA_AARCH64_negate_ra_state_with_pc, DW_CFA_AARCH64_negate_ra_state: from here on the return address is
            // signed, or no longer. A signature is removed from any return address, since that changes no other one.
            0x2c | 0x2d if self.machine == Machine::Aarch64 => {}
            _ => return None,
        }
        Some(())
    }

    fn advance(&mut self, distance: u64) -> Option<()> {
        self.at = self.at.checked_add(self.cie.code_factor.checked_mul(distance)?)?;
        Some(())
    }

    fn restore(&mut self, register: u64) -> Option<()> {
        let initial = self.initial.as_ref()?;
        let saved = usize::try_from(register).ok().and_then(|register| initial.saved.get(register));
        let saved = saved.copied().unwrap_or_default();
        self.set(register, saved);
        Some(())
    }

    /// Sets the rule of a register; floating point and other registers that are not followed have none.
    fn set(&mut self, register: u64, saved: Saved<'a>) {
        if let Some(slot) = usize::try_from(register).ok().and_then(|register| self.row.saved.get_mut(register)) {
            *slot = saved;
        }
    }

    /// Reads the number of a register that a rule depends on.
    fn register(&self, bytes: &mut Bytes<'_>) -> Option<u8> {
        bytes.small().filter(|register| usize::from(*register) < self.machine.registers())
    }

    fn factored(&self, bytes: &mut Bytes<'_>) -> Option<i32> {
        bytes.small::<i64>()?.checked_mul(self.cie.data_factor)?.try_into().ok()
    }

    fn factored_signed(&self, bytes: &mut Bytes<'_>) -> Option<i32> {
        bytes.sleb()?.checked_mul(self.cie.data_factor)?.try_into().ok()
    }
}
