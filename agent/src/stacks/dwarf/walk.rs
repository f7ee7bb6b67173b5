//! Walks a stack from frame to frame.

use super::{
    caller::{self, Caller},
    code::{Code, End, Found},
    machine::{AARCH64_LINK, Machine, Memory, Registers, Stop},
    rule::{Cfa, Rule, Saved},
    step::{Step, step},
};

/// The most frames of a stack, as `kernel.perf_event_max_stack` has it.
const MAX_FRAMES: usize = 127;
/// The most signal frames that may lead to a lower stack. A handler can have its own stack.
const MAX_STACKS: usize = 2;
/// The most bytes from the stack pointer to the frame pointer of a guessed frame.
const MAX_GUESS: u64 = 1 << 20;

/// A walked stack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::stacks) struct Walked {
    /// The program counter and the return addresses, innermost first.
    pub(in crate::stacks) frames: Vec<u64>,
    /// The addresses of the words that hold the return addresses. A return address in a register has none.
    pub(in crate::stacks) slots: Vec<u64>,
    /// The addresses of other words that decided the way: those with frame pointers by which callers were found, and the
    /// one that shows the end.
    pub(in crate::stacks) links: Vec<u64>,
    pub(in crate::stacks) end: End,
    /// Set if the caller of a frame was guessed. Frames may be missing or wrong.
    pub(in crate::stacks) guessed: bool,
}

/// Walks the stack of a thread from its registers.
pub(in crate::stacks) fn walk(mut registers: Registers, code: &mut impl Code, memory: &impl Memory) -> Walked {
    let mut walked = Walked { frames: Vec::new(), slots: Vec::new(), links: Vec::new(), end: End::Odd, guessed: false };
    let Some(pc) = registers.pc() else { return walked };
    walked.frames.push(pc);
    let mut state = State { is_exact: true, has_slot: false, link: None, lower_stacks: 0 };
    walked.end = loop {
        match state.next(&mut registers, code, memory, &mut walked) {
            Ok(_) if walked.frames.len() == MAX_FRAMES => break End::Deep,
            Ok(step) => {
                walked.frames.push(step.return_address);
                walked.slots.extend(step.slot);
            }
            Err(end) => break end,
        }
    };
    walked
}

struct State {
    /// Set if the frame has not made a call, but was interrupted: its address is the next instruction's. The return
    /// address of a call may be behind the end of the function.
    is_exact: bool,
    /// Set if a word of the stack holds the frame's address.
    has_slot: bool,
    /// The address of the word that holds the frame pointer; `None` if the innermost frame's register does.
    link: Option<u64>,
    lower_stacks: usize,
}

impl State {
    fn next(
        &mut self,
        registers: &mut Registers,
        code: &mut impl Code,
        memory: &impl Memory,
        walked: &mut Walked,
    ) -> Result<Step, End> {
        let (pc, sp) = (registers.pc().ok_or(End::Odd)?, registers.sp().ok_or(End::Odd)?);
        let step = match code.rule(if self.is_exact { pc } else { pc.wrapping_sub(1) }) {
            Found::Rule(rule) => self.by_rule(&rule, registers, memory, &mut walked.links)?,
            Found::FramePointer => self.by_kept_pointer(pc, registers, code, memory, walked)?,
            Found::NoRule => {
                walked.guessed = true;
                self.by_instructions(pc, registers, code, memory, &mut walked.links)?
            }
            Found::NoFile => {
                walked.guessed = true;
                self.by_frame_pointer(registers, code, memory, &mut walked.links)?
            }
            Found::Words(words) => {
                walked.guessed = true;
                self.by_size(words, registers, code, memory)?
            }
            Found::Interpreted => {
                walked.guessed = true;
                self.by_interpreter(registers, code, memory, &mut walked.links)?
            }
            Found::Nowhere if self.is_exact => {
                walked.guessed = true;
                call_of_nothing(registers, code, memory, sp)?
            }
            Found::Nowhere => {
                walked.frames.pop();
                if self.has_slot {
                    walked.slots.pop();
                }
                return Err(End::Odd);
            }
            Found::NotNow => {
                // A word of the stack must not leave while it is not known to be an address in code.
                if self.has_slot {
                    walked.frames.pop();
                    walked.slots.pop();
                }
                return Err(End::NotNow);
            }
        };
        let caller_sp = registers.sp().ok_or(End::Odd)?;
        // A leaf function of aarch64 needs no stack.
        let is_leaf = self.is_exact && step.slot.is_none() && caller_sp == sp;
        if caller_sp <= sp && !is_leaf {
            self.lower_stacks += 1;
            if !step.is_signal || self.lower_stacks > MAX_STACKS {
                return Err(End::Odd);
            }
        }
        (self.is_exact, self.has_slot) = (step.is_signal, step.slot.is_some());
        Ok(step)
    }

