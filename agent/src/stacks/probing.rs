//! Finds the functions that the configuration names in the files of all processes, and probes them.
//!
//! One thread looks for the files: those that a process of each mount namespace sees under the configured path. The
//! files are untrusted, so this thread is confined like all others that read them. A second thread makes the probes. A
//! probe keeps a file in use, so it ends when no process sees the file any more.

use std::{
    collections::{HashMap, HashSet, hash_map::Entry},
    fs::{self, File},
    io,
    os::{fd::AsFd as _, unix::fs::MetadataExt as _},
    sync::mpsc,
    thread,
    time::Duration,
};

use tracing::warn;

use super::{
    elf::Elf,
    elf_symbols::address_of,
    files::{FileId, open_below},
    read_at::ReadAt,
};
use crate::{
    kernel::{Probe, Probes},
    model::{
        functions::{Code, Function, SENSOR},
        ids::Pid,
        status::{State, Status},
    },
    sandbox::confine_reader,
};

/// The time between two searches for files.
const SEARCH_EVERY: Duration = Duration::from_secs(10);
/// The most different files of one function.
const MOST_FILES: usize = 64;

/// A file of a function: the function's place in the configuration, and the file.
type FileOf = (usize, FileId);

/// A file that is new, and the offset of the function in it, or the reason why it has none.
#[derive(Debug)]
struct Found {
    of: FileOf,
    file: File,
    offset: Result<u64, String>,
}

/// The result of a search.
#[derive(Debug, Default)]
struct Search {
    new: Vec<Found>,
    /// All files that processes see now.
    seen: HashSet<FileOf>,
    /// Some processes cannot be looked into.
    is_denied: bool,
    /// Some files were left out, because there are too many.
    is_cut: bool,
}

/// Starts the threads. `unreadable` is the reason why files of other programs cannot be read, if there is one. The
/// probes last as long as the process.
///
/// # Errors
///
/// When a thread cannot be started.
pub fn start(
    probes: Probes,
    functions: Vec<Function>,
    unreadable: Option<String>,
    status: Status,
    confined: bool,
) -> io::Result<()> {
    let mut finder = Finder::of(&functions, unreadable.is_some());
    let mut attached = Attached::new(probes, functions, unreadable);
    let (send, searches) = mpsc::sync_channel(1);
    // The second thread has a sender, too: so the probes last if the first thread ends.
    let open = send.clone();
    if !finder.functions.is_empty() {
        thread::Builder::new().name("podperf-find".into()).spawn(move || {
            if confined && let Err(error) = confine_reader() {
                warn!(error = format!("{:#}", anyhow::Error::from(error)), "files are read without a sandbox");
            }
            while send.send(finder.search()).is_ok() {
                thread::sleep(SEARCH_EVERY);
            }
        })?;
    }
    thread::Builder::new().name("podperf-probes".into()).spawn(move || {
        let _open = open;
        let mut last = None;
        loop {
            // While sensors are shed, the limits say so, and a state that stays the same must not hide it.
            let now = attached.state();
            if last.as_ref() != Some(&now) {
                status.set(SENSOR, now.state, now.detail.as_str());
                last = Some(now);
            }
            match searches.recv() {
                Ok(search) => attached.take(search),
                Err(mpsc::RecvError) => return,
            }
        }
    })?;
    Ok(())
}

/// Probes the functions for a moment, and returns the state of the sensor.
#[must_use]
pub fn try_once(probes: Probes, functions: Vec<Function>, unreadable: Option<String>) -> (State, String) {
    let mut finder = Finder::of(&functions, unreadable.is_some());
    let mut attached = Attached::new(probes, functions, unreadable);
    attached.take(finder.search());
    let Told { state, detail } = attached.state();
    (state, detail)
}

/// Finds files.
struct Finder {
    /// The place, the path and the symbol of each function of a program.
    functions: Vec<(usize, String, String)>,
    /// The files that are seen, each by what it is on any device. Containers of one image share the files of the image,
    /// and a probe of one is a probe of all.
    known: HashMap<FileOf, FileId>,
}

impl Finder {
    fn of(functions: &[Function], is_unreadable: bool) -> Self {
        let of_program = |(place, function): (usize, &Function)| match &function.code {
            Code::Program { binary, symbol } if !is_unreadable => Some((place, binary.clone(), symbol.clone())),
            _ => None,
        };
        Self { functions: functions.iter().enumerate().filter_map(of_program).collect(), known: HashMap::new() }
    }

