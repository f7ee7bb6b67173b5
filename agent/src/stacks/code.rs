//! The code of processes, as unwinding needs it: unwind tables of mapped files, rules, and guesses from instructions.
//!
//! Runs on the thread for files of [`super::reader`]. Mappings are read again when an address lies in none of them, and
//! from time to time, since other code may have taken the place of known code. Files are opened only for what is not
//! remembered.

mod made;

use std::{collections::HashMap, ops::Range, sync::Arc, time::Duration};

use super::{
    dwarf::{self, Before, Call, Found, Guess, MAX_BEFORE, MAX_FUNCTION, Machine, Rule, Tables},
    elf::Elf,
    files::{FileId, Watched, open_mapped},
    maps::Backing,
    process::Life,
    read_at::read_up_to,
    reader::{Place, Pulse},
    remembered::Remembered,
    space::{Known, Space},
    vdso,
};
use crate::{kernel::clock::thread_cpu, model::ids::Pid};

/// The most memory of each table, in bytes.
const PROCESSES_BYTES: usize = 4 << 20;
const TABLES_BYTES: usize = 1 << 20;
const RULES_BYTES: usize = 2 << 20;
const GUESSES_BYTES: usize = 1 << 20;
const CALLS_BYTES: usize = 1 << 19;
/// The approximate memory of an entry, in bytes.
const ENTRY_BYTES: usize = 96;
/// The addresses where a program can have code.
const CODE: Range<u64> = 0x1000..1 << 56;

/// A place in a file with tables: the index of the mapping, the number of the file, and the offset in it.
struct InFile {
    at: usize,
    number: u64,
    offset: u64,
}

impl InFile {
    const fn key(&self) -> (u64, u64) {
        (self.number, self.offset)
    }
}

/// The code of all processes.
#[derive(Debug)]
pub(super) struct AllCode {
    processes: Remembered<Pid, Space>,
    files: Remembered<FileId, Known>,
    next_file: u64,
    /// By the number of the file and the address in the file; `None`: the file has no rule there.
    rules: Remembered<(u64, u64), Option<Arc<Rule>>>,
    /// By the number of the file and the offset in it: functions that code without a rule may be in, the code before
    /// return addresses, and jumps out of functions.
    guesses: Remembered<(u64, u64), Arc<[Guess]>>,
    before: Remembered<(u64, u64), Before>,
    jumps: Remembered<(u64, u64), Arc<[Call]>>,
    vdso: Option<Option<(Arc<Tables>, Vec<u8>)>>,
}

/// The code of one process while its stacks are walked.
pub(super) struct Code<'a> {
    all: &'a mut AllCode,
    space: Space,
    pid: Pid,
    /// `CLOCK_MONOTONIC` of the stack that is walked.
    at_ns: u64,
    pulse: &'a Pulse,
    /// The time of this thread's CPU clock from which on nothing more is read.
    until: Duration,
    /// The files that were opened for rules, by the index of the mapping. They close with this walk.
    open: HashMap<usize, Watched<'a>>,
    /// The memory of the process, once it was opened.
    memory: Option<Watched<'a>>,
}

impl AllCode {
    pub(super) fn new() -> Self {
        Self {
            processes: Remembered::new(PROCESSES_BYTES),
            files: Remembered::new(TABLES_BYTES),
            next_file: 0,
            rules: Remembered::new(RULES_BYTES),
            guesses: Remembered::new(GUESSES_BYTES),
            before: Remembered::new(CALLS_BYTES),
            jumps: Remembered::new(CALLS_BYTES),
            vdso: None,
        }
    }

    /// Starts the next window. Entries that recent windows did not use are removed first.
    pub(super) fn next_window(&mut self) {
        self.processes.next_window();
        self.files.next_window();
        self.rules.next_window();
        self.guesses.next_window();
        self.before.next_window();
        self.jumps.next_window();
    }

    /// Returns the code of a process that runs this program; `None` if the process has ended or runs another program.
    /// Files are read until this thread's CPU clock shows `until`.
    pub(super) fn of<'a>(
        &'a mut self,
        pid: Pid,
        program: [u64; 3],
        pulse: &'a Pulse,
        until: Duration,
    ) -> Option<Code<'a>> {
        let known = self.processes.remove(&pid).filter(|space| space.program == program);
        let space = match known {
            Some(mut space) => {
                space.refresh(pid, pulse);
                space
            }
            None => Space::read(pid, program, pulse)?,
        };
        Some(Code { all: self, space, pid, at_ns: 0, pulse, until, open: HashMap::new(), memory: None })
    }
}