    /// Steps to the caller by a rule. Notes the words that decide about the frame pointer.
    fn by_rule(
        &mut self,
        rule: &Rule,
        registers: &mut Registers,
        memory: &impl Memory,
        links: &mut Vec<u64>,
    ) -> Result<Step, End> {
        let fp = registers.machine().fp();
        let step = step(rule, registers, memory).inspect_err(|stop| links.extend(stop.word()))?;
        if matches!(rule.cfa(), Cfa::Register(register, _) if register == fp) {
            links.extend(self.link);
        }
        let saved = rule.saved().find(|(register, _)| *register == fp).map(|(_, saved)| saved);
        self.link = match (saved, registers.sp()) {
            (None, _) => self.link,
            (Some(Saved::At(offset)), Some(cfa)) => Some(cfa.wrapping_add_signed(offset.into())),
            _ => None,
        };
        Ok(step)
    }

    /// Steps to the caller of `pc`, which has no rule, by instructions, or else by the frame pointer.
    fn by_instructions(
        &mut self,
        pc: u64,
        registers: &mut Registers,
        code: &mut impl Code,
        memory: &impl Memory,
        links: &mut Vec<u64>,
    ) -> Result<Step, End> {
        let may_be_outermost = registers.fp() == Some(0) && !self.is_exact;
        if may_be_outermost && code.before(pc).ok_or(End::NotNow)?.clears_frame_pointer {
            return Err(End::Whole);
        }
        let missing = match caller::find(registers, code, memory)? {
            Caller::By(rule) => return self.by_rule(&rule, registers, memory, links),
            Caller::Missing(slot) => Some(slot),
            Caller::Unknown => None,
        };
        let step = self.by_frame_pointer(registers, code, memory, links);
        step.map_err(|end| missing.filter(|_| end == End::NoRule).map_or(end, End::Missing))
    }

    /// Steps to the caller of `pc` in code that keeps frame pointers, such as Go's. If the function has called another
    /// one on the thread's own stack, the frame pointer leads to the stack of the goroutine, which is seldom in the
    /// copy. Then the stack ends here, and callers may be missing.
    fn by_kept_pointer(
        &mut self,
        pc: u64,
        registers: &mut Registers,
        code: &mut impl Code,
        memory: &impl Memory,
        walked: &mut Walked,
    ) -> Result<Step, End> {
        let step = self.by_frame_pointer(registers, code, memory, &mut walked.links);
        let may_switch = registers.machine() == Machine::X86_64 && !self.is_exact;
        if may_switch
            && matches!(step, Err(End::NoRule | End::Missing(_)))
            && code.before(pc).ok_or(End::NotNow)?.switches_stack
        {
            walked.guessed = true;
            return Err(End::Whole);
        }
        step
    }

    /// Steps to the caller by the frame pointer. Both machines keep the caller's frame pointer where the frame pointer
    /// points to, and the return address above.
    fn by_frame_pointer(
        &mut self,
        registers: &mut Registers,
        code: &mut impl Code,
        memory: &impl Memory,
        links: &mut Vec<u64>,
    ) -> Result<Step, End> {
        let sp = registers.sp().ok_or(End::Odd)?;
        let is_near = |fp: &u64| fp.checked_sub(sp).is_some_and(|distance| distance < MAX_GUESS);
        // A chain of frame pointers ends with 0. Without a chain, 0 is any value.
        if let (Some(0), Some(link)) = (registers.fp(), self.link) {
            links.push(link);
            return Err(End::Whole);
        }
        let fp = registers.fp().filter(|fp| fp % 8 == 0 && is_near(fp)).ok_or(End::NoRule)?;
        links.extend(self.link);
        let (slot, caller_sp) = fp.checked_add(8).zip(fp.checked_add(16)).ok_or(End::NoRule)?;
        let caller_fp = memory.word(fp).ok_or(End::Missing(fp))?;
        let word = memory.word(slot).ok_or(End::Missing(slot))?;
        if (caller_fp, word) == (0, 0) {
            links.extend([fp, slot]);
            return Err(End::Whole);
        }
        let return_address = registers.machine().without_signature(word);
        if !code.is_code(return_address.wrapping_sub(1)).ok_or(End::NotNow)? {
            return Err(End::NoRule);
        }
        registers.forget_but(return_address, caller_sp, caller_fp);
        self.link = Some(fp);
        Ok(Step { return_address, slot: Some(slot), is_signal: false })
    }
}

