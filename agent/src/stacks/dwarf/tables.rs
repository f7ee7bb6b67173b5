//! The places of call frame information in an ELF file.
//!
//! Only places are kept, which take some hundred bytes. The information itself is read again for each rule.

use object::{
    LittleEndian,
    elf::{
        ELFCLASS64, ELFDATA2LSB, ELFMAG, FileHeader64, PF_X, PT_GNU_EH_FRAME, PT_LOAD, ProgramHeader64, SHF_ALLOC,
        SHF_EXECINSTR, SHN_XINDEX, SHT_PROGBITS, SHT_X86_64_UNWIND, SectionHeader64,
    },
    pod::{self, Pod},
};

use super::{
    image::{Image, Miss, Segment},
    machine::Machine,
    rule::Rule,
    search::{SearchTable, header, rule_in_section},
    stub,
};
use crate::stacks::read_at::{Extent, ReadAt, read_exact, read_up_to};

/// The most segments and sections that are read; linkers make some dozens.
const MAX_SEGMENTS: usize = 64;
const MAX_SECTIONS: usize = 1024;
/// The most procedure linkage tables. Linkers make three.
const MAX_STUBS: usize = 8;

/// The call frame information of an ELF file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::stacks) struct Tables {
    machine: Machine,
    segments: Vec<Segment>,
    search: Option<SearchTable>,
    /// The address and the size of `.eh_frame`.
    section: Option<(u64, u64)>,
    /// The address and the size of each procedure linkage table.
    stubs: Vec<(u64, u64)>,
}

/// The file ends before the place of a rule, or the place cannot be read. It may be another file by now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::stacks) struct Unreadable;

impl Tables {
    /// Finds the tables; returns `None` unless this is an ELF file of a machine that can be unwound.
    pub(in crate::stacks) fn parse(file: &(impl ReadAt + ?Sized)) -> Option<Self> {
        let bytes = read_exact(file, 0, size_of::<FileHeader64<LittleEndian>>() as u64)?;
        let header = pod::from_bytes::<FileHeader64<LittleEndian>>(&bytes).ok()?.0;
        let ident = header.e_ident;
        if ident.magic != ELFMAG || ident.class != ELFCLASS64 || ident.data != ELFDATA2LSB {
            return None;
        }
        let machine = Machine::of_elf(header.e_machine.get(LittleEndian))?;
        let mut tables = Self { machine, segments: Vec::new(), search: None, section: None, stubs: Vec::new() };
        let index = tables.read_segments(file, header);
        tables.read_sections(file, header);
        if let Some((search, start)) = index.and_then(|at| self::header(&tables.image(file), at)) {
            tables.search = search;
            // The section ends with an empty entry, at the latest with its segment.
            tables.section = tables.section.or(Some((start, u64::MAX)));
        }
        tables.segments.shrink_to_fit();
        Some(tables)
    }

    pub(in crate::stacks) fn machine(&self) -> Machine {
        self.machine
    }

    /// Returns the memory that this takes beside its own size, in bytes.
    pub(in crate::stacks) fn cost(&self) -> usize {
        self.segments.capacity() * size_of::<Segment>() + self.stubs.capacity() * size_of::<(u64, u64)>()
    }

    /// Returns the file's own address for `offset`; `None` if no segment maps it.
    pub(in crate::stacks) fn address_of(&self, offset: u64) -> Option<u64> {
        let inside = |segment: &Segment| {
            let at = offset.checked_sub(segment.extent.offset).filter(|at| *at < segment.extent.size)?;
            Some((segment.is_code, segment.address.checked_add(at)?))
        };
        // If two segments share a page, the segment with code wins.
        self.segments.iter().filter_map(inside).max_by_key(|(is_code, _)| *is_code).map(|(_, address)| address)
    }

    /// Returns the rule for a file's own address; `None` if the file has none there.
    ///
    /// With a search table this takes about ten small reads.
    pub(in crate::stacks) fn rule(
        &self,
        file: &(impl ReadAt + ?Sized),
        address: u64,
    ) -> Result<Option<Rule>, Unreadable> {
        let image = self.image(file);
        let rule = match (self.search, self.section) {
            (Some(search), _) => search.rule(&image, self.machine, address),
            (None, Some(section)) => rule_in_section(&image, self.machine, section, address),
            (None, None) => Err(Miss::NoRule),
        };
        match rule.or_else(|miss| if miss == Miss::NoRule { self.rule_of_stub(&image, address) } else { Err(miss) }) {
            Ok(rule) => Ok(Some(rule)),
            Err(Miss::NoRule) => Ok(None),
            Err(Miss::Unreadable) => Err(Unreadable),
        }
    }

