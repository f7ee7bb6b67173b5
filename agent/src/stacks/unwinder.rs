//! The thread that unwinds copied stacks, and teaches the kernel side to recognize them.
//!
//! It looks into the ring of copies at intervals: short ones while copies come, longer ones while none do. The copies of
//! one process are unwound together, see [`super::turns`]. Copies for which there was no time come before new ones.
//! The results go to the collector before the kernel side learns the recipes, so the collector knows each stack before
//! samples name it.

use std::{
    collections::{HashMap, HashSet},
    hash::{BuildHasher as _, RandomState},
    io,
    sync::{Arc, mpsc},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use tracing::debug;

use super::{
    asking::{Asking, Next},
    code::HERE,
    copied::Unwinding,
    cut_cause::CutCause,
    kept::Tried,
    process::Life,
    reader::{Blocked, Reader, owner_of},
    relatives::Relatives,
    turns::{Turns, is_alive},
};
use crate::{
    kernel::{
        answers::Asker,
        clock::monotonic_ns,
        copies::{Copies, Copy, CopyOf, Recipe},
        return_free_memory,
    },
    limits::memory::GivenUp,
    model::{
        feature::Feature,
        ids::{Pid, StackId},
        wait::Unwind,
    },
};

/// The times between two looks into the ring.
const SHORTEST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_millis(160);
/// The most copies that are unwound before the results are passed on.
const BATCH: usize = 64;
/// Copies of known processes wait until there are so many, and at most for this time: a turn of a process costs more than
/// most walks. A process that is not known may end soon.
const TOGETHER: usize = 16;
const LONGEST_GATHERING: Duration = Duration::from_millis(150);
/// The longest time at the end of a window for the copies that are kept.
const LAST_TURN: Duration = Duration::from_millis(250);
/// The longest time for one read of a file. Meanwhile, no copies are taken from the ring.
const PATIENCE: Duration = Duration::from_millis(250);
/// The most batches between two looks at the orders.
const MOST_BATCHES: usize = 64;
/// The interval at which tables drop what was not used.
const WINDOW: Duration = Duration::from_secs(10);
/// The most owners that are remembered.
const MAX_OWNERS: usize = 4096;

/// A copied stack that was unwound.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unwound {
    /// The wait or the sample that the stack belongs to.
    pub of: CopyOf,
    /// The id of the stack: the same frames have the same id.
    pub id: StackId,
    /// The process.
    pub process: Pid,
    /// The id of the kernel's part of the stack; `None` if there is none.
    pub kernel: Option<StackId>,
    /// The addresses of the user frames, leaf first.
    pub user: Vec<u64>,
    /// The end that the unwinding reached.
    pub end: Unwind,
    /// The cause if that is [`Unwind::Cut`].
    pub cut: Option<CutCause>,
}

impl Unwound {
    /// Returns the ids of a wait's copy and of its stack.
    fn copy(&self) -> Option<(StackId, StackId)> {
        match self.of {
            CopyOf::Wait { id, .. } => Some((id, self.id)),
            CopyOf::Sample(_) | CopyOf::Proved(_) => None,
        }
    }
}

struct Unwinder {
    copies: Copies,
    turns: Turns,
    /// Makes the ids of stacks. No program knows its key.
    ids: RandomState,
    owners: HashMap<(Pid, [u64; 3]), Arc<str>>,
    relatives: Relatives,
    asking: Asking,
    /// The stacks of recipes that are only a part: they are forgotten after a while, so that the rest has another chance.
    parts: HashSet<StackId>,
    /// Copies that wait for others, and the time of the first.
    gathered: Vec<Tried>,
    gathering: Instant,
    window: Instant,
    given_up: GivenUp,
}

/// An order to the thread.
#[derive(Debug)]
pub enum Order {
    /// Removes the recipes of these stacks, which the collector has dropped.
    Forget(Vec<StackId>),
    /// Ends a window: unwinds what is in the ring now and what is kept, and then answers. Owners may borrow time. Copies
    /// without time are given up then, so that their samples are in this window.
    CatchUp(mpsc::SyncSender<()>),
}

