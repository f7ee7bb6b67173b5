//! The header data of an ELF file: the addresses of its code, its build id, and its symbol tables.
//!
//! The file is untrusted. It is read piece by piece and never mapped (truncating a mapped file kills its reader), each
//! piece has a limit, and all arithmetic is checked. Malformed parts are left out.

#[cfg(test)]
pub(super) mod example;

use object::{
    LittleEndian, U32,
    elf::{
        ELFCLASS32, ELFCLASS64, ELFDATA2LSB, ELFMAG, FileHeader32, FileHeader64, NT_GNU_BUILD_ID, NoteHeader32, PF_X,
        PT_LOAD, PT_NOTE, SHF_ALLOC, SHF_COMPRESSED, SHF_EXECINSTR, SHF_WRITE, SHN_XINDEX, SHT_DYNSYM, SHT_GNU_VERSYM,
        SHT_NOTE, SHT_PROGBITS, SHT_RELA, SHT_SYMTAB, SectionHeader32, SectionHeader64,
    },
    pod::{self, Pod},
    read::elf::{FileHeader, ProgramHeader, SectionHeader},
};

use super::{
    go_functions::GoTable,
    go_module::GoModule,
    read_at::{Extent, ReadAt, read_exact, read_up_to},
};

/// The largest number of sections that are read; linkers make some dozens.
const MAX_SECTIONS: usize = 16_384;
const MAX_SEGMENTS: usize = 64;
/// The flags of sections with constants, and with data.
const ALLOC: u64 = SHF_ALLOC as u64;
const DATA: u64 = (SHF_ALLOC | SHF_WRITE) as u64;
const COMPRESSED: u64 = SHF_COMPRESSED as u64;
/// The most bytes of notes that are read, and the longest build id.
const MAX_NOTES: u64 = 64 << 10;
const MAX_BUILD_ID: usize = 64;
/// The longest debug link: a file name, its padding and the checksum.
const MAX_LINK: u64 = 255 + 8;

/// The places of a symbol table and its strings in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SymbolTable {
    pub(super) symbols: Extent,
    pub(super) strings: Extent,
}

/// The header data of a file. It takes little memory: the file itself is read again for names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Elf {
    /// Set for a file of 64 bits.
    pub(super) is_64: bool,
    /// The mapped segments: the part of the file, its address, and a flag for code.
    segments: Vec<(Extent, u64, bool)>,
    /// The place of the section table, and the length of its entries.
    sections: (Extent, u64),
    /// The place of the sections' names.
    names: Option<Extent>,
    pub(super) build_id: Option<Vec<u8>>,
    /// The name and the checksum of the file with the symbols.
    pub(super) debug_link: Option<(String, u32)>,
    /// `.gnu_debugdata`: a compressed file with the names of the functions that are not exported.
    pub(super) packed: Option<Extent>,
    /// `.symtab` with all functions; a stripped file has none.
    pub(super) symbols: Option<SymbolTable>,
    /// `.dynsym` with the exported functions.
    pub(super) dynamic: Option<SymbolTable>,
    /// The versions of the symbols in `dynamic`: two bytes each.
    pub(super) versions: Option<Extent>,
    /// The function table of a Go program.
    pub(super) go: Option<GoTable>,
}

/// A section of debug information.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DebugSection {
    pub(super) extent: Extent,
    pub(super) is_compressed: bool,
}

struct Section {
    name: u32,
    kind: u32,
    flags: u64,
    address: u64,
    extent: Extent,
    link: u32,
}

impl Elf {
    /// Parses the header; returns `None` unless this is an ELF file in this machine's byte order.
    pub(super) fn parse(file: &(impl ReadAt + ?Sized)) -> Option<Self> {
        let mut bytes = [0; size_of::<FileHeader64<LittleEndian>>()];
        let length = read_up_to(file, 0, &mut bytes);
        let ident = pod::from_bytes::<FileHeader32<LittleEndian>>(&bytes).ok()?.0.e_ident;
        // Only little-endian files, as all machines that podperf supports are.
        if length < size_of::<FileHeader32<LittleEndian>>() || ident.magic != ELFMAG || ident.data != ELFDATA2LSB {
            return None;
        }
        match ident.class {
            ELFCLASS32 => Some(Self::read::<FileHeader32<LittleEndian>>(file, pod::from_bytes(&bytes).ok()?.0)),
            ELFCLASS64 => Some(Self::read::<FileHeader64<LittleEndian>>(file, pod::from_bytes(&bytes).ok()?.0)),
            _ => None,
        }
    }