impl<'a> Code<'a> {
    /// Remembers the mappings of the process.
    pub(super) fn keep(mut self) {
        // The virtual machine may write other code there.
        self.space.frames.clear();
        let cost = self.space.cost();
        self.all.processes.insert(self.pid, self.space, cost);
    }

    /// Sets the time of the stack that is walked next, in nanoseconds of `CLOCK_MONOTONIC`.
    pub(super) fn walk_at(&mut self, at_ns: u64) {
        self.at_ns = at_ns;
    }

    /// Returns the mapping of an address, or the inner `None` if there is none. Returns the outer `None` if the known
    /// mappings are older than the stack, and cannot be read again now.
    fn find(&mut self, address: u64) -> Option<Option<usize>> {
        if !CODE.contains(&address) {
            return Some(None);
        }
        let found = self.space.find(address);
        if found.is_some() || self.space.read_ns > self.at_ns {
            return Some(found);
        }
        // The mappings get other numbers.
        self.open.clear();
        self.space.read_again(self.pid, self.pulse);
        let found = self.space.find(address);
        (found.is_some() || self.space.read_ns > self.at_ns).then_some(found)
    }

    fn rule_in_file(&mut self, at: usize, address: u64) -> Option<Found> {
        let Known::Tables { tables, number, is_go } = self.known(at)? else { return Some(Found::NoFile) };
        let vma = self.space.vmas.get(at)?;
        let offset = vma.offset_of(address);
        let Some(inside) = tables.address_of(offset) else { return Some(Found::NoRule) };
        let rule = match self.all.rules.get(&(number, inside)) {
            Some(rule) => rule.clone(),
            None => {
                let rule = tables.rule(self.file(at)?, inside).ok()?.map(Arc::new);
                let cost = ENTRY_BYTES + rule.as_ref().map_or(0, |rule| rule.cost());
                self.all.rules.insert((number, inside), rule.clone(), cost);
                rule
            }
        };
        Some(match rule {
            Some(rule) => Found::Rule(rule),
            None if is_go => Found::FramePointer,
            None => Found::NoRule,
        })
    }

    /// Returns the open file of a mapping; `None` if it cannot be opened, or if no time is left. Each search in a file
    /// begins here, and takes some milliseconds at most.
    fn file(&mut self, at: usize) -> Option<&Watched<'a>> {
        if thread_cpu() >= self.until {
            return None;
        }
        if !self.open.contains_key(&at) {
            let vma = self.space.vmas.get(at)?;
            let Backing::File(mapping) = &vma.backing else { return None };
            self.pulse.at(Place::Device(mapping.device.clone()));
            self.pulse.beat().ok()?;
            let file = open_mapped(self.pid, vma, mapping).ok()?;
            self.open.insert(at, Watched { file, pulse: self.pulse });
        }
        self.open.get(&at)
    }

    /// Returns the tables of a mapping's file.
    fn known(&mut self, at: usize) -> Option<Known> {
        if let Some(known) = self.space.tables.get(at)? {
            return Some(known.clone());
        }
        let known = self.tables_of(at)?;
        *self.space.tables.get_mut(at)? = Some(known.clone());
        Some(known)
    }

    fn tables_of(&mut self, at: usize) -> Option<Known> {
        let Some(file) = self.file(at) else {
            // The process may have ended, or no time may be left. Else the file will not open later either.
            let is_alive = Life::of(self.pid).is_some_and(|life| life.may_be(self.space.program));
            return (is_alive && thread_cpu() < self.until && self.pulse.beat().is_ok()).then_some(Known::NoElf);
        };
        let id = FileId::of(&file.file).ok()?;
        if let Some(known) = self.all.files.get(&id) {
            return Some(known.clone());
        }
        let file = self.file(at)?;
        let known = match Tables::parse(file).filter(|tables| tables.machine() == HERE) {
            Some(tables) => {
                let is_go = Elf::parse(file).is_some_and(|elf| elf.go.is_some());
                self.all.next_file += 1;
                Known::Tables { tables: Arc::new(tables), number: self.all.next_file, is_go }
            }
            None => Known::NoElf,
        };
        // An unreadable file is no reason to believe that it has no tables.
        self.pulse.beat().ok()?;
        let cost = ENTRY_BYTES + if let Known::Tables { tables, .. } = &known { tables.cost() } else { 0 };
        self.all.files.insert(id, known.clone(), cost);
        Some(known)
    }

    /// Returns the place of an address in a file with tables, or the inner `None` if it is in none.
    fn place(&mut self, address: u64) -> Option<Option<InFile>> {
        let Some(at) = self.find(address)? else { return Some(None) };
        let vma = self.space.vmas.get(at)?;
        if !matches!(vma.backing, Backing::File(_)) {
            return Some(None);
        }
        let offset = vma.offset_of(address);
        let Known::Tables { number, .. } = self.known(at)? else { return Some(None) };
        Some(Some(InFile { at, number, offset }))
    }

    /// Returns the bytes of a mapping's file between two offsets, as far as the file has them; `None` if they could not be
    /// read in time.
    fn bytes(&mut self, at: usize, from: u64, to: u64) -> Option<Vec<u8>> {
        let mut bytes = vec![0; usize::try_from(to.checked_sub(from)?).ok()?];
        let read = read_up_to(self.file(at)?, from, &mut bytes);
        // The read may have ended at the deadline.
        self.pulse.beat().ok()?;
        bytes.truncate(read);
        Some(bytes)
    }

    fn rule_in_vdso(&mut self, at: usize, address: u64) -> Option<Found> {
        let vma = self.space.vmas.get(at)?;
        let read = || {
            let (_, image) = vdso::read().ok().flatten()?;
            Some((Arc::new(Tables::parse(&image[..])?), image))
        };
        let Some((tables, image)) = self.all.vdso.get_or_insert_with(read) else { return Some(Found::NoRule) };
        let inside = tables.address_of(address - vma.start)?;
        let rule = tables.rule(&image[..], inside).ok()?;
        Some(rule.map_or(Found::NoRule, |rule| Found::Rule(Arc::new(rule))))
    }
}

