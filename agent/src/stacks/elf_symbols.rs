//! Looks up the functions at addresses of an ELF file in its symbol tables. Each table is streamed once for all
//! addresses.

use object::{
    LittleEndian,
    elf::{STB_LOCAL, STB_WEAK, STT_FUNC, STT_GNU_IFUNC, STT_NOTYPE, STT_OBJECT, Sym32, Sym64},
    pod,
    read::elf::Sym,
};

use super::{
    demangle::{FunctionName, Language, demangle, has_package, language},
    elf::{Elf, SymbolTable},
    go_functions,
    nearest::Nearest,
    read_at::{Extent, ReadAt, read_exact, read_up_to},
};

/// The most symbols that are read of one table: 96 MiB. A browser has a million.
const MAX_SYMBOLS: u64 = 4 << 20;
/// The number of symbols in one read.
const CHUNK: usize = 2048;
/// The most exported data whose names are compared. `libjvm.so` has 1,000.
const MAX_DATA: usize = 16_384;
/// The most bytes that are read of a mangled name; names of C++ templates reach some KiB.
const MAX_MANGLED: usize = 8 << 10;

/// Returns the function at each of `addresses`, which are the file's own and ascending. The table of all functions is
/// searched first, then the table of exported functions, then Go's own table.
pub(super) fn functions(elf: &Elf, file: &(impl ReadAt + ?Sized), addresses: &[u64]) -> Vec<Option<FunctionName>> {
    let mut names = vec![None; addresses.len()];
    for (table, unsized_too) in [(elf.symbols, true), (elf.dynamic, false)] {
        let Some(table) = table else { continue };
        let missing: Vec<usize> = (0..names.len()).filter(|at| names[*at].is_none()).collect();
        let wanted: Vec<u64> = missing.iter().map(|at| addresses[*at]).collect();
        if wanted.is_empty() {
            break;
        }
        let search = if elf.is_64 { search::<Sym64<LittleEndian>> } else { search::<Sym32<LittleEndian>> };
        for (at, name) in missing.into_iter().zip(search(elf, table, file, &wanted, unsized_too)) {
            names[at] = name;
        }
    }
    if let Some(go) = elf.go {
        let missing = names.iter_mut().zip(addresses).filter(|(name, _)| name.is_none());
        let (missing, wanted): (Vec<_>, Vec<u64>) = missing.unzip();
        for (missing, name) in missing.into_iter().zip(go_functions::functions(go, file, &wanted)) {
            *missing = name.map(|text| FunctionName { text, language: Language::Go });
        }
        let code = go_functions::code(go, file);
        for (name, address) in names.iter_mut().zip(addresses) {
            let Some(name) = name.as_mut().filter(|name| name.language == Language::Other) else { continue };
            // A Go table of another form gives no addresses: then the names decide.
            if code.as_ref().map_or_else(|| has_package(&name.text), |code| code.contains(address)) {
                name.language = Language::Go;
            }
        }
    }
    names
}

/// Returns the file's own address of exported data of 8 bytes; `None` if it is not there.
pub(super) fn exported_word(elf: &Elf, file: &(impl ReadAt + ?Sized), name: &[u8]) -> Option<u64> {
    let table = elf.dynamic.filter(|_| elf.is_64)?;
    let name = [name, b"\0"].concat();
    let (mut found, mut compared) = (None, 0);
    for_each(table.symbols, file, |symbol: &Sym64<LittleEndian>| {
        let is_word = symbol.st_type() == STT_OBJECT && symbol.st_size(LittleEndian) == 8;
        if !is_word || found.is_some() || compared == MAX_DATA {
            return;
        }
        compared += 1;
        found = is_named(table, file, symbol, &name).then(|| symbol.st_value(LittleEndian));
    });
    found
}

/// Returns the rank of a symbol by its binding: if several symbols name one function, the most public one wins.
pub(super) const fn rank(binding: u8) -> u8 {
    match binding {
        STB_LOCAL => 0,
        STB_WEAK => 1,
        _ => 2,
    }
}

