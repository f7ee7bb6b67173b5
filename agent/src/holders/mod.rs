//! Finds the processes that hold the node's BPF programs, and takes over the runs that the kernel counts.
//!
//! The thread `podperf-holders` looks at descriptors (`walk`) in turns of a fixed size, so that no process can make a
//! turn long. A pass is a look at each process. All processes have equal shares of its descriptors, and it ends after
//! some turns, so that no pod can make it long. `fdinfo` reads the kernel's words, `table` keeps what was seen, and
//! `named` adds the names of pods: these are pure. The thread never enables the kernel's statistics, which would make
//! each run of each program slower.

mod fdinfo;
mod named;
mod table;
mod walk;

use std::{
    collections::BTreeMap,
    io, mem,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

pub use named::{NamedHolder, by_holder, named};
use table::Table;
pub use table::{Held, Process, ProgramName};
use walk::Budget;

use crate::{
    kernel::symbols::names_of_programs,
    model::{
        ids::Pid,
        labelled::Labelled,
        status::{State, Status},
    },
};

/// The part's name at `/status`.
const PART: &str = "bpf holders";
/// The name of the thread.
const THREAD: &str = "podperf-holders";
/// The number of turns between two reads of the kernel's list of functions, which takes some 70 ms of CPU time.
const NAMES_EVERY: u32 = 5;
/// The most turns of a pass. The descriptors of a pass take up to half of them, and all else the rest.
const MOST_TURNS: u32 = 30;

/// The settings of the search.
#[derive(Clone, Debug)]
pub struct HolderSettings {
    /// The time between two turns.
    pub every: Duration,
    /// The directory whose pins are looked at.
    pub pins: PathBuf,
}

/// The parts of the last pass that could not be read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unread {
    /// Processes that this agent may not look into.
    pub denied: u64,
    /// Processes of which only the first descriptors were looked at.
    pub cut: u64,
    /// Processes that were not reached. The next pass begins with them.
    pub late: u64,
    /// Pins that could not be opened; one more if there are more pins than are looked at.
    pub pins: u64,
}

impl Unread {
    /// Returns the numbers with the values of their label.
    #[must_use]
    pub const fn by_reason(&self) -> [(&'static str, u64); 4] {
        [("denied", self.denied), ("many_descriptors", self.cut), ("late", self.late), ("pin", self.pins)]
    }
}

/// The holders and the runs, for metrics.
#[derive(Clone, Debug, Default)]
pub struct HolderFacts {
    /// The programs with their holders.
    pub held: Arc<[Held]>,
    /// The number of runs by program.
    pub runs: BTreeMap<ProgramName, u64>,
    /// The time in these runs by program, in nanoseconds.
    pub ns: BTreeMap<ProgramName, u64>,
    /// `None` before the first pass has ended.
    pub unread: Option<Unread>,
}

/// The present holders and runs. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Holders {
    seen: Arc<Mutex<Seen>>,
    runs: Labelled<ProgramName>,
    ns: Labelled<ProgramName>,
}

/// The result of the last turn.
#[derive(Clone, Debug, Default)]
struct Seen {
    held: Arc<[Held]>,
    /// `None` before the first pass has ended.
    unread: Option<Unread>,
}

