//! Finds where the code of a Go program starts, by the module data with which Go's runtime finds its own table. Since
//! Go 1.26 the table itself does not say this, and C code that is linked in lies in the same section, mostly before it.
//!
//! The module data must agree with the table in all that both say, because names at a wrong start would be wrong.

use std::ops::Range;

use object::elf::{R_AARCH64_RELATIVE, R_X86_64_RELATIVE};

use super::read_at::{Extent, ReadAt, number, read_up_to};

/// The words of `moduledata` in Go's runtime: the address of the table, the number of its entries, the first address of
/// the first function and the address behind the last one, and the start of the code.
const TABLE: usize = 0;
const ENTRIES: usize = 17;
const FIRST: usize = 20;
const BEHIND: usize = 21;
const TEXT: usize = 22;
const WORDS: usize = 23;
/// The size of a relocation with an addend, in files of 64 bits.
const RELOCATION: usize = 24;

/// The places of the module data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct GoModule {
    /// The module data in the file.
    pub(super) data: Extent,
    /// The address of the module data.
    pub(super) address: u64,
    /// The address of the table of functions.
    pub(super) table: u64,
    /// The relocations of a position-independent program.
    pub(super) relocations: Option<Extent>,
}

/// The content of the table of functions, as far as the module data repeat it.
#[derive(Clone, Debug)]
pub(super) struct TableCode {
    /// The size of a word, in bytes.
    pub(super) word: usize,
    pub(super) functions: u64,
    /// The first function and the end of the last one, from the start of the code.
    pub(super) offsets: Range<u64>,
}

impl GoModule {
    /// Returns the start of the code; `None` if the module data do not fit the table, or the code is not in `text`.
    pub(super) fn start(&self, table: &TableCode, text: Extent, file: &(impl ReadAt + ?Sized)) -> Option<u64> {
        let mut bytes = [0_u8; WORDS * 8];
        let bytes = bytes.get_mut(..WORDS * table.word)?;
        if self.data.size < bytes.len() as u64 || read_up_to(file, self.data.offset, bytes) < bytes.len() {
            return None;
        }
        let stored = |word: usize| number(bytes, word * table.word, table.word);
        // The linker may leave the address to the loader: then the file has zero there, or only a part of the address.
        let address = |word: usize| {
            let place = self.address.checked_add((word * table.word) as u64)?;
            let relocations = self.relocations.filter(|_| table.word == 8);
            Some(relocations.and_then(|all| relocated(all, place, file)).unwrap_or_else(|| stored(word)))
        };
        let start = address(TEXT)?;
        let first = start.checked_add(table.offsets.start)?;
        let behind = start.checked_add(table.offsets.end)?;
        let fits = address(TABLE)? == self.table
            && stored(ENTRIES) == table.functions + 1
            && (address(FIRST)?, address(BEHIND)?) == (first, behind)
            && text.offset <= start
            && behind <= text.offset.checked_add(text.size)?;
        fits.then_some(start)
    }
}