/// Returns whether a symbol has this name, which ends with a zero.
fn is_named<S: Sym<Endian = LittleEndian>>(
    table: SymbolTable,
    file: &(impl ReadAt + ?Sized),
    symbol: &S,
    name: &[u8],
) -> bool {
    let at = table.strings.offset.checked_add(symbol.st_name(LittleEndian).into());
    at.and_then(|at| read_exact(file, at, name.len() as u64)).is_some_and(|text| text == name)
}

/// Searches one table. A function of assembler code may have no size: then it reaches to the next function. In the
/// table of exported functions this is wrong, because there may be other code in between.
fn search<S: Sym<Endian = LittleEndian>>(
    elf: &Elf,
    table: SymbolTable,
    file: &(impl ReadAt + ?Sized),
    wanted: &[u64],
    unsized_too: bool,
) -> Vec<Option<FunctionName>> {
    let code = elf.code(file);
    let (mut sized, mut unsized_) = (Nearest::new(wanted), Nearest::new(wanted));
    for_each(table.symbols, file, |symbol: &S| {
        let Some(code) = code.get(usize::from(symbol.st_shndx(LittleEndian))).copied().flatten() else { return };
        let rank = u64::from(rank(symbol.st_bind()));
        let name = symbol.st_name(LittleEndian);
        let (value, size): (u64, u64) = (symbol.st_value(LittleEndian).into(), symbol.st_size(LittleEndian).into());
        match (symbol.st_type(), size) {
            (STT_FUNC | STT_GNU_IFUNC, 1..) => sized.offer(value, rank, || (value.saturating_add(size), name)),
            // Local symbols without a type mark data in code.
            (kind @ (STT_FUNC | STT_NOTYPE), 0) if unsized_too && (kind == STT_FUNC || rank > 0) => {
                unsized_.offer(value, rank, || (code.offset.saturating_add(code.size), name));
            }
            _ => {}
        }
    });
    let found = sized.take().into_iter().zip(unsized_.take()).zip(wanted);
    let best = found.map(|((sized, unsized_), wanted)| {
        let covers = |(_, (end, _)): &(u64, (u64, u32))| wanted < end;
        let after = sized.as_ref().map_or(0, |(_, (end, _))| *end);
        let name = sized.filter(covers).or_else(|| unsized_.filter(covers).filter(|(start, _)| *start >= after))?.1.1;
        read_name(table.strings, file, name)
    });
    best.collect()
}

/// Visits the symbols of a table in their order.
pub(super) fn for_each<S: Sym>(symbols: Extent, file: &(impl ReadAt + ?Sized), mut visit: impl FnMut(&S)) {
    let entry = size_of::<S>();
    let mut buffer = vec![0; entry * CHUNK];
    let mut left = (symbols.size / entry as u64).min(MAX_SYMBOLS) * entry as u64;
    let mut offset = symbols.offset;
    while left > 0 {
        let length = usize::try_from(left).map_or(buffer.len(), |left| left.min(buffer.len()));
        let read = read_up_to(file, offset, &mut buffer[..length]);
        let symbols = buffer[..read].chunks_exact(entry).filter_map(|bytes| pod::from_bytes(bytes).ok());
        symbols.for_each(|(symbol, _)| visit(symbol));
        if read < length {
            return;
        }
        left -= read as u64;
        let Some(next) = offset.checked_add(read as u64) else { return };
        offset = next;
    }
}

fn read_name(strings: Extent, file: &(impl ReadAt + ?Sized), name: u32) -> Option<FunctionName> {
    let name = u64::from(name);
    let room = strings.size.checked_sub(name)?;
    let at = strings.offset.checked_add(name)?;
    // Most names are short, so the first read is short.
    let mut bytes = [0; MAX_MANGLED];
    let mut end = None;
    for most in [128, MAX_MANGLED] {
        let length = usize::try_from(room).map_or(most, |room| room.min(most));
        let read = read_up_to(file, at, &mut bytes[..length]);
        end = bytes[..read].iter().position(|byte| *byte == 0);
        if end.is_some() || read < most {
            break;
        }
    }
    let symbol = String::from_utf8_lossy(&bytes[..end?]);
    let text = demangle(&symbol);
    (!text.is_empty()).then(|| FunctionName { text, language: language(&symbol) })
}

