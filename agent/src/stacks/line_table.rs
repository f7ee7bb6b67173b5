//! Looks up source lines in the table of lines (`.debug_line`) of an ELF file, in the forms of DWARF 2 to 5.
//!
//! The table has a program for each unit of source code, and gimli runs these programs one after the other: an index of
//! them would take more memory than the few lines that are wanted. So a unit is in memory only while its program runs.
//! Inlined functions are in another table. An address in inlined code has the line of the inlined code.
//!
//! The file is untrusted. Units over a limit are left out, and a damaged unit ends at the damage.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    sync::Arc,
};

use gimli::{
    AttributeValue, DebugLine, DebugLineOffset, DebugLineStrOffset, DebugStrOffset, EndianSlice, IncompleteLineProgram,
    LineInstruction, LineProgramHeader, LineRow, LittleEndian,
};

use super::{
    debug_section::{MAX_TEXT, Stream, Texts},
    elf::Elf,
    read_at::{ReadAt, number},
};

/// The most bytes of a unit, and the largest number of units.
const MAX_UNIT: u64 = 8 << 20;
const MAX_UNITS: usize = 1 << 18;
/// The most bytes of a unit's lists of directories and files. A byte of them can take 100 bytes of memory.
const MAX_HEADER: u64 = 128 << 10;
/// The names of the sections.
const SECTIONS: [&[u8]; 3] = [b".debug_line\0", b".debug_line_str\0", b".debug_str\0"];

type Slice<'a> = EndianSlice<'a, LittleEndian>;

/// A line of source code.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SourceLine {
    /// The path of the file, as the compiler wrote it. Before DWARF 5 it may begin at the directory of the build.
    pub file: Arc<str>,
    /// The line, counted from 1.
    pub line: u32,
}

/// The lines that were found in a file.
#[derive(Debug, Default)]
pub(super) struct Lines {
    pub(super) lines: HashMap<u64, SourceLine>,
    /// The bytes of all paths.
    pub(super) text_bytes: usize,
}

/// A row of a program: the file and the line of the code from an address on. The line 0 stands for none.
#[derive(Clone, Copy, Debug)]
struct Row {
    address: u64,
    file: u64,
    line: u32,
}

/// Returns the lines of the code at these addresses, which are the file's own; `None` if the file has no table. All
/// paths together take at most `room` bytes. Lines of files that find no room are left out.
pub(super) fn lines<F: ReadAt + ?Sized>(elf: &Elf, file: &F, addresses: &[u64], room: usize) -> Option<Lines> {
    let [table, line_texts, texts] = elf.debug_sections(file, SECTIONS);
    let mut table = Stream::open(file, table?, elf.is_64)?;
    let texts = [line_texts, texts].map(|section| section.map(|section| Texts::new(file, section, elf.is_64)));
    let mut paths = Paths { texts, known: HashSet::new(), room };
    let mut left: BTreeSet<u64> = addresses.iter().copied().collect();
    let (mut lines, mut unit) = (HashMap::new(), Vec::new());
    for _ in 0..MAX_UNITS {
        if left.is_empty() || next_unit(&mut table, &mut unit).is_none() {
            break;
        }
        let address_size = if elf.is_64 { 8 } else { 4 };
        let unit = DebugLine::new(&unit, LittleEndian);
        let program = unit.program(DebugLineOffset(0), address_size, None, None);
        let Ok(mut program) = program else { continue };
        // A unit has many lines of few files.
        let mut files = HashMap::new();
        for (address, row) in search(&mut program, &mut left) {
            let file = files.entry(row.file).or_insert_with(|| paths.path(program.header(), row.file));
            lines.extend(file.clone().map(|file| (address, SourceLine { file, line: row.line })));
        }
    }
    Some(Lines { lines, text_bytes: room - paths.room })
}

