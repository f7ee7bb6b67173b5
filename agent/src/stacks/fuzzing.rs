//! Entry points for fuzz targets of the parsers of untrusted files. Each function panics if a parser breaks its
//! guarantees.

use super::{demangle, elf::Elf, elf_symbols, maps, perf_map};

/// Parses bytes as a program or a library: its build id, its links and its names.
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
    // Each address alone has the same name as in the whole list.
    let alone = addresses.iter().flat_map(|address| elf_symbols::functions(&elf, bytes, &[*address]));
    assert!(alone.eq(names));
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
