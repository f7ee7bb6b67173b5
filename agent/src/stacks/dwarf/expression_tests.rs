use gimli::{Encoding, EndianSlice, EvaluationResult, Expression, Format, LittleEndian, Location, Value};
use proptest::prelude::*;

use super::*;
use crate::stacks::dwarf::machine::Machine;

/// Memory where each word holds the double of its address, below an end.
struct Doubles;

impl Memory for Doubles {
    fn word(&self, address: u64) -> Option<u64> {
        (address < 0x1_0000).then(|| address * 2)
    }
}

fn registers() -> Registers {
    let mut registers = Registers::unknown(Machine::X86_64);
    registers.set(7, Some(0x1000));
    registers.set(16, Some(0x40_100b));
    registers
}

fn result(expression: &[u8]) -> Result<u64, Stop> {
    evaluate(expression, None, &registers(), &Doubles)
}

/// Evaluates with gimli; `None` stands for any failure.
fn by_gimli(expression: &[u8]) -> Option<u64> {
    let encoding = Encoding { address_size: 8, format: Format::Dwarf32, version: 4 };
    let mut evaluation = Expression(EndianSlice::new(expression, LittleEndian)).evaluation(encoding);
    evaluation.set_max_iterations(200);
    let mut state = evaluation.evaluate().ok()?;
    loop {
        state = match state {
            EvaluationResult::Complete => break,
            EvaluationResult::RequiresRegister { register, .. } => {
                let value = registers().get(register.0.try_into().ok()?)?;
                evaluation.resume_with_register(Value::Generic(value)).ok()?
            }
            EvaluationResult::RequiresMemory { address, size, .. } => {
                let word = Doubles.word(address)? & u64::MAX >> (64 - 8 * u32::from(size));
                evaluation.resume_with_memory(Value::Generic(word)).ok()?
            }
            _ => return None,
        };
    }
    match evaluation.as_result().last()?.location {
        Location::Address { address } => Some(address),
        _ => None,
    }
}

#[test]
fn the_expression_of_the_linkage_table_knows_whether_the_number_is_pushed() {
    // GNU ld: DW_OP_breg7 8; DW_OP_breg16 0; lit15; and; lit11; ge; lit3; shl; plus.
    let expression = [0x77, 8, 0x80, 0, 0x3f, 0x1a, 0x3b, 0x2a, 0x33, 0x24, 0x22];
    assert_eq!(result(&expression), Ok(0x1010));
    let mut before = registers();
    before.set(16, Some(0x40_100a));
    assert_eq!(evaluate(&expression, None, &before, &Doubles), Ok(0x1008));
}

#[test]
fn missing_memory_is_named() {
    assert_eq!(result(&[0x77, 8, 0x06]), Ok(0x2010));
    // DW_OP_const4u 0x20000; DW_OP_deref.
    assert_eq!(result(&[0x0c, 0, 0, 2, 0, 0x06]), Err(Stop::Missing(0x2_0000)));
}

#[test]
fn faults_and_endless_loops_are_odd() {
    // DW_OP_skip -3: loops for ever.
    assert_eq!(result(&[0x2f, 0xfd, 0xff]), Err(Stop::Odd));
    // A jump out of the expression, a stack of seventeen, an empty stack, an unknown register, division by zero, and
    // operations that are not of call frame information.
    let deep = [0x31; 17];
    for odd in
        [&[0x31, 0x2f, 9, 0][..], &deep, &[], &[0x13], &[0x70, 0], &[0x31, 0x30, 0x1b], &[0x9c], &[0x03], &[0x50]]
    {
        assert_eq!(result(odd), Err(Stop::Odd), "{odd:x?}");
    }
    assert_eq!(result(&deep[1..]), Ok(1));
}

#[test]
fn a_value_at_the_start_is_used() {
    assert_eq!(evaluate(&[0x23, 8], Some(5), &registers(), &Doubles), Ok(13));
}

/// Operations with their operands, most of them understood.
fn operation() -> impl Strategy<Value = Vec<u8>> {
    let plain = prop::sample::select(vec![
        0x06, 0x12, 0x13, 0x14, 0x16, 0x17, 0x19, 0x1a, 0x1b, 0x1c, 0x1d, 0x1e, 0x1f, 0x20, 0x21, 0x22, 0x24, 0x25,
        0x26, 0x27, 0x29, 0x2a, 0x2b, 0x2c, 0x2d, 0x2e, 0x96,
    ]);
    let byte = (prop::sample::select(vec![0x08, 0x09, 0x15]), any::<u8>());
    let leb = (prop::sample::select(vec![0x10, 0x11, 0x23, 0x77]), 0_u8..0x80);
    let wide = (prop::sample::select(vec![0x0c, 0x0d]), any::<[u8; 4]>());
    let straight = prop_oneof![
        6 => plain.prop_map(|operation| vec![operation]),
        4 => (0x30_u8..0x50).prop_map(|literal| vec![literal]),
        2 => byte.prop_map(|(operation, byte)| vec![operation, byte]),
        1 => (1_u8..9).prop_map(|size| vec![0x94, size]),
        1 => leb.prop_map(|(operation, byte)| vec![operation, byte]),
        2 => wide.prop_map(|(operation, bytes)| [vec![operation], bytes.to_vec()].concat()),
        1 => any::<[u8; 8]>().prop_map(|bytes| [vec![0x0e], bytes.to_vec()].concat()),
    ];
    // A jump is over exactly one operation: gimli knows more operations, which the bytes of operands could be.
    let jump = (prop::sample::select(vec![None, None, None, Some(0x28), Some(0x2f)]), straight);
    jump.prop_map(|(jump, operation)| match jump {
        Some(jump) => [&[jump, u8::try_from(operation.len()).unwrap(), 0], &operation[..]].concat(),
        None => operation,
    })
}

proptest! {
    #[test]
    fn results_are_those_of_gimli(
        // They push at most 15 values: the stack of gimli has no limit.
        start in prop::collection::vec(0x30_u8..0x50, 0..5),
        operations in prop::collection::vec(operation(), 0..12),
    ) {
        let expression = [start, operations.concat()].concat();
        prop_assert_eq!(result(&expression).ok(), by_gimli(&expression), "{:x?}", expression);
    }

    #[test]
    fn no_bytes_do_harm(expression in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = evaluate(&expression, Some(1), &registers(), &Doubles);
    }
}
