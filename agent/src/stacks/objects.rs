//! The files that code was mapped from: their header data, and their functions by address.

use std::{
    cell::Cell,
    io,
    ops::DerefMut,
    sync::{Arc, Mutex, PoisonError},
};

use super::{
    debuginfod::{DebugFile, DebugFiles},
    demangle::{FunctionName, Language},
    elf::Elf,
    elf_symbols::{checksum, functions, htlhash},
    files::{FileId, Watched, open_below, open_mapped},
    line_table::{self, Lines},
    maps::{Backing, Vma},
    packed_symbols,
    read_at::ReadAt,
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

    /// Returns the numbers of the known objects for which `is_wanted` is true.
    pub(super) fn numbers(&self, is_wanted: impl Fn(&Object) -> bool) -> Vec<u64> {
        let this = self.lock();
        let wanted = this.known.values().filter(|object| is_wanted(object));
        wanted.map(|object| object.number).collect()
    }
}

/// The functions at addresses of an object.
#[derive(Debug)]
pub(super) struct Looked {
    /// The functions, in the order of the addresses.
    pub(super) names: Vec<Option<FunctionName>>,
    pub(super) debug_file: DebugFile,
}

impl Object {
    /// Returns the functions at ascending addresses. `file` is the object's file. If it is stripped, missing names are
    /// looked up in the file of its symbols, below the root of the process that has the object at `path` or of one of
    /// the `hosts`; without such a file, in one of the `debug_files`, and without that, in the symbols that are packed
    /// into the object's own file.
    pub(super) fn functions(
        &self,
        file: &Watched<'_>,
        process: Pid,
        path: &str,
        hosts: &[Pid],
        debug_files: Option<&DebugFiles>,
        addresses: &[u64],
    ) -> Looked {
        let without = |names| Looked { names, debug_file: DebugFile::NotNeeded };
        let Some(elf) = &self.elf else { return without(vec![None; addresses.len()]) };
        let mut names = functions(elf, file, addresses);
        if elf.symbols.is_some() || names.iter().all(Option::is_some) {
            return without(names);
        }
        let (mut debug_file, own) = (DebugFile::NotNeeded, file.pulse.place());
        let mut symbol_file = self.symbol_file(elf, process, path, hosts, file.pulse);
        if symbol_file.is_none()
            && let Some(debug_files) = debug_files
        {
            (debug_file, symbol_file) = self.debug_file(elf, debug_files, file.pulse);
        }
        let Some((symbols, found)) = symbol_file else {
            // A read of this file that hangs says nothing of the places in between.
            file.pulse.at(own);
            let packed = packed_symbols::functions(elf, file, addresses, || file.pulse.beat().is_ok());
            let names: Vec<_> = names.into_iter().zip(packed).map(|(name, packed)| name.or(packed)).collect();
            if debug_file == DebugFile::Missing && names.iter().all(Option::is_some) {
                debug_file = DebugFile::NotNeeded;
            }
            return Looked { names, debug_file };
        };
        for (name, better) in names.iter_mut().zip(functions(&found, &symbols, addresses)) {
            let Some(mut better) = better else { continue };
            // Only the program itself contains the table of Go's functions.
            if name.as_ref().is_some_and(|name| name.language == Language::Go) {
                better.language = Language::Go;
            }
            *name = Some(better);
        }
        Looked { names, debug_file }
    }

    /// Opens the debug file that a server sent for this file. It must have the build id and symbols.
    fn debug_file<'a>(
        &self,
        elf: &Elf,
        debug_files: &DebugFiles,
        pulse: &'a Pulse,
    ) -> (DebugFile, Option<(Watched<'a>, Elf)>) {
        let Some(build_id) = &self.build_id else { return (DebugFile::NotNeeded, None) };
        pulse.at(Place::Cache);
        if pulse.beat().is_err() {
            return (DebugFile::NotNeeded, None);
        }
        let file = match debug_files.open(build_id) {
            Ok(file) => Watched { file, pulse },
            Err(error) if error.kind() == io::ErrorKind::NotFound => return (DebugFile::Missing, None),
            Err(_) => return (DebugFile::NotNeeded, None),
        };
        let (debug_file, found) = checked(elf, &file);
        (debug_file, found.map(|found| (file, found)))
    }

    /// Returns the source lines of the code at these addresses; `None` if debug information is neither in the object's
    /// own `file` nor in the file of its symbols. Paths of source files take at most `room` bytes.
    pub(super) fn lines(
        &self,
        file: &Watched<'_>,
        process: Pid,
        path: &str,
        hosts: &[Pid],
        addresses: &[u64],
        room: usize,
    ) -> Option<Lines> {
        let elf = self.elf.as_ref()?;
        line_table::lines(elf, file, addresses, room).or_else(|| {
            let (symbols, found) = self.symbol_file(elf, process, path, hosts, file.pulse)?;
            line_table::lines(&found, &symbols, addresses, room)
        })
    }

    /// Opens the file through the first of these processes that still maps it, or by its path on one of the hosts.
    pub(super) fn open<'a>(
        &self,
        owners: Vec<(Pid, Vma)>,
        path: &str,
        hosts: &[Pid],
        pulse: &'a Pulse,
    ) -> Option<(Pid, Watched<'a>)> {
        let watched = |file| Watched { file, pulse };
        let mapped = owners.into_iter().filter_map(|(pid, vma)| match &vma.backing {
            Backing::File(file) => Some((pid, watched(open_mapped(pid, &vma, file).ok()?))),
            Backing::Anonymous | Backing::Special(_) => None,
        });
        let on_hosts = hosts.iter().filter_map(|host| {
            pulse.at(Place::Host);
            Some((*host, watched(open_below(*host, path).ok()?)))
        });
        mapped.chain(on_hosts).find(|(_, file)| self.is(file))
    }

    /// Returns whether this is the file that was seen before, and not a new file at its place.
    pub(super) fn is(&self, file: &Watched<'_>) -> bool {
        FileId::of(&file.file).is_ok_and(|id| id.is_still(self.id))
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

/// A file that knows whether a read of it has failed.
struct Failing<'a, F: ?Sized> {
    file: &'a F,
    has_failed: Cell<bool>,
}

