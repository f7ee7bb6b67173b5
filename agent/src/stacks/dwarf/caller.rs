//! The caller of a frame without a rule, as far as instructions show it: of the guesses of [`super::height`], one whose return
//! address follows a call that can reach the function.

use super::{
    code::{Code, End},
    height::{Call, Guess},
    machine::{Machine, Memory, Registers},
    rule::Rule,
};

/// The most functions that jump to another one in turn.
const MAX_JUMPS: usize = 4;

/// The evidence that a return address belongs to a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Evidence {
    /// The call before it is one of the function.
    Call,
    /// The call before it may lead anywhere: by a register, memory or a linkage table.
    AnyCall,
}

/// The caller of a frame, as far as instructions show it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Caller {
    /// By this rule.
    By(Rule),
    /// Perhaps by the word at this address, which is not in the copy.
    Missing(u64),
    /// The instructions do not show it.
    Unknown,
}

/// Returns the caller of the frame at `pc`: by the first guess whose return address follows a call of the function, else by the
/// first one whose return address follows a call that may lead anywhere. On another machine than x86-64 it is unknown.
///
/// # Errors
///
/// [`End::NotNow`] if code could not be read in time.
pub(super) fn find(registers: &Registers, code: &mut impl Code, memory: &impl Memory) -> Result<Caller, End> {
    let (Machine::X86_64, Some(pc), Some(sp)) = (registers.machine(), registers.pc(), registers.sp()) else {
        return Ok(Caller::Unknown);
    };
    let guesses = code.guesses(pc).ok_or(End::NotNow)?;
    let (mut best, mut missing) = (None, None);
    for Guess { distance, stack } in guesses.iter() {
        let slot = sp.wrapping_add(u64::from(stack.height.unsigned_abs()));
        let Some(return_address) = memory.word(slot) else {
            missing = missing.or(Some(slot));
            continue;
        };
        match evidence(code, return_address, pc.wrapping_sub(*distance))? {
            Some(Evidence::Call) => return Ok(stack.rule().map_or(Caller::Unknown, Caller::By)),
            Some(Evidence::AnyCall) => best = best.or(Some(stack)),
            None => {}
        }
    }
    Ok(match (best.and_then(|stack| stack.rule()), missing) {
        (Some(rule), _) => Caller::By(rule),
        (None, Some(slot)) => Caller::Missing(slot),
        (None, None) => Caller::Unknown,
    })
}

/// Returns the evidence that the call before this return address is one of the function at `start`.
fn evidence(code: &mut impl Code, return_address: u64, start: u64) -> Result<Option<Evidence>, End> {
    // Most words on the stack are no addresses of code. New mappings are not looked for: that takes time.
    if !code.is_known_code(return_address.wrapping_sub(1)) {
        return Ok(None);
    }
    let mut call = code.before(return_address).ok_or(End::NotNow)?.call;
    let mut from = return_address;
    for _ in 0..=MAX_JUMPS {
        match call {
            None => return Ok(None),
            Some(Call::Anywhere) => return Ok(Some(Evidence::AnyCall)),
            Some(Call::To(distance)) => from = from.wrapping_add_signed(distance),
        }
        if from == start {
            return Ok(Some(Evidence::Call));
        }
        // The function that is called may end with a jump to this one, as entries of linkage tables do.
        let jumps = code.jumps(from).ok_or(End::NotNow)?;
        if jumps.iter().any(|jump| matches!(jump, Call::To(distance) if from.wrapping_add_signed(*distance) == start)) {
            return Ok(Some(Evidence::Call));
        }
        call = jumps.iter().find(|jump| **jump == Call::Anywhere).or(jumps.last()).copied();
    }
    Ok(None)
}

#[cfg(test)]
#[path = "caller_tests.rs"]
mod tests;
