use super::*;
use crate::stacks::dwarf::hex::hex;

const CODE: u64 = 0x1000;

fn stacks_of(code: &[u8], pc: u64) -> Vec<Stack> {
    follow(code, pc - CODE, &mut 100).stacks
}

#[test]
fn the_stack_is_followed_along_jumps() {
    // 1000: je 1008; sub rsp, 16; jmp 100c; 1008: sub rsp, 32; 100c: add rsp, 8; 1010: ret
    let code = hex("7406 4883ec10 eb04 4883ec20 4883c408 c3");
    let heights = |pc| stacks_of(&code, pc).iter().map(|stack| stack.height).collect::<Vec<_>>();
    assert_eq!([0x1002, 0x1006, 0x1008].map(heights), [[0], [16], [0]]);
    assert_eq!(heights(0x100c), [16, 32], "one way may go on behind a call that does not return");
    assert_eq!(heights(0x1001), [0; 0], "no instruction begins there");
}

#[test]
fn what_is_not_understood_ends_the_way() {
    // The last ones: sub rsp, 7; push ax; xchg rax, rsp; mov esp, eax.
    for code in [
        "4883ec07 90",
        "6650 90",
        "4894 90",
        "89c4 90",
        "4883e4f0 90",
        "4889ec 90",
        "c9 90",
        "5c 90",
        "4829c4 90",
        "4883c408 90",
        "488d6590 90",
    ] {
        let code = hex(code);
        let last = CODE + code.len() as u64 - 1;
        assert_eq!(stacks_of(&code, last), [], "{code:x?}");
    }
}

#[test]
fn calls_are_recognized_by_their_last_byte() {
    let call = |code: &str| call_before(&hex(code));
    assert_eq!(call("9090 e8 fb0f0000"), Some(Call::To(0xffb)));
    for indirect in ["ffd0", "41ffd1", "ff1500000000", "ff542408", "ff9424 00010000", "41ff94 24 00010000"] {
        assert_eq!(call(&("90".repeat(4) + indirect)), Some(Call::Anywhere), "{indirect}");
    }
    for other in ["c3", "ffe0", "e9 00000000", "0f05", ""] {
        assert_eq!(call(&("90".repeat(4) + other)), None, "{other}");
    }
}

#[test]
fn a_load_of_the_stack_pointer_before_a_call_is_recognized() {
    // mov rsp, [rdx+56]; mov rsp, rbx; mov rsp, r12: Go's runtime. The others save it, or load another register.
    for (code, switches) in [
        ("488b6238 4889fa 488b3f ffd7", true),
        ("4889dc 4889fa 488b3f ffd7", true),
        ("4c89e4 ffd7", true),
        ("4889e5 ffd7", false),
        ("4989e4 ffd7", false),
        ("4c8b6238 ffd7", false),
        ("488b5238 ffd7", false),
    ] {
        assert_eq!(before(&hex(code)).switches_stack, switches, "{code}");
    }
}

#[test]
fn a_saved_register_is_known_until_it_is_popped() {
    let code = hex("55 4154 53 5b 90 415c 90");
    let saved = |at| stacks_of(&code, CODE + at);
    assert_eq!(saved(4), [Stack { height: 24, saved: [24, 8, 16, 0, 0, 0] }]);
    assert_eq!(saved(6), [Stack { height: 16, saved: [0, 8, 16, 0, 0, 0] }]);
    assert_eq!(saved(8), [Stack { height: 8, saved: [0, 8, 0, 0, 0, 0] }]);
}

#[test]
fn a_stack_that_grows_in_a_loop_ends_the_way() {
    // 1000: push rbx; jne 1004; jmp 1000; 1004: nop
    let code = hex("53 7502 ebfb 90");
    let found = stacks_of(&code, 0x1005);
    assert_eq!(found.iter().map(|stack| stack.height).collect::<Vec<_>>(), [8, 16]);
}
