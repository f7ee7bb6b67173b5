//! The source lines of a recording's frames. They are looked up when the recording has ended, once for each address.
//!
//! The thread that names windows only says in which processes the files are. A thread for files of its own reads them,
//! so no window waits for it. Its CPU time is that of answering readers, which its name says.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    sync::{Arc, mpsc},
};

use tokio::{
    sync::{Mutex, oneshot},
    task::spawn_blocking,
    time::timeout,
};
use tracing::warn;

use super::{
    files::{Watched, hosts},
    line_table::{Lines, SourceLine},
    maps::{Backing, Vma},
    objects::Object,
    profile::{Frame, Mapping},
    reader::{Place, Reader, Unread, Whose, owner_of},
    shares::{LONGEST_NAMING, TimeForFiles, Turn, share},
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
/// The most bytes of the paths of a recording's source files.
const MAX_PATHS: usize = 4 << 20;
/// The size of a line in the result, with its entry in the table.
const LINE_BYTES: usize = 64;

/// The addresses whose lines are wanted, by file.
#[derive(Debug, Default)]
pub struct WantedLines(HashMap<Arc<Mapping>, BTreeSet<u64>>);

/// A file, and where it is.
#[derive(Debug)]
pub(super) struct WantedFile {
    pub(super) mapping: Arc<Mapping>,
    pub(super) addresses: BTreeSet<u64>,
    /// The processes that have it, those that live first. The files of two containers may look the same.
    pub(super) places: Vec<(Arc<Object>, Pid, Vma)>,
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
    files: HashMap<Arc<Mapping>, HashMap<u64, SourceLine>>,
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
    /// Returns the addresses of those frames that are user code in files.
    #[must_use]
    pub fn of<'a>(frames: impl Iterator<Item = &'a Arc<Frame>>) -> Self {
        let (mut files, mut seen) = (HashMap::<_, BTreeSet<u64>>::new(), HashSet::new());
        // A frame is in many stacks.
        for frame in frames.filter(|frame| seen.insert(Arc::as_ptr(frame))) {
            if let Some(mapping) = frame.mapping.as_ref().filter(|mapping| mapping.path.starts_with('/')) {
                files.entry(Arc::clone(mapping)).or_default().insert(frame.address);
            }
        }
        Self(files)
    }

    /// Returns the number of addresses.
    #[must_use]
    pub fn addresses(&self) -> usize {
        self.0.values().map(BTreeSet::len).sum()
    }

    /// Returns the files, whose places are not known yet.
    pub(super) fn into_files(self) -> HashMap<Arc<Mapping>, WantedFile> {
        let file = |(mapping, addresses): (Arc<Mapping>, _)| {
            (Arc::clone(&mapping), WantedFile { mapping, addresses, places: Vec::new() })
        };
        self.0.into_iter().map(file).collect()
    }
}

impl SourceLines {
    /// Returns the result of a lookup of this number of addresses, without a line.
    #[must_use]
    pub fn new(wanted: usize) -> Self {
        Self { wanted, ..Self::default() }
    }

    /// Adds the lines of a file, by address.
    pub fn add(&mut self, file: Arc<Mapping>, lines: HashMap<u64, SourceLine>) {
        self.files.insert(file, lines);
    }

    /// Returns the line of a frame's code; `None` if it is not known.
    #[must_use]
    pub fn line(&self, frame: &Frame) -> Option<&SourceLine> {
        self.files.get(frame.mapping.as_ref()?)?.get(&frame.address)
    }

    /// Returns whether there are lines of this file.
    #[must_use]
    pub fn has(&self, file: &Mapping) -> bool {
        self.files.get(file).is_some_and(|lines| !lines.is_empty())
    }

    /// Returns the number of addresses that were looked up.
    #[must_use]
    pub const fn wanted(&self) -> usize {
        self.wanted
    }

