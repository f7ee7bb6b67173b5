//! The files that code was mapped from: their header data, and their functions by address.

use std::{
    io,
    ops::DerefMut,
    sync::{Arc, Mutex, PoisonError},
};

use super::{
    demangle::{FunctionName, Language},
    elf::Elf,
    elf_symbols::{checksum, functions, htlhash},
    files::{FileId, Watched, open_below},
    packed_symbols,
    reader::{Place, Pulse},
    remembered::Remembered,
};
use crate::model::ids::Pid;

/// The most memory for remembered files, in bytes: enough for some thousand.
const MAX_BYTES: usize = 4 << 20;
/// The largest file of symbols whose checksum is computed, in bytes. The checksum is needed without build ids.
const MAX_CHECKED: u64 = 256 << 20;
const DEBUG_DIRECTORY: &str = "/usr/lib/debug";

/// The content of a file.
#[derive(Debug)]
pub(super) struct Object {
    /// The number that identifies the object in this agent.
    pub(super) number: u64,
    pub(super) id: FileId,
    /// The build id in hex.
    pub(super) build_id: Option<String>,
    pub(super) htlhash: Option<String>,
    /// `None` if this is no ELF file.
    pub(super) elf: Option<Elf>,
}

/// The known files. Hanging threads share them with the thread that replaces them, so the lock is never held during a
/// file read.
#[derive(Debug)]
pub(super) struct Objects(Mutex<Known>);

#[derive(Debug)]
struct Known {
    known: Remembered<FileId, Arc<Object>>,
    next: u64,
}

impl Objects {
    pub(super) fn new() -> Self {
        Self(Mutex::new(Known { known: Remembered::new(MAX_BYTES), next: 0 }))
    }

    fn lock(&self) -> impl DerefMut<Target = Known> {
        Mutex::lock(&self.0).unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the object of a file; each content is read once.
    pub(super) fn object(&self, file: &Watched<'_>) -> io::Result<Arc<Object>> {
        let id = FileId::of(&file.file)?;
        if let Some(object) = self.lock().known.get(&id) {
            return Ok(Arc::clone(object));
        }
        let elf = Elf::parse(file);
        let build_id = elf.as_ref().and_then(|elf| elf.build_id.as_deref()).map(hex);
        let htlhash = htlhash(file, id.size).map(|hash| hex(&hash));
        // If the time ran out, only a part of the file was read: then it is not remembered.
        file.pulse.beat()?;
        let mut this = self.lock();
        this.next += 1;
        let object = Arc::new(Object { number: this.next, id, build_id, htlhash, elf });
        let elf_cost = object.elf.as_ref().map_or(0, Elf::cost);
        this.known.insert(id, Arc::clone(&object), 512 + elf_cost);
        Ok(object)
    }

    pub(super) fn next_window(&self) {
        self.lock().known.next_window();
    }
}

impl Object {
    /// Returns the functions at ascending addresses. `file` is the object's file. If it is stripped, missing names are
    /// looked up in the file of its symbols, below the root of the process that has the object at `path` or of one of
    /// the `hosts`; without such a file, in the symbols that are packed into the object's own file.
    pub(super) fn functions(
        &self,
        file: &Watched<'_>,
        process: Pid,
        path: &str,
        hosts: &[Pid],
        addresses: &[u64],
    ) -> Vec<Option<FunctionName>> {
        let Some(elf) = &self.elf else { return vec![None; addresses.len()] };
        let mut names = functions(elf, file, addresses);
        if elf.symbols.is_some() || names.iter().all(Option::is_some) {
            return names;
        }
        let Some((symbols, found)) = self.symbol_file(elf, process, path, hosts, file.pulse) else {
            let packed = packed_symbols::functions(elf, file, addresses, || file.pulse.beat().is_ok());
            return names.into_iter().zip(packed).map(|(name, packed)| name.or(packed)).collect();
        };
        for (name, better) in names.iter_mut().zip(functions(&found, &symbols, addresses)) {
            let Some(mut better) = better else { continue };
            // Only the program itself contains the table of Go's functions.
            if name.as_ref().is_some_and(|name| name.language == Language::Go) {
                better.language = Language::Go;
            }
            *name = Some(better);
        }
        names
    }

    fn symbol_file<'a>(
        &self,
        elf: &Elf,
        process: Pid,
        path: &str,
        hosts: &[Pid],
        pulse: &'a Pulse,
    ) -> Option<(Watched<'a>, Elf)> {
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
        let roots = [(process, Place::Own)].into_iter().chain(hosts.iter().map(|host| (*host, Place::Host)));
        let paths = roots.flat_map(|(root, place)| candidates.iter().map(move |path| (root, place.clone(), path)));
        let mut opened = paths.filter_map(|(root, place, path)| {
            pulse.at(place);
            pulse.beat().ok()?;
            Some(Watched { file: open_below(root, path).ok()?, pulse })
        });
        opened.find_map(|file| {
            let found = Elf::parse(&file).filter(|found| found.symbols.is_some())?;
            self.is_of(elf, &found, &file).then_some((file, found))
        })
    }

    /// Returns whether a file of symbols belongs to this file: by build id if both have one, otherwise by the checksum
    /// of the debug link.
    fn is_of(&self, elf: &Elf, found: &Elf, file: &Watched<'_>) -> bool {
        if elf.build_id.is_some() && found.build_id.is_some() {
            return elf.build_id == found.build_id;
        }
        elf.debug_link.as_ref().is_some_and(|(_, sum)| checksum(file, MAX_CHECKED) == Some(*sum))
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
