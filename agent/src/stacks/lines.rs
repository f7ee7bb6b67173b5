//! The source lines of a recording's frames. They are looked up when the recording has ended, once for each address.
//!
//! The thread that names windows only says in which processes the files are. A thread for files of its own reads them,
//! so no window waits for it. Its CPU time is that of answering readers, which its name says.
//!
//! Equal stacks of a recording are one, so a frame does not say which file it was in: another pod may have made one
//! that looks the same. So lines are looked up and kept by owner, and come from files of processes of that owner alone.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::{Arc, mpsc},
};

use tokio::{
    sync::{Mutex, oneshot},
    task::spawn_blocking,
    time::timeout,
};
use tracing::warn;

use super::{
    clock::Clock,
    files::{Watched, hosts},
    line_table::{Lines, SourceLine},
    maps::{Backing, Vma},
    objects::Object,
    process::Life,
    profile::{Frame, Mapping},
    reader::{Place, Reader, Unread, Whose},
    shares::{LONGEST_NAMING, TimeForFiles, Turn, share},
    unread::FrameOwner,
};
use crate::{
    kernel::memory::resident,
    limits::memory::GivenUp,
    model::{feature::Feature, ids::Pid},
};

/// The name of the thread that reads the files.
const THREAD: &str = "podperf-lines";
/// The largest number of recordings that wait for the processes of their files.
const WAITING: usize = 4;
/// The most bytes that the lookup takes beside the result: a unit, its lists, and the texts of a file.
const MOST_BYTES: u64 = 28 << 20;
/// The most bytes of the paths of a recording's source files. Owners have equal shares.
const MAX_PATHS: usize = 4 << 20;
/// The size of a line in the result, with its entry in the table.
const LINE_BYTES: usize = 64;

/// The addresses whose lines are wanted, by owner and file.
#[derive(Debug, Default)]
pub struct WantedLines(BTreeMap<FrameOwner, HashMap<Arc<Mapping>, BTreeSet<u64>>>);

/// A file of an owner, and where it is.
#[derive(Debug)]
pub(super) struct WantedFile {
    pub(super) owner: FrameOwner,
    pub(super) mapping: Arc<Mapping>,
    pub(super) addresses: BTreeSet<u64>,
    /// The places in the owner's processes, those that live first. The files of two containers may look the same.
    pub(super) places: Vec<FilePlace>,
    /// The pods or cgroups of these processes.
    pub(super) cgroups: BTreeSet<String>,
}

/// A place of a file.
#[derive(Clone, Debug)]
pub(super) struct FilePlace {
    pub(super) object: Arc<Object>,
    pub(super) vma: Vma,
    /// The process that has it. With `None`, only the node's own file at the same path may be read.
    pub(super) process: Option<(Pid, Life)>,
}

/// A request for the places of files.
#[derive(Debug)]
pub struct FilesRequest {
    pub(super) wanted: WantedLines,
    pub(super) answer: oneshot::Sender<Vec<WantedFile>>,
}

/// The source lines of a recording's frames.
#[derive(Clone, Debug, Default)]
pub struct SourceLines {
    wanted: usize,
    owners: BTreeMap<FrameOwner, HashMap<Arc<Mapping>, HashMap<u64, SourceLine>>>,
    text_bytes: usize,
}

/// Finds source lines. It is cheap to clone.
#[derive(Clone, Debug)]
pub struct LineFinder {
    requests: mpsc::SyncSender<FilesRequest>,
    /// `None` before the first lookup. One recording at a time has its lines looked up.
    reader: Arc<Mutex<Option<Reader>>>,
    given_up: GivenUp,
    confined: bool,
}

impl WantedLines {
    /// Adds the addresses of those frames of an owner that are user code in files.
    pub fn add<'a>(&mut self, owner: FrameOwner, frames: impl Iterator<Item = &'a Arc<Frame>>) {
        let (files, mut seen) = (self.0.entry(owner).or_default(), HashSet::new());
        // A frame is in many stacks.
        for frame in frames.filter(|frame| seen.insert(Arc::as_ptr(frame))) {
            if let Some(mapping) = frame.mapping.as_ref().filter(|mapping| mapping.path.starts_with('/')) {
                files.entry(Arc::clone(mapping)).or_default().insert(frame.address);
            }
        }
    }

    /// Returns the number of addresses.
    #[must_use]
    pub fn addresses(&self) -> usize {
        self.0.values().flat_map(HashMap::values).map(BTreeSet::len).sum()
    }

    /// Returns the files by the text of their owner. Their places are not known yet.
    pub(super) fn into_files(self) -> HashMap<String, HashMap<Arc<Mapping>, WantedFile>> {
        let of_owner = |(owner, files): (FrameOwner, HashMap<Arc<Mapping>, BTreeSet<u64>>)| {
            let file = |(mapping, addresses): (Arc<Mapping>, _)| {
                let (places, cgroups) = (Vec::new(), BTreeSet::new());
                let owner = owner.clone();
                (Arc::clone(&mapping), WantedFile { owner, mapping, addresses, places, cgroups })
            };
            (owner.text(), files.into_iter().map(file).collect())
        };
        self.0.into_iter().map(of_owner).collect()
    }
}

