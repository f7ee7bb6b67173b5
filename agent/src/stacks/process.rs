//! A process as it was last seen: its identity, and its code mappings.

use std::{
    collections::HashMap,
    fs::File,
    io::{self, Read as _},
    sync::Arc,
};

use super::{
    files::{Watched, open_mapped},
    maps::{self, Backing, Vma},
    objects::{Object, Objects},
    profile::Mapping,
    reader::{Place, Pulse, owner_of},
};
use crate::{kernel::proc::read_text, model::ids::Pid};

/// The most bytes of `/proc/PID/maps` that are read: some 400,000 mappings.
const MAX_MAPS: u64 = 64 << 20;

/// The identity of a program in a process: its start time, and the addresses of its code and its stack, which an exec
/// changes. It differs from earlier programs with the same process id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Life([u64; 4]);

/// A process and its executable mappings.
#[derive(Debug)]
pub(super) struct Process {
    pub(super) pid: Pid,
    /// The number of the process with these mappings: a process gets a new number when a mapping other than anonymous
    /// memory is gone.
    pub(super) number: u64,
    pub(super) life: Life,
    /// The executable mappings, by address.
    pub(super) spans: Vec<Span>,
    /// The window in which the mappings were last read.
    pub(super) read_in: u32,
    /// The pod or the row of cgroups that its last stacks belong to; empty before it has stacks.
    pub(super) owner: String,
    /// Its own pod or cgroup: a row may contain several.
    pub(super) cgroup: String,
}

/// An executable mapping with its file.
#[derive(Debug)]
pub(super) struct Span {
    pub(super) vma: Vma,
    /// `None` if it has no file, or if the file could not be read.
    pub(super) object: Option<Arc<Object>>,
    /// The mapping in the form that profiles contain.
    pub(super) mapping: Option<Arc<Mapping>>,
}

impl Life {
    /// Reads the identity of a process; returns `None` if there is no such process.
    pub(super) fn of(pid: Pid) -> Option<Self> {
        Self::parse(&read_text(format!("/proc/{}/stat", pid.0)).ok()?)
    }

    /// Returns whether this may be the life of a program with these addresses: start_code, end_code and start_stack.
    /// Without the permission to see them, the kernel shows 0 or 1.
    pub(super) fn may_be(&self, program: [u64; 3]) -> bool {
        let [_, shown @ ..] = self.0;
        shown[0] <= 1 || shown == program
    }

    /// Returns the addresses of the program's code and of the stack.
    #[cfg(test)]
    pub(super) fn program(&self) -> [u64; 3] {
        let [_, program @ ..] = self.0;
        program
    }

    fn parse(stat: &str) -> Option<Self> {
        // The command's name may contain spaces and brackets: the fields begin after the last bracket, with the third
        // field.
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_ascii_whitespace().collect();
        let field = |number: usize| fields.get(number - 3)?.parse().ok();
        // A zombie has no code.
        if matches!(*fields.first()?, "Z" | "X") {
            return None;
        }
        // starttime, startcode, endcode, startstack
        Some(Self([field(22)?, field(26)?, field(27)?, field(28)?]))
    }
}

impl Process {
    /// Returns a process with these mappings. Known mappings of the same program keep their object.
    pub(super) fn new(pid: Pid, life: Life, vmas: Vec<Vma>, before: Option<Self>, next: &mut u64) -> Self {
        let (old, number, owner, cgroup) = match before {
            Some(before) if before.life == life => (before.spans, Some(before.number), before.owner, before.cgroup),
            _ => (Vec::new(), None, String::new(), owner_of(pid)),
        };
        let mut old: HashMap<u64, Span> = old.into_iter().map(|span| (span.vma.start, span)).collect();
        let mut spans = Vec::with_capacity(vmas.len());
        for vma in vmas {
            let is_known = old.get(&vma.start).is_some_and(|span| span.vma == vma);
            let known = if is_known { old.remove(&vma.start) } else { None };
            spans.push(known.unwrap_or(Span { vma, object: None, mapping: None }));
        }
        // JIT compilers often unmap memory, and its names are not remembered for the process.
        let kept_all = old.values().all(|span| span.vma.backing == Backing::Anonymous);
        let number = number.filter(|_| kept_all).unwrap_or_else(|| {
            *next += 1;
            *next
        });
        Self { pid, number, life, spans, read_in: 0, owner, cgroup }
    }