    fn read<H: FileHeader<Endian = LittleEndian>>(file: &(impl ReadAt + ?Sized), header: &H) -> Self {
        let mut elf = Self { is_64: header.is_type_64(), ..Self::default() };
        elf.read_segments(file, header);
        elf.read_sections(file, header);
        elf
    }

    /// Returns the memory that this takes beside its own size, in bytes.
    pub(super) fn cost(&self) -> usize {
        size_of_val(&self.segments[..])
            + self.build_id.as_ref().map_or(0, Vec::len)
            + self.debug_link.as_ref().map_or(0, |(name, _)| name.len())
    }

    /// Returns the file's own address for `offset`; `None` if no segment maps it.
    pub(super) fn address(&self, offset: u64) -> Option<u64> {
        let inside = |(extent, address, code): &(Extent, u64, bool)| {
            let at = offset.checked_sub(extent.offset).filter(|at| *at < extent.size)?;
            Some((*code, address.checked_add(at)?))
        };
        // If two segments share a page, the segment with code wins.
        self.segments.iter().filter_map(inside).max_by_key(|(code, _)| *code).map(|(_, address)| address)
    }

    /// Returns the offset in the file of code at one of the file's own addresses; `None` if no segment with code has it.
    pub(super) fn offset_of_code(&self, address: u64) -> Option<u64> {
        let inside = |(extent, start, code): &(Extent, u64, bool)| {
            let at = address.checked_sub(*start).filter(|at| *code && *at < extent.size)?;
            extent.offset.checked_add(at)
        };
        self.segments.iter().find_map(inside)
    }

    fn read_segments<H: FileHeader<Endian = LittleEndian>>(&mut self, file: &(impl ReadAt + ?Sized), header: &H) {
        let (at, size) = (header.e_phoff(LittleEndian).into(), header.e_phentsize(LittleEndian).into());
        let bytes = table::<H::ProgramHeader>(file, at, size, header.e_phnum(LittleEndian).into(), MAX_SEGMENTS);
        for segment in entries::<H::ProgramHeader>(&bytes, size) {
            let (offset, size) = segment.file_range(LittleEndian);
            let extent = Extent { offset, size };
            match segment.p_type(LittleEndian) {
                PT_LOAD => {
                    let is_code = segment.p_flags(LittleEndian) & PF_X != 0;
                    self.segments.push((extent, segment.p_vaddr(LittleEndian).into(), is_code));
                }
                PT_NOTE => self.read_notes(file, extent),
                _ => {}
            }
        }
    }

    fn read_sections<H: FileHeader<Endian = LittleEndian>>(&mut self, file: &(impl ReadAt + ?Sized), header: &H) {
        let (at, size): (u64, u64) = (header.e_shoff(LittleEndian).into(), header.e_shentsize(LittleEndian).into());
        let (mut count, mut names): (u64, u32) =
            (header.e_shnum(LittleEndian).into(), header.e_shstrndx(LittleEndian).into());
        if at == 0 {
            return;
        }
        // Numbers that do not fit into the header are in the first section.
        let first = table::<H::SectionHeader>(file, at, size, 1, 1);
        if let Some(first) = entries::<H::SectionHeader>(&first, size).next() {
            count = if count == 0 { first.sh_size(LittleEndian).into() } else { count };
            names = if names == u32::from(SHN_XINDEX) { first.sh_link(LittleEndian) } else { names };
        }
        let (count, least) = (count.min(MAX_SECTIONS as u64), size_of::<H::SectionHeader>() as u64);
        self.sections = (Extent { offset: at, size: count * size.min(4 * least) }, size);
        let sections = self.table_of_sections::<H::SectionHeader>(file);
        let at = |index: u32| usize::try_from(index).ok().and_then(|index| sections.get(index));
        let names = at(names).map(|section| section.extent);
        self.names = names;
        let is_named =
            |section: &Section, name: &[u8]| names.is_some_and(|names| is_named(file, names, section.name, name));
        let (mut text, mut go, mut module, mut relocations) = (None, None, None, None);
        for section in &sections {
            let table = || {
                let strings = at(section.link)?.extent;
                Some(SymbolTable { symbols: section.extent, strings })
            };
            match section.kind {
                SHT_SYMTAB => self.symbols = self.symbols.or_else(table),
                SHT_DYNSYM => self.dynamic = self.dynamic.or_else(table),
                SHT_GNU_VERSYM => self.versions = self.versions.or(Some(section.extent)),
                SHT_NOTE => self.read_notes(file, section.extent),
                SHT_PROGBITS if section.is_code() && text.is_none() && is_named(section, b".text\0") => {
                    text = Some(Extent { offset: section.address, size: section.extent.size });
                }
                SHT_PROGBITS if section.flags == 0 && is_named(section, b".gnu_debuglink\0") => {
                    self.debug_link = self.debug_link.take().or_else(|| debug_link(file, section.extent));
                }
                SHT_PROGBITS if section.flags == 0 && is_named(section, b".gnu_debugdata\0") => {
                    self.packed = self.packed.or(Some(section.extent));
                }
                SHT_PROGBITS if section.flags == ALLOC && is_named(section, b".gopclntab\0") => go = Some(section),
                // Position-independent programs before Go 1.26.
                SHT_PROGBITS if section.flags == DATA && is_named(section, b".data.rel.ro.gopclntab\0") => {
                    go = Some(section);
                }
                SHT_PROGBITS if section.flags == DATA && is_named(section, b".go.module\0") => module = Some(section),
                SHT_RELA if section.flags == ALLOC && is_named(section, b".rela.dyn\0") => {
                    relocations = Some(section.extent);
                }
                _ => {}
            }
        }
        self.go = go.zip(text).map(|(table, text)| {
            let module = module.map(|Section { address, extent, .. }| GoModule {
                data: *extent,
                address: *address,
                table: table.address,
                relocations,
            });
            GoTable { table: table.extent, text, module }
        });
    }

