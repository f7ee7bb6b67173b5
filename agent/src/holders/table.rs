//! The programs of the node and their holders, as they were last seen. Pure.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, btree_map::Entry},
    sync::Arc,
};

use super::fdinfo::{Runs, Shown};
use crate::model::{ids::Pid, labelled::Labels};

/// The most programs.
const MOST_PROGRAMS: usize = 4_096;
/// The most processes that hold a program.
const MOST_PROCESSES: usize = 1_024;
/// The most pairs of a program and its holder that are shown.
const MOST_HELD: usize = 1_024;
/// The largest number of series of programs with runs.
const MOST_SERIES: usize = 256;

/// A process that holds a program: it has a descriptor of the program, or of a link to it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Process {
    /// The process id.
    pub pid: Pid,
    /// The name of the process, as it chose it, without control characters.
    pub name: String,
    /// The path of its cgroup, as the agent sees it.
    pub cgroup: String,
}

/// A program, by words that are the same after a restart of its owner.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ProgramName {
    /// The name in the kernel's list of functions; the tag of a program without a name.
    pub name: String,
    /// The hash of the instructions: 16 hex digits.
    pub tag: String,
}

/// A program and one of its holders.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Held {
    /// The program.
    pub program: ProgramName,
    /// The type of the program, such as `sched_cls`; empty if only a link to it was seen.
    pub kind: &'static str,
    /// `None` if no process holds the program: a pin does.
    pub process: Option<Arc<Process>>,
}

impl Labels for ProgramName {
    const MOST: usize = MOST_SERIES;

    fn rest() -> Self {
        Self { name: "(other)".into(), tag: String::new() }
    }
}

/// A program that was seen.
#[derive(Debug)]
struct Program {
    tag: String,
    kind: &'static str,
    /// `None` before a descriptor of the program itself was seen.
    runs: Option<Runs>,
    /// The part of `runs` that [`Table::growth`] has returned.
    returned: Runs,
    /// The program is older than the first pass, or may be one that was forgotten or missed. Its runs up to now do not
    /// count: they are none of the agent's time, or have counted.
    is_old: bool,
}

/// The programs and their holders. A pass is a look at the processes of the node, in one turn or in several.
#[derive(Debug, Default)]
pub(super) struct Table {
    programs: BTreeMap<u32, Program>,
    processes: BTreeMap<Pid, (Arc<Process>, BTreeSet<u32>)>,
    pinned: BTreeSet<u32>,
    /// The newest program of the first pass, or of those that were forgotten; `None` before the end of the first pass.
    newest: Option<u32>,
    /// The last pass may have missed programs that the next one finds.
    may_miss: bool,
    /// The names by tag; empty for a program without a name.
    names: HashMap<String, String>,
}

impl Program {
    fn new(shown: &Shown, is_old: bool) -> Self {
        Self { tag: shown.tag.clone(), kind: "", runs: None, returned: Runs::default(), is_old }
    }

    fn see(&mut self, shown: &Shown) {
        if let Some(kind) = shown.kind {
            self.kind = kind;
        }
        if let Some(runs) = shown.runs {
            if self.runs.is_none() && self.is_old {
                self.returned = runs;
            }
            self.runs = Some(runs);
        }
    }
}

impl Table {
    /// Forgets processes that have ended.
    pub(super) fn keep(&mut self, living: &BTreeSet<Pid>) {
        self.processes.retain(|pid, _| living.contains(pid));
    }

    /// Notes the programs that a process holds now.
    pub(super) fn note_process(&mut self, process: Process, programs: &[Shown]) {
        let (pid, ids) = (process.pid, self.see(programs));
        let has_room = self.processes.len() < MOST_PROCESSES || self.processes.contains_key(&pid);
        if ids.is_empty() || !has_room {
            self.processes.remove(&pid);
        } else {
            self.processes.insert(pid, (Arc::new(process), ids));
        }
    }

    /// Notes that a process holds no program now.
    pub(super) fn note_none(&mut self, pid: Pid) {
        self.processes.remove(&pid);
    }

    /// Notes the programs that are pinned now.
    pub(super) fn note_pins(&mut self, programs: &[Shown]) {
        self.pinned = self.see(programs);
    }

    fn see(&mut self, programs: &[Shown]) -> BTreeSet<u32> {
        let mut ids = BTreeSet::new();
        for shown in programs {
            let is_old = self.may_miss || self.newest.is_none_or(|newest| shown.id <= newest);
            let is_full = self.programs.len() >= MOST_PROGRAMS;
            let program = match self.programs.entry(shown.id) {
                Entry::Vacant(_) if is_full => continue,
                Entry::Vacant(place) => place.insert(Program::new(shown, is_old)),
                Entry::Occupied(place) => {
                    let program = place.into_mut();
                    if program.tag != shown.tag {
                        // The id was used again.
                        *program = Program::new(shown, false);
                    }
                    program
                }
            };
            program.see(shown);
            ids.insert(shown.id);
        }
        ids
    }

