//! One step from a frame to its caller.

use super::{
    expression::evaluate,
    machine::{Memory, REGISTERS, Registers, Stop},
    rule::{Cfa, Rule, Saved},
};

/// A step to a caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Step {
    pub(super) return_address: u64,
    /// The address of the word that holds the return address; `None` if a register held it.
    pub(super) slot: Option<u64>,
    pub(super) is_signal: bool,
}

/// Replaces the registers of a frame by its caller's. Registers that the callee may have changed and that no rule
/// restores become unknown. Below a signal handler the rules decide about all registers. If the step fails, the
/// registers stay as they are.
pub(super) fn step(rule: &Rule, registers: &mut Registers, memory: &impl Memory) -> Result<Step, Stop> {
    if rule.is_end() {
        return Err(Stop::Outermost(None));
    }
    let machine = registers.machine();
    let word = |address| memory.word(address).ok_or(Stop::Missing(address));
    let cfa = match rule.cfa() {
        Cfa::Register(register, offset) => add(registers.get(register).ok_or(Stop::Odd)?, offset),
        Cfa::Expression(expression) => evaluate(expression, None, registers, memory)?,
    };
    let mut caller = registers.clone();
    if !rule.is_signal() {
        for register in (0..).take(REGISTERS).filter(|register| !machine.is_kept(*register)) {
            caller.set(register, None);
        }
    }
    caller.set(machine.sp(), Some(cfa));
    let (mut return_address, mut slot) = (registers.get(rule.return_register()), None);
    for (register, saved) in rule.saved() {
        let (value, at) = match saved {
            Saved::Same => continue,
            Saved::Undefined => (None, None),
            Saved::At(offset) => (Some(word(add(cfa, offset))?), Some(add(cfa, offset))),
            Saved::Is(offset) => (Some(add(cfa, offset)), None),
            Saved::In(other) => (registers.get(other), None),
            Saved::AtExpression(expression) => {
                let at = evaluate(expression, Some(cfa), registers, memory)?;
                (Some(word(at)?), Some(at))
            }
            Saved::IsExpression(expression) => (Some(evaluate(expression, Some(cfa), registers, memory)?), None),
        };
        caller.set(register, value);
        if register == rule.return_register() {
            (return_address, slot) = (value, at);
        }
    }
    // A program counter that is its own return address would be found again and again.
    if rule.return_register() == machine.pc() && rule.return_address() == Saved::Same {
        return Err(Stop::Odd);
    }
    let return_address = machine.without_signature(return_address.ok_or(Stop::Odd)?);
    // A signal can interrupt a call through a null pointer.
    if return_address == 0 && !rule.is_signal() {
        return Err(Stop::Outermost(slot));
    }
    // The call changed the link register, so the caller's own return address must be in memory.
    if !rule.is_signal() && rule.return_register() != machine.pc() {
        caller.set(rule.return_register(), None);
    }
    caller.set(machine.pc(), Some(return_address));
    *registers = caller;
    Ok(Step { return_address, slot, is_signal: rule.is_signal() })
}

fn add(base: u64, offset: i32) -> u64 {
    base.wrapping_add_signed(offset.into())
}