impl WantedFile {
    /// Returns whether several pods or cgroups have files that look like this one: a row may contain several. Nobody
    /// knows then whose file a frame was in.
    pub(super) fn is_of_several(&self) -> bool {
        self.owner.pod.is_empty() && self.cgroups.len() > 1
    }
}

impl SourceLines {
    /// Returns the result of a lookup of this number of addresses, without a line.
    #[must_use]
    pub fn new(wanted: usize) -> Self {
        Self { wanted, ..Self::default() }
    }

    /// Adds the lines of an owner's file, by address.
    pub fn add(&mut self, owner: FrameOwner, file: Arc<Mapping>, lines: HashMap<u64, SourceLine>) {
        self.owners.entry(owner).or_default().insert(file, lines);
    }

    /// Returns the line of the code of an owner's frame; `None` if it is not known.
    #[must_use]
    pub fn line(&self, owner: &FrameOwner, frame: &Frame) -> Option<&SourceLine> {
        self.of(owner, frame.mapping.as_ref()?)?.get(&frame.address)
    }

    /// Returns whether there are lines of this file.
    #[must_use]
    pub fn has(&self, file: &Mapping) -> bool {
        self.owners.keys().any(|owner| self.of(owner, file).is_some_and(|lines| !lines.is_empty()))
    }

    fn of(&self, owner: &FrameOwner, file: &Mapping) -> Option<&HashMap<u64, SourceLine>> {
        self.owners.get(owner)?.get(file)
    }

    /// Returns the number of addresses that were looked up.
    #[must_use]
    pub const fn wanted(&self) -> usize {
        self.wanted
    }

    /// Returns the number of addresses that have a line.
    #[must_use]
    pub fn found(&self) -> usize {
        self.owners.values().flat_map(HashMap::values).map(HashMap::len).sum()
    }

    /// Returns the approximate memory, in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.text_bytes + self.found() * LINE_BYTES
    }
}

impl LineFinder {
    /// Returns a finder that has not started its threads, and the receiver of its requests. `given_up` limits the
    /// memory of a lookup. With `confined`, the thread for files can only read.
    #[must_use]
    pub fn new(given_up: GivenUp, confined: bool) -> (Self, mpsc::Receiver<FilesRequest>) {
        let (requests, receiver) = mpsc::sync_channel(WAITING);
        (Self { requests, reader: Arc::default(), given_up, confined }, receiver)
    }

    /// Returns the lines of these addresses, as far as there are memory, time and debug information.
    pub async fn find(&self, wanted: WantedLines) -> SourceLines {
        let count = wanted.addresses();
        if self.given_up.has(Feature::Caches) || !self.given_up.has_room(resident(), MOST_BYTES) {
            return SourceLines::new(count);
        }
        let Some(files) = self.files(wanted).await else { return SourceLines::new(count) };
        let (mut reader, confined) = (Arc::clone(&self.reader).lock_owned().await, self.confined);
        let lookup = spawn_blocking(move || {
            if reader.is_none() {
                let started = Reader::start_as(THREAD, confined);
                *reader = started.inspect_err(|error| warn!(%error, "failed to start a thread for source lines")).ok();
            }
            let lines = SourceLines::new(count);
            match &mut *reader {
                Some(reader) => {
                    reader.new_caller();
                    let clock = reader.clock().clone();
                    look_up(files, &clock, lines, |file, turn, room| read(reader, file, turn, room))
                }
                None => lines,
            }
        });
        lookup.await.unwrap_or_else(|_| SourceLines::new(count))
    }

    /// Asks for the places of files; returns `None` if there is no answer in time.
    async fn files(&self, wanted: WantedLines) -> Option<Vec<WantedFile>> {
        let (answer, answered) = oneshot::channel();
        self.requests.try_send(FilesRequest { wanted, answer }).ok()?;
        timeout(LONGEST_NAMING, answered).await.ok()?.ok()
    }
}