    fn search(&mut self) -> Search {
        if self.functions.is_empty() {
            return Search::default();
        }
        let (processes, is_denied) = one_of_each_mount_namespace();
        Search { is_denied, ..self.search_in(&processes) }
    }

    /// Searches the files that these processes see.
    fn search_in(&mut self, processes: &[Pid]) -> Search {
        let mut search = Search::default();
        // `None`: the file is known.
        let mut seen: HashMap<FileOf, Option<(FileId, File)>> = HashMap::new();
        for process in processes {
            for (place, binary, _) in &self.functions {
                let Ok(file) = open_below(*process, binary) else { continue };
                let Ok(id) = FileId::of(&file) else { continue };
                let of = (*place, id.on_any_device());
                let is_known = self.known.get(&of) == Some(&id);
                let has_room = seen.keys().filter(|(other, _)| other == place).count() < MOST_FILES;
                match seen.entry(of) {
                    Entry::Occupied(mut first) if is_known => _ = first.insert(None),
                    // Another container with this file was first.
                    Entry::Occupied(_) => {}
                    Entry::Vacant(free) if is_known => _ = free.insert(None),
                    Entry::Vacant(free) if has_room => _ = free.insert(Some((id, file))),
                    Entry::Vacant(_) => search.is_cut = true,
                }
            }
        }
        self.known.retain(|of, _| seen.contains_key(of));
        for (of, (id, file)) in seen.into_iter().filter_map(|(of, new)| Some((of, new?))) {
            let symbol = self.functions.iter().find(|(place, ..)| *place == of.0).map_or("", |(.., symbol)| symbol);
            search.new.push(Found { of: (of.0, id), offset: offset_of(&file, symbol), file });
            self.known.insert(of, id);
        }
        search.seen = self.known.iter().map(|((place, _), id)| (*place, *id)).collect();
        search
    }
}

/// Returns a process of each mount namespace, and whether some processes could not be looked into.
fn one_of_each_mount_namespace() -> (Vec<Pid>, bool) {
    let (mut processes, mut is_denied, mut namespaces) = (Vec::new(), false, HashSet::new());
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(process) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        match fs::metadata(format!("/proc/{process}/ns/mnt")) {
            Ok(namespace) if namespaces.insert(namespace.ino()) => processes.push(Pid(process)),
            // A process that has ended is nowhere.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => is_denied = true,
            _ => {}
        }
    }
    (processes, is_denied)
}

/// Returns the offset of a function in a file.
fn offset_of(file: &(impl ReadAt + ?Sized), symbol: &str) -> Result<u64, String> {
    let elf = Elf::parse(file).ok_or("the file is no program (no ELF)")?;
    if elf.go.is_some() {
        return Err("a Go program moves its stacks, and would crash at the probe of a return".into());
    }
    let address = address_of(&elf, file, symbol).ok_or_else(|| {
        format!(
            "the file has no function `{symbol}` in its symbol tables (a stripped file has only exported functions)"
        )
    })?;
    elf.offset_of_code(address).ok_or_else(|| format!("the code of `{symbol}` is not in the file"))
}

/// The probes of all functions.
#[derive(Debug)]
struct Attached {
    probes: Probes,
    functions: Vec<Function>,
    unreadable: Option<String>,
    /// The probes of functions of the kernel, by place.
    kernel: HashMap<usize, Result<Probe, String>>,
    files: HashMap<FileOf, Result<Probe, String>>,
    is_denied: bool,
    is_cut: bool,
}

/// The state of the sensor.
#[derive(Debug, PartialEq, Eq)]
struct Told {
    state: State,
    detail: String,
}

impl Attached {
    /// Probes the functions of the kernel.
    fn new(probes: Probes, functions: Vec<Function>, unreadable: Option<String>) -> Self {
        let probe = |(place, function): (usize, &Function)| match &function.code {
            Code::Kernel(name) => Some((place, probes.kernel(number(place), name))),
            Code::Program { .. } => None,
        };
        let kernel = functions.iter().enumerate().filter_map(probe).collect();
        Self { probes, functions, unreadable, kernel, files: HashMap::new(), is_denied: false, is_cut: false }
    }

    /// Probes the functions in new files, and ends the probes of files that no process sees any more.
    fn take(&mut self, search: Search) {
        for Found { of, file, offset } in search.new {
            let probe = offset.and_then(|offset| self.probes.program(number(of.0), file.as_fd(), offset));
            self.files.insert(of, probe);
        }
        self.files.retain(|of, _| search.seen.contains(of));
        (self.is_denied, self.is_cut) = (search.is_denied, search.is_cut);
    }

