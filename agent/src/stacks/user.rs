//! Names user addresses: keeps known processes, their files, and the functions that were looked up.

mod jit;
mod lines;
mod look_up;
mod prefetch;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::Arc,
};

use self::{look_up::Wanted, prefetch::PrefetchTime};
use super::{
    clock::Clock,
    counts::Cause,
    debuginfod::Fetcher,
    demangle::{FunctionName, Language, MAX_NAME},
    maps::{Backing, Vma},
    objects::Objects,
    process::{Life, Process, Span, object_of, read_vmas},
    profile::{Frame, FrameKind, Function, Mapping},
    reader::{self, Pulse, Reader, Unread, Whose, owner_of},
    remembered::Remembered,
    shares::Turn,
    unwind::Place,
    vdso::Vdso,
};
use crate::model::ids::Pid;
pub(super) use look_up::is_in;

/// The memory limit of each table, in bytes. All tables together with the stacks (see [`super::symbols`]) take below 40
/// MiB when they are full; the rest of the agent takes some 20 MiB. The few hundred programs of a busy node need only a
/// part of this.
const PROCESSES_BYTES: usize = 8 << 20;
const NAMES_BYTES: usize = 6 << 20;
const FRAMES_BYTES: usize = 8 << 20;
const FRAME_BYTES: usize = 224;
const NAME_BYTES: usize = 96;
/// A remembered frame is assumed to be in at least this number of stacks.
const SHARED_BY: usize = 4;

/// A function's name and language; `None` if the file has no function at the address.
type Name = Option<(Arc<str>, FrameKind)>;

/// A frame with the outcome of its lookup.
#[derive(Clone, Debug)]
pub(super) struct Named {
    pub(super) frame: Arc<Frame>,
    pub(super) place: Place,
    pub(super) outcome: Result<(), Cause>,
    /// Set if the frame stays the same as long as the process has the same mappings.
    pub(super) lasts: bool,
    /// The memory that is charged to a stack with this frame, in bytes: the first stack pays all of it.
    pub(super) cost: usize,
}

/// The names of user addresses.
#[derive(Debug)]
pub(super) struct User {
    reader: Reader,
    processes: Remembered<Pid, Process>,
    next_process: u64,
    objects: Arc<Objects>,
    /// The names, by the object's number and the address in the object.
    names: Remembered<(u64, u64), Name>,
    /// The frames, by the process' number and the address.
    frames: Remembered<(u64, u64), Named>,
    /// The empty text for unknown source files, shared by all frames.
    no_text: Arc<str>,
    vdso: Vdso,
    window: u32,
    prefetch_time: PrefetchTime,
    /// `None` if no debug files are fetched from servers.
    fetcher: Option<Fetcher>,
}

/// An address in memory that a JIT compiler may have written, and the start of its mapping.
#[derive(Clone, Copy, Debug)]
pub(super) struct InMemory {
    call: u64,
    start: u64,
}

impl User {
    pub(super) fn new(reader: Reader) -> Self {
        Self {
            reader,
            processes: Remembered::new(PROCESSES_BYTES),
            next_process: 0,
            objects: Arc::new(Objects::new()),
            names: Remembered::new(NAMES_BYTES),
            frames: Remembered::new(FRAMES_BYTES),
            no_text: "".into(),
            vdso: Vdso::default(),
            window: 1,
            prefetch_time: PrefetchTime::default(),
            fetcher: None,
        }
    }

    /// Also takes names from the debug files that this fetches.
    pub(super) fn with_fetcher(self, fetcher: Option<Fetcher>) -> Self {
        Self { fetcher, ..self }
    }

    /// Returns the clock of the time for files.
    pub(super) fn clock(&self) -> Clock {
        self.reader.clock().clone()
    }

    /// Returns the same tables without remembered files and names.
    pub(super) fn forget(self) -> Self {
        Self { prefetch_time: self.prefetch_time, fetcher: self.fetcher, ..Self::new(self.reader) }
    }