impl<F: ReadAt + ?Sized> ReadAt for Failing<'_, F> {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.file.read_at(buffer, offset).inspect_err(|_| self.has_failed.set(true))
    }
}

/// Returns the debug file for a file with this header, if it is one. A disk that fails says nothing of the file.
fn checked(elf: &Elf, file: &(impl ReadAt + ?Sized)) -> (DebugFile, Option<Elf>) {
    let file = Failing { file, has_failed: Cell::new(false) };
    let found = Elf::parse(&file).filter(|found| found.build_id == elf.build_id && found.symbols.is_some());
    let debug_file = match &found {
        Some(_) => DebugFile::Used,
        None if file.has_failed.get() => DebugFile::NotNeeded,
        None => DebugFile::Unusable,
    };
    (debug_file, found)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use std::{
        fs::{self, File},
        path::Path,
        time::{Duration, Instant},
    };

    use super::*;
    use crate::stacks::elf::example;

    const FIRST: u64 = 0x40_1000;

    /// Looks up a function of a stripped file in a cache. Also returns the place of the last reads.
    fn looked_up(directory: &Path) -> (Option<String>, DebugFile, Place) {
        let bytes = example::file();
        let path = directory.join("stripped");
        fs::write(&path, &bytes).unwrap();
        let pulse = Pulse::new(Instant::now() + Duration::from_secs(3600), Place::Own);
        let file = Watched { file: File::open(path).unwrap(), pulse: &pulse };
        let mut elf = Elf::parse(&bytes[..]).unwrap();
        (elf.symbols, elf.debug_link) = (None, None);
        let (id, build_id) = (FileId::of(&file.file).unwrap(), elf.build_id.as_deref().map(hex));
        let object = Object { number: 1, id, build_id, htlhash: None, elf: Some(elf) };
        let debug_files = DebugFiles::in_directory(directory, false);
        let own = Pid(std::process::id());
        let mut looked = object.functions(&file, own, "/none", &[], Some(&debug_files), &[FIRST]);
        (looked.names.pop().unwrap().map(|name| name.text), looked.debug_file, pulse.place())
    }

    #[test]
    fn a_debug_file_from_a_server_is_used_only_if_it_is_of_the_same_build() {
        let directory = tempfile::tempdir().unwrap();
        let debug_file = directory.path().join(format!("{}.debug", "ab".repeat(20)));
        assert_eq!(looked_up(directory.path()), (None, DebugFile::Missing, Place::Own));
        let right = example::file();
        fs::write(&debug_file, &right).unwrap();
        assert_eq!(looked_up(directory.path()), (Some("first".into()), DebugFile::Used, Place::Cache));
        let mut other = right.clone();
        let id = other.windows(20).position(|bytes| bytes == [0xab; 20]).unwrap();
        other[id] = 0xac;
        for unusable in [&other[..], &right[..right.len() / 2], b"", b"<html>"] {
            fs::write(&debug_file, unusable).unwrap();
            assert_eq!(looked_up(directory.path()), (None, DebugFile::Unusable, Place::Own));
        }
        fs::remove_file(&debug_file).unwrap();
        std::os::unix::fs::symlink(directory.path().join("stripped"), &debug_file).unwrap();
        assert_eq!(looked_up(directory.path()).0, None, "a link leads nowhere");
    }

    /// A file on a disk that cannot read the bytes from an offset on.
    struct Broken(Vec<u8>, u64);

    impl ReadAt for Broken {
        fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
            if offset.saturating_add(buffer.len() as u64) > self.1 {
                return Err(io::Error::other("EIO"));
            }
            self.0.read_at(buffer, offset)
        }
    }

    #[test]
    fn a_disk_that_fails_makes_no_debug_file_unusable() {
        let bytes = example::file();
        let elf = Elf::parse(&bytes[..]).unwrap();
        for readable in [0, 64, 0x140, bytes.len() as u64 / 2] {
            assert_eq!(checked(&elf, &Broken(bytes.clone(), readable)).0, DebugFile::NotNeeded, "{readable}");
        }
        assert_eq!(checked(&elf, &Broken(bytes.clone(), u64::MAX)).0, DebugFile::Used);
        assert_eq!(checked(&elf, &bytes[..0x140]).0, DebugFile::Unusable);
    }
}
