//! Entry points for fuzz targets of the parsers of untrusted files. Each function panics if a parser breaks its
//! guarantees.

use std::sync::Arc;

use super::{
    demangle,
    dwarf::{Before, Call, Code, Found, Guess, Memory, Registers, Tables, before, guesses, jumps, walk},
    elf::Elf,
    elf_symbols,
    hotspot::{Frame, HotSpot},
    line_table, maps, packed_symbols, perf_map,
};

/// Parses bytes as a program or a library: its build id, its links, its names and its source lines.
pub fn object_file(bytes: &[u8]) {
    let hash = elf_symbols::htlhash(bytes, bytes.len() as u64);
    assert!(hash.is_some());
    elf_symbols::checksum(bytes, 1 << 20);
    // Bytes that are no file are still tried as a name.
    assert!(demangle::demangle(&String::from_utf8_lossy(bytes)).len() <= demangle::MAX_NAME);
    let Some(elf) = Elf::parse(bytes) else { return };
    let mut addresses: Vec<u64> = (0..64).filter_map(|at| elf.address(at * 64)).collect();
    addresses.extend([0, 0x1000, 0x40_1000, 0x40_1031, u64::MAX]);
    addresses.sort_unstable();
    addresses.dedup();
    let names = elf_symbols::functions(&elf, bytes, &addresses);
    assert_eq!(names.len(), addresses.len());
    assert!(names.iter().flatten().all(|name| (1..=demangle::MAX_NAME).contains(&name.text.len())));
    let packed = packed_symbols::functions(&elf, bytes, &addresses, || true);
    assert!(packed.iter().flatten().all(|name| (1..=demangle::MAX_NAME).contains(&name.text.len())));
    // Each address alone has the same name as in the whole list.
    let alone = addresses.iter().flat_map(|address| elf_symbols::functions(&elf, bytes, &[*address]));
    assert!(alone.eq(names));
    let lines = |addresses: &[u64]| line_table::lines(&elf, bytes, addresses, usize::MAX).unwrap_or_default().lines;
    let found = lines(&addresses);
    assert!(found.values().all(|line| line.line > 0 && line.file.len() < 10 << 10));
    assert!(addresses.iter().all(|address| lines(&[*address]).get(address) == found.get(address)));
    assert!(elf.cost() < 8 << 10 && elf.build_id.is_none_or(|id| id.len() <= 64));
}

/// Parses bytes as a JIT compiler's map, and as a process's `/proc/PID/maps`.
pub fn memory_maps(bytes: &[u8]) {
    let wanted = [0, 1, 0x1000, 0x1018, 0x2001, 0x7f00_0000_0000, u64::MAX];
    let names = perf_map::names(bytes, &wanted);
    assert_eq!(names.len(), wanted.len());
    let text = String::from_utf8_lossy(bytes);
    assert!(names.iter().flatten().all(|name| text.contains(&**name)));
    let vmas = maps::parse(bytes);
    assert!(vmas.is_sorted_by_key(|vma| vma.start) && vmas.iter().all(|vma| vma.start < vma.end));
}

/// The addresses of a file's code, and of the stack.
const CODE: u64 = 0x40_0000;
const STACK: u64 = 0x7f00_0000_0000;

/// A program whose code, tables and stack are the same bytes.
struct Program<'a> {
    bytes: &'a [u8],
    tables: &'a Tables,
}

impl Code for Program<'_> {
    fn rule(&mut self, address: u64) -> Found {
        if self.is_code(address) != Some(true) {
            return Found::Nowhere;
        }
        let Some(inside) = self.tables.address_of(address - CODE) else { return Found::NoFile };
        let rule = self.tables.rule(self.bytes, inside);
        rule.map_or(Found::NotNow, |rule| rule.map_or(Found::NoRule, |rule| Found::Rule(Arc::new(rule))))
    }

    fn is_code(&mut self, address: u64) -> Option<bool> {
        Some(self.is_known_code(address))
    }

    fn is_known_code(&self, address: u64) -> bool {
        address.checked_sub(CODE).is_some_and(|offset| offset < self.bytes.len() as u64)
    }

    fn guesses(&mut self, address: u64) -> Option<Arc<[Guess]>> {
        Some(guesses(self.bytes, CODE, address))
    }

    fn before(&mut self, return_address: u64) -> Option<Before> {
        Some(before(self.until(return_address)))
    }

    fn jumps(&mut self, start: u64) -> Option<Arc<[Call]>> {
        Some(jumps(&self.bytes[self.until(start).len()..]))
    }
}

impl Program<'_> {
    /// Returns the code before an address.
    fn until(&self, address: u64) -> &[u8] {
        let at = usize::try_from(address.saturating_sub(CODE)).unwrap_or(usize::MAX);
        &self.bytes[..at.min(self.bytes.len())]
    }
}

impl Memory for Program<'_> {
    fn word(&self, address: u64) -> Option<u64> {
        let at = usize::try_from(address.checked_sub(STACK)?).ok()?;
        self.bytes.get(at..at.checked_add(8)?)?.try_into().ok().map(u64::from_le_bytes)
    }
}

/// Parses bytes as the unwind tables of a program, and walks stacks by them.
pub fn unwind_tables(bytes: &[u8]) {
    let Some(tables) = Tables::parse(bytes) else { return };
    assert!(tables.cost() < 16 << 10);
    let machine = tables.machine();
    for start in (0..bytes.len() as u64).step_by(61).take(64) {
        if let Some(Ok(Some(rule))) = tables.address_of(start).map(|inside| tables.rule(bytes, inside)) {
            assert!(rule.cost() < 16 << 10);
        }
        let mut registers = Registers::unknown(machine);
        for register in (0..).take(machine.registers()) {
            registers.set(register, Some(STACK + 8 * u64::from(register)));
        }
        registers.set(machine.sp(), Some(STACK));
        registers.set(machine.pc(), Some(CODE + start));
        let mut program = Program { bytes, tables: &tables };
        let memory = Program { bytes, tables: &tables };
        let walked = walk(registers, &mut program, &memory);
        assert!((1..=127).contains(&walked.frames.len()) && walked.slots.len() < walked.frames.len());
        // A frame has one word that led to it; the end has three.
        assert!(walked.links.len() <= walked.frames.len() + 3);
    }
}

/// Reads bytes as the memory of a Java virtual machine, whose list of fields an early word points to.
pub fn virtual_machine(bytes: &[u8]) {
    for list in (0..64).step_by(8) {
        let Some(machine) = HotSpot::read(bytes, list) else { continue };
        let addresses = (0..bytes.len() as u64).step_by(61).take(64).chain([u64::MAX]);
        for frame in addresses.filter_map(|address| machine.frame(bytes, address)) {
            assert!(!matches!(frame, Frame::Words(0)), "a frame without a return address");
        }
    }
}