    /// Ends a pass: forgets the programs that nobody holds. Such a program may come back, with its runs: a tool opens
    /// all programs of the node for a moment, also those that only an attachment holds. After a pass that is not whole,
    /// the next one may find programs that are older than it: it looks at processes that this pass did not reach, or at
    /// more of their descriptors.
    pub(super) fn end_pass(&mut self, is_whole: bool) {
        self.may_miss = !is_whole;
        let held: BTreeSet<u32> =
            self.processes.values().flat_map(|(_, ids)| ids).chain(&self.pinned).copied().collect();
        let mut seen = self.programs.keys().rev();
        let newest = match self.newest {
            None => seen.next(),
            Some(_) => seen.find(|id| !held.contains(*id)),
        };
        self.newest = Some(self.newest.unwrap_or(0).max(newest.copied().unwrap_or(0)));
        self.programs.retain(|id, _| held.contains(id));
        let tags: BTreeSet<&str> = self.programs.values().map(|program| program.tag.as_str()).collect();
        self.names.retain(|tag, _| tags.contains(tag.as_str()));
    }

    /// Returns whether the first pass has ended.
    pub(super) const fn is_complete(&self) -> bool {
        self.newest.is_some()
    }

    /// Returns the tags whose names are not known.
    pub(super) fn unnamed(&self) -> BTreeSet<String> {
        let tags = self.programs.values().map(|program| &program.tag);
        tags.filter(|tag| !self.names.contains_key(*tag)).cloned().collect()
    }

    /// Notes the names of these tags. A tag without a name is the name of its programs.
    pub(super) fn note_names(&mut self, tags: BTreeSet<String>, mut names: HashMap<String, String>) {
        for tag in tags {
            let name = names.remove(&tag).unwrap_or_default();
            self.names.insert(tag, name);
        }
    }

    /// Returns the name of a program; `None` if it was not looked up yet.
    fn name_of(names: &HashMap<String, String>, tag: &str) -> Option<ProgramName> {
        let name = names.get(tag)?;
        let name = if name.is_empty() { tag } else { name.as_str() };
        Some(ProgramName { name: name.to_owned(), tag: tag.to_owned() })
    }

    /// Returns the runs of each program since the last call. Runs wait until the name of their program was looked up.
    pub(super) fn growth(&mut self) -> Vec<(ProgramName, Runs)> {
        let mut grown = Vec::new();
        for program in self.programs.values_mut() {
            let (Some(now), Some(name)) = (program.runs, Self::name_of(&self.names, &program.tag)) else { continue };
            let before = std::mem::replace(&mut program.returned, now);
            let more = Runs { count: now.count.saturating_sub(before.count), ns: now.ns.saturating_sub(before.ns) };
            if more != Runs::default() {
                grown.push((name, more));
            }
        }
        grown
    }

    /// Returns the programs with their holders, sorted: at most [`MOST_HELD`], since many processes may hold the same
    /// many programs. A program counts as pinned only after the first pass, since the process that holds it may come
    /// late in the pass.
    pub(super) fn held(&self) -> Vec<Held> {
        let of_processes: BTreeSet<u32> = self.processes.values().flat_map(|(_, ids)| ids).copied().collect();
        let pinned = self.pinned.difference(&of_processes).filter(|_| self.is_complete()).map(|id| (id, None));
        let by_process =
            self.processes.values().flat_map(|(process, ids)| ids.iter().map(move |id| (id, Some(process))));
        let mut held = BTreeSet::new();
        for (id, process) in pinned.chain(by_process) {
            if held.len() == MOST_HELD {
                break;
            }
            if let Some(program) = self.programs.get(id)
                && let Some(name) = Self::name_of(&self.names, &program.tag)
            {
                held.insert(Held { program: name, kind: program.kind, process: process.cloned() });
            }
        }
        held.into_iter().collect()
    }