    /// Starts the next window. Returns the build ids of the files whose frames were forgotten, because debug files of
    /// them have arrived.
    pub(super) fn next_window(&mut self) -> HashSet<String> {
        self.window = self.window.wrapping_add(1);
        self.processes.next_window();
        self.objects.next_window();
        self.names.next_window();
        self.frames.next_window();
        self.prefetch_time.next_window();
        self.forget_arrived()
    }

    /// Reads the mappings of a process and their files, so that the process may end. Returns whether the process was
    /// new. For a known process, this reads one small file.
    pub(super) fn prefetch(&mut self, pid: Pid) -> bool {
        let Some(life) = Life::of(pid) else { return false };
        if self.processes.get(&pid).is_some_and(|known| known.life == life) {
            return false;
        }
        let (owner, start) = (owner_of(pid), self.reader.clock().now());
        let Some(time) = self.prefetch_time.time_for(&owner, pid) else { return false };
        self.reader.clock().begin(time);
        let mut turn = Turn { owner, deadline: start + time, map_bytes: 0, late: false };
        let process = self.read(pid, life, &mut turn);
        let is_read = process.is_some();
        if let Some(mut process) = process {
            let all = (0..process.spans.len()).collect();
            self.identify(&mut process, &all, &mut turn);
            // The process may map more code before its window ends, so its mappings are read again then.
            process.read_in = 0;
            self.keep(process);
        }
        let used = self.reader.clock().now().saturating_duration_since(start);
        self.prefetch_time.used(turn.owner, used);
        is_read
    }

    /// Returns the number of a process with its mappings; known mappings are not read again. Returns `None` for a
    /// process that ended before its mappings were read. The process belongs to the owner of this turn from now on.
    pub(super) fn number(&mut self, pid: Pid, turn: &mut Turn) -> Option<u64> {
        if let Some(life) = Life::of(pid)
            && self.processes.get(&pid).is_none_or(|known| known.life != life)
        {
            let process = self.read(pid, life, turn)?;
            self.keep(process);
        }
        let process = self.processes.get(&pid)?;
        if process.owner != turn.owner {
            process.owner.clone_from(&turn.owner);
        }
        Some(process.number)
    }

    /// Returns the frames of addresses in processes of one owner. Frames that are unknown at the end of the owner's
    /// turn have no name.
    pub(super) fn frames(
        &mut self,
        processes: &[(Pid, BTreeSet<u64>)],
        turn: &mut Turn,
    ) -> HashMap<Pid, HashMap<u64, Named>> {
        let (mut frames, mut in_memory) = (HashMap::new(), Vec::new());
        for (pid, calls) in processes {
            let (named, rest) = self.frames_in_files(*pid, calls, turn);
            frames.insert(*pid, named);
            if !rest.is_empty() {
                in_memory.push((*pid, rest));
            }
        }
        self.name_memory(&in_memory, turn, &mut frames);
        frames
    }

