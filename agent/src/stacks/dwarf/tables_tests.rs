use std::{
    cell::Cell,
    fs::File,
    io,
    path::{Path, PathBuf},
};

use gimli::{
    BaseAddresses, CfaRule, CieOrFde, EhFrame, EndianSlice, LittleEndian as Little, RegisterRule, UnwindContext,
    UnwindSection as _, Vendor,
};
use proptest::prelude::*;

use super::*;
use crate::stacks::dwarf::{
    bytes::Bytes,
    frame_entry::Entry,
    instructions,
    rule::{Cfa, Saved},
};

type Section<'a> = EhFrame<EndianSlice<'a, Little>>;

/// Real files of this machine: with few and with many functions, of C, C++, Rust, assembler and V8.
fn real_files() -> Vec<PathBuf> {
    let library = Path::new("/usr/lib/x86_64-linux-gnu");
    let others = ["libc.so.6", "libcrypto.so.3", "libstdc++.so.6", "libpython3.11.so.1.0"];
    let others = others.map(|name| library.join(name)).into_iter();
    let programs = ["/lib64/ld-linux-x86-64.so.2", "/usr/bin/node"].map(PathBuf::from);
    let own = std::env::current_exe().unwrap();
    others.chain(programs).chain([own]).filter(|path| path.exists()).collect()
}

/// Compares at most about `most` functions of a file with gimli; returns the number of compared rules.
fn compare(path: &Path, file: &(impl ReadAt + ?Sized), most: usize, without_search: bool) -> usize {
    let mut tables = Tables::parse(file).unwrap();
    assert!(tables.search.is_some(), "{path:?}");
    if without_search {
        tables.search = None;
    }
    let (start, size) = tables.section.unwrap();
    let mut bytes = tables.image(file).read(start, size).unwrap();
    // gimli does not know the letter for the key B. The letter for signals has no data either.
    for at in 0..bytes.len() {
        if bytes[at..].starts_with(b"zRB\0") {
            bytes[at + 2] = b'S';
        }
    }
    let mut section: Section<'_> = EhFrame::new(&bytes, Little);
    if tables.machine == Machine::Aarch64 {
        section.set_vendor(Vendor::AArch64);
    }
    let bases = BaseAddresses::default().set_eh_frame(start);
    let mut fdes = Vec::new();
    let mut entries = section.entries(&bases);
    while let Some(entry) = entries.next().unwrap() {
        if let CieOrFde::Fde(fde) = entry {
            fdes.push(fde);
        }
    }
    let (mut compared, mut context) = (0, UnwindContext::new());
    for fde in fdes.iter().step_by(fdes.len().div_ceil(most)) {
        let fde = fde.parse(Section::cie_from_offset).unwrap();
        let mut rows = fde.rows(&section, &bases, &mut context).unwrap();
        while let Some(row) = rows.next_row().unwrap() {
            for address in [row.start_address(), row.end_address() - 1] {
                let rule = tables.rule(file, address).unwrap();
                let rule = rule.unwrap_or_else(|| panic!("no rule at {address:#x} of {path:?}"));
                assert!(rule.is_signal() == fde.is_signal_trampoline() || tables.machine == Machine::Aarch64);
                assert_eq!(u16::from(rule.return_register()), fde.cie().return_address_register().0);
                let cfa = match row.cfa() {
                    CfaRule::RegisterAndOffset { register, offset } => {
                        Cfa::Register(register.0.try_into().unwrap(), (*offset).try_into().unwrap())
                    }
                    CfaRule::Expression(expression) => Cfa::Expression(expression.get(&section).unwrap().0.slice()),
                };
                assert_eq!(rule.cfa(), cfa, "{address:#x} of {path:?}");
                let mut saved: Vec<_> = row
                    .registers()
                    .filter_map(|(register, rule)| {
                        let small = u8::try_from(register.0).unwrap();
                        Some((small, saved(rule, &section)?))
                            .filter(|_| usize::from(small) < tables.machine.registers())
                    })
                    .collect();
                saved.sort_by_key(|(register, _)| *register);
                assert_eq!(rule.saved().collect::<Vec<_>>(), saved, "{address:#x} of {path:?}");
                compared += 1;
            }
        }
    }
    compared
}

