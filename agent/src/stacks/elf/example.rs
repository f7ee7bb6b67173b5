//! Small ELF files for tests.

/// Returns a file with code at 0x100 in the file and at 0x401000 in memory: `first` of 16 bytes, 16 bytes without a
/// symbol, `second` of 16 bytes, and assembler code without a size up to 0x401040.
pub(in crate::stacks) fn file() -> Vec<u8> {
    let names = b"\0.gnu_debuglink\0";
    let strings = b"\0first\0second\0_start\0alias\0";
    let mut notes = Vec::new();
    for (kind, name, id) in [(1_u32, b"GNU\0", &[9; 16][..]), (3, b"GNU\0", &[0xab; 20])] {
        notes.extend([4, u32::try_from(id.len()).unwrap(), kind].map(u32::to_le_bytes).concat());
        notes.extend([&name[..], id].concat());
    }
    let mut link = b"program.debug\0\0\0".to_vec();
    link.extend(0x1234_5678_u32.to_le_bytes());
    let symbol = |name: u32, info: u8, section: u16, value: u64, size: u64| {
        let mut bytes = name.to_le_bytes().to_vec();
        bytes.extend([info, 0]);
        bytes.extend(section.to_le_bytes());
        bytes.extend([value, size].map(u64::to_le_bytes).concat());
        bytes
    };
    let symbols = [
        symbol(0, 0, 0, 0, 0),
        symbol(21, 0x02, 1, 0x40_1000, 16),
        symbol(1, 0x12, 1, 0x40_1000, 16),
        symbol(7, 0x12, 1, 0x40_1020, 16),
        symbol(14, 0x10, 1, 0x40_1030, 0),
        // Data, and a function in another file.
        symbol(21, 0x11, 1, 0x40_1038, 8),
        symbol(21, 0x12, 0, 0x40_1038, 8),
    ]
    .concat();

    let mut file = vec![0; 0x140];
    let mut append = |bytes: &[u8]| {
        let at = file.len() as u64;
        file.extend(bytes);
        file.resize(file.len().next_multiple_of(8), 0);
        (at, bytes.len() as u64)
    };
    let (names, strings, notes, link, symbols) =
        (append(names), append(strings), append(&notes), append(&link), append(&symbols));
    let section = |name: u32, kind: u32, flags: u64, address: u64, (at, size): (u64, u64), link: u32| {
        let mut bytes = [name, kind].map(u32::to_le_bytes).concat();
        bytes.extend([flags, address, at, size].map(u64::to_le_bytes).concat());
        bytes.extend([link, 0].map(u32::to_le_bytes).concat());
        bytes.extend([0; 16]);
        bytes
    };
    let sections = [
        section(0, 0, 0, 0, (0, 0), 0),
        section(0, 1, 6, 0x40_1000, (0x100, 0x40), 0),
        section(0, 3, 0, 0, names, 0),
        section(0, 3, 0, 0, strings, 0),
        section(0, 7, 2, 0, notes, 0),
        section(1, 1, 0, 0, link, 0),
        section(0, 2, 0, 0, symbols, 3),
    ];
    let (at, _) = append(&sections.concat());
    let header = [b"\x7fELF\x02\x01\x01".to_vec(), vec![0; 9], vec![3, 0, 62, 0, 1, 0, 0, 0]].concat();
    file[..24].copy_from_slice(&header);
    file[32..40].copy_from_slice(&64_u64.to_le_bytes());
    file[40..48].copy_from_slice(&at.to_le_bytes());
    let numbers = [64, 56, 1, 64, u16::try_from(sections.len()).unwrap(), 2];
    file[52..64].copy_from_slice(&numbers.map(u16::to_le_bytes).concat());
    let segment = [
        [1_u32, 5].map(u32::to_le_bytes).concat(),
        [0x100_u64, 0x40_1000, 0, 0x40, 0x40, 1].map(u64::to_le_bytes).concat(),
    ];
    file[64..120].copy_from_slice(&segment.concat());
    file
}

/// Returns a file of 64 bits with these sections alone: the name, the flags and the bytes of each.
pub(in crate::stacks) fn sections(sections: &[(&str, u64, &[u8])]) -> Vec<u8> {
    let header = |name: usize, kind: u32, flags: u64, at: usize, size: usize| {
        let mut bytes = [u32::try_from(name).unwrap(), kind].map(u32::to_le_bytes).concat();
        bytes.extend([flags, 0, at as u64, size as u64].map(u64::to_le_bytes).concat());
        bytes.extend([0; 24]);
        bytes
    };
    let (mut file, mut headers, mut names) = (vec![0_u8; 64], vec![0_u8; 64], vec![0_u8]);
    for (name, flags, bytes) in sections {
        headers.extend(header(names.len(), 1, *flags, file.len(), bytes.len()));
        names.extend([name.as_bytes(), b"\0"].concat());
        file.extend(*bytes);
    }
    headers.extend(header(0, 3, 0, file.len(), names.len()));
    file.extend(names);
    let ident = [b"\x7fELF\x02\x01\x01".to_vec(), vec![0; 9], vec![3, 0, 62, 0, 1, 0, 0, 0]].concat();
    file[..24].copy_from_slice(&ident);
    let at = file.len() as u64;
    file[40..48].copy_from_slice(&at.to_le_bytes());
    let count = u16::try_from(headers.len() / 64).unwrap();
    file[52..64].copy_from_slice(&[64, 56, 0, 64, count, count - 1].map(u16::to_le_bytes).concat());
    file.extend(headers);
    file
}