    /// Returns the address and size of each section with code, by index; `None` for other sections. The table is read
    /// from the file each time, since few remembered files need it.
    pub(super) fn code(&self, file: &(impl ReadAt + ?Sized)) -> Vec<Option<Extent>> {
        let code = |section: &Section| {
            section.is_code().then_some(Extent { offset: section.address, size: section.extent.size })
        };
        self.all_sections(file).iter().map(code).collect()
    }

    /// Returns the sections with these names that are not mapped. Each name ends with a zero.
    pub(super) fn debug_sections<const N: usize>(
        &self,
        file: &(impl ReadAt + ?Sized),
        names: [&[u8]; N],
    ) -> [Option<DebugSection>; N] {
        let sections = self.all_sections(file);
        names.map(|name| {
            let mut debug = sections.iter().filter(|it| it.kind == SHT_PROGBITS && it.flags & ALLOC == 0);
            let section = debug.find(|it| self.names.is_some_and(|names| is_named(file, names, it.name, name)))?;
            Some(DebugSection { extent: section.extent, is_compressed: section.flags & COMPRESSED != 0 })
        })
    }

    fn all_sections(&self, file: &(impl ReadAt + ?Sized)) -> Vec<Section> {
        if self.is_64 {
            self.table_of_sections::<SectionHeader64<LittleEndian>>(file)
        } else {
            self.table_of_sections::<SectionHeader32<LittleEndian>>(file)
        }
    }

    fn table_of_sections<S>(&self, file: &(impl ReadAt + ?Sized)) -> Vec<Section>
    where
        S: SectionHeader<Endian = LittleEndian>,
    {
        let (extent, size) = self.sections;
        let bytes = table::<S>(file, extent.offset, size, extent.size / size.max(1), MAX_SECTIONS);
        entries::<S>(&bytes, size).map(Section::of).collect()
    }

    /// Reads the build id; the first one wins.
    fn read_notes(&mut self, file: &(impl ReadAt + ?Sized), extent: Extent) {
        if self.build_id.is_some() || extent.size > MAX_NOTES {
            return;
        }
        let Some(notes) = read_exact(file, extent.offset, extent.size) else { return };
        let mut rest = &notes[..];
        while let Ok((note, name)) = pod::from_bytes::<NoteHeader32<LittleEndian>>(rest) {
            let size = |size: U32<LittleEndian>| usize::try_from(size.get(LittleEndian)).unwrap_or(usize::MAX);
            let (name_size, size) = (size(note.n_namesz), size(note.n_descsz));
            let padded = |size: usize| size.checked_next_multiple_of(4);
            let (Some(name_end), Some(padded_size)) =
                (padded(name_size).and_then(|size| size.checked_add(size_of_val(note))), padded(size))
            else {
                return;
            };
            let Some(end) = name_end.checked_add(padded_size) else { return };
            let id = name_end.checked_add(size).and_then(|end| rest.get(name_end..end));
            if note.n_type.get(LittleEndian) == NT_GNU_BUILD_ID && name_size == 4 && name.starts_with(b"GNU\0") {
                self.build_id = id.filter(|id| (4..=MAX_BUILD_ID).contains(&id.len())).map(<[u8]>::to_vec);
                return;
            }
            rest = rest.get(end..).unwrap_or_default();
        }
    }
}