fn saved<'a>(rule: &RegisterRule<usize>, section: &Section<'a>) -> Option<Saved<'a>> {
    Some(match rule {
        RegisterRule::Undefined => Saved::Undefined,
        RegisterRule::Offset(offset) => Saved::At((*offset).try_into().unwrap()),
        RegisterRule::ValOffset(offset) => Saved::Is((*offset).try_into().unwrap()),
        RegisterRule::Register(register) => Saved::In(register.0.try_into().unwrap()),
        RegisterRule::Expression(expression) => Saved::AtExpression(expression.get(section).unwrap().0.slice()),
        RegisterRule::ValExpression(expression) => Saved::IsExpression(expression.get(section).unwrap().0.slice()),
        // Rules do not keep the state of the signature.
        RegisterRule::SameValue | RegisterRule::Constant(_) => return None,
        other => panic!("{other:?}"),
    })
}

const AARCH64: &[u8] = include_bytes!("testdata/aarch64.so");

#[test]
fn rules_of_real_files_are_those_of_gimli() {
    let of = |path: &Path| compare(path, &File::open(path).unwrap(), 1000, false);
    let compared: Vec<_> = real_files().iter().map(|path| (path.clone(), of(path))).collect();
    println!("{compared:?}");
    assert!(compared.iter().map(|(_, count)| count).sum::<usize>() > 1000, "{compared:?}");
}

#[test]
fn rules_of_aarch64_are_those_of_gimli() {
    assert!(compare(Path::new("aarch64.so"), AARCH64, 1000, false) > 50);
    assert_eq!(Tables::parse(AARCH64).unwrap().machine(), Machine::Aarch64);
}

#[test]
fn rules_without_a_search_table_are_those_of_gimli() {
    // The section of a debug build is too large for it.
    let path = real_files().swap_remove(0);
    assert!(compare(&path, &File::open(&path).unwrap(), 10, true) > 10);
    assert!(compare(Path::new("aarch64.so"), AARCH64, 1000, true) > 50);
}

/// Returns the addresses of all functions of the file for aarch64.
fn functions() -> Vec<u64> {
    let tables = Tables::parse(AARCH64).unwrap();
    let (search, image) = (tables.search.unwrap(), tables.image(AARCH64));
    let pairs = (0..search.count()).map(|at| image.read(search.at(at), 4).unwrap());
    pairs.map(|pair| search.address(&mut Bytes::new(&pair)).unwrap()).collect()
}

#[test]
fn a_file_without_sections_has_the_same_rules() {
    let mut bytes = AARCH64.to_vec();
    // The place and the number of the section headers.
    bytes[40..48].fill(0);
    bytes[60..64].fill(0);
    let (tables, stripped) = (Tables::parse(AARCH64).unwrap(), Tables::parse(&bytes[..]).unwrap());
    assert_eq!(stripped.stubs, []);
    let functions = functions();
    assert!(functions.len() > 10);
    let linear = Tables { search: None, ..stripped.clone() };
    for address in functions {
        let expected = tables.rule(AARCH64, address + 4).unwrap().unwrap();
        assert_eq!(stripped.rule(&bytes[..], address + 4), Ok(Some(expected.clone())));
        assert_eq!(linear.rule(&bytes[..], address + 4), Ok(Some(expected)));
    }
}

