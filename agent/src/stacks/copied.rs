//! Unwinds one copied stack. Pure.

use std::cell::RefCell;

use super::{
    code::HERE,
    cut_cause::CutCause,
    dwarf::{Code, End, Memory, Registers, Walked, walk},
};
use crate::{
    kernel::copies::{Copy, MOST_PAGES, MOST_WORDS, PAGE, PAGES_SPAN, RED_ZONE, Word},
    model::wait::Unwind,
};

/// The memory of a copied stack.
struct CopiedMemory<'a> {
    copy: &'a Copy,
    sp: u64,
    /// The pages that were read, also those that are not in the copy.
    read: RefCell<Vec<u16>>,
}

/// An unwound stack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Unwinding {
    /// The addresses of the frames, leaf first.
    pub(super) frames: Vec<u64>,
    pub(super) end: Unwind,
    /// The cause if the end is [`Unwind::Cut`].
    pub(super) cut: Option<CutCause>,
    /// The words that prove the stack, and the number of words from the stack pointer on that were in memory together.
    /// `None` if a word is too far away, or if the walk must be repeated.
    pub(super) words: Option<(Vec<Word>, u32)>,
    /// The pages with which the walk could come further.
    pub(super) wanted: Option<Vec<u16>>,
    /// Set if the walk ended because code could not be read: the file cannot be opened, or no time was left.
    pub(super) is_not_now: bool,
}

/// Unwinds a copied stack.
pub(super) fn unwind(copy: &Copy, code: &mut impl Code) -> Unwinding {
    let registers = registers(&copy.registers);
    let memory = CopiedMemory { copy, sp: registers.get(HERE.sp()).unwrap_or(0), read: RefCell::default() };
    let walked = walk(registers, code, &memory);
    let words = match walked.end {
        End::NotNow => None,
        _ => memory.words(&walked),
    };
    let wanted = match walked.end {
        End::Missing(address) => memory.wanted(address),
        _ => None,
    };
    let end = match walked.end {
        End::Whole if walked.guessed => Unwind::Guessed,
        End::Whole => Unwind::Whole,
        End::Missing(_) | End::NotNow => Unwind::Cut,
        End::NoRule => Unwind::NoFramePointers,
        End::Odd => Unwind::Broken,
        End::Deep => Unwind::Truncated,
    };
    let cut = match walked.end {
        End::NotNow => Some(CutCause::Unreadable),
        End::Missing(_) if copy.pages.is_empty() => Some(CutCause::NoCopy),
        End::Missing(address) if memory.page(address).is_some() => Some(CutCause::NotCopied),
        End::Missing(_) => Some(CutCause::Elsewhere),
        _ => None,
    };
    Unwinding { frames: walked.frames, end, cut, words, wanted, is_not_now: walked.end == End::NotNow }
}

/// Returns registers with these values, by their numbers in DWARF.
pub(super) fn registers(values: &[u64]) -> Registers {
    let mut registers = Registers::unknown(HERE);
    for (number, value) in (0..).zip(values).take(HERE.registers()) {
        registers.set(number, Some(*value));
    }
    registers
}

impl CopiedMemory<'_> {
    /// Returns the page of an address, counted from the page with the stack pointer. Below the stack pointer is the red
    /// zone: by the tables, an epilogue has the registers there that it has restored.
    fn page(&self, address: u64) -> Option<u16> {
        let is_copied = address >= self.sp.saturating_sub(RED_ZONE);
        let page = address.checked_sub(self.sp & !(PAGE - 1)).filter(|_| is_copied)? / PAGE;
        u16::try_from(page).ok().filter(|page| u64::from(*page) < PAGES_SPAN)
    }

    fn bytes(&self, page: u16, address: u64) -> Option<u64> {
        let index = self.copy.pages.iter().position(|copied| *copied == page)?;
        let at = index * usize::try_from(PAGE).ok()? + usize::try_from(address % PAGE).ok()?;
        self.copy.stack.get(at..at + 8)?.try_into().ok().map(u64::from_le_bytes)
    }

    /// Returns the number of words from the stack pointer on that are on consecutive pages.
    fn together(&self) -> u32 {
        let pages = (0..).zip(&self.copy.pages).take_while(|(number, page)| number == *page).count() as u64;
        u32::try_from((pages * PAGE).saturating_sub(self.sp % PAGE) / 8).unwrap_or(0)
    }

    /// Returns the return addresses and, if there is room in a recipe, the other words that decided the way.
    fn words(&self, walked: &Walked) -> Option<(Vec<Word>, u32)> {
        let links = walked.links.iter().take(MOST_WORDS.saturating_sub(walked.slots.len()));
        let word = |slot: &u64, is_link: bool| {
            let distance = slot.checked_sub(self.sp).filter(|distance| distance % 8 == 0)?;
            let (at, value) = (u32::try_from(distance / 8).ok()?, self.word(*slot)?);
            // The stacks of two threads are elsewhere, but have the same distances.
            let distance = value.checked_sub(self.sp).filter(|distance| is_link && *distance < PAGES_SPAN * PAGE);
            let value = HERE.without_signature(value);
            Some(Word { at, value: distance.unwrap_or(value), is_pointer: distance.is_some() })
        };
        let words = walked.slots.iter().map(|slot| word(slot, false)).chain(links.map(|link| word(link, true)));
        let words = words.collect::<Option<_>>()?;
        Some((words, self.together()))
    }

    /// Returns the pages to copy so that `missing` is there, besides all pages that were read before. Further pages fill
    /// the copy. Returns `None` if they do not fit into a copy.
    fn wanted(&self, missing: u64) -> Option<Vec<u16>> {
        let missing = self.page(missing)?;
        let mut pages: Vec<u16> = self.read.borrow().iter().copied().filter(|page| *page > 0).collect();
        pages.push(missing);
        pages.sort_unstable();
        pages.dedup();
        let room = MOST_PAGES - 1;
        let mut next = missing;
        while pages.len() < room && u64::from(next) + 1 < PAGES_SPAN {
            next += 1;
            pages.push(next);
        }
        pages.sort_unstable();
        pages.dedup();
        (pages.len() <= room).then_some(pages)
    }
}

impl Memory for CopiedMemory<'_> {
    fn word(&self, address: u64) -> Option<u64> {
        let page = self.page(address).filter(|_| address % PAGE <= PAGE - 8)?;
        let mut read = self.read.borrow_mut();
        if !read.contains(&page) && read.len() < 2 * MOST_PAGES {
            read.push(page);
        }
        drop(read);
        self.bytes(page, address)
    }
}

#[cfg(test)]
#[path = "copied_tests.rs"]
mod tests;