/// Returns the checksum of a file for a debug link; `None` if the file is longer than `most`. The file is read to its
/// end.
pub(super) fn checksum(file: &(impl ReadAt + ?Sized), most: u64) -> Option<u32> {
    let mut sum = crc32fast::Hasher::new();
    let mut buffer = vec![0; 64 << 10];
    let mut offset = 0;
    while offset <= most {
        let read = read_up_to(file, offset, &mut buffer);
        sum.update(&buffer[..read]);
        offset += read as u64;
        if read < buffer.len() {
            return Some(sum.finalize());
        }
    }
    None
}

/// Returns the hash that identifies a file without a build id for receivers: the first 16 bytes of the SHA-256 of its
/// first and last 4096 bytes and its length.
pub(super) fn htlhash(file: &(impl ReadAt + ?Sized), size: u64) -> Option<[u8; 16]> {
    const PART: u64 = 4096;
    let part = size.min(PART);
    let mut digest = ring::digest::Context::new(&ring::digest::SHA256);
    digest.update(&read_exact(file, 0, part)?);
    digest.update(&read_exact(file, size - part, part)?);
    digest.update(&size.to_be_bytes());
    digest.finish().as_ref().first_chunk().copied()
}

#[cfg(test)]
mod tests {
    use std::{fs::File, time::Instant};

    use proptest::prelude::*;

    use super::*;
    use crate::stacks::{elf::example, named_functions};

    fn names(file: &(impl ReadAt + ?Sized), addresses: &[u64]) -> Vec<Option<String>> {
        let found = Elf::parse(file).map(|elf| functions(&elf, file, addresses)).unwrap_or_default();
        found.into_iter().map(|name| name.map(|name| name.text)).collect()
    }