    /// Returns the frames in files, and the addresses in memory that a JIT compiler may have written.
    fn frames_in_files(
        &mut self,
        pid: Pid,
        calls: &BTreeSet<u64>,
        turn: &mut Turn,
    ) -> (HashMap<u64, Named>, Vec<InMemory>) {
        let Some(mut process) = self.current(pid, turn) else {
            let unread = Life::of(pid).is_some() || self.prefetch_time.has_skipped(pid);
            let cause = if unread { Cause::FileUnreadable } else { Cause::ProcessGone };
            let gone = |call: &u64| (*call, self.unknown(Place::Unknown, cause));
            return (calls.iter().map(gone).collect(), Vec::new());
        };
        let new = calls.iter().filter(|call| self.frames.get(&(process.number, **call)).is_none());
        let new = new.filter_map(|call| process.find(*call)).collect();
        self.identify(&mut process, &new, turn);
        let mut frames = HashMap::with_capacity(calls.len());
        let mut wanted: BTreeMap<u64, Wanted> = BTreeMap::new();
        let mut in_memory = Vec::new();
        // The frames that were not remembered: the address, its mapping, and the address in the file.
        let mut found = Vec::new();
        for call in calls {
            if let Some(named) = self.frames.get(&(process.number, *call)) {
                frames.insert(*call, named.clone());
                continue;
            }
            let Some(at) = process.find(*call) else {
                frames.insert(*call, self.unknown(Place::Nowhere, Cause::NoMapping));
                continue;
            };
            let Some(span) = process.spans.get_mut(at) else { continue };
            if span.object.is_none() {
                span.adopt(self.processes.values().flat_map(|other| &other.spans));
            }
            let offset = span.vma.offset_of(*call);
            match (&span.vma.backing, &span.object) {
                (Backing::Anonymous, _) => in_memory.push(InMemory { call: *call, start: span.vma.start }),
                (Backing::File(_), Some(object)) => match &object.elf {
                    Some(elf) => {
                        let address = elf.address(offset).unwrap_or(offset);
                        if self.names.get(&(object.number, address)).is_none() {
                            let new = || Wanted { object: Arc::clone(object), span: at, addresses: BTreeSet::new() };
                            wanted.entry(object.number).or_insert_with(new).addresses.insert(address);
                        }
                        found.push((*call, at, address));
                    }
                    // Memory with a file behind it, for example memory that a JIT compiler maps twice.
                    None => in_memory.push(InMemory { call: *call, start: span.vma.start }),
                },
                (Backing::File(_) | Backing::Special(_), _) => found.push((*call, at, offset)),
            }
        }
        let looked_up = self.look_up(&process, wanted, turn);
        for (call, at, address) in found {
            let Some(span) = process.spans.get(at) else { continue };
            let named = self.name(span, address, &looked_up);
            if named.lasts {
                let shared = Named { cost: named.cost / SHARED_BY, ..named.clone() };
                self.frames.insert((process.number, call), shared, named.cost);
            }
            frames.insert(call, named);
        }
        self.keep(process);
        (frames, in_memory)
    }

    /// Finds the objects of these mappings' files, unless they are known.
    fn identify(&mut self, process: &mut Process, at: &BTreeSet<usize>, turn: &mut Turn) {
        let (mut unknown, pid) = (Vec::new(), process.pid);
        for (at, span) in at.iter().filter_map(|at| Some((*at, process.spans.get(*at)?))) {
            if let Backing::File(file) = &span.vma.backing
                && span.object.is_none()
                && !self.reader.avoids(&reader::Place::Device(file.device.clone()))
            {
                unknown.push((at, span.vma.clone()));
            }
        }
        if !unknown.is_empty() {
            let objects = Arc::clone(&self.objects);
            let found = self.run(turn, pid, reader::Place::Own, move |pulse| {
                let found = unknown.iter().map(|(at, vma)| (*at, object_of(pid, vma, &objects, pulse)));
                found.collect::<Vec<_>>()
            });
            for (at, object) in found.unwrap_or_default() {
                if let Some(span) = process.spans.get_mut(at) {
                    span.identify(object);
                }
            }
        }
        for span in at {
            if let Some(span) = process.spans.get_mut(*span).filter(|span| span.mapping.is_none()) {
                span.identify(None);
            }
        }
    }

