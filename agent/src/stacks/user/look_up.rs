//! Looks up functions in files, and notes which debug files of servers would name more of them.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::Arc,
};

use super::{Name, User, named};
use crate::{
    model::ids::Pid,
    stacks::{
        debuginfod::{DebugFile, DebugFiles, Fetcher, Note},
        files::{Watched, hosts, open_below},
        maps::{Backing, Vma},
        objects::Object,
        process::{Process, Span},
        profile::Frame,
        reader::{self, Pulse, is_pod, owner_of},
        shares::Turn,
    },
};

/// The largest number of live processes that are tried for a file of a process that is gone.
const MAX_ASKED: usize = 8;

/// The addresses of one file whose functions must be looked up.
pub(super) struct Wanted {
    pub(super) object: Arc<Object>,
    /// The index of the mapping in the process that has the file.
    pub(super) span: usize,
    pub(super) addresses: BTreeSet<u64>,
}

impl User {
    /// Looks up functions, file by file, and remembers them; returns the functions of readable files.
    pub(super) fn look_up(
        &mut self,
        process: &Process,
        wanted: BTreeMap<u64, Wanted>,
        turn: &mut Turn,
    ) -> HashMap<(u64, u64), Name> {
        let mut found = HashMap::new();
        for (number, Wanted { object, span, addresses }) in wanted {
            let Some(Span { vma, .. }) = process.spans.get(span) else { continue };
            let Backing::File(mapping) = &vma.backing else { continue };
            let mut owners = vec![(process.pid, vma.clone())];
            owners.extend(self.others_with(&object));
            let hosts = if self.reader.avoids(&reader::Place::Host) { Vec::new() } else { hosts().to_vec() };
            let (path, place) = (mapping.path.clone(), reader::Place::Device(mapping.device.clone()));
            let addresses: Vec<u64> = addresses.into_iter().collect();
            let (asked, build_id, pid) = (addresses.clone(), object.build_id.clone(), process.pid);
            let may_read = !self.reader.avoids(&reader::Place::Cache);
            let debug_files = self.fetcher.as_ref().filter(|_| may_read).and_then(Fetcher::files);
            // A row of cgroups has a path; a pod has a name.
            let is_row = turn.owner.starts_with('/');
            let looked = self.run(turn, pid, place, move |pulse| {
                let (owner, file) = object.open(owners, &path, &hosts, pulse)?;
                let looked = object.functions(&file, owner, &path, &hosts, debug_files.as_ref(), &asked);
                let for_pods = debug_files.as_ref().is_some_and(DebugFiles::are_for_pods);
                let is_for_it = || for_pods || is_row && is_of_node(&owner_of(pid));
                let is_noted = match looked.debug_file {
                    DebugFile::NotNeeded | DebugFile::Unusable => true,
                    // Without servers for pods, their use keeps no file in the cache.
                    DebugFile::Used => is_for_it(),
                    DebugFile::Missing => is_for_it() && (for_pods || has_it(&hosts, &path, &object, pulse)),
                };
                Some((looked, is_noted))
            });
            let Some((looked, is_noted)) = looked.flatten() else { continue };
            if is_noted {
                self.note(build_id, looked.debug_file, turn);
            }
            for (address, name) in addresses.into_iter().zip(looked.names) {
                let name: Name = name.map(named);
                self.learn((number, address), &name);
                found.insert((number, address), name);
            }
        }
        found
    }

    /// Sends a note about the debug file of a build id.
    fn note(&self, build_id: Option<String>, debug_file: DebugFile, turn: &Turn) {
        if let (Some(fetcher), Some(build_id)) = (&self.fetcher, build_id)
            && debug_file != DebugFile::NotNeeded
        {
            fetcher.tell(Note { owner: turn.owner.clone(), build_id, debug_file });
        }
    }

    /// Forgets the names and frames of files whose debug files have arrived, and returns the build ids of these files.
    pub(super) fn forget_arrived(&mut self) -> HashSet<String> {
        let arrived = self.fetcher.as_ref().map(Fetcher::arrived).unwrap_or_default();
        if arrived.is_empty() {
            return arrived;
        }
        let has_arrived = |object: &Object| object.build_id.as_ref().is_some_and(|id| arrived.contains(id));
        // A process may keep an object that is no longer known.
        let spans = self.processes.values().flat_map(|process| &process.spans);
        let objects = spans.filter_map(|span| span.object.as_deref()).filter(|object| has_arrived(object));
        let mut numbers: HashSet<u64> = objects.map(|object| object.number).collect();
        numbers.extend(self.objects.numbers(has_arrived));
        self.names.retain(|(number, _), _| !numbers.contains(number));
        self.frames.retain(|_, named| !is_in(&named.frame, &arrived));
        arrived
    }