    /// Returns the number of addresses that have a line.
    #[must_use]
    pub fn found(&self) -> usize {
        self.files.values().map(HashMap::len).sum()
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
                Some(reader) => look_up(reader, &files, lines),
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

/// Looks up the lines of all files. They share the time as pods and cgroups share that of a window.
fn look_up(reader: &mut Reader, files: &[WantedFile], mut lines: SourceLines) -> SourceLines {
    reader.new_caller();
    let clock = reader.clock().clone();
    let owner = |file: &WantedFile| file.places.first().map(|(_, pid, _)| owner_of(*pid)).unwrap_or_default();
    share(TimeForFiles::Enough, files.iter().map(owner).collect(), &clock, |at, turn| {
        let Some(file) = files.get(at) else { return };
        let room = MAX_PATHS.saturating_sub(lines.text_bytes);
        let known = lines.files.get(&file.mapping).map_or(0, HashMap::len);
        // A file may have had too little time in its first turn.
        if let Some(found) = read(reader, file, turn, room).filter(|found| found.lines.len() > known) {
            lines.text_bytes += found.text_bytes;
            lines.add(Arc::clone(&file.mapping), found.lines);
        }
    });
    lines
}

/// Reads the lines of one file, as far as there is time in this turn.
fn read(reader: &mut Reader, file: &WantedFile, turn: &mut Turn, room: usize) -> Option<Lines> {
    let (_, pid, vma) = file.places.first()?;
    let whose = Whose { owner: &turn.owner, pid: *pid, deadline: turn.deadline };
    let hosts = if reader.avoids(&Place::Host) { Vec::new() } else { hosts().to_vec() };
    let (places, path) = (file.places.clone(), file.mapping.path.clone());
    let addresses: Vec<u64> = file.addresses.iter().copied().collect();
    // The reader returns nothing if the time runs out, so the lines so far come by a channel.
    let (sender, found) = mpsc::channel();
    let result = reader.run(whose, place(vma), move |pulse| {
        let opened = places.into_iter().find_map(|(object, pid, vma)| {
            pulse.at(place(&vma));
            let (process, file) = object.open(vec![(pid, vma)], &path, &hosts, pulse)?;
            Some((process, file, object))
        });
        let lines = |(process, file, object): (Pid, Watched<'_>, Arc<Object>)| {
            object.lines(&file, process, &path, &hosts, &addresses, room)
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

    /// Returns the frame of that function in this process, and the files of its lines.
    fn own_frame() -> (Arc<Frame>, Vec<WantedFile>, Turn) {
        let (pid, call) = (Pid(std::process::id()), a_function_of_this_test as *const () as u64);
        let deadline = Instant::now() + Duration::from_secs(3600);
        let mut turn = Turn { owner: "a".into(), deadline, map_bytes: 0, late: false };
        let mut user = User::new(Reader::start(true).unwrap());
        let frames = user.frames(&[(pid, BTreeSet::from([call]))], &mut turn);
        let frame = Arc::clone(&frames[&pid][&call].frame);
        let files = user.files_of(WantedLines::of(iter::once(&frame)));
        (frame, files, turn)
    }

    #[test]
    fn a_frame_of_this_program_has_its_line_in_this_file() {
        let (frame, files, mut turn) = own_frame();
        let [file] = &files[..] else { panic!("{files:?}") };
        let mut reader = Reader::start_as(THREAD, true).unwrap();
        let found = read(&mut reader, file, &mut turn, MAX_PATHS).unwrap();
        assert!(found.text_bytes >= file!().len());
        let mut lines = SourceLines::new(1);
        lines.add(Arc::clone(&file.mapping), found.lines);
        let line = lines.line(&frame).unwrap();
        // An optimized function may begin with its body.
        let inside = a_function_of_this_test() - 1..=a_function_of_this_test() + 1;
        assert!(line.file.ends_with(file!()) && inside.contains(&line.line), "{line:?}");
        assert!(lines.found() == 1 && lines.has(&file.mapping));
    }

    #[test]
    fn a_file_without_time_has_no_lines_and_another_turn() {
        let (_, files, mut turn) = own_frame();
        let mut reader = Reader::start_as(THREAD, true).unwrap();
        turn.deadline = Instant::now();
        assert!(read(&mut reader, &files[0], &mut turn, MAX_PATHS).is_none() && turn.late);
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
        let wanted = WantedLines::of(frames.iter().chain(&others).chain(&frames));
        assert_eq!(wanted.addresses(), 3);
        assert_eq!(wanted.into_files().len(), 2);
    }

    #[tokio::test]
    async fn without_an_answer_no_line_is_found_and_all_are_counted() {
        let frame = Frame {
            address: 1,
            kind: FrameKind::Native,
            mapping: Some(Arc::new(Mapping { path: "/a".into(), ..Mapping::default() })),
            functions: vec![],
        };
        let frame = Arc::new(frame);
        let (finder, requests) = LineFinder::new(GivenUp::default(), true);
        drop(requests);
        let lines = finder.find(WantedLines::of(iter::once(&frame))).await;
        assert_eq!((lines.wanted(), lines.found(), lines.line(&frame)), (1, 0, None));
    }
}