    /// Runs `work` on the thread for files, within this turn.
    fn run<T: Send + 'static>(
        &mut self,
        turn: &mut Turn,
        pid: Pid,
        place: reader::Place,
        work: impl FnOnce(&Pulse) -> T + Send + 'static,
    ) -> Option<T> {
        let result = self.reader.run(Whose { owner: &turn.owner, pid, deadline: turn.deadline }, place, work);
        turn.late |= matches!(result, Err(Unread::Late));
        result.ok()
    }

    /// Returns the frame of an address in a file or in the vDSO.
    fn name(&mut self, span: &Span, address: u64, looked_up: &HashMap<(u64, u64), Name>) -> Named {
        let name = match (&span.object, &span.vma.backing) {
            (Some(object), _) => {
                let place = (object.number, address);
                // The table may already have dropped some of the names that were just looked up.
                looked_up.get(&place).cloned().or_else(|| self.names.get(&place).cloned())
            }
            (None, Backing::Special(name)) if name == "[vdso]" => {
                Some(self.vdso.name(address).map(|name| (name, FrameKind::Native)))
            }
            (None, Backing::Special(_)) => Some(None),
            (None, _) => None,
        };
        let outcome = match &name {
            Some(Some(_)) => Ok(()),
            Some(None) => Err(Cause::NoSymbol),
            None => Err(Cause::FileUnreadable),
        };
        let lasts = name.is_some();
        let cost = FRAME_BYTES + name.iter().flatten().map(|(name, _)| name.len()).sum::<usize>();
        let frame = self.frame(address, span.mapping.clone(), name.flatten());
        Named { frame, place: Place::File, outcome, lasts, cost }
    }

    /// Returns the frame of an address that no known code contains. The address itself may be a value of the program: a
    /// walk by frame pointers may end in one. So no reader gets it.
    fn unknown(&self, place: Place, cause: Cause) -> Named {
        let name = if matches!(place, Place::Nowhere) { "[no code]" } else { "[unknown]" };
        let frame = self.frame(0, None, Some((name.into(), FrameKind::Native)));
        Named { frame, place, outcome: Err(cause), lasts: false, cost: FRAME_BYTES }
    }

    fn frame(&self, address: u64, mapping: Option<Arc<Mapping>>, name: Name) -> Arc<Frame> {
        let (name, kind) = name.map_or((None, FrameKind::Native), |(name, kind)| (Some(name), kind));
        let function = |name| Function { name, file: Arc::clone(&self.no_text), line: 0 };
        let functions = name.map(function).into_iter().collect();
        Arc::new(Frame { address, kind, mapping, functions })
    }

    fn learn(&mut self, place: (u64, u64), name: &Name) {
        let cost = NAME_BYTES + name.as_ref().map_or(0, |(name, _)| name.len().min(MAX_NAME));
        self.names.insert(place, name.clone(), cost);
    }

    /// Returns the process with its current mappings, or with the last known ones.
    fn current(&mut self, pid: Pid, turn: &mut Turn) -> Option<Process> {
        let known = self.processes.remove(&pid);
        let Some(life) = Life::of(pid) else { return known };
        if known.as_ref().is_some_and(|known| known.life == life && known.read_in == self.window) {
            return known;
        }
        match self.vmas(pid, turn) {
            Some(vmas) => {
                let process = Process::new(pid, life, vmas, known, &mut self.next_process);
                Some(Process { read_in: self.window, ..process })
            }
            // The process has just ended.
            None => known.filter(|known| known.life == life),
        }
    }

    /// Returns the mappings of a process; `None` if there are none. A process that waits for a page of a file may block
    /// the read.
    fn vmas(&mut self, pid: Pid, turn: &mut Turn) -> Option<Vec<Vma>> {
        let vmas = self.run(turn, pid, reader::Place::Own, move |pulse| read_vmas(pid, || pulse.beat()));
        vmas?.ok().filter(|vmas| !vmas.is_empty())
    }

    fn read(&mut self, pid: Pid, life: Life, turn: &mut Turn) -> Option<Process> {
        let vmas = self.vmas(pid, turn)?;
        let process = Process::new(pid, life, vmas, None, &mut self.next_process);
        Some(Process { read_in: self.window, ..process })
    }

    fn keep(&mut self, process: Process) {
        let cost = process.cost();
        self.processes.insert(process.pid, process, cost);
    }
}

fn named(name: FunctionName) -> (Arc<str>, FrameKind) {
    let kind = match name.language {
        Language::Go => FrameKind::Go,
        Language::Rust => FrameKind::Rust,
        Language::Cpp | Language::Other => FrameKind::Native,
    };
    (name.text.into(), kind)
}