    /// Returns processes with the same file, in case the wanted process is gone.
    fn others_with(&self, object: &Object) -> Vec<(Pid, Vma)> {
        let has_it = |span: &&Span| span.object.as_ref().is_some_and(|other| other.number == object.number);
        let others = self.processes.values().filter_map(|process| Some((process, process.spans.iter().find(has_it)?)));
        others.take(MAX_ASKED).map(|(process, span)| (process.pid, span.vma.clone())).collect()
    }
}

/// Returns whether a frame is in a file with one of these build ids.
pub(in crate::stacks) fn is_in(frame: &Frame, build_ids: &HashSet<String>) -> bool {
    let build_id = frame.mapping.as_ref().and_then(|mapping| mapping.build_id.as_ref());
    build_id.is_some_and(|build_id| build_ids.contains(build_id))
}

/// Returns whether the owner of a process is no pod. A process without an owner is gone, and may have been in a pod.
fn is_of_node(owner: &str) -> bool {
    !owner.is_empty() && !is_pod(owner)
}

/// Returns whether a host has this very file at this path. It does not have the files of a container.
fn has_it(hosts: &[Pid], path: &str, object: &Object, pulse: &Pulse) -> bool {
    hosts.iter().any(|host| {
        pulse.at(reader::Place::Host);
        let file = pulse.beat().and_then(|()| open_below(*host, path));
        file.is_ok_and(|file| object.is(&Watched { file, pulse }))
    })
}

#[cfg(test)]
mod tests {
    use std::{
        env,
        fs::{self, File},
        iter,
        os::unix::fs::MetadataExt as _,
        path::{Path, PathBuf},
        process::Command,
        sync::mpsc as std_mpsc,
        time::{Duration, Instant},
    };

    use tempfile::TempDir;
    use tokio::sync::mpsc;

    use super::*;
    use crate::stacks::{
        elf::{Elf, example},
        files::FileId,
        maps::FileMapping,
        objects::Objects,
        process::Life,
        reader::{Reader, Unread, Whose},
    };

    const PATIENCE: Duration = Duration::from_millis(500);
    const NONE: [DebugFile; 0] = [];

    fn own() -> Pid {
        Pid(std::process::id())
    }

    /// A stripped file that this process is said to have, and the names of its user addresses.
    struct Case {
        user: User,
        notes: mpsc::Receiver<Note>,
        object: Arc<Object>,
        path: PathBuf,
        directory: TempDir,
    }

    impl Case {
        fn new(pods: bool) -> Self {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("stripped");
            fs::write(&path, example::file()).unwrap();
            let mut elf = Elf::parse(&example::file()[..]).unwrap();
            (elf.symbols, elf.debug_link) = (None, None);
            let id = FileId::of(&File::open(&path).unwrap()).unwrap();
            let object = Object { number: 1, id, build_id: Some("ab".repeat(20)), htlhash: None, elf: Some(elf) };
            let (fetcher, notes) = Fetcher::of_channel(DebugFiles::in_directory(directory.path(), pods));
            let user = User::new(Reader::start(true).unwrap().with_patience(PATIENCE)).with_fetcher(Some(fetcher));
            Self { user, notes, object: Arc::new(object), path, directory }
        }

        /// Returns this process as if it had mapped the object from this path.
        fn process(&self, path: &Path) -> Process {
            let (inode, path) = (fs::metadata(path).unwrap().ino(), path.to_str().unwrap().into());
            let backing = Backing::File(FileMapping { path, device: "0:1".into(), inode });
            let vma = Vma { start: 0x1000, end: 0x2000, offset: 0, backing };
            let mut process = Process::new(own(), Life::of(own()).unwrap(), vec![vma], None, &mut 0);
            process.spans[0].object = Some(Arc::clone(&self.object));
            process
        }

