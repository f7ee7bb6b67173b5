//! The code of a program, as a walk asks for it, and how a walk ends.

use std::sync::Arc;

use super::{
    height::{Before, Call, Guess},
    machine::Stop,
    rule::Rule,
};

/// The code of a program.
pub(in crate::stacks) trait Code {
    /// Looks up the rule of an address in the program's memory.
    fn rule(&mut self, address: u64) -> Found;

    /// Returns whether the memory at an address can be executed; `None` if that is not known yet.
    fn is_code(&mut self, address: u64) -> Option<bool>;

    /// Returns whether an address is in a known mapping that can be executed. This look-up and the following ones are for
    /// code without a rule. Without them, nothing is known of its instructions.
    fn is_known_code(&self, _address: u64) -> bool {
        false
    }

    /// Returns the functions that an address without a rule may be in, by the instructions around it; `None` if they could
    /// not be read in time.
    fn guesses(&mut self, _address: u64) -> Option<Arc<[Guess]>> {
        Some(Arc::default())
    }

    /// Looks at the code before a return address; `None` if it could not be read in time.
    fn before(&mut self, _return_address: u64) -> Option<Before> {
        Some(Before::default())
    }

    /// Returns where the function at an address goes on in another one; `None` if it could not be read in time.
    fn jumps(&mut self, _start: u64) -> Option<Arc<[Call]>> {
        Some(Arc::default())
    }
}

/// The result of a look-up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::stacks) enum Found {
    Rule(Arc<Rule>),
    /// The address is in a file that has no rule there.
    NoRule,
    /// The address is in code that was made at run time.
    NoFile,
    /// The address is in a file whose functions all keep frame pointers.
    FramePointer,
    /// The frame has this number of words, as a virtual machine says. The last one is the return address, and the one before
    /// it the caller's frame pointer.
    Words(u32),
    /// The frame is one of an interpreter with a frame pointer. The word below it has the caller's stack pointer.
    Interpreted,
    /// There is no code at the address.
    Nowhere,
    /// The rule could not be read in time, so the walk must be repeated later.
    NotNow,
}

/// The end of a walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::stacks) enum End {
    /// The last frame is the thread's outermost frame.
    Whole,
    /// The word at this address is needed, but not in the copied memory.
    Missing(u64),
    /// The last frame has no rule, and no caller was guessed.
    NoRule,
    /// A rule could not be read in time.
    NotNow,
    /// A rule makes no sense, or the stack is damaged.
    Odd,
    /// The stack has more than 127 frames.
    Deep,
}

impl From<Stop> for End {
    fn from(stop: Stop) -> Self {
        match stop {
            Stop::Outermost(_) => Self::Whole,
            Stop::Missing(address) => Self::Missing(address),
            Stop::Odd => Self::Odd,
        }
    }
}