/// Starts the thread. It sends results until their receiver or the sender of orders is gone. While caches are given up,
/// it drops its tables after each window. While work on symbols is spread, owners have little time. The thread for
/// files can only read if `confined` is set, and tells `blocked` whether it reads.
///
/// # Errors
///
/// When the thread cannot be started.
pub fn start(
    copies: Copies,
    results: mpsc::SyncSender<Vec<Unwound>>,
    orders: mpsc::Receiver<Order>,
    given_up: GivenUp,
    confined: bool,
    blocked: Blocked,
) -> io::Result<JoinHandle<()>> {
    let reader = Reader::start(confined)?.with_patience(PATIENCE).telling(blocked);
    let mut unwinder = Unwinder {
        copies,
        turns: Turns::new(reader),
        ids: RandomState::new(),
        owners: HashMap::new(),
        relatives: Relatives::default(),
        asking: Asking::default(),
        parts: HashSet::new(),
        gathered: Vec::new(),
        gathering: Instant::now(),
        window: Instant::now(),
        given_up,
    };
    thread::Builder::new().name("podperf-unwind".into()).spawn(move || {
        let mut pause = SHORTEST_PAUSE;
        loop {
            let answer = match orders.recv_timeout(pause) {
                Ok(Order::Forget(ids)) => {
                    unwinder.forget(&ids.into_iter().collect());
                    None
                }
                Ok(Order::CatchUp(answer)) => Some(answer),
                Err(mpsc::RecvTimeoutError::Timeout) => None,
                Err(mpsc::RecvTimeoutError::Disconnected) => return,
            };
            let turn = unwinder.turn(answer.is_some(), &results).and_then(|all| {
                if answer.is_some() {
                    unwinder.last_turn(&results)?;
                }
                Ok(all)
            });
            match turn {
                Ok(0) => pause = (pause * 2).min(LONGEST_PAUSE),
                Ok(_) => pause = SHORTEST_PAUSE,
                Err(mpsc::SendError(_)) => return,
            }
            if let Some(answer) = answer {
                // The collector may have lost patience.
                answer.send(()).ok();
            }
        }
    })
}

impl Unwinder {
    /// Unwinds the kept copies whose owners have time again, and those in the ring, or all of them if a window ends.
    /// Returns their number.
    fn turn(
        &mut self,
        ends: bool,
        results: &mpsc::SyncSender<Vec<Unwound>>,
    ) -> Result<usize, mpsc::SendError<Vec<Unwound>>> {
        // The unwind tables are in the same files as symbols, and one step of the cap saves the time for both.
        self.turns.save(self.given_up.spreads_symbols());
        let kept = self.turns.take_kept();
        let mut all = kept.len();
        self.batch(kept, None, results)?;
        for _ in 0..MOST_BATCHES {
            let copies = self.copies.take(BATCH);
            let is_new = |copy: &Copy| !self.owners.contains_key(&(copy.process, copy.program));
            let is_due = ends || copies.iter().any(is_new);
            if self.gathered.is_empty() {
                self.gathering = Instant::now();
            }
            self.gathered.extend(copies.into_iter().map(Tried::from));
            all += self.gathered.len();
            let is_due = is_due || self.gathered.len() >= TOGETHER || self.gathering.elapsed() >= LONGEST_GATHERING;
            if self.gathered.is_empty() || !is_due {
                break;
            }
            let gathered = std::mem::take(&mut self.gathered);
            self.batch(gathered, None, results)?;
        }
        if self.window.elapsed() >= WINDOW {
            self.window = Instant::now();
            if self.given_up.has(Feature::Caches) {
                self.turns.forget_code();
            } else {
                self.turns.next_window();
            }
            // A process may have moved to another owner.
            self.owners.clear();
            let parts = std::mem::take(&mut self.parts);
            self.forget(&parts);
            if let Err(error) = self.copies.forget_ended(|process| Life::of(process).is_none()) {
                debug!(%error, "answers not removed");
            }
            self.asking = Asking::default();
            return_free_memory();
        }
        Ok(all)
    }