/// Looks up the lines of all files. Their owners share the time as those of a window do, and the bytes of paths. `read`
/// gets the bytes that are left.
fn look_up(
    files: Vec<WantedFile>,
    clock: &Clock,
    mut lines: SourceLines,
    mut read: impl FnMut(&WantedFile, &mut Turn, usize) -> Option<Lines>,
) -> SourceLines {
    let mut owners: BTreeMap<FrameOwner, Vec<WantedFile>> = BTreeMap::new();
    for file in files {
        owners.entry(file.owner.clone()).or_default().push(file);
    }
    let room = MAX_PATHS / owners.len().max(1);
    // With the number of files that are done, and the bytes that are left.
    let mut owners: Vec<_> = owners.into_iter().map(|(owner, files)| (owner, files, 0_usize, room)).collect();
    let names = owners.iter().map(|(owner, ..)| owner.text()).collect();
    share(TimeForFiles::Enough, names, clock, |at, turn| {
        let Some((owner, files, done, room)) = owners.get_mut(at) else { return };
        while let Some(file) = files.get(*done) {
            let known = lines.of(owner, &file.mapping).map_or(0, HashMap::len);
            // A file may have had too little time in the first turn.
            if let Some(found) = read(file, turn, *room).filter(|found| found.lines.len() > known) {
                *room = room.saturating_sub(found.text_bytes);
                lines.text_bytes += found.text_bytes;
                lines.add(owner.clone(), Arc::clone(&file.mapping), found.lines);
            }
            if turn.late {
                break;
            }
            *done += 1;
        }
    });
    lines
}

/// Reads the lines of one file, as far as there is time in this turn.
fn read(reader: &mut Reader, file: &WantedFile, turn: &mut Turn, room: usize) -> Option<Lines> {
    let first = file.places.first()?;
    // There is no process 0.
    let pid = first.process.map_or(Pid(0), |(pid, _)| pid);
    let whose = Whose { owner: &turn.owner, pid, deadline: turn.deadline };
    let hosts = if reader.avoids(&Place::Host) { Vec::new() } else { hosts().to_vec() };
    let (places, path) = (file.places.clone(), file.mapping.path.clone());
    let addresses: Vec<u64> = file.addresses.iter().copied().collect();
    // The reader returns nothing if the time runs out, so the lines so far come by a channel.
    let (sender, found) = mpsc::channel();
    let result = reader.run(whose, place(&first.vma), move |pulse| {
        let opened = places.into_iter().find_map(|FilePlace { object, vma, process }| {
            pulse.at(place(&vma));
            let owners = process.map(|(pid, _)| (pid, vma)).into_iter().collect();
            let (root, file) = object.open(owners, &path, &hosts, pulse)?;
            Some((root, file, object, process))
        });
        let lines = |(root, file, object, process): (Pid, Watched<'_>, Arc<Object>, Option<(Pid, Life)>)| {
            let lines = object.lines(&file, root, &path, &hosts, &addresses, room)?;
            // The process may have ended, and one of another owner may have its id.
            let is_its_own = process.is_none_or(|(pid, life)| pid != root || Life::of(pid) == Some(life));
            is_its_own.then_some(lines)
        };
        sender.send(opened.and_then(lines)).ok();
    });
    turn.late |= matches!(result, Err(Unread::Late));
    found.try_recv().ok().flatten()
}

/// Returns the place of a mapping's file.
fn place(vma: &Vma) -> Place {
    match &vma.backing {
        Backing::File(file) => Place::Device(file.device.clone()),
        Backing::Anonymous | Backing::Special(_) => Place::Own,
    }
}

#[cfg(test)]
mod tests {
    use std::{
        iter,
        time::{Duration, Instant},
    };

    use super::*;
    use crate::stacks::{profile::FrameKind, user::User};

    #[inline(never)]
    fn a_function_of_this_test() -> u32 {
        line!()
    }

    fn row(path: &str) -> FrameOwner {
        FrameOwner { cgroup: path.into(), ..FrameOwner::default() }
    }

