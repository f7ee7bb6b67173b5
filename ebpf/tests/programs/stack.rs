//! Checks the stack that the programs of the built object need, by the rule of the oldest kernel that is supported.
//! Newer kernels count less: a program that they load may be refused by that one.

use std::{collections::BTreeMap, path::Path};

use crate::code::{CALL, Function, INSTRUCTION, Programs, Result, compile};

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
/// `BPF_ALU64 | BPF_ADD | BPF_X`, and the same with `BPF_SUB`.
const BY_REGISTER: [u8; 2] = [0x0f, 0x1f];

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
        } else if BY_REGISTER.contains(&operation) && pointers.contains_key(&to) {
            return Err("a pointer to the stack is moved by a value that is not known here".into());
        } else if class == LOADS || ARITHMETIC.contains(&class) {
            pointers.remove(&to);
        }
    }
    Ok(lowest.unsigned_abs())
}

/// The stack and the nested calls of a function.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Need {
    bytes: u64,
    /// The largest number of nested functions, perhaps of others than `chain`.
    calls: usize,
    /// The functions that need the bytes, with the bytes of each.
    chain: Vec<(String, u64)>,
}

fn need(programs: &Programs<'_>, function: Function) -> Result<Need> {
    let own = depth(programs.code(function)?)?;
    let mut below = Need::default();
    for callee in programs.references(function)?.calls {
        let callee = need(programs, callee)?;
        let calls = below.calls.max(callee.calls);
        below = Need { calls, ..below.max(callee) };
    }
    let mut chain = vec![(programs.name(function).to_owned(), own)];
    chain.extend(below.chain);
    Ok(Need { bytes: below.bytes + own.max(1).next_multiple_of(GRANULARITY), calls: below.calls + 1, chain })
}

#[test]
fn nested_calls_fit_in_the_stack_of_the_oldest_kernel() {
    let source = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/bpf/podperf.bpf.c"));
    for machine in ["x86", "arm64"] {
        let object = compile(source, machine);
        let programs = Programs::parse(&object).unwrap();
        let mut needs = BTreeMap::new();
        for (_, name, program) in programs.entries().unwrap() {
            needs.insert(name, need(&programs, program).unwrap());
        }
        let too_deep: Vec<_> = needs.values().filter(|it| it.bytes > MOST || it.calls > MOST_CALLS).collect();
        assert!(too_deep.is_empty(), "{machine}: more than {MOST} bytes or {MOST_CALLS} functions: {too_deep:#?}");
        assert!(needs["sched_switch"].calls > 3, "no calls are seen: {:?}", needs["sched_switch"]);
    }
}