impl dwarf::Code for Code<'_> {
    fn rule(&mut self, address: u64) -> Found {
        let at = match self.find(address) {
            Some(Some(at)) => at,
            Some(None) => return Found::Nowhere,
            None => return Found::NotNow,
        };
        let result = match self.space.vmas.get(at).map(|vma| &vma.backing) {
            Some(Backing::Anonymous) => self.made_at_run_time(address),
            Some(Backing::Special(name)) if name == "[vdso]" => self.rule_in_vdso(at, address),
            Some(Backing::Special(_)) | None => Some(Found::NoRule),
            Some(Backing::File(_)) => self.rule_in_file(at, address),
        };
        result.unwrap_or(Found::NotNow)
    }

    fn is_code(&mut self, address: u64) -> Option<bool> {
        self.find(address).map(|found| found.is_some())
    }

    fn is_known_code(&self, address: u64) -> bool {
        self.space.find(address).is_some()
    }

    fn guesses(&mut self, address: u64) -> Option<Arc<[Guess]>> {
        let Some(place) = self.place(address)? else { return Some(Arc::default()) };
        if let Some(known) = self.all.guesses.get(&place.key()) {
            return Some(known.clone());
        }
        let first = place.offset.saturating_sub(MAX_FUNCTION);
        let bytes = self.bytes(place.at, first, place.offset.saturating_add(MAX_FUNCTION))?;
        let found = dwarf::guesses(&bytes, first, place.offset);
        self.all.guesses.insert(place.key(), found.clone(), ENTRY_BYTES + size_of_val(&*found));
        Some(found)
    }

    fn before(&mut self, return_address: u64) -> Option<Before> {
        // A call may be the last instruction of a mapping.
        let Some(place) = self.place(return_address.wrapping_sub(1))? else { return Some(Before::default()) };
        if let Some(known) = self.all.before.get(&place.key()) {
            return Some(*known);
        }
        let end = place.offset + 1;
        let found = dwarf::before(&self.bytes(place.at, end.saturating_sub(MAX_BEFORE as u64), end)?);
        self.all.before.insert(place.key(), found, ENTRY_BYTES);
        Some(found)
    }

    fn jumps(&mut self, start: u64) -> Option<Arc<[Call]>> {
        let Some(place) = self.place(start)? else { return Some(Arc::default()) };
        if let Some(known) = self.all.jumps.get(&place.key()) {
            return Some(known.clone());
        }
        let bytes = self.bytes(place.at, place.offset, place.offset.saturating_add(MAX_FUNCTION))?;
        let found = dwarf::jumps(&bytes);
        self.all.jumps.insert(place.key(), found.clone(), ENTRY_BYTES + size_of_val(&*found));
        Some(found)
    }
}

