//! Evaluates DWARF expressions (DWARF 5, chapter 2.5) of call frame information.
//!
//! All values have 64 bits. Comparisons, division and `shra` are signed, `mod` is not, as in gimli and libgcc.

use super::{
    bytes::Bytes,
    machine::{Memory, Registers, Stop},
};

/// The most operations of one evaluation, since expressions can loop.
const MAX_OPERATIONS: usize = 200;
const MAX_DEPTH: usize = 16;

/// Evaluates `expression`, which begins with `first` on its stack.
pub(super) fn evaluate(
    expression: &[u8],
    first: Option<u64>,
    registers: &Registers,
    memory: &impl Memory,
) -> Result<u64, Stop> {
    let mut evaluation = Evaluation { bytes: Bytes::new(expression), stack: Stack::default(), registers, memory };
    if let Some(first) = first {
        evaluation.stack.push(first)?;
    }
    for _ in 0..MAX_OPERATIONS {
        if evaluation.bytes.is_empty() {
            return evaluation.stack.pop();
        }
        let target = evaluation.operate()?;
        if let Some(jump) = target {
            let rest = expression.len() - evaluation.bytes.rest().len();
            let target = rest.checked_add_signed(jump.into()).and_then(|target| expression.get(target..));
            evaluation.bytes = Bytes::new(target.ok_or(Stop::Odd)?);
        }
    }
    if evaluation.bytes.is_empty() { evaluation.stack.pop() } else { Err(Stop::Odd) }
}

struct Evaluation<'a, M> {
    bytes: Bytes<'a>,
    stack: Stack,
    registers: &'a Registers,
    memory: &'a M,
}

#[derive(Default)]
struct Stack {
    values: [u64; MAX_DEPTH],
    depth: usize,
}

impl<M: Memory> Evaluation<'_, M> {
    /// Executes one operation; returns the distance of a jump.
    fn operate(&mut self) -> Result<Option<i16>, Stop> {
        let (bytes, stack) = (&mut self.bytes, &mut self.stack);
        let operation = bytes.u8().ok_or(Stop::Odd)?;
        match operation {
            // DW_OP_const1u to DW_OP_consts, DW_OP_lit0 to DW_OP_lit31.
            0x08..=0x11 | 0x30..=0x4f => stack.push(constant(operation, bytes).ok_or(Stop::Odd)?)?,
            // DW_OP_deref, DW_OP_deref_size.
            0x06 => {
                let address = stack.pop()?;
                stack.push(self.memory.word(address).ok_or(Stop::Missing(address))?)?;
            }
            0x94 => {
                let size = bytes.u8().filter(|size| (1..=8).contains(size)).ok_or(Stop::Odd)?;
                let address = stack.pop()?;
                let word = self.memory.word(address).ok_or(Stop::Missing(address))?;
                stack.push(word & u64::MAX >> (64 - 8 * u32::from(size)))?;
            }
            // DW_OP_dup, DW_OP_drop, DW_OP_over, DW_OP_pick.
            0x12 => stack.push(stack.peek(0)?)?,
            0x13 => drop(stack.pop()?),
            0x14 => stack.push(stack.peek(1)?)?,
            0x15 => stack.push(stack.peek(bytes.u8().ok_or(Stop::Odd)?.into())?)?,
            // DW_OP_swap, DW_OP_rot.
            0x16 => {
                let (second, first) = (stack.pop()?, stack.pop()?);
                stack.push(second)?;
                stack.push(first)?;
            }
            0x17 => {
                let (third, second, first) = (stack.pop()?, stack.pop()?, stack.pop()?);
                stack.push(third)?;
                stack.push(first)?;
                stack.push(second)?;
            }
            // DW_OP_abs, DW_OP_neg, DW_OP_not.
            0x19 => {
                let value = stack.pop()?;
                stack.push(value.cast_signed().unsigned_abs())?;
            }
            0x1f => {
                let value = stack.pop()?;
                stack.push(value.wrapping_neg())?;
            }
            0x20 => {
                let value = stack.pop()?;
                stack.push(!value)?;
            }
            // DW_OP_plus_uconst.
            0x23 => {
                let value = stack.pop()?;
                stack.push(value.wrapping_add(bytes.uleb().ok_or(Stop::Odd)?))?;
            }
            0x1a..=0x1e | 0x21 | 0x22 | 0x24..=0x27 | 0x29..=0x2e => {
                let (right, left) = (stack.pop()?, stack.pop()?);
                stack.push(calculate(operation, left, right).ok_or(Stop::Odd)?)?;
            }
            // DW_OP_bra, DW_OP_skip.
            0x28 | 0x2f => {
                let jump = bytes.u16().ok_or(Stop::Odd)?.cast_signed();
                return Ok((operation == 0x2f || stack.pop()? != 0).then_some(jump));
            }
            // DW_OP_breg0 to DW_OP_breg31, DW_OP_bregx.
            0x70..=0x8f | 0x92 => {
                let register = if operation == 0x92 { bytes.small() } else { Some(operation - 0x70) };
                let base = register.and_then(|register| self.registers.get(register)).ok_or(Stop::Odd)?;
                stack.push(base.wrapping_add_signed(bytes.sleb().ok_or(Stop::Odd)?))?;
            }
            // DW_OP_nop.
            0x96 => {}
            _ => return Err(Stop::Odd),
        }
        Ok(None)
    }
}