#[test]
fn search_tables_have_numbers_of_four_or_eight_bytes() {
    let tables = Tables::parse(AARCH64).unwrap();
    let (start, size) = tables.section.unwrap();
    let section = tables.image(AARCH64).read(start, size).unwrap();
    let (search, image) = (tables.search.unwrap(), tables.image(AARCH64));
    let pairs = image.read(search.at(0), search.count() * 8).unwrap();
    let numbers: Vec<u64> = {
        let mut bytes = Bytes::new(&pairs);
        (0..search.count() * 2).map(|_| search.address(&mut bytes).unwrap()).collect()
    };
    for (encoding, size, found) in
        [(0x33, 4, true), (0x3b, 4, true), (0x34, 8, true), (0x3c, 8, true), (0x1b, 4, false)]
    {
        // The header is put in front of the same section, with its numbers in this encoding.
        let length = 12 + numbers.len() * size;
        let at = start - length as u64;
        let count = u32::try_from(search.count()).unwrap().to_le_bytes();
        let place = u32::try_from(start - at - 4).unwrap().to_le_bytes();
        let mut bytes = [&[1, 0x1b, 0x03, encoding], &place[..], &count].concat();
        numbers.iter().for_each(|number| bytes.extend(&number.wrapping_sub(at).to_le_bytes()[..size]));
        bytes.extend(&section);
        let extent = Extent { offset: 0, size: bytes.len() as u64 };
        let segments = [Segment { extent, address: at, is_code: false }];
        let image = Image { file: &bytes[..], segments: &segments };
        let (search, section) = header(&image, at).unwrap();
        assert_eq!((section, search.is_some()), (start, found));
        let Some(search) = search else { continue };
        for address in functions() {
            let expected = tables.rule(AARCH64, address).unwrap();
            assert_eq!(search.rule(&image, Machine::Aarch64, address).ok(), expected, "{encoding:#x}");
        }
    }
}

#[test]
fn the_linkage_table_of_lld_has_rules() {
    let tables = Tables::parse(AARCH64).unwrap();
    let plt = tables.stubs[0];
    let cfa = |at: u64| tables.rule(AARCH64, plt.0 + at).unwrap().map(|rule| rule.cfa() == Cfa::Register(31, 16));
    // The first entry pushes x16 and x30.
    assert_eq!([0, 4, 28, 32, 44].map(cfa), [Some(false), Some(true), Some(true), Some(false), Some(false)]);
    assert_eq!(tables.rule(AARCH64, plt.0 + plt.1), Ok(None));
}

#[test]
fn addresses_without_code_have_no_rule() {
    let tables = Tables::parse(AARCH64).unwrap();
    for address in [0, u64::MAX, functions()[0] - 1, tables.section.unwrap().0] {
        assert_eq!(tables.rule(AARCH64, address), Ok(None), "{address:#x}");
    }
    let linear = Tables { search: None, ..tables };
    assert_eq!(linear.rule(AARCH64, functions()[0] - 1), Ok(None));
}

#[test]
fn addresses_are_those_of_the_segment_with_code() {
    // The segments of data, code and data share bytes of the file.
    let segment = |offset, address, is_code| Segment { extent: Extent { offset, size: 0x100 }, address, is_code };
    let segments = vec![segment(0, 0x1000, false), segment(0x80, 0x2080, true), segment(0x100, 0x3100, false)];
    let tables = Tables { segments, ..Tables::parse(AARCH64).unwrap() };
    let addresses = [0x7f, 0x80, 0x17f, 0x180, 0x200].map(|offset| tables.address_of(offset));
    assert_eq!(addresses, [Some(0x107f), Some(0x2080), Some(0x217f), Some(0x3180), None]);
}

#[test]
fn the_state_of_signed_return_addresses_is_understood_on_aarch64_only() {
    // DW_CFA_AARCH64_negate_ra_state.
    assert!(execute(Machine::Aarch64, &[0x2d], 0).is_some());
    assert_eq!(execute(Machine::X86_64, &[0x2d], 0), None);
}

#[test]
fn remembered_states_and_instructions_have_a_limit() {
    let rule = |instructions: &[u8]| execute(Machine::X86_64, instructions, 0);
    // DW_CFA_remember_state, DW_CFA_restore_state, DW_CFA_nop.
    assert!(rule(&[0x0a; 8]).is_some() && rule(&[0x0a; 9]).is_none());
    assert_eq!(rule(&[0x0a, 0x0b, 0x0b]), None);
    assert!(rule(&[0; 4000]).is_some() && rule(&[0; 4096]).is_none());
    // DW_CFA_def_cfa_expression of 256 and 257 bytes, and an opcode that nobody uses.
    assert!(rule(&[&[0x0f, 0x80, 2][..], &[0x96; 256]].concat()).is_some());
    assert_eq!(rule(&[&[0x0f, 0x81, 2][..], &[0x96; 257]].concat()), None);
    assert_eq!(rule(&[0x3f]), None);
}