/// Reads the next unit, from its length on. Leaves `unit` empty if the unit exceeds a limit. Returns `None` at the end
/// of the table.
fn next_unit<F: ReadAt + ?Sized>(table: &mut Stream<'_, F>, unit: &mut Vec<u8>) -> Option<()> {
    unit.clear();
    unit.resize(4, 0);
    table.fill(unit)?;
    let (mut length, mut word) = (number(unit, 0, 4), 4);
    if length == 0xffff_ffff {
        word = 8;
        unit.resize(12, 0);
        table.fill(&mut unit[4..])?;
        length = number(unit, 4, 8);
    }
    if length > MAX_UNIT {
        unit.clear();
        return table.skip(length);
    }
    let start = unit.len();
    unit.resize(start + usize::try_from(length).ok()?, 0);
    table.fill(&mut unit[start..])?;
    // The version, and since version 5 the sizes of addresses and segments, are in front of the size of the lists.
    let version = number(unit, start, 2);
    if number(unit, start + if version >= 5 { 4 } else { 2 }, word) > MAX_HEADER {
        unit.clear();
    }
    Some(())
}

/// Runs a program, and moves the addresses that its rows cover out of `left`. Each has the row that covers it.
fn search(program: &mut IncompleteLineProgram<Slice<'_>>, left: &mut BTreeSet<u64>) -> Vec<(u64, Row)> {
    let mut found = Vec::new();
    // The last row of the sequence, and the first address in `left` that is not below it.
    let (mut last, mut next) = (None::<Row>, None::<u64>);
    for_each_row(program, |row| {
        let address = row.address();
        match last.take() {
            // Linkers leave the lines of removed code at 0.
            None => next = if address == 0 { None } else { left.range(address..).next().copied() },
            Some(last) if next.is_some_and(|next| (last.address..address).contains(&next)) => {
                if last.line > 0 {
                    let covered: Vec<u64> = left.range(last.address..address).copied().collect();
                    found.extend(covered.into_iter().filter(|address| left.remove(address)).map(|at| (at, last)));
                }
                next = left.range(address..).next().copied();
            }
            Some(_) => {}
        }
        if !row.end_sequence() {
            let line = row.line().and_then(|line| u32::try_from(line.get()).ok());
            last = Some(Row { address, file: row.file_index(), line: line.unwrap_or(0) });
        }
    });
    found
}

/// Calls `visit` with each row of code that is in the file, and with the end of each sequence. The addresses of a
/// sequence never fall.
fn for_each_row(program: &mut IncompleteLineProgram<Slice<'_>>, mut visit: impl FnMut(&LineRow)) {
    let mut instructions = program.header().instructions();
    let mut row = LineRow::new(program.header());
    let mut is_removed = false;
    while let Ok(Some(instruction)) = instructions.next_instruction(program.header()) {
        let start = match instruction {
            // No compiler writes these. The first would take memory each time, and gimli cannot negate the second.
            LineInstruction::DefineFile(_) | LineInstruction::AdvanceLine(i64::MIN) => continue,
            LineInstruction::SetAddress(start) => Some(start),
            _ => None,
        };
        let Ok(is_row) = row.execute(instruction, program) else { return };
        // An address of removed code is not set.
        is_removed = start.map_or(is_removed, |start| start != row.address());
        if is_row {
            if !is_removed || row.end_sequence() {
                visit(&row);
            }
            is_removed &= !row.end_sequence();
            row.reset(program.header());
        }
    }
}

/// The paths of a file's source files, each held once.
struct Paths<'a, F: ReadAt + ?Sized> {
    /// The texts of `.debug_line_str` and `.debug_str`.
    texts: [Option<Texts<'a, F>>; 2],
    known: HashSet<Arc<str>>,
    /// The bytes that further paths may take.
    room: usize,
}