    /// Unwinds all kept copies, or gives them up.
    fn last_turn(&mut self, results: &mpsc::SyncSender<Vec<Unwound>>) -> Result<(), mpsc::SendError<Vec<Unwound>>> {
        let kept = self.turns.take_all_kept();
        self.batch(kept, Some(Instant::now() + LAST_TURN), results)
    }

    /// Unwinds copies, sends the results, and answers to the kernel side. The window ends at `ends`, if it does.
    fn batch(
        &mut self,
        tries: Vec<Tried>,
        ends: Option<Instant>,
        results: &mpsc::SyncSender<Vec<Unwound>>,
    ) -> Result<(), mpsc::SendError<Vec<Unwound>>> {
        let (mut unwound, mut ids, mut answers) = (Vec::with_capacity(tries.len()), Vec::new(), Vec::new());
        for (process, tries) in by_process(tries) {
            let asker = Asker { owner: self.owner(process, &tries), process };
            for tried in self.unwind(&asker, tries, ends) {
                let (result, answer) = self.result(tried);
                ids.extend(result.copy().map(|(copy, stack)| (asker.clone(), copy, stack)));
                answers.extend(answer.map(|(path, answer)| (asker.clone(), path, answer)));
                unwound.push(result);
            }
        }
        if unwound.is_empty() {
            return Ok(());
        }
        results.send(unwound)?;
        self.name(&ids);
        answers.into_iter().for_each(|(asker, path, answer)| self.answer(&asker, path, answer));
        Ok(())
    }

    /// Unwinds copies of one process. Samples of a process that has ended are unwound by the code of a relative. Waits
    /// are not: their time comes in samples of the process itself, and it has no names.
    fn unwind(&mut self, asker: &Asker, tries: Vec<Tried>, ends: Option<Instant>) -> Vec<Tried> {
        let process = asker.process;
        let tries = self.turns.unwind(asker, tries, ends);
        let is_lost = |tried: &Tried| {
            let has_ended_early = tried.unwinding.as_ref().is_none_or(|unwinding| unwinding.is_not_now);
            has_ended_early && matches!(tried.copy.of, CopyOf::Sample(_))
        };
        let (lost, mut done): (Vec<Tried>, Vec<Tried>) = tries.into_iter().partition(is_lost);
        let program = |tried: &Tried| (tried.copy.cgroup, tried.copy.program);
        if let Some(tried) = done.iter().find(|tried| tried.unwinding.is_some()) {
            self.relatives.note(process, program(tried));
        }
        let ended = lost.first().map(program).filter(|_| !is_alive(process, &lost));
        let relative = ended.and_then(|program| {
            let runs = |other| Life::of(other).is_some_and(|life| life.may_be(program.1));
            self.relatives.of(process, program, runs)
        });
        let Some(relative) = relative else {
            done.extend(lost);
            return done;
        };
        let asker = Asker { owner: self.owner(relative, &lost), process: relative };
        let lost = self.turns.unwind(&asker, lost, ends);
        done.extend(lost.into_iter().map(|tried| by_relative(tried, relative)));
        done
    }

    /// Returns the owner of the process that the copies are of: a pod or a cgroup; empty if the process has ended.
    fn owner(&mut self, process: Pid, tries: &[Tried]) -> Arc<str> {
        let program = tries.first().map_or([0; 3], |tried| tried.copy.program);
        if self.owners.len() > MAX_OWNERS {
            self.owners.clear();
        }
        let owner = self.owners.entry((process, program)).or_insert_with(|| owner_of(process).into());
        Arc::clone(owner)
    }

