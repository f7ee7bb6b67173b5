//! Finds the files that have the functions of the configuration, or that of a recording: those that a process of each
//! mount namespace sees under the path.
//!
//! The files are untrusted, so the thread `podperf-find` reads them in the way of all others' files, see `reader`. Each
//! pod or cgroup has a share of the time, of the namespaces and of the files.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    fs, io, mem,
    os::unix::fs::MetadataExt as _,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use super::{
    elf::Elf,
    files::{LayerFile, Watched, open_below},
    named_functions::addresses_of,
    read_at::ReadAt,
    reader::{Place, Pulse, Reader, Unread, Whose, cgroup_of, owner_at, owner_of, pod_owner},
    shares::{TimeForFiles, share},
};
use crate::model::{
    functions::{Code, Function},
    ids::{Pid, PodRef},
};

/// The name of the threads that read the files.
const THREAD: &str = "podperf-find";
/// The most mount namespaces of one pod or cgroup in which files are searched.
pub(super) const MOST_NAMESPACES: usize = 64;
/// The most files of one function in one pod or cgroup.
pub(super) const MOST_OF_ONE: usize = 8;
/// The number of processes that are tried in a mount namespace: the first ones may end meanwhile.
const TRIED: usize = 3;

/// A file of a function: the function's place in the configuration, and the file. Containers of one image share the
/// files of the image, and a probe of one is a probe of all, so the device is left out.
pub(super) type FileOf = (usize, LayerFile);

/// The mount namespaces of one owner: some processes in each.
type Namespaces = Vec<Vec<Pid>>;

/// A file that is new, a process that sees it, and the offset of the function in it, or the reason why it has none.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) of: FileOf,
    pub(super) process: Pid,
    pub(super) offset: Result<u64, String>,
}

/// The result of a search.
#[derive(Debug, Default)]
pub(super) struct Search {
    pub(super) new: Vec<Found>,
    /// All files that processes see now.
    pub(super) seen: HashSet<FileOf>,
    /// Most processes cannot be looked into.
    pub(super) is_denied: bool,
    /// Some files or namespaces were left out, because one pod or cgroup has too many.
    pub(super) is_cut: bool,
    /// Some files could not be read in time.
    pub(super) is_late: bool,
}

/// The files of which the thread `podperf-find` knows in a search.
#[derive(Debug, Default)]
struct Known {
    files: HashSet<FileOf>,
    new: Vec<Found>,
}

/// The files that an owner sees.
#[derive(Debug, Default)]
struct Sight {
    files: HashSet<FileOf>,
    is_cut: bool,
}

/// A function of a program: its place in the configuration, and where it is.
#[derive(Debug)]
struct OfProgram {
    place: usize,
    binary: String,
    symbol: String,
}

/// The processes in whose files a function is searched.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Whom {
    /// All processes.
    #[default]
    All,
    /// The processes of a cgroup, and of all cgroups below it.
    Below(String),
    /// The processes of pods, which have these names in the paths of cgroups.
    Pods(HashSet<PodRef>),
}

impl Whom {
    /// Returns whether the processes of a cgroup are among these. In a namespace of cgroups, a path begins with the way
    /// up to the root.
    fn has(&self, path: &str) -> bool {
        match self {
            Self::All => true,
            Self::Below(above) => {
                let path = path.trim_start_matches("/..");
                path.strip_prefix(above.trim_end_matches('/'))
                    .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
            }
            Self::Pods(pods) => {
                let owner = owner_at(path);
                pods.iter().any(|pod| owner == pod_owner(pod))
            }
        }
    }
}

/// Finds files.
#[derive(Debug)]
pub(super) struct Finder {
    functions: Arc<Vec<OfProgram>>,
    whom: Whom,
    reader: Reader,
    /// The files that each owner saw in the last search.
    seen: HashMap<String, HashSet<FileOf>>,
}

