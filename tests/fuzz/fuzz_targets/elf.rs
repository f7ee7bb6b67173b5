//! A pod's programs and libraries may be any bytes: they are read for their build id, their links and their names.
#![no_main]

#[path = "../../../agent/src/stacks/demangle.rs"]
mod demangle;
#[path = "../../../agent/src/stacks/elf.rs"]
mod elf;
#[path = "../../../agent/src/stacks/elf_symbols.rs"]
mod elf_symbols;
#[path = "../../../agent/src/stacks/go_functions.rs"]
mod go_functions;
#[path = "../../../agent/src/stacks/nearest.rs"]
mod nearest;
#[path = "../../../agent/src/stacks/read_at.rs"]
mod read_at;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let hash = elf_symbols::htlhash(bytes, bytes.len() as u64);
    assert!(hash.is_some());
    elf_symbols::checksum(bytes, 1 << 20);
    // What is no file at all may still be a name.
    assert!(demangle::demangle(&String::from_utf8_lossy(bytes)).len() <= demangle::MAX_NAME);
    let Some(elf) = elf::Elf::parse(bytes) else { return };
    let mut addresses: Vec<u64> = (0..64).filter_map(|at| elf.address(at * 64)).collect();
    addresses.extend([0, 0x1000, 0x40_1000, 0x40_1031, u64::MAX]);
    addresses.sort_unstable();
    addresses.dedup();
    let names = elf_symbols::functions(&elf, bytes, &addresses);
    assert_eq!(names.len(), addresses.len());
    assert!(names.iter().flatten().all(|name| (1..=demangle::MAX_NAME).contains(&name.text.len())));
    // One by one they have the same names as together.
    let alone = addresses.iter().flat_map(|address| elf_symbols::functions(&elf, bytes, &[*address]));
    assert!(alone.eq(names));
    assert!(elf.cost() < 8 << 10 && elf.build_id.is_none_or(|id| id.len() <= 64));
});
