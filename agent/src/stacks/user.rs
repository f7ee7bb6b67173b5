//! Names of user addresses: processes that are known, their files, and the functions that were looked up.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fs::File,
    sync::Arc,
    time::Instant,
};

use tracing::debug;

use super::{
    counts::Cause,
    demangle::{MAX_NAME, demangle},
    files::{FileId, hosts, open_below, open_mapped},
    maps::Backing,
    objects::{Object, Objects},
    perf_map,
    process::{Life, Process, Span, own_pid, read_vmas},
    profile::{Frame, FrameKind, Function, Mapping},
    remembered::Remembered,
    unwind::Place,
    vdso::Vdso,
};
use crate::ids::Pid;

/// Memory that each table may take. With the stacks (see [`super::symbols`]) they are below 40 MiB when they are full,
/// where the agent takes some 20 MiB by itself: a busy node's few hundred programs fit into a part of that.
const PROCESSES_BYTES: usize = 8 << 20;
const NAMES_BYTES: usize = 6 << 20;
const FRAMES_BYTES: usize = 8 << 20;
const FRAME_BYTES: usize = 224;
const NAME_BYTES: usize = 96;
/// A frame that is remembered is in so many stacks or more.
const SHARED_BY: usize = 4;
/// Live processes that are asked for a file of one that is gone.
const MAX_ASKED: usize = 8;

/// A function's name, or that there is none.
type Name = Option<Arc<str>>;

/// A frame, and what became of its address.
#[derive(Clone, Debug)]
pub(super) struct Named {
    pub(super) frame: Arc<Frame>,
    pub(super) place: Place,
    pub(super) outcome: Result<(), Cause>,
    /// Whether it will be the same for as long as the process has the same mappings.
    pub(super) lasts: bool,
    /// The memory that is charged to a stack which has it: all of it to the first.
    pub(super) cost: usize,
}

/// The user side's names.
#[derive(Debug)]
pub(super) struct User {
    processes: Remembered<Pid, Process>,
    next_process: u64,
    objects: Objects,
    /// By the object's number and the address in it.
    names: Remembered<(u64, u64), Name>,
    /// By the process' number and the address.
    frames: Remembered<(u64, u64), Named>,
    /// The same text for files of which none is known.
    no_text: Arc<str>,
    vdso: Vdso,
    window: u32,
}

/// The addresses of one file whose functions are to be looked up.
struct Wanted {
    object: Arc<Object>,
    /// Of the process, that has it.
    span: usize,
    addresses: BTreeSet<u64>,
}

impl User {
    pub(super) fn new() -> Self {
        Self {
            processes: Remembered::new(PROCESSES_BYTES),
            next_process: 0,
            objects: Objects::new(),
            names: Remembered::new(NAMES_BYTES),
            frames: Remembered::new(FRAMES_BYTES),
            no_text: "".into(),
            vdso: Vdso::default(),
            window: 1,
        }
    }

    /// What comes now is of the next window.
    pub(super) fn next_window(&mut self) {
        self.window = self.window.wrapping_add(1);
        self.processes.next_window();
        self.objects.next_window();
        self.names.next_window();
        self.frames.next_window();
    }

    /// Learns what a process has mapped, and what those files are, so that it may end; whether it was not known. Costs one
    /// small file where it is.
    pub(super) fn meet(&mut self, pid: Pid) -> bool {
        let Some(life) = Life::of(pid) else { return false };
        if self.processes.get(&pid).is_none_or(|known| known.life != life)
            && let Some(mut process) = self.read(pid, life)
        {
            process.spans.iter_mut().for_each(|span| span.identify(pid, &mut self.objects));
            // It may map more before its window ends.
            process.read_in = 0;
            self.keep(process);
            return true;
        }
        false
    }

    /// The number of a process with its mappings, as far as is known without reading them again; `None` for one that
    /// ended before it was met.
    pub(super) fn number(&mut self, pid: Pid) -> Option<u64> {
        if let Some(life) = Life::of(pid)
            && self.processes.get(&pid).is_none_or(|known| known.life != life)
        {
            let process = self.read(pid, life)?;
            self.keep(process);
        }
        self.processes.get(&pid).map(|process| process.number)
    }