    /// Returns the index of the mapping that contains an address.
    pub(super) fn find(&self, address: u64) -> Option<usize> {
        let at = self.spans.partition_point(|span| span.vma.start <= address).checked_sub(1)?;
        self.spans.get(at).is_some_and(|span| address < span.vma.end).then_some(at)
    }

    /// Returns the memory that this takes, in bytes.
    pub(super) fn cost(&self) -> usize {
        let path = |span: &Span| match &span.vma.backing {
            // The path is stored twice: once here, and once in the form for profiles.
            Backing::File(file) => 2 * file.path.len() + 200,
            Backing::Anonymous | Backing::Special(_) => 0,
        };
        let spans = self.spans.iter().map(|span| size_of::<Span>() + path(span)).sum::<usize>();
        size_of::<Self>() + self.owner.len() + self.cgroup.len() + spans
    }
}

impl Span {
    /// Sets the object of the mapping's file, if it is not set yet.
    pub(super) fn identify(&mut self, object: Option<Arc<Object>>) {
        self.object = self.object.take().or(object);
        self.describe();
    }

    /// Takes the object from the same file in other processes, because this process is gone.
    pub(super) fn adopt<'a>(&mut self, mut others: impl Iterator<Item = &'a Self>) {
        if let Backing::File(_) = &self.vma.backing {
            let is_same = |other: &&Self| other.vma.backing == self.vma.backing && other.object.is_some();
            self.object = others.find(is_same).and_then(|other| other.object.clone());
            self.describe();
        }
    }

    fn describe(&mut self) {
        let path = match &self.vma.backing {
            Backing::File(file) => file.path.clone(),
            Backing::Special(name) => name.clone(),
            Backing::Anonymous => return,
        };
        let object = self.object.as_ref();
        self.mapping = Some(Arc::new(Mapping {
            path,
            build_id: object.and_then(|object| object.build_id.clone()),
            htlhash: object.and_then(|object| object.htlhash.clone()),
        }));
    }
}

/// Returns the object of a mapping's file; `None` if it has no file or the file cannot be read.
pub(super) fn object_of(process: Pid, vma: &Vma, objects: &Objects, pulse: &Pulse) -> Option<Arc<Object>> {
    let Backing::File(file) = &vma.backing else { return None };
    pulse.at(Place::Device(file.device.clone()));
    pulse.beat().ok()?;
    objects.object(&Watched { file: open_mapped(process, vma, file).ok()?, pulse }).ok()
}

/// Returns the executable mappings of a process; an empty list for a process that has ended or is a kernel thread.
/// `beat` is called before each read, and may end the reading with an error.
pub(super) fn read_vmas(pid: Pid, beat: impl Fn() -> io::Result<()>) -> io::Result<Vec<Vma>> {
    let mut text = File::open(format!("/proc/{}/maps", pid.0))?.take(MAX_MAPS);
    maps::read(|buffer| {
        beat()?;
        text.read(buffer)
    })
}

/// The ids of a process that its JIT compiler's map must match.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OwnIds {
    /// The id that the process has in its own namespace.
    pub(super) pid: u32,
    /// The effective user.
    pub(super) user: u32,
}

impl OwnIds {
    /// Reads the ids of a process; returns `None` if there is no such process.
    pub(super) fn of(pid: Pid) -> Option<Self> {
        Self::parse(&read_text(format!("/proc/{}/status", pid.0)).ok()?, pid)
    }