impl Section {
    fn of<S: SectionHeader<Endian = LittleEndian>>(header: &S) -> Self {
        Self {
            name: header.sh_name(LittleEndian),
            kind: header.sh_type(LittleEndian),
            flags: header.sh_flags(LittleEndian).into(),
            address: header.sh_addr(LittleEndian).into(),
            extent: Extent { offset: header.sh_offset(LittleEndian).into(), size: header.sh_size(LittleEndian).into() },
            link: header.sh_link(LittleEndian),
        }
    }

    fn is_code(&self) -> bool {
        self.flags & u64::from(SHF_EXECINSTR) != 0
    }
}

/// Reads a table of `count` entries of `size` bytes, up to the end of the file.
fn table<T>(file: &(impl ReadAt + ?Sized), at: u64, size: u64, count: u64, most: usize) -> Vec<u8> {
    // Entries may be larger than today's, up to four times.
    let size = usize::try_from(size).unwrap_or(usize::MAX);
    if !(size_of::<T>()..=4 * size_of::<T>()).contains(&size) {
        return Vec::new();
    }
    let count = usize::try_from(count).unwrap_or(usize::MAX).min(most);
    let mut bytes = vec![0; size * count];
    let length = read_up_to(file, at, &mut bytes);
    bytes.truncate(length);
    bytes
}

/// Returns the entries of a table. An entry may have more bytes than the fields that are known today; these fields come
/// first.
fn entries<T: Pod>(table: &[u8], size: u64) -> impl Iterator<Item = &T> {
    let entries = table.chunks_exact(usize::try_from(size).unwrap_or(usize::MAX).max(1));
    entries.filter_map(|bytes| Some(pod::from_bytes(bytes).ok()?.0))
}

fn is_named(file: &(impl ReadAt + ?Sized), names: Extent, name: u32, expected: &[u8]) -> bool {
    let name = u64::from(name);
    let inside = name.checked_add(expected.len() as u64).is_some_and(|end| end <= names.size);
    inside
        && names
            .offset
            .checked_add(name)
            .and_then(|at| read_exact(file, at, expected.len() as u64))
            .is_some_and(|found| found == expected)
}

/// Reads a debug link: a file name, zeros up to a multiple of four, and the checksum of that file.
fn debug_link(file: &(impl ReadAt + ?Sized), extent: Extent) -> Option<(String, u32)> {
    if extent.size > MAX_LINK {
        return None;
    }
    let bytes = read_exact(file, extent.offset, extent.size)?;
    let end = bytes.iter().position(|byte| *byte == 0)?;
    let name = std::str::from_utf8(&bytes[..end]).ok()?;
    // The name must not contain a path, so that it cannot lead to another directory.
    if name.is_empty() || name.contains('/') || name == "." || name == ".." {
        return None;
    }
    let sum = bytes.get((end + 1).next_multiple_of(4)..)?.first_chunk()?;
    Some((name.to_owned(), u32::from_le_bytes(*sum)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_build_id_the_link_and_the_addresses_of_code_are_read() {
        let file = example::file();
        let elf = Elf::parse(&file[..]).unwrap();
        assert_eq!(elf.build_id, Some(vec![0xab; 20]));
        assert_eq!(elf.debug_link, Some(("program.debug".to_owned(), 0x1234_5678)));
        assert!(elf.symbols.is_some() && elf.dynamic.is_none());
        for (offset, address) in
            [(0xff, None), (0x100, Some(0x40_1000)), (0x13f, Some(0x40_103f)), (0x140, None), (u64::MAX, None)]
        {
            assert_eq!(elf.address(offset), address, "{offset:#x}");
        }
    }

    #[test]
    fn what_is_no_file_of_this_machine_is_refused() {
        let change = |at: usize, byte: u8| {
            let mut file = example::file();
            file[at] = byte;
            file
        };
        for file in [change(0, 0), change(4, 3), change(5, 2), vec![], example::file()[..51].to_vec()] {
            assert_eq!(Elf::parse(&file[..]), None);
        }
    }

    #[test]
    fn a_link_leads_nowhere_else() {
        for name in ["../../etc/shadow", "/etc/shadow", "..", ""] {
            let mut bytes = name.as_bytes().to_vec();
            bytes.resize((name.len() + 1).next_multiple_of(4) + 4, 0);
            let extent = Extent { offset: 0, size: bytes.len() as u64 };
            assert_eq!(debug_link(&bytes[..], extent), None, "{name}");
        }
    }
}
