//! Looks up functions of Go programs without a symbol table, as in most containers: all programs contain the table of
//! Go's runtime, `.gopclntab`. Its form is that of Go 1.18 and later (`debug/gosym` in Go's library reads it too).

use std::ops::Range;

use super::{
    demangle::demangle,
    go_module::{GoModule, TableCode},
    read_at::{Extent, ReadAt, number, read_up_to},
};

/// The first words of the known forms: Go 1.18, and Go 1.20 and later.
const FORMS: [u64; 2] = [0xffff_fff0, 0xffff_fff1];
/// The largest number of functions in a program; the largest programs have some hundred thousand.
const MAX_FUNCTIONS: u64 = 4 << 20;
/// The most bytes of a section behind its last function.
const MAX_PADDING: u64 = 64;
const MAX_NAME: usize = 512;

/// The place of the table in the file, and the address and size of the code that it describes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct GoTable {
    pub(super) table: Extent,
    pub(super) text: Extent,
    /// The module data, of Go 1.26 and later.
    pub(super) module: Option<GoModule>,
}

/// The parts of a table.
struct Parts {
    /// The base address of the code offsets.
    start: u64,
    /// The number of bytes of code from `start` on.
    end: u64,
    functions: u64,
    /// The places of the names and of the entries: each entry has the offset of a function's code and of its record.
    names: u64,
    entries: u64,
}

/// Returns the function at each of the addresses; `None` for all addresses if the table has no known form.
pub(super) fn functions(go: GoTable, file: &(impl ReadAt + ?Sized), addresses: &[u64]) -> Vec<Option<String>> {
    let Some(parts) = parts(go, file) else { return vec![None; addresses.len()] };
    addresses.iter().map(|address| name(&parts, file, *address)).collect()
}

/// Returns the addresses of the code that Go's linker made; `None` if the table has no known form. C code of the same
/// file lies outside of them.
pub(super) fn code(go: GoTable, file: &(impl ReadAt + ?Sized)) -> Option<Range<u64>> {
    let parts = parts(go, file)?;
    Some(parts.start..parts.start.checked_add(parts.end)?)
}

fn parts(go: GoTable, file: &(impl ReadAt + ?Sized)) -> Option<Parts> {
    let mut header = [0; 72];
    if read_up_to(file, go.table.offset, &mut header) < header.len() || !FORMS.contains(&number(&header, 0, 4)) {
        return None;
    }
    // Programs of 32 bits have words of four bytes.
    let size = usize::from(header[7]);
    if !matches!(size, 4 | 8) {
        return None;
    }
    let word = |at: usize| number(&header, 8 + at * size, size);
    let place = |at| go.table.offset.checked_add(word(at)).filter(|_| word(at) < go.table.size);
    let (functions, stated) = (word(0), word(2));
    let (names, entries) = (place(3)?, place(7)?);
    if functions == 0 || functions > MAX_FUNCTIONS {
        return None;
    }
    let (first, end) = (word_at(file, entries)?, word_at(file, entries.checked_add(functions * 8)?)?);
    let by_module = || go.module?.start(&TableCode { word: size, functions, offsets: first..end }, go.text, file);
    // Without module data, the code starts where the section does, unless this also holds C code: with C code the names
    // would be wrong.
    let fits = go.text.size.checked_sub(end).is_some_and(|padding| padding < MAX_PADDING);
    let by_section = || fits.then_some(go.text.offset);
    let start = Some(stated).filter(|stated| *stated != 0).or_else(by_module).or_else(by_section)?;
    Some(Parts { start, end, functions, names, entries })
}

fn name(parts: &Parts, file: &(impl ReadAt + ?Sized), address: u64) -> Option<String> {
    let wanted = address.checked_sub(parts.start)?;
    let entry = |at: u64| word_at(file, parts.entries + at * 8);
    // Finds the last function that begins at or before the address; the entry behind the last function marks the end of
    // the code.
    let (mut low, mut high) = (0, parts.functions);
    if wanted < entry(low)? || wanted >= entry(high)? {
        return None;
    }
    while high - low > 1 {
        let middle = low.midpoint(high);
        if entry(middle)? <= wanted { low = middle } else { high = middle }
    }
    let function = parts.entries.checked_add(word_at(file, parts.entries + low * 8 + 4)?)?;
    let name = parts.names.checked_add(word_at(file, function.checked_add(4)?)?)?;
    let mut bytes = [0; MAX_NAME];
    let read = read_up_to(file, name, &mut bytes);
    let end = bytes[..read].iter().position(|byte| *byte == 0)?;
    Some(demangle(&String::from_utf8_lossy(&bytes[..end]))).filter(|name| !name.is_empty())
}