impl Finder {
    /// Returns a finder of the functions of programs; `None` if there are none. With `confined`, the threads that read
    /// files can do nothing else.
    ///
    /// # Errors
    ///
    /// When the thread that starts these threads cannot be started.
    pub(super) fn start(functions: &[Function], confined: bool) -> io::Result<Option<Self>> {
        let of_program = |(place, function): (usize, &Function)| match &function.code {
            Code::Program { binary, symbol } => {
                Some(OfProgram { place, binary: binary.clone(), symbol: symbol.clone() })
            }
            Code::Kernel(_) => None,
        };
        let functions: Vec<OfProgram> = functions.iter().enumerate().filter_map(of_program).collect();
        if functions.is_empty() {
            return Ok(None);
        }
        let reader = Reader::start_as(THREAD, confined)?;
        Ok(Some(Self { functions: Arc::new(functions), whom: Whom::All, reader, seen: HashMap::new() }))
    }

    /// Searches only this function of a program from now on, in the files of these processes. Another thread may call
    /// from now on.
    pub(super) fn aim(&mut self, binary: &str, symbol: &str, whom: Whom) {
        let only = OfProgram { place: 0, binary: binary.to_owned(), symbol: symbol.to_owned() };
        self.functions = Arc::new(vec![only]);
        self.whom = whom;
        self.seen.clear();
        self.reader.new_caller();
    }

    /// Searches the files that processes see. Files that are not in `known` are new.
    pub(super) fn search(&mut self, known: HashSet<FileOf>) -> Search {
        let (owners, is_denied, is_cut) = mount_namespaces(&self.whom);
        let search = self.search_in(&owners, known);
        Search { is_denied, is_cut: is_cut || search.is_cut, ..search }
    }

    fn search_in(&mut self, owners: &[(String, Namespaces)], known: HashSet<FileOf>) -> Search {
        let known = Arc::new(Mutex::new(Known { files: known, new: Vec::new() }));
        let (mut late, mut is_cut) = (HashSet::new(), false);
        let before = mem::take(&mut self.seen);
        let clock = self.reader.clock().clone();
        let names = owners.iter().map(|(owner, _)| owner.clone()).collect();
        share(TimeForFiles::Enough, names, &clock, |at, turn| {
            let (owner, namespaces) = &owners[at];
            let sight = Arc::new(Mutex::new(Sight::default()));
            let whose = Whose { owner, pid: first_of(namespaces), deadline: turn.deadline };
            let (functions, namespaces) = (Arc::clone(&self.functions), namespaces.clone());
            let (known, theirs) = (Arc::clone(&known), Arc::clone(&sight));
            let outcome =
                self.reader.run(whose, Place::Own, move |pulse| look(&functions, &namespaces, &known, &theirs, pulse));
            turn.late = outcome == Err(Unread::Late);
            let sight = mem::take(&mut *lock(&sight));
            is_cut |= sight.is_cut;
            let seen = self.seen.entry(owner.clone()).or_default();
            seen.extend(sight.files);
            if outcome.is_ok() {
                late.remove(&at);
            } else {
                // It is not known which of the files from the last search are still there.
                late.insert(at);
                seen.extend(before.get(owner).into_iter().flatten());
            }
        });
        let new = mem::take(&mut lock(&known).new);
        let seen = self.seen.values().flatten().copied().collect();
        Search { new, seen, is_denied: false, is_cut, is_late: !late.is_empty() }
    }
}

/// Returns the mount namespaces of these processes by owner, whether most of them could not be looked into, and whether
/// some namespaces were left out. A process of an outer user namespace is closed to everybody, and is no sign of a
/// missing privilege.
fn mount_namespaces(whom: &Whom) -> (Vec<(String, Namespaces)>, bool, bool) {
    let (mut namespaces, mut is_cut) = (BTreeMap::<u64, Vec<Pid>>::new(), false);
    let (mut open, mut denied) = (0, 0);
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(process) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        if *whom != Whom::All && !whom.has(&cgroup_of(Pid(process))) {
            continue;
        }
        match fs::metadata(format!("/proc/{process}/ns/mnt")) {
            Ok(namespace) => {
                open += 1;
                let processes = namespaces.entry(namespace.ino()).or_default();
                if processes.len() < TRIED {
                    processes.push(Pid(process));
                }
            }
            // A process that has ended is nowhere.
            Err(error) => denied += u32::from(error.kind() == io::ErrorKind::PermissionDenied),
        }
    }
    let mut owners = BTreeMap::<String, Namespaces>::new();
    for processes in namespaces.into_values() {
        let own = owners.entry(processes.first().map(|first| owner_of(*first)).unwrap_or_default()).or_default();
        if own.len() < MOST_NAMESPACES {
            own.push(processes);
        } else {
            is_cut = true;
        }
    }
    (owners.into_iter().collect(), denied > open, is_cut)
}