    fn state(&self) -> Told {
        let (mut measured, mut failed) = (Vec::new(), Vec::new());
        for (place, Function { name, code }) in self.functions.iter().enumerate() {
            match (code, &self.unreadable) {
                (Code::Kernel(_), _) => match self.kernel.get(&place) {
                    Some(Err(error)) => failed.push(format!("`{name}` is not measured: {error}")),
                    _ => measured.push(format!("`{name}` in the kernel")),
                },
                (Code::Program { .. }, Some(why)) => failed.push(format!("`{name}` is not measured: {why}")),
                (Code::Program { binary, .. }, None) => {
                    let own = || self.files.iter().filter(move |((of, _), _)| *of == place).map(|(_, probe)| probe);
                    let errors: HashSet<&String> = own().filter_map(|probe| probe.as_ref().err()).collect();
                    let errors =
                        errors.into_iter().map(|error| format!("`{name}` is not measured in some `{binary}`: {error}"));
                    failed.extend(errors);
                    measured.push(match own().filter(|probe| probe.is_ok()).count() {
                        0 => format!("`{name}` nowhere, since no process sees such a `{binary}`"),
                        1 => format!("`{name}` in 1 file"),
                        files => format!("`{name}` in {files} files"),
                    });
                }
            }
        }
        if self.is_cut {
            failed.push(format!("only {MOST_FILES} files of a function are measured, and there are more"));
        }
        if self.is_denied {
            let way = "needs CAP_SYS_PTRACE, and an AppArmor profile that allows ptrace";
            failed.push(format!("the files of some processes cannot be read ({way})"));
        }
        failed.sort_unstable();
        if failed.is_empty() {
            Told { state: State::Healthy, detail: format!("measures {}", measured.join(", ")) }
        } else {
            Told { state: State::Degraded, detail: failed.join("; ") }
        }
    }
}

/// Returns the number for a place, of which there are few.
fn number(place: usize) -> u32 {
    u32::try_from(place).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stacks::{elf::example, go_functions};

    fn finder(binary: &str) -> Finder {
        let code = Code::Program { binary: binary.into(), symbol: "second".into() };
        Finder::of(&[Function { name: "slow".into(), code }], false)
    }

    #[test]
    fn a_file_is_new_once_and_gone_when_no_process_sees_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("program");
        let mut finder = finder(path.to_str().unwrap());
        let own = [Pid(std::process::id())];
        assert!(finder.search_in(&own).new.is_empty());
        fs::write(&path, example::file()).unwrap();
        // Two processes see the same file.
        let search = finder.search_in(&[own[0], own[0]]);
        let [Found { of, offset, .. }] = &search.new[..] else { panic!("{search:?}") };
        assert_eq!((of.0, offset.as_ref()), (0, Ok(&0x120)));
        assert_eq!(search.seen, HashSet::from([*of]));
        let again = finder.search_in(&own);
        assert!(again.new.is_empty() && again.seen == search.seen, "{again:?}");
        fs::rename(&path, directory.path().join("moved")).unwrap();
        assert_eq!(finder.search_in(&own).seen, HashSet::new());
        fs::write(&path, "no program").unwrap();
        let search = finder.search_in(&own);
        assert_eq!(search.new[0].offset, Err("the file is no program (no ELF)".to_owned()));
        assert_ne!(search.seen, again.seen);
    }

    #[test]
    fn a_function_that_cannot_be_probed_is_refused_with_the_reason() {
        let refusal = |bytes: &[u8], symbol: &str| offset_of(bytes, symbol).unwrap_err();
        assert!(refusal(&example::file()[..], "none").contains("no function `none`"));
        assert!(refusal(b"text", "first").contains("no ELF"));
        let table = go_functions::example::table(0x40_1000);
        let go = example::sections(&[(".text", 6, &[0; 64]), (".gopclntab", 2, &table)]);
        assert!(refusal(&go[..], "main").contains("Go program"));
    }

    #[test]
    fn the_own_mount_namespace_is_among_those_of_all_processes() {
        let own = fs::metadata("/proc/self/ns/mnt").unwrap().ino();
        let (processes, _) = one_of_each_mount_namespace();
        let of =
            |process: &Pid| fs::metadata(format!("/proc/{}/ns/mnt", process.0)).map(|namespace| namespace.ino()).ok();
        assert_eq!(processes.iter().filter(|process| of(process) == Some(own)).count(), 1, "{processes:?}");
    }
}
