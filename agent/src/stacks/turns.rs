//! Unwinds the copies of a process in turns, each within the time of the process's owner.
//!
//! The walks run on the thread for files, which may hang or take too long; see [`super::reader`]. Copies for which a
//! turn has no time are kept for later turns, see [`super::kept`]. A copy is not kept if its process has ended, or if a
//! read of its files hangs.

use std::{
    sync::{Arc, Mutex, PoisonError, TryLockError},
    time::{Duration, Instant},
};

use super::{
    allowances::Allowances,
    code::AllCode,
    copied::{Unwinding, unwind},
    kept::{Kept, Tried},
    process::Life,
    reader::{Place, Pulse, Reader, Unread, Whose},
};
use crate::{
    kernel::{
        answers::Asker,
        clock::{monotonic_ns, thread_cpu},
        copies::Copy,
    },
    model::ids::Pid,
};

/// The longest CPU time for the copies of one process in a batch, and the longest time by the clock.
const LONGEST_TURN: Duration = Duration::from_millis(100);
const DEADLINE: Duration = Duration::from_millis(500);

/// The walks of a turn so far, each with `true` if it ended only since no time was left.
type Walks = Mutex<Vec<(Unwinding, bool)>>;

/// The turns of all owners.
pub(super) struct Turns {
    reader: Reader,
    code: Arc<Mutex<AllCode>>,
    allowances: Allowances,
    kept: Kept,
}

impl Turns {
    pub(super) fn new(reader: Reader) -> Self {
        let code = Arc::new(Mutex::new(AllCode::new()));
        Self { reader, code, allowances: Allowances::default(), kept: Kept::default() }
    }

    /// Gives owners little time from now on, or as much as before.
    pub(super) fn save(&mut self, saves: bool) {
        self.allowances.save(saves);
    }

    /// Starts the next window of the tables.
    pub(super) fn next_window(&self) {
        // A thread that hangs holds this lock: `walk` then replaces the code.
        if let Ok(mut code) = self.code.try_lock() {
            code.next_window();
        }
    }

    /// Drops the tables. A thread that hangs keeps those that it has.
    pub(super) fn forget_code(&mut self) {
        self.code = Arc::new(Mutex::new(AllCode::new()));
    }

    /// Takes the kept copies whose owners have time again, and those that are too old to be kept.
    pub(super) fn take_kept(&mut self) -> Vec<Tried> {
        let Self { kept, allowances, .. } = self;
        kept.take(monotonic_ns(), |owner| allowances.left(owner).is_some())
    }

    /// Takes all kept copies.
    pub(super) fn take_all_kept(&mut self) -> Vec<Tried> {
        self.kept.take(monotonic_ns(), |_| true)
    }

    /// Unwinds copies of one process. Returns those that are done, and those that are given up; the others are kept. If
    /// the window ends, none is kept: the owner may borrow time until `ends`.
    pub(super) fn unwind(&mut self, asker: &Asker, tries: Vec<Tried>, ends: Option<Instant>) -> Vec<Tried> {
        let tries = self.walk(asker, tries, ends);
        let is_late = tries.iter().any(|tried| tried.is_late);
        if ends.is_some() || !is_late || !is_alive(asker.process, &tries) {
            return tries;
        }
        let now_ns = monotonic_ns();
        let (late, done): (Vec<Tried>, Vec<Tried>) = tries.into_iter().partition(|tried| tried.is_late);
        let given_up = late.into_iter().filter_map(|tried| self.kept.keep(&asker.owner, tried, now_ns));
        done.into_iter().chain(given_up).collect()
    }