    /// Returns the result of a copy, and the answer to the kernel side.
    fn result(&mut self, tried: Tried) -> (Unwound, Option<(StackId, Answer)>) {
        let cut = cut_cause(&tried);
        let Tried { copy, unwinding, .. } = tried;
        let leaf = || copy.registers.get(usize::from(HERE.pc())).copied().into_iter().collect();
        let (frames, end, words, wanted) = match unwinding {
            Some(Unwinding { frames, end, words, wanted, .. }) => (frames, end, words, wanted),
            None => (leaf(), Unwind::Cut, None, None),
        };
        let user = StackId(self.ids.hash_one((&frames, end)) | 1);
        let id = copy.kernel.map_or(user, |kernel| user.with(kernel));
        let path = match copy.of {
            CopyOf::Wait { path, .. } => Some(path),
            CopyOf::Sample(_) | CopyOf::Proved(_) => None,
        };
        let is_part = !matches!(end, Unwind::Whole | Unwind::Guessed | Unwind::Truncated);
        let recipe = |(words, together)| Recipe { stack: id, kernel: copy.kernel, words, is_part, together };
        let recipe = || words.map(recipe).map(Answer::Recipe);
        let answer = |path| match wanted {
            Some(pages) => match self.asking.next(path, copy.at_ns, monotonic_ns()) {
                Next::Ask => Some(Answer::Want(pages)),
                Next::Wait => None,
                Next::GiveUp => recipe(),
            },
            None => recipe(),
        };
        let answer = path.and_then(|path| Some((path, answer(path)?)));
        let (of, process, kernel) = (copy.of, copy.process, copy.kernel);
        (Unwound { of, id, process, kernel, user: frames, end, cut }, answer)
    }

    fn answer(&mut self, asker: &Asker, path: StackId, answer: Answer) {
        let done = match answer {
            Answer::Want(pages) => self.copies.want(asker, path, &pages),
            Answer::Recipe(recipe) => {
                if recipe.is_part {
                    self.parts.insert(recipe.stack);
                }
                self.copies.teach(asker, path, &recipe)
            }
        };
        if let Err(error) = done {
            debug!(%error, "the kernel side did not get an answer");
        }
    }

    /// Removes the recipes of stacks, for example of those that the collector has dropped.
    fn forget(&mut self, stacks: &HashSet<StackId>) {
        if stacks.is_empty() {
            return;
        }
        if let Err(error) = self.copies.forget(stacks) {
            debug!(%error, "recipes not removed");
        }
    }

    /// Tells the kernel side the stacks of copies of waits.
    fn name(&mut self, ids: &[(Asker, StackId, StackId)]) {
        for (asker, copy, stack) in ids {
            if let Err(error) = self.copies.name(asker, *copy, *stack) {
                debug!(%error, "the kernel side does not know the stack of a copy");
            }
        }
    }
}

/// Marks the stack of a sample that was unwound by the code of a relative: the process may have mapped other code. The
/// sample counts as one of the relative, which has the names.
fn by_relative(mut tried: Tried, relative: Pid) -> Tried {
    if let (Some(unwinding), CopyOf::Sample(sample)) = (&mut tried.unwinding, &mut tried.copy.of) {
        (tried.copy.process, sample.key.process) = (relative, relative);
        if unwinding.end == Unwind::Whole {
            unwinding.end = Unwind::Guessed;
        }
    }
    tried
}

/// Returns the cause if the stack is cut.
fn cut_cause(tried: &Tried) -> Option<CutCause> {
    match tried.unwinding.as_ref().map(|unwinding| unwinding.cut) {
        Some(Some(CutCause::Unreadable)) | None if tried.is_late => Some(CutCause::NoTime),
        Some(cut) => cut,
        None if is_alive(tried.copy.process, std::slice::from_ref(tried)) => Some(CutCause::Unreadable),
        None => Some(CutCause::ProcessGone),
    }
}

/// An answer to the kernel side.
enum Answer {
    Recipe(Recipe),
    Want(Vec<u16>),
}

/// Groups copies by process, in the order of their first copies. A process that has started another program since is
/// another one.
fn by_process(tries: Vec<Tried>) -> Vec<(Pid, Vec<Tried>)> {
    let mut groups: Vec<(Pid, Vec<Tried>)> = Vec::new();
    let mut places: HashMap<(Pid, [u64; 3]), usize> = HashMap::new();
    for tried in tries {
        let (process, program) = (tried.copy.process, tried.copy.program);
        let at = *places.entry((process, program)).or_insert_with(|| {
            groups.push((process, Vec::new()));
            groups.len() - 1
        });
        if let Some((_, group)) = groups.get_mut(at) {
            group.push(tried);
        }
    }
    groups
}

#[cfg(test)]
#[path = "unwinder_tests.rs"]
mod tests;