impl<F: ReadAt + ?Sized> Paths<'_, F> {
    /// Returns the path of a unit's source file: its name behind its directory, and this one behind that of the build.
    fn path(&mut self, unit: &LineProgramHeader<Slice<'_>>, file: u64) -> Option<Arc<str>> {
        let file = unit.file(file)?;
        let build = if unit.version() >= 5 && file.directory_index() > 0 { unit.directory(0) } else { None };
        let mut path = String::new();
        for part in [build, file.directory(unit), Some(file.path_name())].into_iter().flatten() {
            let part = self.text(&part)?;
            path = if path.is_empty() || part.starts_with('/') { part } else { format!("{path}/{part}") };
        }
        if let Some(known) = self.known.get(&*path) {
            return Some(Arc::clone(known));
        }
        self.room = self.room.checked_sub(path.len())?;
        let path = Arc::<str>::from(path);
        self.known.insert(Arc::clone(&path));
        Some(path)
    }

    fn text(&mut self, text: &AttributeValue<Slice<'_>>) -> Option<String> {
        let [line_texts, texts] = &mut self.texts;
        match *text {
            AttributeValue::String(text) if text.slice().len() <= MAX_TEXT => {
                Some(String::from_utf8_lossy(text.slice()).into_owned())
            }
            AttributeValue::DebugLineStrRef(DebugLineStrOffset(at)) => line_texts.as_mut()?.at(at as u64),
            AttributeValue::DebugStrRef(DebugStrOffset(at)) => texts.as_mut()?.at(at as u64),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use flate2::{Compression, write::ZlibEncoder};
    use object::elf::{ELFCOMPRESS_ZLIB, ELFCOMPRESS_ZSTD};
    use proptest::prelude::*;

    use super::*;
    use crate::stacks::elf::example::sections;

    const TEXTS: &[u8] = b"/src\0include\0a.c\0b.h\0";
    const COMPRESSED: u64 = 0x800;
    const ROOM: usize = 1 << 20;

    /// Returns a unit of a version with this program. Its files are `a.c` in `/src` and `b.h` in `include`. The lists
    /// of version 4 have more directories.
    fn unit(version: u8, more: usize, program: &[u8]) -> Vec<u8> {
        let mut unit = vec![version, 0];
        let mut lists = vec![1_u8, 1, 1, 0xfb, 14, 13, 0, 1, 1, 1, 1, 0, 0, 0, 1, 0, 0, 1];
        if version < 5 {
            lists.extend(b"/src\0include\0");
            lists.extend(b"x\0".repeat(more));
            lists.extend(b"\0a.c\0\x01\0\0b.h\0\x02\0\0\0");
        } else {
            unit.extend([8, 0]);
            // A path is an offset in `.debug_line_str`. A file has the number of its directory, too.
            lists.extend([1, 1, 0x1f, 2, 0, 0, 0, 0, 5, 0, 0, 0]);
            lists.extend([2, 1, 0x1f, 2, 0x0b, 2, 13, 0, 0, 0, 0, 17, 0, 0, 0, 1]);
        }
        unit.extend(u32::try_from(lists.len()).unwrap().to_le_bytes());
        unit.extend(lists);
        unit.extend(program);
        [&u32::try_from(unit.len()).unwrap().to_le_bytes()[..], &unit[..]].concat()
    }

    /// Returns an instruction that sets the address.
    fn set(address: u64) -> Vec<u8> {
        [&[0, 9, 2][..], &address.to_le_bytes()[..]].concat()
    }

    /// Returns instructions that add a row, with the bytes of code and the lines since the last row.
    fn row(bytes: u8, file: u8, lines: i8) -> Vec<u8> {
        vec![2, bytes, 4, file, 3, lines.cast_unsigned() & 0x7f, 1]
    }

    /// Returns instructions that end a sequence, with the bytes of code since the last row.
    fn end(bytes: u8) -> Vec<u8> {
        vec![2, bytes, 0, 1, 1]
    }

    /// Returns a program with 64 bytes of code at 0x401000: each quarter has another line, and the third one has none.
    /// The number of the first file is 0 or 1, by the version.
    fn program(first: u8) -> Vec<u8> {
        let rows = [row(0, first, 9), row(16, first + 1, -7), row(16, first, -3), row(16, first, 12)];
        [set(0x40_1000), rows.concat(), end(16)].concat()
    }

    /// Returns a file with this table.
    fn file(table: &[u8]) -> Vec<u8> {
        sections(&[(".debug_line", 0, table), (".debug_line_str", 0x30, TEXTS)])
    }

    fn compressed(kind: u32, bytes: &[u8]) -> Vec<u8> {
        let mut packed = [kind, 0].map(u32::to_le_bytes).concat();
        packed.extend([bytes.len() as u64, 1].map(u64::to_le_bytes).concat());
        let mut encoder = ZlibEncoder::new(packed, Compression::default());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    /// Returns the lines as `PATH:LINE`, and an empty text for an address without one.
    fn found(file: &[u8], addresses: &[u64], room: usize) -> Vec<String> {
        let elf = Elf::parse(file).unwrap();
        let found = lines(&elf, file, addresses, room).unwrap_or_default().lines;
        let line = |at: &u64| found.get(at).map(|line| format!("{}:{}", line.file, line.line));
        addresses.iter().map(|at| line(at).unwrap_or_default()).collect()
    }

    #[test]
    fn an_address_has_the_line_of_the_row_that_covers_it() {
        let addresses = [0x10, 0x40_0fff, 0x40_1000, 0x40_100f, 0x40_1010, 0x40_1020, 0x40_103f, 0x40_1040];
        // The linker has removed the code of the first unit.
        let removed = unit(4, 0, &[set(0), row(0, 1, 4), end(100)].concat());
        for (version, first, include) in [(4, 1, "include/b.h:3"), (5, 0, "/src/include/b.h:3")] {
            let table = [&removed[..], &unit(version, 0, &program(first))[..]].concat();
            let expected = ["", "", "/src/a.c:10", "/src/a.c:10", include, "", "/src/a.c:12", ""];
            assert_eq!(found(&file(&table), &addresses, ROOM), expected);
            let (table, texts) = (compressed(ELFCOMPRESS_ZLIB, &table), compressed(ELFCOMPRESS_ZLIB, TEXTS));
            let packed = [(".debug_line", COMPRESSED, &table[..]), (".debug_line_str", COMPRESSED, &texts[..])];
            assert_eq!(found(&sections(&packed), &addresses, ROOM), expected);
        }
        let elf = Elf::parse(&file(&removed)[..]).unwrap();
        assert!(lines(&elf, &file(&removed)[..], &[0x10], ROOM).is_some_and(|found| found.lines.is_empty()));
        let without = sections(&[(".comment", 0, &b"x"[..])]);
        assert!(lines(&Elf::parse(&without[..]).unwrap(), &without[..], &[0x10], ROOM).is_none());
    }

    #[test]
    fn what_exceeds_a_limit_is_left_out_and_the_rest_is_read() {
        let good = unit(4, 0, &program(1));
        let line = |table: &[&[u8]]| found(&file(&table.concat()), &[0x40_1000], ROOM).concat();
        let other = [set(0x40_1000), row(0, 2, 41), end(64)].concat();
        assert_eq!(line(&[&unit(4, 10, &other), &good]), "include/b.h:42");
        assert_eq!(line(&[&unit(4, 100_000, &other), &good]), "/src/a.c:10");
        let size = usize::try_from(MAX_UNIT).unwrap() + 1;
        let huge = [&u32::try_from(size).unwrap().to_le_bytes()[..], &vec![0; size][..]].concat();
        assert_eq!(line(&[&huge, &good]), "/src/a.c:10");
        assert_eq!(line(&[&good[..good.len() - 1]]), "");
        assert_eq!(found(&file(&good), &[0x40_1000], "/src/a.c".len()), ["/src/a.c:10"]);
        assert_eq!(found(&file(&good), &[0x40_1000], "/src/a.c".len() - 1), [""]);
        let packed = compressed(ELFCOMPRESS_ZSTD, &good);
        assert_eq!(found(&sections(&[(".debug_line", COMPRESSED, &packed[..])]), &[0x40_1000], ROOM), [""]);
    }

    #[test]
    fn instructions_that_no_compiler_writes_do_no_harm() {
        // They define a file, and subtract the largest number of lines.
        let strange = [&[0, 6, 3, b'x', 0, 0, 0, 0, 3][..], &[0x80; 9], &[0x7f]].concat();
        // The rest of the sequence is of removed code.
        let removed = [set(0), row(0, 2, 5), end(16)].concat();
        let program = [set(0x40_1000), strange, row(0, 1, 9), vec![2, 16], removed].concat();
        let found = found(&file(&unit(4, 0, &program)), &[0x40_1000, 0x40_100f, 0x40_1010], ROOM);
        assert_eq!(found, ["/src/a.c:10", "/src/a.c:10", ""]);
    }

    proptest! {
        #[test]
        fn no_damage_does_harm(
            version in 4_u8..6,
            damage in prop::collection::vec((0_usize..600, any::<u8>()), 1..8),
        ) {
            let mut file = file(&unit(version, 0, &program(u8::from(version < 5))));
            for (at, byte) in damage {
                if let Some(found) = file.get_mut(at) {
                    *found = byte;
                }
            }
            if let Some(elf) = Elf::parse(&file[..]) {
                let addresses = [0, 0x10, 0x40_1000, 0x40_1031, u64::MAX];
                let found = lines(&elf, &file[..], &addresses, 64).unwrap_or_default();
                assert!(found.text_bytes <= 64 && found.lines.values().all(|line| line.line > 0));
            }
        }
    }
}
