//! The files that code was mapped from: what is known of each, and its functions by address.

use std::{fs::File, io, sync::Arc};

use super::{
    elf::Elf,
    elf_symbols::{checksum, functions, htlhash},
    files::{FileId, hosts, open_below},
    remembered::Remembered,
};
use crate::ids::Pid;

/// Memory that remembered files may take: some thousand.
const MAX_BYTES: usize = 4 << 20;
/// A file of symbols that is told by its checksum alone is read at most so far.
const MAX_CHECKED: u64 = 256 << 20;
const DEBUG_DIRECTORY: &str = "/usr/lib/debug";

/// A file's content.
#[derive(Debug)]
pub(super) struct Object {
    /// Its name in this process.
    pub(super) number: u64,
    pub(super) id: FileId,
    /// In hex.
    pub(super) build_id: Option<String>,
    pub(super) htlhash: Option<String>,
    /// `None` when it is no ELF file.
    pub(super) elf: Option<Elf>,
}

/// The files that are known.
#[derive(Debug)]
pub(super) struct Objects {
    known: Remembered<FileId, Arc<Object>>,
    next: u64,
}

impl Objects {
    pub(super) fn new() -> Self {
        Self { known: Remembered::new(MAX_BYTES), next: 0 }
    }

    /// What the file is; each is read once.
    pub(super) fn meet(&mut self, file: &File) -> io::Result<Arc<Object>> {
        let id = FileId::of(file)?;
        if let Some(object) = self.known.get(&id) {
            return Ok(Arc::clone(object));
        }
        let elf = Elf::parse(file);
        let build_id = elf.as_ref().and_then(|elf| elf.build_id.as_deref()).map(hex);
        let htlhash = htlhash(file, id.size).map(|hash| hex(&hash));
        self.next += 1;
        let object = Arc::new(Object { number: self.next, id, build_id, htlhash, elf });
        let elf_cost = object.elf.as_ref().map_or(0, Elf::cost);
        self.known.insert(id, Arc::clone(&object), 512 + elf_cost);
        Ok(object)
    }

    pub(super) fn next_window(&mut self) {
        self.known.next_window();
    }
}

impl Object {
    /// The functions at ascending addresses. `file` is the object's; what a stripped one lacks is looked for in the
    /// file of its symbols, where the process that has it at `path` or the host has that.
    pub(super) fn functions(&self, file: &File, process: Pid, path: &str, addresses: &[u64]) -> Vec<Option<String>> {
        let Some(elf) = &self.elf else { return vec![None; addresses.len()] };
        let mut names = functions(elf, file, addresses);
        if elf.symbols.is_none()
            && names.iter().any(Option::is_none)
            && let Some((file, elf)) = self.symbol_file(elf, process, path)
        {
            for (name, better) in names.iter_mut().zip(functions(&elf, &file, addresses)) {
                *name = better.or_else(|| name.take());
            }
        }
        names
    }

    fn symbol_file(&self, elf: &Elf, process: Pid, path: &str) -> Option<(File, Elf)> {
        let mut candidates = Vec::new();
        if let Some((first, rest)) = self.build_id.as_ref().and_then(|id| id.split_at_checked(2)) {
            candidates.push(format!("{DEBUG_DIRECTORY}/.build-id/{first}/{rest}.debug"));
        }
        if let Some((name, _)) = &elf.debug_link {
            let directory = path.rsplit_once('/').map_or("", |(directory, _)| directory);
            candidates.extend([
                format!("{directory}/{name}"),
                format!("{directory}/.debug/{name}"),
                format!("{DEBUG_DIRECTORY}{directory}/{name}"),
            ]);
        }
        let opened = [process].into_iter().chain(hosts());
        let opened = opened.flat_map(|root| candidates.iter().map(move |path| (root, path)));
        opened.filter_map(|(root, path)| open_below(root, path).ok()).find_map(|file| {
            let found = Elf::parse(&file).filter(|found| found.symbols.is_some())?;
            self.is_of(elf, &found, &file).then_some((file, found))
        })
    }

    /// Whether a file of symbols is this file's: by build id where both have one, else by the link's checksum.
    fn is_of(&self, elf: &Elf, found: &Elf, file: &File) -> bool {
        if elf.build_id.is_some() && found.build_id.is_some() {
            return elf.build_id == found.build_id;
        }
        elf.debug_link.as_ref().is_some_and(|(_, sum)| checksum(file, MAX_CHECKED) == Some(*sum))
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