/// This machine.
pub(super) const HERE: Machine = if cfg!(target_arch = "x86_64") { Machine::X86_64 } else { Machine::Aarch64 };

#[cfg(test)]
mod tests {
    use std::{hint::black_box, time::Instant};

    use dwarf::Code as _;

    use super::*;
    use crate::{
        kernel::clock::monotonic_ns,
        stacks::{
            maps::Vma,
            process::{Life, read_vmas},
        },
    };

    fn pulse() -> Pulse {
        Pulse::new(Instant::now() + Duration::from_secs(3600), Place::Own)
    }

    #[test]
    fn the_code_of_a_process_has_rules_and_other_memory_has_none() {
        let (own, pulse) = (Pid(std::process::id()), pulse());
        let program = Life::of(own).unwrap().program();
        let mut all = AllCode::new();
        let mut code = all.of(own, program, &pulse, Duration::MAX).unwrap();
        let function: fn() -> Pulse = black_box(super::tests::pulse);
        let address = function as usize as u64;
        assert!(matches!(code.rule(address), Found::Rule(_)), "{:?}", code.rule(address));
        assert_eq!(code.is_code(address), Some(true));
        let data = (&raw const address) as u64;
        assert_eq!((code.rule(data), code.is_code(data)), (Found::Nowhere, Some(false)));
        code.keep();
        // The rule is remembered: no file is opened.
        let mut again = all.of(own, program, &pulse, Duration::MAX).unwrap();
        assert!(matches!(again.rule(address), Found::Rule(_)) && again.open.is_empty());
    }

    #[test]
    fn no_file_is_read_without_time_left() {
        let (own, pulse) = (Pid(std::process::id()), pulse());
        let mut all = AllCode::new();
        let mut code = all.of(own, Life::of(own).unwrap().program(), &pulse, Duration::ZERO).unwrap();
        let function: fn() -> Pulse = black_box(super::tests::pulse);
        assert_eq!(code.rule(function as usize as u64), Found::NotNow);
        // It is read once there is time.
        code.until = Duration::MAX;
        assert!(matches!(code.rule(function as usize as u64), Found::Rule(_)));
    }

    #[test]
    fn an_address_without_code_is_believed_only_if_the_mappings_are_newer_than_the_stack() {
        let (own, pulse) = (Pid(std::process::id()), pulse());
        let mut all = AllCode::new();
        let mut code = all.of(own, Life::of(own).unwrap().program(), &pulse, Duration::MAX).unwrap();
        let data = (&raw const own) as u64;
        code.walk_at(monotonic_ns());
        assert_eq!((code.rule(data), code.is_code(data)), (Found::NotNow, None));
        code.space.pause = Duration::ZERO;
        assert_eq!((code.rule(data), code.is_code(data)), (Found::Nowhere, Some(false)));
        code.walk_at(u64::MAX);
        assert_eq!(code.rule(data), Found::NotNow);
    }

    #[test]
    fn the_vdso_has_rules() {
        let (own, pulse) = (Pid(std::process::id()), pulse());
        let vmas = read_vmas(own, || Ok(())).unwrap();
        let is_vdso = |vma: &&Vma| matches!(&vma.backing, Backing::Special(name) if name == "[vdso]");
        let vdso = vmas.iter().find(is_vdso).expect("Linux maps one");
        let mut all = AllCode::new();
        let mut code = all.of(own, Life::of(own).unwrap().program(), &pulse, Duration::MAX).unwrap();
        assert!((vdso.start..vdso.end).step_by(16).any(|address| matches!(code.rule(address), Found::Rule(_))));
    }

    #[test]
    fn another_program_in_the_process_is_not_mistaken_for_the_copied_one() {
        let (own, pulse) = (Pid(std::process::id()), pulse());
        let mut program = Life::of(own).unwrap().program();
        let mut all = AllCode::new();
        all.of(own, program, &pulse, Duration::MAX).unwrap().keep();
        program[2] += 1;
        assert!(all.of(own, program, &pulse, Duration::MAX).is_none());
    }
}