fn first_of(namespaces: &[Vec<Pid>]) -> Pid {
    namespaces.first().and_then(|processes| processes.first()).copied().unwrap_or(Pid(0))
}

/// Looks for the files of all functions in the namespaces of one owner. Runs on the thread for files.
fn look(functions: &[OfProgram], namespaces: &[Vec<Pid>], known: &Mutex<Known>, sight: &Mutex<Sight>, pulse: &Pulse) {
    for processes in namespaces {
        let is_there =
            |process: &Pid| pulse.beat().is_ok() && fs::read_link(format!("/proc/{}/root", process.0)).is_ok();
        let Some(process) = processes.iter().copied().find(is_there) else { continue };
        for OfProgram { place, binary, symbol } in functions {
            if pulse.beat().is_err() {
                return;
            }
            let Ok(file) = open_below(process, binary) else { continue };
            let Ok(id) = LayerFile::of(&file) else { continue };
            let of = (*place, id);
            let mut seen = lock(sight);
            if seen.files.contains(&of) {
                continue;
            }
            if seen.files.iter().filter(|(other, _)| other == place).count() == MOST_OF_ONE {
                seen.is_cut = true;
                continue;
            }
            drop(seen);
            if !lock(known).files.contains(&of) {
                let offset = offset_of(&Watched { file, pulse }, symbol);
                if pulse.is_late() {
                    return;
                }
                let mut known = lock(known);
                known.files.insert(of);
                known.new.push(Found { of, process, offset });
            }
            lock(sight).files.insert(of);
        }
    }
}

