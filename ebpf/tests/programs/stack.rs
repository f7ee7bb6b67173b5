//! Checks the stack that the programs of the built object need, by the rule of the oldest kernel that is supported.
//! Newer kernels count less: a program that they load may be refused by that one.

use std::collections::BTreeMap;

use crate::code::{CALL, Function, INSTRUCTION, Programs, Result};

/// `MAX_BPF_STACK`: bytes that all functions of a call chain may have.
const MOST: u64 = 512;
/// `MAX_CALL_FRAMES`: functions of a call chain.
const MOST_CALLS: usize = 8;
/// The granularity of `check_max_stack_depth` in Linux 6.1: a function needs at least so much.
const GRANULARITY: u64 = 32;

/// The register that points to the end of a function's stack.
const FRAME: u8 = 10;
/// Registers that a call does not keep are those below.
const KEPT: u8 = 6;
const CLASS: u8 = 0x07;
const LOADS: u8 = 0x01;
const STORES: [u8; 2] = [0x02, 0x03];
const ARITHMETIC: [u8; 2] = [0x04, 0x07];
/// `BPF_ALU64 | BPF_MOV | BPF_X`.
const MOVE: u8 = 0xbf;
/// `BPF_ALU64 | BPF_ADD | BPF_K`.
const ADD: u8 = 0x07;

/// Returns the number of bytes of its stack that a function uses. Follows pointers to the stack from one instruction to
/// the next, without branches: the compiler makes them just before they are used.
fn depth(code: &[u8]) -> Result<u64> {
    let mut pointers = BTreeMap::from([(FRAME, 0)]);
    let mut lowest = 0_i64;
    for instruction in code.chunks_exact(INSTRUCTION) {
        let (operation, to, from) = (instruction[0], instruction[1] & 0xf, instruction[1] >> 4);
        let offset = i64::from(i16::from_le_bytes(instruction[2..4].try_into()?));
        let immediate = i64::from(i32::from_le_bytes(instruction[4..8].try_into()?));
        let class = operation & CLASS;
        let base = if class == LOADS { from } else { to };
        if (class == LOADS || STORES.contains(&class)) && pointers.contains_key(&base) {
            lowest = lowest.min(pointers[&base] + offset);
        }
        if operation == CALL {
            pointers.retain(|register, _| *register >= KEPT);
        } else if operation == MOVE && pointers.contains_key(&from) {
            pointers.insert(to, pointers[&from]);
        } else if operation == ADD && pointers.contains_key(&to) {
            pointers.insert(to, pointers[&to] + immediate);
            lowest = lowest.min(pointers[&to]);
        } else if class == LOADS || ARITHMETIC.contains(&class) {
            pointers.remove(&to);
        }
    }
    Ok(lowest.unsigned_abs())
}

/// The deepest call chain of a function: its bytes, and its functions with the bytes of each.
fn deepest(programs: &Programs<'_>, function: Function) -> Result<(u64, Vec<(String, u64)>)> {
    let own = depth(programs.code(function)?)?;
    let mut below = (0, Vec::new());
    for callee in programs.references(function)?.calls {
        let chain = deepest(programs, callee)?;
        assert!(chain.1.len() < MOST_CALLS, "{chain:?}: more than {MOST_CALLS} nested calls");
        below = below.max(chain);
    }
    let mut chain = vec![(programs.name(function).to_owned(), own)];
    chain.extend(below.1);
    Ok((below.0 + own.max(1).next_multiple_of(GRANULARITY), chain))
}

#[test]
fn nested_calls_fit_in_the_stack_of_the_oldest_kernel() {
    let programs = Programs::parse(podperf_ebpf::OBJECT).unwrap();
    let entries = programs.entries().unwrap();
    let mut used = BTreeMap::new();
    for (_, name, program) in entries {
        used.insert(name, deepest(&programs, program).unwrap());
    }
    let too_deep: Vec<_> = used.iter().filter(|(_, (bytes, _))| *bytes > MOST).collect();
    assert!(too_deep.is_empty(), "more than {MOST} bytes: {too_deep:#?}");
    assert!(used["sched_switch"].1.len() > 2, "no calls are seen: {:?}", used["sched_switch"]);
}
