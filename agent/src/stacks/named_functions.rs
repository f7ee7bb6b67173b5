//! Finds a function of an ELF file by its name in the symbol tables.

use std::collections::BTreeSet;

use object::{
    LittleEndian,
    elf::{SHN_UNDEF, STT_FUNC, Sym32, Sym64, VERSYM_HIDDEN},
    read::elf::Sym,
};

use super::{
    elf::{Elf, SymbolTable},
    elf_symbols::{for_each, rank},
    read_at::{Extent, ReadAt, number, read_exact, read_up_to},
};

/// The most bytes of strings in which a name is searched, and the number of bytes in one read. A browser has 100 MiB.
const MAX_STRINGS: u64 = 256 << 20;
const STRINGS_CHUNK: usize = 64 << 10;
/// The most places at which a name is found. A short name is the end of many others.
const MAX_PLACES: usize = 64 << 10;

/// Returns the file's own addresses of the function with this name, which is the mangled name in C++ and Rust: none if
/// it is not there, and two if it is not clear which function is meant. The most public symbols count, and of versions
/// of one symbol that which programs are linked with today.
pub(super) fn addresses_of(elf: &Elf, file: &(impl ReadAt + ?Sized), name: &str) -> BTreeSet<u64> {
    let find = if elf.is_64 { find::<Sym64<LittleEndian>> } else { find::<Sym32<LittleEndian>> };
    let mut best = Best::default();
    for (table, versions) in [(elf.symbols, None), (elf.dynamic, elf.versions)] {
        if let Some(table) = table.filter(|_| !name.is_empty()) {
            find(table, versions, file, name, &mut best);
        }
    }
    best.addresses
}

/// The addresses of the most public functions with a name.
#[derive(Debug, Default)]
struct Best {
    /// Not an old version, and the rank of the binding.
    rank: (bool, u8),
    addresses: BTreeSet<u64>,
}

impl Best {
    fn offer(&mut self, rank: (bool, u8), address: u64) {
        if rank > self.rank {
            *self = Self { rank, addresses: BTreeSet::new() };
        }
        if rank == self.rank && self.addresses.len() < 2 {
            self.addresses.insert(address);
        }
    }
}

/// Searches one table for functions of this file. The strings are read once, and not for each symbol.
fn find<S: Sym<Endian = LittleEndian>>(
    table: SymbolTable,
    versions: Option<Extent>,
    file: &(impl ReadAt + ?Sized),
    name: &str,
    best: &mut Best,
) {
    let places = places_of(table.strings, file, name);
    if places.is_empty() {
        return;
    }
    let mut next = 0_u64;
    for_each(table.symbols, file, |symbol: &S| {
        let index = next;
        next += 1;
        let is_function = symbol.st_type() == STT_FUNC && symbol.st_shndx(LittleEndian) != SHN_UNDEF;
        if is_function && places.binary_search(&symbol.st_name(LittleEndian)).is_ok() {
            let is_old = versions.is_some_and(|versions| is_hidden(versions, file, index));
            best.offer((!is_old, rank(symbol.st_bind())), symbol.st_value(LittleEndian).into());
        }
    });
}

/// Returns the offsets in `strings` at which a name stands with its end, ascending. It may be the end of another name.
fn places_of(strings: Extent, file: &(impl ReadAt + ?Sized), name: &str) -> Vec<u32> {
    let name = [name.as_bytes(), b"\0"].concat();
    let mut buffer = vec![0; STRINGS_CHUNK + name.len() - 1];
    let (mut places, mut done) = (Vec::new(), 0);
    let size = strings.size.min(MAX_STRINGS);
    while done < size && places.len() < MAX_PLACES {
        let most = usize::try_from(size - done).map_or(buffer.len(), |left| left.min(buffer.len()));
        let Some(at) = strings.offset.checked_add(done) else { break };
        let read = read_up_to(file, at, &mut buffer[..most]);
        let is_name = |part: &[u8]| part.first() == name.first() && *part == name[..];
        let found = buffer[..read].windows(name.len()).enumerate().filter(|(_, part)| is_name(part));
        places.extend(found.filter_map(|(place, _)| u32::try_from(done + place as u64).ok()));
        if read < buffer.len() {
            break;
        }
        // A name may begin in this piece and end in the next one.
        done += STRINGS_CHUNK as u64;
    }
    places.truncate(MAX_PLACES);
    places
}

/// Returns whether programs are no longer linked with a symbol: it is an old version.
fn is_hidden(versions: Extent, file: &(impl ReadAt + ?Sized), index: u64) -> bool {
    let at = index.checked_mul(2).filter(|at| *at < versions.size).and_then(|at| versions.offset.checked_add(at));
    let version = at.and_then(|at| read_exact(file, at, 2));
    version.is_some_and(|version| number(&version, 0, 2) & u64::from(VERSYM_HIDDEN) != 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stacks::elf::example;

    #[test]
    fn a_function_is_found_by_its_name_and_where_it_is_in_the_file() {
        let file = example::file();
        let elf = Elf::parse(&file[..]).unwrap();
        let find = |name: &str| addresses_of(&elf, &file[..], name).into_iter().collect::<Vec<_>>();
        assert_eq!((find("first"), find("second")), (vec![0x40_1000], vec![0x40_1020]));
        // A part of a name, data, and a function that is not in the file or has no type.
        for none in ["firs", "irst", "", "none", "_start"] {
            assert!(find(none).is_empty(), "{none}");
        }
        assert_eq!(elf.offset_of_code(0x40_1020), Some(0x120));
        assert_eq!([0x40_0fff, 0x40_1040, 0x100].map(|address| elf.offset_of_code(address)), [None; 3]);
    }

    #[test]
    fn a_name_means_the_most_public_function_of_today() {
        let mut best = Best::default();
        let mut after = |rank, address| {
            best.offer(rank, address);
            best.addresses.iter().copied().collect::<Vec<_>>()
        };
        assert_eq!(after((true, 0), 1), [1], "a local function");
        assert_eq!(after((true, 0), 2), [1, 2], "it is not clear which one is meant");
        assert_eq!(after((true, 2), 3), [3], "an exported function");
        assert_eq!(after((false, 2), 4), [3], "its old version");
        assert_eq!(after((true, 2), 3), [3], "the same in the other table");
        let versions = Extent { offset: 1, size: 4 };
        let hidden = |index| is_hidden(versions, &[0_u8, 2, 0, 2, 0x80, 2, 0x80][..], index);
        assert_eq!([0, 1, 2, u64::MAX].map(hidden), [false, true, false, false]);
    }

    #[test]
    fn a_name_is_found_at_the_border_of_two_pieces() {
        for at in [0, STRINGS_CHUNK - 5, STRINGS_CHUNK - 1, STRINGS_CHUNK] {
            let mut bytes = vec![b'x'; STRINGS_CHUNK + 10];
            bytes[at..at + 5].copy_from_slice(b"name\0");
            let strings = Extent { offset: 0, size: bytes.len() as u64 };
            let found: Vec<usize> = places_of(strings, &bytes[..], "name").into_iter().map(|at| at as usize).collect();
            assert_eq!(found, [at]);
        }
    }
}