        /// Looks up a name that the file lacks, and returns the parts of debug files that were noted.
        fn noted(&mut self, owner: &str, path: &Path) -> Vec<DebugFile> {
            let addresses = BTreeSet::from([0x40_1000]);
            let wanted = BTreeMap::from([(1, Wanted { object: Arc::clone(&self.object), span: 0, addresses })]);
            let deadline = Instant::now() + Duration::from_secs(3600);
            let mut turn = Turn { owner: owner.into(), deadline, map_bytes: 0, late: false };
            let process = self.process(path);
            let found = self.user.look_up(&process, wanted, &mut turn);
            assert!(found.contains_key(&(1, 0x40_1000)), "the file was not read");
            iter::from_fn(|| self.notes.try_recv().ok()).map(|note| note.debug_file).collect()
        }
    }

    #[test]
    fn no_server_hears_of_files_of_pods_and_containers_unless_it_may() {
        let mut case = Case::new(false);
        let path = case.path.clone();
        // This process itself may be in a pod.
        let of_node = |debug_file| if is_of_node(&owner_of(own())) { vec![debug_file] } else { vec![] };
        assert_eq!(case.noted("/a.service", &path), of_node(DebugFile::Missing));
        assert_eq!(case.noted("shop/cart", &path), NONE);
        // The node has another file at the path that the process has: as if this were a container's.
        let copy = case.directory.path().join("copy");
        fs::copy(&path, &copy).unwrap();
        let other = case.process(&path);
        case.user.keep(other);
        assert_eq!(case.noted("/a.service", &copy), NONE);
        let mut case = Case::new(true);
        let path = case.path.clone();
        assert_eq!(case.noted("shop/cart", &path), vec![DebugFile::Missing]);
    }

    #[test]
    fn a_pod_keeps_no_file_in_the_cache_unless_it_may_fetch() {
        let used = |pods, owner| {
            let mut case = Case::new(pods);
            let debug_file = case.directory.path().join(format!("{}.debug", "ab".repeat(20)));
            fs::write(debug_file, example::file()).unwrap();
            let path = case.path.clone();
            case.noted(owner, &path)
        };
        assert_eq!(used(false, "shop/cart"), NONE);
        assert_eq!(used(true, "shop/cart"), vec![DebugFile::Used]);
    }

    #[test]
    fn a_cache_that_hangs_is_left_alone() {
        let mut case = Case::new(true);
        let (release, released) = std_mpsc::channel::<()>();
        let whose = Whose { owner: "a", pid: Pid(u32::MAX / 2), deadline: Instant::now() + Duration::from_secs(3600) };
        let hangs = move |_: &Pulse| released.recv().unwrap_or_default();
        assert_eq!(case.user.reader.run(whose, reader::Place::Cache, hangs), Err(Unread::Hangs));
        let path = case.path.clone();
        assert_eq!(case.noted("shop/cart", &path), NONE);
        drop(release);
    }

    #[test]
    fn a_process_in_a_pod_or_one_that_is_gone_is_not_of_the_node() {
        assert!(is_of_node("/") && is_of_node("/system.slice/sshd.service"));
        assert!(!is_of_node("pod 5e0f8a1c-0000-4000-8000-000000000000"));
        let mut gone = Command::new("true").spawn().unwrap();
        gone.wait().unwrap();
        assert!(!is_of_node(&owner_of(Pid(gone.id()))));
    }

    #[test]
    fn only_a_file_that_the_node_has_at_its_path_is_the_nodes_own() {
        let (program, own) = (env::current_exe().unwrap(), Pid(std::process::id()));
        let pulse = Pulse::new(Instant::now() + Duration::from_secs(3600), reader::Place::Own);
        let object = Objects::new().object(&Watched { file: File::open(&program).unwrap(), pulse: &pulse }).unwrap();
        let directory = tempfile::tempdir().unwrap();
        let copy = directory.path().join("copy");
        fs::copy(&program, &copy).unwrap();
        let (path, copy) = (program.to_str().unwrap(), copy.to_str().unwrap());
        assert!(has_it(&[own], path, &object, &pulse) && !has_it(&[], path, &object, &pulse));
        // As a container has another file at the same path.
        assert!(!has_it(&[own], copy, &object, &pulse) && !has_it(&[own], "/none", &object, &pulse));
    }
}
