//! The functions of a BPF object: their code, and what it refers to.

use std::{
    collections::{BTreeMap, BTreeSet},
    error::Error,
    fs,
    path::Path,
    process::Command,
};

use object::{Object as _, ObjectSection as _, ObjectSymbol as _, RelocationTarget, SectionIndex, SymbolKind};

pub(crate) type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// A function: its section, and its offset there.
pub(crate) type Function = (usize, u64);

pub(crate) const INSTRUCTION: usize = 8;
/// `BPF_LD | BPF_IMM | BPF_DW`: loads an address, in two instructions.
const LOAD_ADDRESS: u8 = 0x18;
/// `BPF_JMP | BPF_CALL`.
pub(crate) const CALL: u8 = 0x85;
/// The source register of a call to a function of the object.
const PSEUDO_CALL: u8 = 1;

/// The functions and maps to which the code of a function refers.
#[derive(Default)]
pub(crate) struct References {
    pub(crate) calls: BTreeSet<Function>,
    /// The names of maps, and of sections of variables.
    pub(crate) maps: BTreeSet<String>,
}

/// Compiles a program for the kernel of a machine, by the name that libbpf's headers have for it.
pub(crate) fn compile(source: &Path, machine: &str) -> Vec<u8> {
    let directory = tempfile::tempdir().unwrap();
    let to = directory.path().join("program.o");
    let clang = std::env::var("CLANG").unwrap_or_else(|_| "clang".into());
    let mut command = Command::new(clang);
    command.args(["-target", "bpf", "-O2", "-g", "-mcpu=v3", &format!("-D__TARGET_ARCH_{machine}")]);
    for include in [
        concat!(env!("CARGO_MANIFEST_DIR"), "/bpf"),
        concat!(env!("CARGO_MANIFEST_DIR"), "/sensors"),
        concat!(env!("OUT_DIR"), "/sensors"),
        // The headers of types are the same for both.
        "/usr/include/x86_64-linux-gnu",
        "/usr/include/aarch64-linux-gnu",
    ] {
        command.arg("-I").arg(include);
    }
    let output = command.arg("-c").arg(source).arg("-o").arg(&to).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    fs::read(to).unwrap()
}

/// The functions of an object.
pub(crate) struct Programs<'data> {
    file: object::File<'data>,
    /// The size and name of each function.
    functions: BTreeMap<Function, (u64, String)>,
}

impl<'data> Programs<'data> {
    pub(crate) fn parse(bytes: &'data [u8]) -> Result<Self> {
        let file = object::File::parse(bytes)?;
        let mut functions = BTreeMap::new();
        for symbol in file.symbols().filter(|symbol| symbol.kind() == SymbolKind::Text && symbol.size() > 0) {
            if let Some(section) = symbol.section_index() {
                functions.insert((section.0, symbol.address()), (symbol.size(), symbol.name()?.to_owned()));
            }
        }
        Ok(Self { file, functions })
    }

    /// Returns the functions that the kernel calls, each with its section's name and its own.
    pub(crate) fn entries(&self) -> Result<Vec<(String, String, Function)>> {
        let mut entries = Vec::new();
        for (function, (_, name)) in &self.functions {
            let section = self.file.section_by_index(SectionIndex(function.0))?;
            if section.name()? != ".text" {
                entries.push((section.name()?.to_owned(), name.clone(), *function));
            }
        }
        Ok(entries)
    }

    pub(crate) fn code(&self, function: Function) -> Result<&'data [u8]> {
        let (size, _) = self.functions.get(&function).ok_or("a call leads to no function")?;
        let begin = usize::try_from(function.1)?;
        let section = self.file.section_by_index(SectionIndex(function.0))?;
        section.data()?.get(begin..begin + usize::try_from(*size)?).ok_or_else(|| "a function is cut short".into())
    }

    /// Returns the function, and all that it calls.
    pub(crate) fn nested(&self, function: Function) -> Result<BTreeSet<Function>> {
        let (mut seen, mut next) = (BTreeSet::new(), vec![function]);
        while let Some(function) = next.pop() {
            if seen.insert(function) {
                next.extend(self.references(function)?.calls);
            }
        }
        Ok(seen)
    }

    pub(crate) fn references(&self, function: Function) -> Result<References> {
        let section = self.file.section_by_index(SectionIndex(function.0))?;
        let relocations: BTreeMap<u64, RelocationTarget> =
            section.relocations().map(|(offset, relocation)| (offset, relocation.target())).collect();
        let mut references = References::default();
        for (index, instruction) in self.code(function)?.chunks_exact(INSTRUCTION).enumerate() {
            let at = function.1 + u64::try_from(index * INSTRUCTION)?;
            let immediate = i64::from(i32::from_le_bytes(instruction[4..8].try_into()?));
            match (instruction[0], instruction[1] >> 4, relocations.get(&at)) {
                (LOAD_ADDRESS, _, Some(RelocationTarget::Symbol(symbol))) => {
                    let symbol = self.file.symbol_by_index(*symbol)?;
                    let of = symbol.section_index().ok_or("an address is in no section")?;
                    let section = self.file.section_by_index(of)?;
                    match section.name()? {
                        ".maps" => references.maps.insert(symbol.name()?.to_owned()),
                        ".text" => return Err("a function's address is taken: its caller is not known".into()),
                        variables => references.maps.insert(variables.to_owned()),
                    };
                }
                (CALL, PSEUDO_CALL, Some(RelocationTarget::Symbol(symbol))) => {
                    let symbol = self.file.symbol_by_index(*symbol)?;
                    let of = symbol.section_index().ok_or("a call leads to no section")?;
                    // A call into a section: the immediate is the offset in instructions, less one.
                    let offset = match symbol.kind() {
                        SymbolKind::Section => u64::try_from((immediate + 1) * 8)?,
                        _ => symbol.address(),
                    };
                    references.calls.insert((of.0, offset));
                }
                (CALL, PSEUDO_CALL, None) => {
                    let offset = i64::try_from(at)? + (immediate + 1) * 8;
                    references.calls.insert((function.0, u64::try_from(offset)?));
                }
                _ => {}
            }
        }
        Ok(references)
    }

    pub(crate) fn name(&self, function: Function) -> &str {
        self.functions.get(&function).map_or("?", |(_, name)| name)
    }
}