    /// The frames of addresses in one process. What is not known by the `deadline` stays without a name.
    pub(super) fn frames(&mut self, pid: Pid, calls: &BTreeSet<u64>, deadline: Instant) -> HashMap<u64, Named> {
        let Some(mut process) = self.current(pid) else {
            let gone = |call: &u64| (*call, unnamed(*call, Place::Unknown, Cause::ProcessGone));
            return calls.iter().map(gone).collect();
        };
        let mut frames = HashMap::with_capacity(calls.len());
        let mut wanted: BTreeMap<u64, Wanted> = BTreeMap::new();
        let mut in_memory = Vec::new();
        // What was not remembered: the address, its mapping, and the address in the file.
        let mut found = Vec::new();
        for call in calls {
            if let Some(named) = self.frames.get(&(process.number, *call)) {
                frames.insert(*call, named.clone());
                continue;
            }
            let Some(at) = process.find(*call) else {
                frames.insert(*call, unnamed(*call, Place::Nowhere, Cause::NoMapping));
                continue;
            };
            let Some(span) = process.spans.get_mut(at) else { continue };
            span.identify(pid, &mut self.objects);
            if span.object.is_none() {
                span.adopt(self.processes.values().flat_map(|other| &other.spans));
            }
            let offset = call - span.vma.start + span.vma.offset;
            match (&span.vma.backing, &span.object) {
                (Backing::Anonymous, _) => in_memory.push(*call),
                (Backing::File(_), Some(object)) => match &object.elf {
                    Some(elf) => {
                        let address = elf.address(offset).unwrap_or(offset);
                        if self.names.get(&(object.number, address)).is_none() {
                            let new = || Wanted { object: Arc::clone(object), span: at, addresses: BTreeSet::new() };
                            wanted.entry(object.number).or_insert_with(new).addresses.insert(address);
                        }
                        found.push((*call, at, address));
                    }
                    // Memory with a file behind it, such as a JIT compiler shares with itself.
                    None => in_memory.push(*call),
                },
                (Backing::File(_) | Backing::Special(_), _) => found.push((*call, at, offset)),
            }
        }
        let looked_up = self.look_up(&process, wanted, deadline);
        for (call, at, address) in found {
            let Some(span) = process.spans.get(at) else { continue };
            let named = self.name(span, address, &looked_up);
            if named.lasts {
                let shared = Named { cost: named.cost / SHARED_BY, ..named.clone() };
                self.frames.insert((process.number, call), shared, named.cost);
            }
            frames.insert(call, named);
        }
        self.name_memory(pid, &in_memory, deadline, &mut frames);
        self.keep(process);
        frames
    }

    /// The frame of an address that lies in a file or in the vDSO.
    fn name(&mut self, span: &Span, address: u64, looked_up: &HashMap<(u64, u64), Name>) -> Named {
        let name = match (&span.object, &span.vma.backing) {
            (Some(object), _) => {
                let place = (object.number, address);
                // Of what was just looked up the table may have forgotten some.
                looked_up.get(&place).cloned().or_else(|| self.names.get(&place).cloned())
            }
            (None, Backing::Special(name)) if name == "[vdso]" => Some(self.vdso.name(address)),
            (None, Backing::Special(_)) => Some(None),
            (None, _) => None,
        };
        let outcome = match &name {
            Some(Some(_)) => Ok(()),
            Some(None) => Err(Cause::NoSymbol),
            None => Err(Cause::FileUnreadable),
        };
        let lasts = name.is_some();
        let cost = FRAME_BYTES + name.iter().flatten().map(|name| name.len()).sum::<usize>();
        let frame = self.frame(address, span.mapping.clone(), name.flatten());
        Named { frame, place: Place::File, outcome, lasts, cost }
    }

    fn frame(&self, address: u64, mapping: Option<Arc<Mapping>>, name: Name) -> Arc<Frame> {
        let function = |name| Function { name, file: Arc::clone(&self.no_text), line: 0 };
        let functions = name.map(function).into_iter().collect();
        Arc::new(Frame { address, kind: FrameKind::Native, mapping, functions })
    }