    fn parse(status: &str, pid: Pid) -> Option<Self> {
        let ids = |key: &str| Some(status.lines().find_map(|line| line.strip_prefix(key))?.split_ascii_whitespace());
        // The id in the innermost namespace is the last one.
        let pid = ids("NStgid:").map_or(Some(pid.0), |mut ids| ids.next_back()?.parse().ok())?;
        Some(Self { pid, user: ids("Uid:")?.nth(1)?.parse().ok()? })
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn a_process_is_identified_by_its_start_and_its_program() {
        let stat = |state: &str, start: u64, code: u64| {
            let zeros = "0 ".repeat(18);
            format!("7 (a ) b) {state} {zeros}{start} 1 2 3 {code} 5 6 7 8")
        };
        let life = |state, start, code| Life::parse(&stat(state, start, code));
        assert_eq!(life("S", 10, 20), Some(Life([10, 20, 5, 6])));
        assert_ne!(life("S", 10, 20), life("S", 11, 20));
        assert_ne!(life("S", 10, 20), life("S", 10, 21));
        assert_eq!(life("Z", 10, 20), None);
        for text in ["", "7", "7 (a", "7 (a) S", "7 (a) S 1 2 3"] {
            assert_eq!(Life::parse(text), None, "{text}");
        }
    }

    fn process(vmas: &[Vma], before: Option<Process>, next: &mut u64) -> Process {
        Process::new(Pid(7), Life([1; 4]), vmas.to_vec(), before, next)
    }

    #[test]
    fn a_process_is_the_same_until_one_of_its_files_is_gone() {
        let vmas = maps::parse(
            b"1000-2000 r-xp 0 0:1 9 /a\n2000-3000 r-xp 0 0:1 8 /b\n4000-5000 rwxp 0 0:0 0\n5000-6000 r-xp 0 0:0 0 [vdso]\n",
        );
        let mut next = 0;
        let first = process(&vmas[..2], None, &mut next);
        let number = first.number;
        let more = process(&vmas, Some(first), &mut next);
        assert_eq!(more.number, number);
        let without_memory = process(&[&vmas[..2], &vmas[3..]].concat(), Some(more), &mut next);
        assert_eq!(without_memory.number, number);
        let without_file = process(&vmas[1..], Some(without_memory), &mut next);
        assert_ne!(without_file.number, number);
        let number = without_file.number;
        let again = Process::new(Pid(7), Life([2; 4]), vmas, Some(without_file), &mut next);
        assert_ne!(again.number, number);
    }

    #[test]
    fn an_address_is_found_in_its_mapping_only() {
        let vmas = maps::parse(b"1000-2000 r-xp 0 0:1 9 /a\n3000-4000 r-xp 0 0:1 8 /b\n");
        let process = process(&vmas, None, &mut 0);
        for (address, at) in [
            (0, None),
            (0xfff, None),
            (0x1000, Some(0)),
            (0x1fff, Some(0)),
            (0x2000, None),
            (0x3001, Some(1)),
            (u64::MAX, None),
        ] {
            assert_eq!(process.find(address), at, "{address:#x}");
        }
    }

    #[test]
    fn what_is_known_of_a_file_is_kept() {
        let own = Pid(std::process::id());
        let life = Life::of(own).unwrap();
        let (mut next, objects) = (0, Objects::new());
        let pulse = Pulse::new(Instant::now() + Duration::from_secs(3600), Place::Own);
        let mut first = Process::new(own, life, read_vmas(own, || Ok(())).unwrap(), None, &mut next);
        for span in &mut first.spans {
            span.identify(object_of(own, &span.vma, &objects, &pulse));
        }
        first.owner = "shop/cart".into();
        let code = first.spans.iter().find(|span| span.object.is_some()).unwrap().vma.start;
        let again = Process::new(own, life, read_vmas(own, || Ok(())).unwrap(), Some(first), &mut next);
        assert!(again.spans[again.find(code).unwrap()].object.is_some());
        assert_eq!([again.owner, again.cgroup], ["shop/cart".into(), owner_of(own)]);
    }

    #[test]
    fn own_ids_are_the_innermost_process_id_and_the_effective_user() {
        let own = OwnIds { pid: std::process::id(), user: nix::unistd::geteuid().as_raw() };
        assert_eq!(OwnIds::of(Pid(own.pid)), Some(own));
        let status = "Name:\ta\nUid:\t1\t2\t3\t4\nNStgid:\t900\t80\t7\n";
        assert_eq!(OwnIds::parse(status, Pid(900)), Some(OwnIds { pid: 7, user: 2 }));
        assert_eq!(OwnIds::parse("Uid:\t1\t2\t3\t4\n", Pid(900)), Some(OwnIds { pid: 900, user: 2 }));
        assert_eq!(OwnIds::parse("NStgid:\t900\n", Pid(900)), None);
    }
}