/// Executes instructions of a function from 0 to 0x1000 whose CIE has no augmentation.
fn execute(machine: Machine, instructions: &[u8], address: u64) -> Option<Rule> {
    let cie = [16, 0, 0, 0, 0, 0, 0, 0, 1, 0, 1, 0x78, 16, 0x0c, 7, 8, 0x90, 1, 0, 0];
    let length = u32::try_from(20 + instructions.len()).unwrap().to_le_bytes();
    let range = [0, 0x1000_u64].map(u64::to_le_bytes).concat();
    let fde = [&length[..], &[24, 0, 0, 0], &range, instructions].concat();
    let (cie, fde) = (Entry::new(&cie, 0).unwrap(), Entry::new(&fde, 20).unwrap());
    assert_eq!((cie.cie_address(), fde.cie_address()), (None, Some(0)));
    let cie = cie.cie(machine).unwrap();
    instructions::rule(machine, &cie, &fde.fde(&cie).unwrap(), address)
}

#[test]
fn a_file_that_became_shorter_is_unreadable() {
    let tables = Tables::parse(AARCH64).unwrap();
    assert_eq!(tables.rule(&AARCH64[..1000], functions()[0]), Err(Unreadable));
    assert_eq!(Tables::parse(&AARCH64[..60]), None);
    let mut other = AARCH64.to_vec();
    other[18] = 3;
    assert_eq!(Tables::parse(&other[..]), None);
}

/// A file that counts its reads.
struct Counted<'a>(&'a File, Cell<usize>);

impl ReadAt for Counted<'_> {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.1.set(self.1.get() + 1);
        ReadAt::read_at(self.0, buffer, offset)
    }
}

#[test]
fn a_rule_takes_few_reads() {
    let file = File::open("/proc/self/exe").unwrap();
    let tables = Tables::parse(&file).unwrap();
    let search = tables.search.unwrap();
    let pair = tables.image(&file).read(search.at(search.count() / 3), 4).unwrap();
    let address = search.address(&mut Bytes::new(&pair)).unwrap();
    let counted = Counted(&file, Cell::new(0));
    assert!(tables.rule(&counted, address).unwrap().is_some());
    let search_reads = usize::try_from(search.count().ilog2()).unwrap();
    assert!(counted.1.get() <= search_reads, "{} of {} functions", counted.1.get(), search.count());
}

#[test]
fn most_rules_are_small() {
    assert!(size_of::<Rule>() <= 56);
    let file = File::open("/proc/self/exe").unwrap();
    let tables = Tables::parse(&file).unwrap();
    assert!((1..1000).contains(&tables.cost()));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn no_damage_does_harm(
        // The headers, and the call frame information.
        damage in prop::collection::vec((prop_oneof![0_usize..0x300, 0x300_usize..0xa00], any::<u8>()), 1..24),
        section in any::<bool>(),
    ) {
        let mut bytes = AARCH64.to_vec();
        for (at, byte) in damage {
            bytes[at] = byte;
        }
        let Some(mut tables) = Tables::parse(&bytes[..]) else { return Ok(()) };
        if section {
            tables.search = None;
        }
        for address in functions() {
            let _ = tables.rule(&bytes[..], address + 8);
        }
    }

    #[test]
    fn no_instructions_do_harm(instructions in prop::collection::vec(any::<u8>(), 0..400), address in 0_u64..0x1000) {
        for machine in [Machine::X86_64, Machine::Aarch64] {
            let rule = execute(machine, &instructions, address);
            prop_assert!(rule.is_none_or(|rule| rule.cost() < 16 << 10));
        }
    }
}