    /// Walks the stacks of one process as far as there is time.
    fn walk(&mut self, asker: &Asker, tries: Vec<Tried>, ends: Option<Instant>) -> Vec<Tried> {
        let Asker { owner, process } = asker;
        let process = *process;
        let most = ends.map_or(DEADLINE, |ends| ends.saturating_duration_since(Instant::now()));
        let time = if ends.is_some() { self.allowances.with_loan(owner) } else { self.allowances.left(owner) };
        // A process that has ended has no owner, and no files.
        let Some(time) = time.filter(|_| !owner.is_empty() && !most.is_zero()) else {
            let is_late = !owner.is_empty();
            return tries.into_iter().map(|tried| Tried { is_late, ..tried }).collect();
        };
        let (copies, before): (Vec<Copy>, Vec<Option<Unwinding>>) =
            tries.into_iter().map(|tried| (tried.copy, tried.unwinding)).unzip();
        let (start, from) = (Instant::now(), self.reader.clock().now());
        self.reader.clock().begin(most);
        let whose = Whose { owner, pid: process, deadline: from + most };
        let (code, copies) = (Arc::clone(&self.code), Arc::new(copies));
        let theirs = Arc::clone(&copies);
        let done = Arc::new(Mutex::new(Vec::new()));
        let results = Arc::clone(&done);
        let outcome = self.reader.run(whose, Place::Own, move |pulse| {
            let mut code = code.lock().unwrap_or_else(PoisonError::into_inner);
            let began = thread_cpu();
            let is_there = unwind_all(&mut code, process, &theirs, &results, began + time.min(LONGEST_TURN), pulse);
            (thread_cpu().saturating_sub(began), is_there)
        });
        if outcome == Err(Unread::Hangs) && matches!(self.code.try_lock(), Err(TryLockError::WouldBlock)) {
            self.forget_code();
        }
        // The machine may be busy with other things: only CPU time counts. If the read of a file took long, its time
        // counts, without the time in which there was no CPU.
        let took = self.reader.clock().now().saturating_duration_since(from);
        self.allowances.used(owner.to_string(), outcome.map_or(took, |(spent, _)| spent));
        // More time helps neither a process that has ended nor one whose files hang. A turn that ends before its time had
        // no thread for files, and each further one would warn of that.
        let is_late = match outcome {
            Ok((_, is_there)) => is_there,
            Err(unread) => unread == Unread::Late && start.elapsed() >= most,
        };
        let done = std::mem::take(&mut *done.lock().unwrap_or_else(PoisonError::into_inner));
        let done = done.into_iter().map(Some).chain(std::iter::repeat_with(|| None));
        let copies = Arc::try_unwrap(copies).unwrap_or_else(|copies| Vec::clone(&copies));
        let copies = copies.into_iter().zip(before).zip(done);
        copies
            .map(|((copy, before), walk)| match walk {
                Some((unwinding, is_late)) => Tried { copy, unwinding: Some(unwinding), is_late },
                None => Tried { copy, unwinding: before, is_late },
            })
            .collect()
    }
}

/// Returns whether the process still runs the program of these copies.
pub(super) fn is_alive(process: Pid, tries: &[Tried]) -> bool {
    let program = tries.first().map(|tried| tried.copy.program);
    program.zip(Life::of(process)).is_some_and(|(program, life)| life.may_be(program))
}

/// Unwinds copies of one process, one after the other, until this thread's CPU clock shows `until` or no time is left.
/// Runs on the thread for files. Returns `false` if the process has ended or runs another program.
fn unwind_all(
    all: &mut AllCode,
    process: Pid,
    copies: &[Copy],
    results: &Walks,
    until: Duration,
    pulse: &Pulse,
) -> bool {
    let Some(program) = copies.first().map(|copy| copy.program) else { return false };
    let Some(mut code) = all.of(process, program, pulse, until) else { return false };
    for copy in copies {
        if pulse.beat().is_err() || thread_cpu() >= until {
            break;
        }
        code.walk_at(copy.at_ns);
        let unwinding = unwind(copy, &mut code);
        let is_late = is_late(&unwinding, until, pulse);
        results.lock().unwrap_or_else(PoisonError::into_inner).push((unwinding, is_late));
    }
    code.keep();
    true
}

/// Returns whether a walk ended only since no time was left. Otherwise its file or its mappings cannot be read, and a
/// later walk would end there, too.
fn is_late(unwinding: &Unwinding, until: Duration, pulse: &Pulse) -> bool {
    unwinding.is_not_now && (pulse.is_late() || thread_cpu() >= until)
}

#[cfg(test)]
#[path = "turns_tests.rs"]
mod tests;