fn word_at(file: &(impl ReadAt + ?Sized), at: u64) -> Option<u64> {
    let mut bytes = [0; 4];
    (read_up_to(file, at, &mut bytes) == bytes.len()).then(|| number(&bytes, 0, 4))
}

#[cfg(test)]
pub(super) mod example {
    /// Returns a table with two functions, of 0x20 and 0x40 bytes.
    pub(in crate::stacks) fn table(start: u64) -> Vec<u8> {
        let (names, entries) = (72, 112);
        let mut bytes = [0xf1, 0xff, 0xff, 0xff, 0, 0, 1, 8].to_vec();
        bytes.extend([2, 0, start, names, 0, 0, 0, entries].map(u64::to_le_bytes).concat());
        bytes.extend(b"main.main\0runtime.goexit.abi0\0\0\0\0\0\0\0\0\0\0\0");
        assert_eq!(bytes.len() as u64, entries);
        bytes.extend([0_u32, 24, 0x20, 32, 0x60, 0].map(u32::to_le_bytes).concat());
        bytes.extend([0_u32, 0, 0x20, 10].map(u32::to_le_bytes).concat());
        bytes
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{example::table, *};

    const TEXT: Extent = Extent { offset: 0x40_1000, size: 0x70 };

    fn names(bytes: &[u8], addresses: &[u64]) -> Vec<Option<String>> {
        let table = Extent { offset: 0, size: bytes.len() as u64 };
        functions(GoTable { table, text: TEXT, module: None }, bytes, addresses)
    }

    #[test]
    fn functions_are_found_by_where_code_starts() {
        let some = |names: &[&str]| -> Vec<_> { names.iter().map(|name| Some((*name).to_owned())).collect() };
        for start in [0, TEXT.offset] {
            let found = names(&table(start), &[0x40_1000, 0x40_101f, 0x40_1020, 0x40_105f]);
            assert_eq!(found, some(&["main.main", "main.main", "runtime.goexit.abi0", "runtime.goexit.abi0"]));
            assert_eq!(names(&table(start), &[0, 0x40_0fff, 0x40_1060, u64::MAX]), vec![None; 4]);
        }
        assert_eq!(names(&table(0x50_0000), &[0x50_0001]), some(&["main.main"]));
    }

    #[test]
    fn a_table_of_other_code_or_another_form_names_nothing() {
        let mut other = table(0);
        other[0] = 0xfb;
        assert_eq!(names(&other, &[0x40_1000]), [None]);
        let mut with_c = table(0);
        with_c[128] = 0x20;
        assert_eq!(names(&with_c, &[0x40_1000]), [None]);
    }

    #[test]
    fn go_code_is_from_the_first_function_to_the_end_of_the_last() {
        let of = |bytes: &[u8]| {
            let table = Extent { offset: 0, size: bytes.len() as u64 };
            code(GoTable { table, text: TEXT, module: None }, bytes)
        };
        assert_eq!(of(&table(0x50_0000)), Some(0x50_0000..0x50_0060));
        assert_eq!(of(&table(0)), Some(TEXT.offset..TEXT.offset + 0x60));
        assert_eq!(of(&[0; 200]), None);
    }

    proptest! {
        #[test]
        fn no_damage_does_harm(damage in prop::collection::vec((0_usize..160, any::<u8>()), 1..6)) {
            let mut bytes = table(TEXT.offset);
            for (at, byte) in damage {
                if let Some(found) = bytes.get_mut(at) {
                    *found = byte;
                }
            }
            names(&bytes, &[0, 0x40_1000, 0x40_1020, u64::MAX]);
        }
    }
}
