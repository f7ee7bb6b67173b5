//! Unwinds user stacks from a copy of registers and stack memory, by the call frame information (`.eh_frame`) of ELF
//! files.
//!
//! [`Tables`] finds the [`Rule`] of an address in a file. [`walk()`] applies rules, frame by frame, to [`Registers`]
//! and [`Memory`]. The files and the copied memory belong to strangers: all arithmetic is checked or wraps, all loops and
//! all memory have a limit. A rule that is not fully understood is no rule. Code without a rule is walked by its
//! instructions (`caller`) or by its frame pointer. Such a stack is marked as guessed, except in Go code, where each function
//! keeps a frame pointer.
//!
//! The code follows the DWARF 5 standard (chapters 2.5 and 6.4), the Linux Standard Base (`.eh_frame`,
//! `.eh_frame_hdr`), and "DWARF for the Arm 64-bit Architecture".

mod bytes;
mod caller;
mod code;
mod expression;
mod frame_entry;
mod height;
#[cfg(test)]
pub(in crate::stacks) mod hex;
mod image;
mod instructions;
mod machine;
mod rule;
mod search;
mod step;
mod stub;
mod tables;
mod walk;

pub(in crate::stacks) use code::{Code, End, Found};
pub(in crate::stacks) use height::{Before, Call, Guess, MAX_BEFORE, MAX_FUNCTION, before, guesses, jumps};
pub(in crate::stacks) use machine::{Machine, Memory, Registers};
pub(in crate::stacks) use rule::Rule;
pub(in crate::stacks) use tables::Tables;
pub(in crate::stacks) use walk::{Walked, walk};