impl Holders {
    /// Returns the present holders and runs.
    #[must_use]
    pub fn facts(&self) -> HolderFacts {
        let Seen { held, unread } = self.seen().clone();
        HolderFacts { held, runs: self.runs.sums(), ns: self.ns.sums(), unread }
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Starts the thread that looks for holders. It ends with the process.
///
/// # Errors
///
/// When the thread cannot be started.
pub fn start(settings: HolderSettings, status: Status) -> io::Result<Holders> {
    let holders = Holders::default();
    let every = settings.every;
    let search = Search::new(settings, holders.clone(), status);
    thread::Builder::new().name(THREAD.into()).spawn(move || run(search, every))?;
    Ok(holders)
}

fn run(mut search: Search, every: Duration) {
    loop {
        search.turn();
        thread::sleep(every);
    }
}

/// The search of the thread.
#[derive(Debug)]
struct Search {
    settings: HolderSettings,
    holders: Holders,
    status: Status,
    table: Table,
    /// The process with which the next turn goes on; `None` at the begin of a pass.
    next: Option<Pid>,
    /// The most descriptors of a process that this pass looks at.
    share: usize,
    /// The numbers of this pass so far.
    turns: u32,
    looked: u64,
    unread: Unread,
    /// The descriptors of each process of this pass, see [`walk::share`].
    wanted: Vec<usize>,
    /// The number of turns until the names may be read again.
    names_in: u32,
}

impl Search {
    fn new(settings: HolderSettings, holders: Holders, status: Status) -> Self {
        Self {
            settings,
            holders,
            status,
            table: Table::default(),
            next: None,
            share: walk::MOST_OF_PROCESS,
            turns: 0,
            looked: 0,
            unread: Unread::default(),
            wanted: Vec::new(),
            names_in: 0,
        }
    }

    fn turn(&mut self) {
        let living = walk::processes();
        self.table.keep(&living);
        let mut budget = Budget::of_a_turn();
        let pins = walk::pins(&self.settings.pins, &mut budget);
        self.table.note_pins(&pins.programs);
        self.unread.pins = pins.denied + u64::from(pins.is_cut);
        let first = self.next.take().unwrap_or(Pid(0));
        for (number, pid) in living.range(first..).enumerate() {
            // Each turn goes on by a process at least.
            if number > 0 && !budget.has_room(self.share) {
                self.next = Some(*pid);
                break;
            }
            self.look(*pid, &mut budget);
        }
        self.find_names();
        self.count_runs();
        self.turns += 1;
        if self.next.is_none() || self.turns == MOST_TURNS {
            self.unread.late = self.next.map_or(0, |next| living.range(next..).count() as u64);
            self.end_pass(living.len());
        }
        let held = self.table.held().into();
        self.holders.seen().held = held;
    }

    fn look(&mut self, pid: Pid, budget: &mut Budget) {
        match walk::look(&walk::directory_of(pid), self.share, budget) {
            Ok(look) => {
                self.looked += 1;
                self.unread.cut += u64::from(look.is_cut);
                self.wanted.push(if look.is_cut { walk::MOST_OF_PROCESS } else { look.descriptors });
                if look.programs.is_empty() {
                    self.table.note_none(pid);
                } else {
                    self.table.note_process(walk::describe(pid), &look.programs);
                }
            }
            Err(error) => {
                self.unread.denied += u64::from(error.kind() == io::ErrorKind::PermissionDenied);
                self.wanted.push(0);
                self.table.note_none(pid);
            }
        }
    }

    /// Looks up the names of new programs.
    fn find_names(&mut self) {
        self.names_in = self.names_in.saturating_sub(1);
        let tags = self.table.unnamed();
        if tags.is_empty() || self.names_in > 0 {
            return;
        }
        self.names_in = NAMES_EVERY;
        let names = names_of_programs(&tags).unwrap_or_default();
        self.table.note_names(tags, names);
    }

    fn count_runs(&mut self) {
        for (program, runs) in self.table.growth() {
            self.holders.runs.add(&program, runs.count);
            self.holders.ns.add(&program, runs.ns);
        }
    }

    fn end_pass(&mut self, processes: usize) {
        self.turns = 0;
        let (unread, looked) = (mem::take(&mut self.unread), mem::take(&mut self.looked));
        let next_share = walk::share(mem::take(&mut self.wanted), processes);
        let share = mem::replace(&mut self.share, next_share);
        self.table.end_pass(unread.late == 0 && next_share <= share);
        let (state, detail) = told(looked, self.table.holders(), unread, share);
        self.status.set(PART, state, detail);
        self.holders.seen().unread = Some(unread);
    }
}

/// Returns the state of the part after a pass that looked at this many processes, each with at most `share`
/// descriptors.
fn told(looked: u64, holders: usize, unread: Unread, share: usize) -> (State, String) {
    let Unread { denied, cut, late, pins } = unread;
    let mut detail = format!("{holders} of {looked} processes hold BPF programs");
    let cut_at = format!("processes have more than the {share} descriptors that are looked at");
    let parts = [
        (denied, "processes cannot be looked into"),
        (cut, cut_at.as_str()),
        (late, "processes were not reached, and come first in the next pass"),
        (pins, "pins cannot be opened"),
    ];
    for (number, what) in parts.into_iter().filter(|(number, _)| *number > 0) {
        detail += &format!("; {number} {what}");
    }
    if denied <= looked {
        return (State::Healthy, detail);
    }
    (State::Degraded, detail + " (needs CAP_SYS_PTRACE)")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn most_processes_must_be_open_and_all_that_was_left_out_is_said() {
        assert_eq!(
            told(200, 2, Unread::default(), 1024),
            (State::Healthy, "2 of 200 processes hold BPF programs".to_owned())
        );
        let (state, detail) = told(5, 1, Unread { denied: 100, cut: 1, late: 2, pins: 3 }, 80);
        assert_eq!(state, State::Degraded);
        for part in ["100 processes cannot", "1 processes have more than the 80", "2 processes were not", "3 pins"] {
            assert!(detail.contains(part), "{detail}");
        }
        assert!(detail.ends_with("(needs CAP_SYS_PTRACE)"), "{detail}");
    }

    #[test]
    fn a_turn_ends_a_pass_and_sets_the_state_of_the_part() {
        let pins = tempfile::tempdir().unwrap();
        let settings = HolderSettings { every: Duration::ZERO, pins: pins.path().to_owned() };
        let (holders, status) = (Holders::default(), Status::default());
        let mut search = Search::new(settings, holders.clone(), status.clone());
        assert_eq!(holders.facts().unread, None);
        // A busy machine may have more descriptors than one turn looks at.
        for _ in 0..MOST_TURNS {
            search.turn();
            if holders.facts().unread.is_some() {
                break;
            }
        }
        assert!(holders.facts().unread.is_some());
        assert_eq!(status.parts().iter().map(|part| part.part).collect::<Vec<_>>(), [PART]);
    }
}