/// Returns the offset of a function in a file.
fn offset_of(file: &(impl ReadAt + ?Sized), symbol: &str) -> Result<u64, String> {
    let elf = Elf::parse(file).ok_or("the file is no program (no ELF)")?;
    if elf.go.is_some() {
        return Err("a Go program moves its stacks, and would crash at the probe of a return".into());
    }
    let addresses = addresses_of(&elf, file, symbol);
    if addresses.len() > 1 {
        return Err(format!("the file has several functions `{symbol}`"));
    }
    let address = addresses.first().ok_or_else(|| {
        format!(
            "the file has no function `{symbol}` in its symbol tables (a stripped file has only exported functions)"
        )
    })?;
    elf.offset_of_code(*address).ok_or_else(|| format!("the code of `{symbol}` is not in the file"))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::{thread, time::Duration};

    use super::*;
    use crate::stacks::{elf::example, go_functions};

    fn finder(binary: &str) -> Finder {
        let code = Code::Program { binary: binary.into(), symbol: "second".into() };
        Finder::start(&[Function { name: "slow".into(), code }], true).unwrap().unwrap()
    }

    /// Returns two owners that see the files of this process. In one namespace, the first process has ended.
    fn owners() -> Vec<(String, Namespaces)> {
        let (own, ended) = (Pid(std::process::id()), Pid(u32::MAX));
        vec![("shop/cart".into(), vec![vec![ended, own], vec![own]]), ("shop/web".into(), vec![vec![own]])]
    }

    #[test]
    fn a_file_is_new_once_and_gone_when_no_process_sees_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("program");
        let mut finder = finder(path.to_str().unwrap());
        assert!(finder.search_in(&owners(), HashSet::new()).new.is_empty());
        fs::write(&path, example::file()).unwrap();
        let search = finder.search_in(&owners(), HashSet::new());
        let [Found { of, process, offset }] = &search.new[..] else { panic!("{search:?}") };
        assert_eq!((of.0, process.0, offset.as_ref()), (0, std::process::id(), Ok(&0x120)));
        assert_eq!(search.seen, HashSet::from([*of]));
        let again = finder.search_in(&owners(), search.seen.clone());
        assert!(again.new.is_empty() && again.seen == search.seen && !again.is_late, "{again:?}");
        fs::rename(&path, directory.path().join("moved")).unwrap();
        assert_eq!(finder.search_in(&owners(), again.seen).seen, HashSet::new());
        fs::write(&path, "no program").unwrap();
        let other = finder.search_in(&owners(), HashSet::new());
        assert_eq!(other.new[0].offset, Err("the file is no program (no ELF)".to_owned()));
        assert_ne!(other.seen, search.seen);
    }

    #[test]
    fn files_that_cannot_be_read_in_time_are_not_gone() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("program");
        fs::write(&path, example::file()).unwrap();
        let mut finder = finder(path.to_str().unwrap());
        let search = finder.search_in(&owners(), HashSet::new());
        assert!(search.seen.len() == 1 && !search.is_late, "{search:?}");
        finder.reader = Reader::without_threads();
        for _ in 0..2 {
            let late = finder.search_in(&owners(), search.seen.clone());
            assert!(late.seen == search.seen && late.is_late, "{late:?}");
        }
    }

    #[test]
    fn a_file_with_the_inode_the_length_and_the_time_of_another_one_is_another_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("program");
        let id = || LayerFile::of(&fs::File::open(&path).unwrap()).unwrap();
        fs::write(&path, example::file()).unwrap();
        let (before, modified) = (id(), fs::metadata(&path).unwrap().modified().unwrap());
        // The clock of files has ticks of some milliseconds.
        for _ in 0..1000 {
            fs::File::options().write(true).open(&path).unwrap().set_modified(modified).unwrap();
            if id() != before {
                break;
            }
            thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(fs::metadata(&path).unwrap().modified().unwrap(), modified);
        assert_ne!(id(), before);
    }

    #[test]
    fn a_function_that_cannot_be_probed_is_refused_with_the_reason() {
        let refusal = |bytes: &[u8], symbol: &str| offset_of(bytes, symbol).unwrap_err();
        assert!(refusal(&example::file()[..], "none").contains("no function `none`"));
        assert!(refusal(b"text", "first").contains("no ELF"));
        let table = go_functions::example::table(0x40_1000);
        let go = example::sections(&[(".text", 6, &[0; 64]), (".gopclntab", 2, &table)]);
        assert!(refusal(&go[..], "main").contains("Go program"));
        // The symbol `alias` gets the name and the binding of `second`.
        let mut twice = example::file();
        let symbol = |value: u64| [value, 16].map(u64::to_le_bytes).concat();
        let at = |file: &[u8], value| file.windows(16).position(|part| part == symbol(value)).unwrap();
        let alias = at(&twice, 0x40_1000);
        twice[alias - 8..alias - 3].copy_from_slice(&[7, 0, 0, 0, 0x12]);
        assert!(refusal(&twice[..], "second").contains("several functions `second`"));
    }

    #[test]
    fn a_function_of_a_recording_is_searched_for_its_subject_only() {
        let below = |above: &str, path| Whom::Below(above.into()).has(path);
        for above in ["/a/b", "/a/b/", "/a", "/"] {
            assert!(below(above, "/a/b") && below(above, "/../../a/b/c"), "{above}");
        }
        assert!(!below("/a/b", "/a") && !below("/a/b", "/a/bc") && !below("/a/b", ""));
        let uid = "6ef0362e-e3b9-43a3-acdb-de4ba71f1fa4";
        let pods = Whom::Pods(uid.parse().ok().map(PodRef::Uid).into_iter().collect());
        let id = "a".repeat(64);
        assert!(pods.has(&format!("/kubepods/burstable/pod{uid}/{id}")), "{}", owner_at(uid));
        assert!(!pods.has(&format!("/kubepods/burstable/pod{}/{id}", uid.replace('6', "7"))));
    }

    #[test]
    fn the_own_mount_namespace_is_among_those_of_all_processes() {
        let own = fs::metadata("/proc/self/ns/mnt").unwrap().ino();
        let of = |process: &Pid| fs::metadata(format!("/proc/{}/ns/mnt", process.0)).map(|it| it.ino()).ok();
        let (owners, ..) = mount_namespaces(&Whom::All);
        let all: Vec<_> = owners.iter().flat_map(|(_, namespaces)| namespaces).collect();
        let same = all.iter().filter(|processes| processes.iter().any(|process| of(process) == Some(own)));
        assert_eq!(same.count(), 1, "{owners:?}");
    }
}