    /// Returns the rule of code that is known by its place or its bytes.
    fn rule_of_stub<F: ReadAt + ?Sized>(&self, image: &Image<'_, F>, address: u64) -> Result<Rule, Miss> {
        let inside = |(start, size): &(u64, u64)| address.checked_sub(*start).filter(|at| at < size);
        if let Some((stub, at)) = self.stubs.iter().find_map(|stub| Some((stub, inside(stub)?))) {
            let entry = at / stub::PLT_ENTRY * stub::PLT_ENTRY;
            let code = image.read_some(stub.0 + entry, stub::PLT_ENTRY)?;
            let offset = usize::try_from(at - entry).ok().ok_or(Miss::NoRule)?;
            return stub::plt(self.machine, &code, offset).ok_or(Miss::NoRule);
        }
        // A return address is looked up one byte before, so the code begins here or one byte behind.
        let code = image.read_some(address, 16)?;
        let at = |start: usize| stub::signal_return(self.machine, code.get(start..)?);
        at(0).or_else(|| at(1)).ok_or(Miss::NoRule)
    }

    fn image<'a, F: ReadAt + ?Sized>(&'a self, file: &'a F) -> Image<'a, F> {
        Image { file, segments: &self.segments }
    }

    /// Reads the segments; returns the address of `.eh_frame_hdr`.
    fn read_segments(&mut self, file: &(impl ReadAt + ?Sized), header: &FileHeader64<LittleEndian>) -> Option<u64> {
        let (at, size) = (header.e_phoff.get(LittleEndian), header.e_phentsize.get(LittleEndian));
        let count = usize::from(header.e_phnum.get(LittleEndian)).min(MAX_SEGMENTS);
        let mut index = None;
        for segment in table::<ProgramHeader64<LittleEndian>>(file, at, size, count) {
            let address = segment.p_vaddr.get(LittleEndian);
            match segment.p_type.get(LittleEndian) {
                PT_LOAD => {
                    let (offset, size) = (segment.p_offset.get(LittleEndian), segment.p_filesz.get(LittleEndian));
                    let is_code = segment.p_flags.get(LittleEndian) & PF_X != 0;
                    self.segments.push(Segment { extent: Extent { offset, size }, address, is_code });
                }
                PT_GNU_EH_FRAME => index = index.or(Some(address)),
                _ => {}
            }
        }
        index
    }

    /// Finds `.eh_frame` and the procedure linkage tables by their names.
    fn read_sections(&mut self, file: &(impl ReadAt + ?Sized), header: &FileHeader64<LittleEndian>) {
        let (at, size) = (header.e_shoff.get(LittleEndian), header.e_shentsize.get(LittleEndian));
        let (count, names) = (header.e_shnum.get(LittleEndian), header.e_shstrndx.get(LittleEndian));
        // A file whose number of sections does not fit here is no program.
        if at == 0 || names == SHN_XINDEX {
            return;
        }
        let sections = table::<SectionHeader64<LittleEndian>>(file, at, size, usize::from(count).min(MAX_SECTIONS));
        let Some(names) = sections.get(usize::from(names)).map(|names| names.sh_offset.get(LittleEndian)) else {
            return;
        };
        for section in &sections {
            let flags = section.sh_flags.get(LittleEndian);
            let is_code = flags & u64::from(SHF_EXECINSTR) != 0;
            let is_kind = matches!(section.sh_type.get(LittleEndian), SHT_PROGBITS | SHT_X86_64_UNWIND);
            if !is_kind || flags & u64::from(SHF_ALLOC) == 0 {
                continue;
            }
            let place = (section.sh_addr.get(LittleEndian), section.sh_size.get(LittleEndian));
            let mut name = [0; 10];
            if let Some(at) = names.checked_add(section.sh_name.get(LittleEndian).into()) {
                read_up_to(file, at, &mut name);
            }
            let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
            match name {
                b".eh_frame" if !is_code => self.section = self.section.or(Some(place)),
                b".plt" | b".plt.sec" | b".plt.got" if is_code && self.stubs.len() < MAX_STUBS => {
                    self.stubs.push(place);
                }
                _ => {}
            }
        }
    }
}

/// Reads a table of at most `count` entries of `size` bytes, up to the end of the file. An entry may have more bytes
/// than the fields that are known today, up to four times; these fields come first.
fn table<T: Pod + Copy>(file: &(impl ReadAt + ?Sized), at: u64, size: u16, count: usize) -> Vec<T> {
    let size = usize::from(size);
    if !(size_of::<T>()..=4 * size_of::<T>()).contains(&size) {
        return Vec::new();
    }
    let mut bytes = vec![0; size * count];
    let length = read_up_to(file, at, &mut bytes);
    let entries = bytes.get(..length).unwrap_or_default().chunks_exact(size);
    entries.filter_map(|bytes| Some(*pod::from_bytes::<T>(bytes).ok()?.0)).collect()
}

#[cfg(test)]
#[path = "tables_tests.rs"]
mod tests;