/// Returns the address that the loader writes to `place`. Linkers put the relocations of this kind first, ascending.
/// Go's linker does not, but it stores the addresses in the file, too.
fn relocated(relocations: Extent, place: u64, file: &(impl ReadAt + ?Sized)) -> Option<u64> {
    let (mut low, mut high) = (0, relocations.size / RELOCATION as u64);
    while low < high {
        let middle = low.midpoint(high);
        let mut bytes = [0_u8; RELOCATION];
        let offset = relocations.offset.checked_add(middle * RELOCATION as u64)?;
        if read_up_to(file, offset, &mut bytes) < bytes.len() {
            return None;
        }
        let (at, kind) = (number(&bytes, 0, 8), number(&bytes, 8, 8));
        let is_relative = [R_X86_64_RELATIVE, R_AARCH64_RELATIVE].map(u64::from).contains(&kind);
        match is_relative {
            true if at == place => return Some(number(&bytes, 16, 8)),
            true if at < place => low = middle + 1,
            _ => high = middle,
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::stacks::{elf::Elf, elf_symbols, go_functions::example};

    /// The code of the file, which begins with C, and the code of Go in it.
    const CODE: u64 = 0x40_1000;
    const START: u64 = 0x40_1100;
    const GOPCLNTAB: u64 = 0x50_0000;
    const MODULE: u64 = 0x60_0000;
    const ALLOC: u64 = 2;
    const WRITE: u64 = 1;
    const PROGBITS: u32 = 1;
    const RELA: u32 = 4;

    /// Returns the module data of [`example::table`].
    fn module() -> [u64; 24] {
        let mut words = [0; 24];
        (words[TABLE], words[ENTRIES]) = (GOPCLNTAB, 3);
        (words[FIRST], words[BEHIND], words[TEXT]) = (START, START + 0x60, START);
        words
    }

    /// Returns a file with these sections: name, kind, flags, address and bytes.
    fn file(sections: &[(&str, u32, u64, u64, Vec<u8>)]) -> Vec<u8> {
        let (mut file, mut names, mut headers): (Vec<u8>, Vec<u8>, Vec<u8>) = (vec![0; 64], vec![0], vec![0; 64]);
        let mut header = |name: usize, kind: u32, flags: u64, address: u64, at: usize, size: usize| {
            headers.extend([u32::try_from(name).unwrap(), kind].map(u32::to_le_bytes).concat());
            headers.extend([flags, address, at as u64, size as u64].map(u64::to_le_bytes).concat());
            headers.extend([0; 24]);
        };
        for (name, kind, flags, address, bytes) in sections {
            header(names.len(), *kind, *flags, *address, file.len(), bytes.len());
            names.extend([name.as_bytes(), b"\0"].concat());
            file.extend(bytes);
        }
        header(0, 3, 0, 0, file.len(), names.len());
        file.extend(names);
        let at = file.len() as u64;
        file.extend(headers);
        file[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
        file[40..48].copy_from_slice(&at.to_le_bytes());
        let last = u16::try_from(sections.len() + 1).unwrap();
        file[58..64].copy_from_slice(&[64, last + 1, last].map(u16::to_le_bytes).concat());
        file
    }

    /// Returns a program of Go and C whose table has no start, with this module data and these relocations.
    fn program(module: &[u64], relocations: &[[u64; 3]]) -> Vec<u8> {
        let words = |words: &[u64]| -> Vec<u8> { words.iter().flat_map(|word| word.to_le_bytes()).collect() };
        file(&[
            (".rela.dyn", RELA, ALLOC, 0x1000, words(relocations.as_flattened())),
            (".text", PROGBITS, ALLOC | 4, CODE, vec![0; 0x200]),
            (".gopclntab", PROGBITS, ALLOC, GOPCLNTAB, example::table(0)),
            (".go.module", PROGBITS, ALLOC | WRITE, MODULE, words(module)),
        ])
    }

    fn names(file: &[u8]) -> Vec<Option<String>> {
        let addresses = [CODE, START - 1, START, START + 0x20, START + 0x5f, START + 0x60, u64::MAX];
        let Some(elf) = Elf::parse(file) else { return Vec::new() };
        let found = elf_symbols::functions(&elf, file, &addresses);
        found.into_iter().map(|name| name.map(|name| name.text)).collect()
    }

    fn right() -> Vec<Option<String>> {
        let names = ["", "", "main.main", "runtime.goexit.abi0", "runtime.goexit.abi0", "", ""];
        names.iter().map(|name| (!name.is_empty()).then(|| (*name).to_owned())).collect()
    }

    #[test]
    fn go_code_behind_c_code_has_names() {
        assert_eq!(names(&program(&module(), &[])), right());
    }

    #[test]
    fn a_position_independent_program_has_names_wherever_its_linker_leaves_addresses() {
        let mut stored = module();
        // GNU ld leaves zero or an offset in a section there, depending on the processor.
        (stored[TABLE], stored[FIRST], stored[BEHIND], stored[TEXT]) = (0, 0, 0x60, 0);
        assert_eq!(names(&program(&stored, &[])), vec![None; 7]);
        for kind in [R_X86_64_RELATIVE, R_AARCH64_RELATIVE].map(u64::from) {
            let relocate = |(word, address): (usize, u64)| [MODULE + word as u64 * 8, kind, address];
            let mut relocations = vec![[0x100, kind, 7], [0x200, kind, 8]];
            let addresses = [(TABLE, GOPCLNTAB), (FIRST, START), (BEHIND, START + 0x60), (TEXT, START)];
            relocations.extend(addresses.map(relocate));
            relocations.extend([[MODULE + 0x1000, kind, 9], [0x10, 6 | 1 << 32, 0], [0x18, 6 | 2 << 32, 0]]);
            assert_eq!(names(&program(&stored, &relocations)), right());
        }
    }

    #[test]
    fn module_data_that_do_not_fit_name_nothing() {
        for word in [TABLE, ENTRIES, FIRST, BEHIND, TEXT] {
            let mut untrue = module();
            untrue[word] += 1;
            assert_eq!(names(&program(&untrue, &[])), vec![None; 7], "{word}");
        }
        // This code ends behind the section.
        let outside = module().map(|word| if (START..START + 0x100).contains(&word) { word + 0xf0 } else { word });
        assert_eq!(names(&program(&outside, &[])), vec![None; 7]);
        assert_eq!(names(&program(&module()[..TEXT], &[])), vec![None; 7]);
    }

    proptest! {
        #[test]
        fn no_damage_does_harm(damage in prop::collection::vec((0_usize..1600, any::<u8>()), 1..8)) {
            let mut bytes = program(&module(), &[[MODULE, R_X86_64_RELATIVE.into(), GOPCLNTAB]]);
            for (at, byte) in damage {
                if let Some(found) = bytes.get_mut(at) {
                    *found = byte;
                }
            }
            names(&bytes);
        }
    }
}