    /// Returns the number of processes that hold programs.
    pub(super) fn holders(&self) -> usize {
        self.processes.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COUNT: &str = "1111111111111111";
    const TIMER: &str = "2222222222222222";

    fn program(id: u32, tag: &str, count: u64) -> Shown {
        let runs = Some(Runs { count, ns: count * 10 });
        Shown { id, tag: tag.to_owned(), kind: Some("kprobe"), runs }
    }

    fn link(id: u32, tag: &str) -> Shown {
        Shown { id, tag: tag.to_owned(), kind: None, runs: None }
    }

    fn process(pid: u32) -> Process {
        Process { pid: Pid(pid), name: format!("agent{pid}"), cgroup: "/".into() }
    }

    fn name(table: &mut Table) {
        let tags = table.unnamed();
        table.note_names(tags, HashMap::from([(COUNT.to_owned(), "count".to_owned())]));
    }

    fn count(grown: &[(ProgramName, Runs)]) -> Vec<(&str, u64)> {
        grown.iter().map(|(program, runs)| (program.name.as_str(), runs.count)).collect()
    }

    #[test]
    fn runs_count_from_the_first_look_and_those_of_a_newer_program_from_its_start() {
        let mut table = Table::default();
        table.note_process(process(1), &[program(5, COUNT, 1000)]);
        table.end_pass(true);
        assert!(table.growth().is_empty(), "the name is not known");
        name(&mut table);
        assert!(table.growth().is_empty());
        table.note_process(process(1), &[program(5, COUNT, 1004), program(9, TIMER, 30)]);
        assert_eq!(count(&table.growth()), [("count", 4)]);
        name(&mut table);
        assert_eq!(count(&table.growth()), [(TIMER, 30)]);
        assert!(table.growth().is_empty(), "nothing ran since");
        // The id is used again.
        table.note_process(process(1), &[program(5, TIMER, 3)]);
        assert_eq!(count(&table.growth()), [(TIMER, 3)]);
        // A pass that did not reach all processes may have missed this one.
        table.end_pass(false);
        table.note_process(process(2), &[program(20, COUNT, 1000)]);
        name(&mut table);
        assert!(table.growth().is_empty(), "its runs may be from before the agent");
        table.note_process(process(2), &[program(20, COUNT, 1002)]);
        assert_eq!(count(&table.growth()), [("count", 2)]);
    }

    #[test]
    fn the_runs_of_a_program_that_comes_back_count_once() {
        let mut table = Table::default();
        table.end_pass(true);
        table.note_process(process(1), &[program(5, COUNT, 100), program(6, TIMER, 1)]);
        name(&mut table);
        assert_eq!(count(&table.growth()), [("count", 100), (TIMER, 1)]);
        table.note_process(process(1), &[program(6, TIMER, 1)]);
        table.end_pass(true);
        assert!(!table.programs.contains_key(&5));
        table.note_process(process(2), &[program(5, COUNT, 130), program(7, TIMER, 4)]);
        name(&mut table);
        assert_eq!(count(&table.growth()), [(TIMER, 4)]);
        table.note_process(process(2), &[program(5, COUNT, 131)]);
        assert_eq!(count(&table.growth()), [("count", 1)]);
    }

    #[test]
    fn a_program_is_held_by_each_process_that_has_it_or_by_its_pin() {
        let mut table = Table::default();
        table.note_pins(&[program(5, COUNT, 0), link(6, TIMER)]);
        table.note_process(process(1), &[link(5, COUNT)]);
        table.note_process(process(2), &[program(5, COUNT, 0)]);
        name(&mut table);
        let holders = |table: &Table| -> Vec<(String, Option<u32>)> {
            let pid = |held: &Held| held.process.as_ref().map(|process| process.pid.0);
            table.held().iter().map(|held| (held.program.name.clone(), pid(held))).collect()
        };
        let count = |pid| ("count".to_owned(), pid);
        assert_eq!(holders(&table), [count(Some(1)), count(Some(2))], "other processes were not looked at yet");
        table.end_pass(true);
        let timer = (TIMER.to_owned(), None);
        assert_eq!(holders(&table), [timer.clone(), count(Some(1)), count(Some(2))]);
        assert_eq!(table.held()[1].kind, "kprobe");
        table.keep(&BTreeSet::from([Pid(2)]));
        table.note_none(Pid(2));
        assert_eq!(holders(&table), [timer.clone(), count(None)]);
        table.note_pins(&[]);
        table.end_pass(true);
        assert_eq!((holders(&table), table.programs.len(), table.names.len()), (vec![], 0, 0));
    }

    #[test]
    fn the_table_is_bounded() {
        let mut table = Table::default();
        let most = u32::try_from(MOST_PROGRAMS).unwrap();
        let all: Vec<_> = (0..=most).map(|id| program(id, COUNT, 1)).collect();
        table.note_process(process(0), &all);
        assert_eq!(table.programs.len(), MOST_PROGRAMS);
        for pid in 1..=u32::try_from(MOST_PROCESSES).unwrap() {
            table.note_process(process(pid), &[program(1, COUNT, 1)]);
        }
        assert_eq!(table.holders(), MOST_PROCESSES);
        name(&mut table);
        assert_eq!(table.held().len(), MOST_HELD);
    }
}