    #[test]
    fn addresses_are_of_the_function_that_covers_them() {
        let addresses = [0, 0x40_0fff, 0x40_1000, 0x40_100f, 0x40_1010, 0x40_1020, 0x40_1031, 0x40_103f, 0x40_1040];
        let expected = ["", "", "first", "first", "", "second", "_start", "_start", ""]
            .map(|name| Some(name).filter(|name| !name.is_empty()));
        let found = names(&example::file()[..], &addresses);
        assert_eq!(found.iter().map(Option::as_deref).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn a_large_file_of_this_machine_is_read_in_pieces() {
        let file = File::open("/proc/self/exe").unwrap();
        let elf = Elf::parse(&file).unwrap();
        // Nearly every page of code contains a named function.
        let code = elf.code(&file).into_iter().flatten().max_by_key(|code| code.size).unwrap();
        let addresses: Vec<u64> = (0..code.size / 4096).map(|page| code.offset + page * 4096).collect();
        let found = functions(&elf, &file, &addresses);
        assert!(found.iter().flatten().count() * 10 > addresses.len() * 9, "{found:?}");
    }

    #[test]
    fn functions_of_this_program_are_of_rust_and_its_start_is_not() {
        let file = File::open("/proc/self/exe").unwrap();
        let elf = Elf::parse(&file).unwrap();
        let codes: Vec<_> = elf.code(&file).into_iter().flatten().collect();
        let addresses = codes.iter().flat_map(|code| (0..code.size / 512).map(|part| code.offset + part * 512));
        let mut addresses: Vec<u64> = addresses.collect();
        addresses.sort_unstable();
        let found: Vec<_> = functions(&elf, &file, &addresses).into_iter().flatten().collect();
        let of = |start: &str| -> Vec<_> { found.iter().filter(|name| name.text.starts_with(start)).collect() };
        assert!(of("core::").len() > 10, "{found:?}");
        let other = of("core::").into_iter().find(|name| name.language != Language::Rust);
        assert_eq!(other, None);
        assert!(of("_start").iter().all(|name| name.language == Language::Other));
        assert!(found.iter().all(|name| name.language != Language::Go));
    }

    #[test]
    fn c_code_beside_go_code_in_one_program_is_not_of_go() {
        let mut bytes = example::file();
        let mut elf = Elf::parse(&bytes[..]).unwrap();
        let table = go_functions::example::table(0x40_0fc0);
        // Go's code ends at 0x40_1020, where `second` begins.
        let extent = Extent { offset: bytes.len() as u64, size: table.len() as u64 };
        let text = Extent { offset: 0x40_1000, size: 0x40 };
        elf.go = Some(go_functions::GoTable { table: extent, text, module: None });
        bytes.extend(table);
        let found = functions(&elf, &bytes[..], &[0x40_1000, 0x40_1020]);
        let found: Vec<_> = found.into_iter().flatten().map(|name| (name.text, name.language)).collect();
        assert_eq!(found, [("first".to_owned(), Language::Go), ("second".to_owned(), Language::Other)]);
    }

    #[test]
    fn cpp_code_in_a_go_program_is_not_of_go_even_where_the_table_has_no_addresses() {
        let mut bytes = example::file();
        let mut elf = Elf::parse(&bytes[..]).unwrap();
        // The dots of `f(...)` look like the dots behind a package.
        let at = bytes.windows(5).position(|name| name == b"first").unwrap();
        bytes[at..at + 5].copy_from_slice(b"_Z1fz");
        let extent = Extent { offset: bytes.len() as u64, size: 0 };
        let text = Extent { offset: 0x40_1000, size: 0x40 };
        elf.go = Some(go_functions::GoTable { table: extent, text, module: None });
        let found = functions(&elf, &bytes[..], &[0x40_1000]);
        let found: Vec<_> = found.into_iter().flatten().map(|name| (name.text, name.language)).collect();
        assert_eq!(found, [("f(...)".to_owned(), Language::Cpp)]);
    }

    #[test]
    fn a_file_with_endless_tables_is_read_to_the_limit() {
        let mut bytes = example::file();
        let elf = Elf::parse(&bytes[..]).unwrap();
        // The size of the last section, and the size of its strings: both overflow 64 bits when they are added to their
        // offset.
        let end = bytes.len();
        bytes[end - 64 + 32..end - 64 + 40].copy_from_slice(&u64::MAX.to_le_bytes());
        let strings = end - 4 * 64 + 32;
        bytes[strings..strings + 8].copy_from_slice(&u64::MAX.to_le_bytes());
        let file = tempfile::tempfile().unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, &bytes, 0).unwrap();
        file.set_len(1 << 40).unwrap();
        let start = Instant::now();
        assert_eq!(Elf::parse(&file).unwrap().build_id, elf.build_id);
        assert_eq!(names(&file, &[0x40_1000]), [Some("first".to_owned())]);
        assert!(htlhash(&file, 1 << 40).is_some());
        assert_eq!(checksum(&file, 1 << 20), None);
        // This only checks that the reads end at all.
        assert!(start.elapsed().as_secs() < 60);
    }

    #[test]
    fn the_hash_is_of_both_ends_and_the_length() {
        let hash = |bytes: &[u8]| {
            htlhash(bytes, bytes.len() as u64).map(|hash| hash.map(|byte| format!("{byte:02x}")).concat())
        };
        // Values of `sha256sum`: of nothing and eight zero bytes, and of `ab` twice and its length.
        assert_eq!(hash(b"").as_deref(), Some("af5570f5a1810b7af78caf4bc70a660f"));
        let mut bytes = vec![0; 10_000];
        let before = hash(&bytes);
        bytes[5000] = 1;
        assert_eq!(hash(&bytes), before);
        bytes[9999] = 1;
        assert_ne!(hash(&bytes), before);
        assert_eq!(htlhash(&b"short"[..], 10_000), None);
    }

    proptest! {
        #[test]
        fn no_damage_does_harm(
            damage in prop::collection::vec((0_usize..1100, prop::sample::select(vec![0_u8, 1, 0x7f, 0x80, 0xff])), 0..8),
            length in 0_usize..1100,
        ) {
            let mut file = example::file();
            for (at, byte) in damage {
                if let Some(found) = file.get_mut(at) {
                    *found = byte;
                }
            }
            file.truncate(length.max(64));
            names(&file[..], &[0, 0x40_1000, 0x40_1031, u64::MAX]);
            if let Some(elf) = Elf::parse(&file[..]) {
                for address in named_functions::addresses_of(&elf, &file[..], "second") {
                    let _offset = elf.offset_of_code(address);
                }
            }
        }
    }
}