/// The sizes of a frame that is not complete yet, in bytes: with the return address alone, and with the frame pointer.
const BEGUN: [u64; 2] = [8, 16];

impl State {
    /// Steps to the caller by the size of the frame. The innermost function may have begun or ended just now: on x86-64
    /// its return address is at the stack pointer then, or above the frame pointer's word.
    fn by_size(
        &mut self,
        words: u32,
        registers: &mut Registers,
        code: &mut impl Code,
        memory: &impl Memory,
    ) -> Result<Step, End> {
        let (machine, sp) = (registers.machine(), registers.sp().ok_or(End::Odd)?);
        let begun = if self.is_exact && machine == Machine::X86_64 { &BEGUN[..] } else { &[] };
        let sizes = || std::iter::once(8 * u64::from(words)).chain(begun.iter().copied());
        let word = |size: u64| memory.word(sp.checked_add(size)?.checked_sub(8)?);
        // The word of a wrong size is rarely an address in code. New mappings are looked for only if no size leads to
        // known code: that takes time, and may have to wait. Without the word of the whole frame, nothing is known.
        let is_known = |word: u64| code.is_known_code(machine.without_signature(word).wrapping_sub(1));
        let mut copied = sizes().map_while(|size| Some((size, word(size)?)));
        let known = copied.find(|(_, word)| is_known(*word)).map(|(size, _)| size);
        for size in known.into_iter().chain(sizes()) {
            let caller_sp = sp.checked_add(size).ok_or(End::Odd)?;
            let slot = caller_sp - 8;
            let return_address = machine.without_signature(memory.word(slot).ok_or(End::Missing(slot))?);
            if !code.is_code(return_address.wrapping_sub(1)).ok_or(End::NotNow)? {
                continue;
            }
            let saved = slot.checked_sub(8).filter(|saved| *saved >= sp);
            let fp = match saved {
                Some(saved) => memory.word(saved).ok_or(End::Missing(saved))?,
                None => registers.fp().unwrap_or(0),
            };
            registers.forget_but(return_address, caller_sp, fp);
            self.link = saved.or(self.link);
            return Ok(Step { return_address, slot: Some(slot), is_signal: false });
        }
        Err(End::NoRule)
    }

    /// Steps to the caller of an interpreted function. The caller's stack pointer is in the frame, since arguments may have
    /// been moved between both frames.
    fn by_interpreter(
        &mut self,
        registers: &mut Registers,
        code: &mut impl Code,
        memory: &impl Memory,
        links: &mut Vec<u64>,
    ) -> Result<Step, End> {
        let fp = registers.fp().ok_or(End::NoRule)?;
        let step = self.by_frame_pointer(registers, code, memory, links)?;
        let word = fp.wrapping_sub(8);
        let caller_sp = memory.word(word).ok_or(End::Missing(word))?;
        if registers.sp().is_some_and(|sp| caller_sp.checked_sub(sp).is_some_and(|more| more < MAX_GUESS)) {
            links.push(word);
            registers.set(registers.machine().sp(), Some(caller_sp));
        }
        Ok(step)
    }
}

/// Steps to the caller of an address where there is no code. The call itself has put the return address on the stack,
/// or on aarch64 into the link register, and nothing else has changed.
fn call_of_nothing(
    registers: &mut Registers,
    code: &mut impl Code,
    memory: &impl Memory,
    sp: u64,
) -> Result<Step, End> {
    let machine = registers.machine();
    let (word, slot) = match machine {
        Machine::X86_64 => (memory.word(sp).ok_or(End::Missing(sp))?, Some(sp)),
        Machine::Aarch64 => (registers.get(AARCH64_LINK).ok_or(End::Odd)?, None),
    };
    let return_address = machine.without_signature(word);
    if !code.is_code(return_address.wrapping_sub(1)).ok_or(End::NotNow)? {
        return Err(End::Odd);
    }
    if slot.is_some() {
        registers.set(machine.sp(), Some(sp.wrapping_add(8)));
    }
    registers.set(AARCH64_LINK, None);
    registers.set(machine.pc(), Some(return_address));
    Ok(Step { return_address, slot, is_signal: false })
}

impl Stop {
    /// Returns the address of the word that shows the end.
    fn word(&self) -> Option<u64> {
        match self {
            Self::Outermost(word) => *word,
            Self::Missing(_) | Self::Odd => None,
        }
    }
}

#[cfg(test)]
#[path = "walk_tests.rs"]
mod tests;
