use super::*;
use crate::stacks::dwarf::height::{Before, before};

/// Code with frame pointers. Each call has these bytes before it.
struct KeepsPointers(&'static str);

impl Code for KeepsPointers {
    fn rule(&mut self, _: u64) -> Found {
        Found::FramePointer
    }

    fn is_code(&mut self, address: u64) -> Option<bool> {
        Some((0x1000..0x9000).contains(&address))
    }

    fn before(&mut self, _: u64) -> Option<Before> {
        Some(before(&hex(self.0)))
    }
}

#[test]
fn a_call_on_another_stack_ends_the_stack_if_the_caller_is_not_in_the_copy() {
    let walk = |code: &'static str, caller: u64| {
        let mut registers = x86_64(0x1010);
        registers.set(6, Some(SP + 0x20));
        let memory = stack(&[(0x20, caller), (0x28, 0x1110), (0x40, 0), (0x48, 0x1210)]);
        let found = super::super::walk(registers, &mut KeepsPointers(code), &memory);
        (found.frames.len(), found.end, found.guessed)
    };
    let (switch, other) = ("4889dc ffd7", "4889fa ffd7");
    // The caller's frame is in the copy, on a stack below, or too far above.
    assert_eq!(walk(switch, SP + 0x40), (3, End::Whole, false));
    assert_eq!(walk(switch, SP - 0x4000), (2, End::Whole, true));
    assert_eq!(walk(switch, SP + 0x4000), (2, End::Whole, true));
    assert_eq!(walk(other, SP - 0x4000), (2, End::NoRule, false));
    assert_eq!(walk(other, SP + 0x4000), (2, End::Missing(SP + 0x4000), false));
}