    /// Looks up functions, file by file, and remembers them; gives those of files that could be read.
    fn look_up(
        &mut self,
        process: &Process,
        wanted: BTreeMap<u64, Wanted>,
        deadline: Instant,
    ) -> HashMap<(u64, u64), Name> {
        let mut found = HashMap::new();
        for (number, Wanted { object, span, addresses }) in wanted {
            let Some(Span { vma, .. }) = process.spans.get(span) else { continue };
            let Backing::File(mapping) = &vma.backing else { continue };
            if Instant::now() >= deadline {
                debug!(path = mapping.path, "no time for names");
                break;
            }
            let opened = open_mapped(process.pid, vma, mapping).ok().filter(|file| is(&object, file));
            let opened = opened.map(|file| (process.pid, file)).or_else(|| self.open_elsewhere(&object, &mapping.path));
            let Some((owner, file)) = opened else { continue };
            let addresses: Vec<u64> = addresses.into_iter().collect();
            let names = object.functions(&file, owner, &mapping.path, &addresses);
            for (address, name) in addresses.into_iter().zip(names) {
                let name: Name = name.map(Into::into);
                let cost = NAME_BYTES + name.as_ref().map_or(0, |name| name.len().min(MAX_NAME));
                self.names.insert((number, address), name.clone(), cost);
                found.insert((number, address), name);
            }
        }
        found
    }

    /// The file of a process that is gone, from one that has it too, or from the host.
    fn open_elsewhere(&self, object: &Object, path: &str) -> Option<(Pid, File)> {
        let has_it = |span: &&Span| span.object.as_ref().is_some_and(|other| other.number == object.number);
        let others = self.processes.values().filter_map(|process| Some((process, process.spans.iter().find(has_it)?)));
        let mut opened = others.take(MAX_ASKED).filter_map(|(process, span)| match &span.vma.backing {
            Backing::File(file) => Some((process.pid, open_mapped(process.pid, &span.vma, file).ok()?)),
            Backing::Anonymous | Backing::Special(_) => None,
        });
        let by_path = || {
            let mut opened = hosts().into_iter().filter_map(|host| Some((host, open_below(host, path).ok()?)));
            opened.find(|(_, file)| is(object, file))
        };
        opened.find(|(_, file)| is(object, file)).or_else(by_path)
    }

    /// Names what a JIT compiler has made, by its own map; never for longer than now.
    fn name_memory(&self, pid: Pid, calls: &[u64], deadline: Instant, frames: &mut HashMap<u64, Named>) {
        if calls.is_empty() {
            return;
        }
        let late = Instant::now() >= deadline;
        let map = own_pid(pid).filter(|_| !late);
        let map = map.and_then(|own| open_below(pid, &format!("/tmp/perf-{own}.map")).ok());
        let names = map.map_or_else(|| vec![None; calls.len()], |map| perf_map::names(&map, calls));
        for (call, name) in calls.iter().zip(names) {
            let outcome = match name {
                Some(_) => Ok(()),
                None if late => Err(Cause::FileUnreadable),
                None => Err(Cause::NoSymbol),
            };
            let frame = self.frame(*call, None, name.map(|name| demangle(&name).into()));
            frames.insert(*call, Named { frame, place: Place::Memory, outcome, lasts: false, cost: FRAME_BYTES });
        }
    }

    /// The process with its mappings as they are now, or as they last were.
    fn current(&mut self, pid: Pid) -> Option<Process> {
        let known = self.processes.remove(&pid);
        let Some(life) = Life::of(pid) else { return known };
        if known.as_ref().is_some_and(|known| known.life == life && known.read_in == self.window) {
            return known;
        }
        match read_vmas(pid) {
            Ok(vmas) if !vmas.is_empty() => {
                let process = Process::new(pid, life, vmas, known, &mut self.next_process);
                Some(Process { read_in: self.window, ..process })
            }
            // It ended just now.
            _ => known.filter(|known| known.life == life),
        }
    }

    fn read(&mut self, pid: Pid, life: Life) -> Option<Process> {
        let vmas = read_vmas(pid).ok().filter(|vmas| !vmas.is_empty())?;
        let process = Process::new(pid, life, vmas, None, &mut self.next_process);
        Some(Process { read_in: self.window, ..process })
    }

    fn keep(&mut self, process: Process) {
        let cost = process.cost();
        self.processes.insert(process.pid, process, cost);
    }
}

fn unnamed(address: u64, place: Place, cause: Cause) -> Named {
    let frame = Frame { address, kind: FrameKind::Native, mapping: None, functions: Vec::new() };
    Named { frame: Arc::new(frame), place, outcome: Err(cause), lasts: false, cost: FRAME_BYTES }
}

/// Whether the file is the one that was seen before, and not one that took its place.
fn is(object: &Object, file: &File) -> bool {
    FileId::of(file).is_ok_and(|id| id == object.id)
}