fn constant(operation: u8, bytes: &mut Bytes<'_>) -> Option<u64> {
    match operation {
        0x08 => bytes.u8().map(u64::from),
        0x09 => bytes.signed(1),
        0x0a => bytes.u16().map(u64::from),
        0x0b => bytes.signed(2),
        0x0c => bytes.u32().map(u64::from),
        0x0d => bytes.signed(4),
        0x0e | 0x0f => bytes.u64(),
        0x10 => bytes.uleb(),
        0x11 => bytes.sleb().map(i64::cast_unsigned),
        literal => literal.checked_sub(0x30).map(u64::from),
    }
}

/// Calculates DW_OP_and to DW_OP_ne of two operands.
fn calculate(operation: u8, left: u64, right: u64) -> Option<u64> {
    let (signed_left, signed_right) = (left.cast_signed(), right.cast_signed());
    let count = u32::try_from(right).unwrap_or(u32::MAX);
    Some(match operation {
        0x1a => left & right,
        0x1b => (right != 0).then(|| signed_left.wrapping_div(signed_right))?.cast_unsigned(),
        0x1c => left.wrapping_sub(right),
        0x1d => left.checked_rem(right)?,
        0x1e => left.wrapping_mul(right),
        0x21 => left | right,
        0x22 => left.wrapping_add(right),
        0x24 => left.checked_shl(count).unwrap_or(0),
        0x25 => left.checked_shr(count).unwrap_or(0),
        0x26 => (signed_left >> count.min(63)).cast_unsigned(),
        0x27 => left ^ right,
        0x29 => u64::from(left == right),
        0x2a => u64::from(signed_left >= signed_right),
        0x2b => u64::from(signed_left > signed_right),
        0x2c => u64::from(signed_left <= signed_right),
        0x2d => u64::from(signed_left < signed_right),
        0x2e => u64::from(left != right),
        _ => return None,
    })
}

impl Stack {
    fn push(&mut self, value: u64) -> Result<(), Stop> {
        *self.values.get_mut(self.depth).ok_or(Stop::Odd)? = value;
        self.depth += 1;
        Ok(())
    }

    fn pop(&mut self) -> Result<u64, Stop> {
        let value = self.peek(0)?;
        self.depth -= 1;
        Ok(value)
    }

    /// Returns the value below `above` others.
    fn peek(&self, above: usize) -> Result<u64, Stop> {
        let at = self.depth.checked_sub(1).and_then(|top| top.checked_sub(above)).ok_or(Stop::Odd)?;
        self.values.get(at).copied().ok_or(Stop::Odd)
    }
}

#[cfg(test)]
#[path = "expression_tests.rs"]
mod tests;