    /// Returns the frame of that function in this process, and the files of its lines.
    fn own_frame() -> (Arc<Frame>, Vec<WantedFile>, Turn) {
        let (pid, call) = (Pid(std::process::id()), a_function_of_this_test as *const () as u64);
        let deadline = Instant::now() + Duration::from_secs(3600);
        let mut turn = Turn { owner: "/a".into(), deadline, map_bytes: 0, late: false };
        let mut user = User::new(Reader::start(true).unwrap());
        user.number(pid, &mut turn).unwrap();
        let frames = user.frames(&[(pid, BTreeSet::from([call]))], &mut turn);
        let frame = Arc::clone(&frames[&pid][&call].frame);
        let mut wanted = WantedLines::default();
        wanted.add(row("/a"), iter::once(&frame));
        (frame, user.files_of(wanted), turn)
    }

    #[test]
    fn a_frame_of_this_program_has_its_line_in_this_file() {
        let (frame, files, mut turn) = own_frame();
        let [file] = &files[..] else { panic!("{files:?}") };
        let mut reader = Reader::start_as(THREAD, true).unwrap();
        let found = read(&mut reader, file, &mut turn, MAX_PATHS).unwrap();
        assert!(found.text_bytes >= file!().len());
        let mut lines = SourceLines::new(1);
        lines.add(row("/a"), Arc::clone(&file.mapping), found.lines);
        let line = lines.line(&row("/a"), &frame).unwrap();
        // An optimized function may begin with its body.
        let inside = a_function_of_this_test() - 1..=a_function_of_this_test() + 1;
        assert!(line.file.ends_with(file!()) && inside.contains(&line.line), "{line:?}");
        assert!(lines.found() == 1 && lines.has(&file.mapping));
        assert_eq!(lines.line(&row("/b"), &frame), None, "the same frame of another owner has no line");
    }

    #[test]
    fn a_file_without_time_has_no_lines_and_another_turn() {
        let (_, files, mut turn) = own_frame();
        let mut reader = Reader::start_as(THREAD, true).unwrap();
        turn.deadline = Instant::now();
        assert!(read(&mut reader, &files[0], &mut turn, MAX_PATHS).is_none() && turn.late);
    }

    #[test]
    fn an_owner_with_many_files_has_one_turn_as_an_owner_with_one_has() {
        let file = |owner: &str, path: &str| {
            let mapping = Arc::new(Mapping { path: path.into(), ..Mapping::default() });
            let (addresses, places, cgroups) = (BTreeSet::from([1]), Vec::new(), BTreeSet::new());
            WantedFile { owner: row(owner), mapping, addresses, places, cgroups }
        };
        let files = vec![file("/noisy", "/a"), file("/noisy", "/b"), file("/quiet", "/c"), file("/noisy", "/d")];
        let mut read = Vec::new();
        let lines = look_up(files, &Clock::default(), SourceLines::new(4), |file, turn, room| {
            read.push(file.mapping.path.clone());
            turn.late = read.len() == 1;
            assert!(room <= MAX_PATHS / 2);
            let line = SourceLine { file: "/src/f.c".into(), line: 1 };
            Some(Lines { lines: HashMap::from([(1, line)]), text_bytes: 0 })
        });
        assert_eq!((read.concat(), lines.found()), ("/a/c/a/b/d".into(), 4));
    }

    #[test]
    fn only_user_code_in_files_is_looked_up_and_each_address_once() {
        let frame = |path: &str, address, kind| {
            let mapping = Arc::new(Mapping { path: path.into(), ..Mapping::default() });
            Arc::new(Frame { address, kind, mapping: Some(mapping), functions: vec![] })
        };
        let native = |path: &str, address| frame(path, address, FrameKind::Native);
        let frames = [native("/a", 1), native("/a", 1), native("/a", 2), native("/b", 1), native("[vdso]", 1)];
        let others = [frame("[kernel]", 1, FrameKind::Kernel)];
        let mut wanted = WantedLines::default();
        wanted.add(row("/a"), frames.iter().chain(&others).chain(&frames));
        assert_eq!(wanted.addresses(), 3);
        assert_eq!(wanted.into_files()["/a"].len(), 2);
    }

    #[tokio::test]
    async fn without_an_answer_no_line_is_found_and_all_are_counted() {
        let frame = Frame {
            address: 1,
            kind: FrameKind::Native,
            mapping: Some(Arc::new(Mapping { path: "/a".into(), ..Mapping::default() })),
            functions: vec![],
        };
        let (frame, mut wanted) = (Arc::new(frame), WantedLines::default());
        wanted.add(row("/a"), iter::once(&frame));
        let (finder, requests) = LineFinder::new(GivenUp::default(), true);
        drop(requests);
        let lines = finder.find(wanted).await;
        assert_eq!((lines.wanted(), lines.found(), lines.line(&row("/a"), &frame)), (1, 0, None));
    }
}
