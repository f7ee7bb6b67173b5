//! The thread that unwinds copied stacks, and teaches the kernel side to recognize them.
//!
//! It looks into the ring of copies at intervals: short ones while copies come, longer ones while none do. The copies of
//! one process are unwound together on the thread for files, which may hang or take too long; see [`super::reader`].
//! The results go to the collector before the kernel side learns the recipes, so the collector knows each stack before
//! samples name it.

use std::{
    collections::{HashMap, HashSet},
    hash::{BuildHasher as _, RandomState},
    io,
    sync::{Arc, Mutex, PoisonError, TryLockError, mpsc},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use tracing::debug;

use super::{
    allowances::Allowances,
    asking::{Asking, Next},
    code::AllCode,
    copied::{Unwinding, unwind},
    process::Life,
    reader::{Place, Pulse, Reader, Unread, Whose, owner_of},
};
use crate::{
    kernel::{
        answers::Asker,
        clock::{monotonic_ns, thread_cpu},
        copies::{Copies, Copy, CopyOf, Recipe},
        return_free_memory,
    },
    model::{
        ids::{Pid, StackId},
        wait::Unwind,
    },
};

/// The times between two looks into the ring.
const SHORTEST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_millis(160);
/// The most copies that are unwound before the results are passed on.
const BATCH: usize = 64;
/// The longest CPU time for the copies of one process in a batch, and the longest time by the clock.
const LONGEST_TURN: Duration = Duration::from_millis(100);
const DEADLINE: Duration = Duration::from_millis(500);
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
}

impl Unwound {
    /// Returns the ids of a wait's copy and of its stack.
    fn copy(&self) -> Option<(StackId, StackId)> {
        match self.of {
            CopyOf::Wait { id, .. } => Some((id, self.id)),
            CopyOf::Sample(_) => None,
        }
    }
}

struct Unwinder {
    copies: Copies,
    reader: Reader,
    code: Arc<Mutex<AllCode>>,
    /// Makes the ids of stacks. No program knows its key.
    ids: RandomState,
    allowances: Allowances,
    owners: HashMap<(Pid, [u64; 3]), Arc<str>>,
    asking: Asking,
    /// The stacks of recipes that are only a part: they are forgotten after a while, so that the rest has another chance.
    parts: HashSet<StackId>,
    window: Instant,
}

/// An order to the thread.
#[derive(Debug)]
pub enum Order {
    /// Removes the recipes of these stacks, which the collector has dropped.
    Forget(Vec<StackId>),
    /// Unwinds what is in the ring now, and then answers.
    CatchUp(mpsc::SyncSender<()>),
}

/// Starts the thread. It sends results until their receiver or the sender of orders is gone. The thread for files can
/// only read if `confined` is set.
///
/// # Errors
///
/// When the thread cannot be started.
pub fn start(
    copies: Copies,
    results: mpsc::SyncSender<Vec<Unwound>>,
    orders: mpsc::Receiver<Order>,
    confined: bool,
) -> io::Result<JoinHandle<()>> {
    let reader = Reader::start(confined)?.with_patience(PATIENCE);
    let mut unwinder = Unwinder {
        copies,
        reader,
        code: Arc::new(Mutex::new(AllCode::new())),
        ids: RandomState::new(),
        allowances: Allowances::default(),
        owners: HashMap::new(),
        asking: Asking::default(),
        parts: HashSet::new(),
        window: Instant::now(),
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
            match unwinder.turn(&results) {
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
    /// Unwinds the copies in the ring, and returns their number.
    fn turn(&mut self, results: &mpsc::SyncSender<Vec<Unwound>>) -> Result<usize, mpsc::SendError<Vec<Unwound>>> {
        let mut all = 0;
        for _ in 0..MOST_BATCHES {
            let copies = self.copies.take(BATCH);
            if copies.is_empty() {
                break;
            }
            all += copies.len();
            let (mut unwound, mut ids, mut answers) = (Vec::with_capacity(copies.len()), Vec::new(), Vec::new());
            for (process, copies) in by_process(copies) {
                let asker = Asker { owner: self.owner(process, &copies), process };
                for (copy, unwinding) in self.unwind(&asker, copies) {
                    let (result, answer) = self.result(copy, unwinding);
                    ids.extend(result.copy().map(|(copy, stack)| (asker.clone(), copy, stack)));
                    answers.extend(answer.map(|(path, answer)| (asker.clone(), path, answer)));
                    unwound.push(result);
                }
            }
            results.send(unwound)?;
            self.name(&ids);
            answers.into_iter().for_each(|(asker, path, answer)| self.answer(&asker, path, answer));
        }
        if self.window.elapsed() >= WINDOW {
            self.window = Instant::now();
            // A thread that hangs holds this lock: `unwind` then replaces the code.
            if let Ok(mut code) = self.code.try_lock() {
                code.next_window();
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

    /// Returns the owner of the process that the copies are of: a pod or a cgroup; empty if the process has ended.
    fn owner(&mut self, process: Pid, copies: &[Copy]) -> Arc<str> {
        let program = copies.first().map_or([0; 3], |copy| copy.program);
        if self.owners.len() > MAX_OWNERS {
            self.owners.clear();
        }
        let owner = self.owners.entry((process, program)).or_insert_with(|| owner_of(process).into());
        Arc::clone(owner)
    }

    /// Unwinds the copies of a process.
    fn unwind(&mut self, asker: &Asker, copies: Vec<Copy>) -> Vec<(Copy, Option<Unwinding>)> {
        let Asker { owner, process } = asker;
        let process = *process;
        // A process that has ended has no owner, and no files.
        let Some(time) = self.allowances.left(owner).filter(|_| !owner.is_empty()) else {
            return copies.into_iter().map(|copy| (copy, None)).collect();
        };
        let start = Instant::now();
        self.reader.clock().begin(DEADLINE);
        let whose = Whose { owner, pid: process, deadline: self.reader.clock().now() + DEADLINE };
        let (code, copies) = (Arc::clone(&self.code), Arc::new(copies));
        let theirs = Arc::clone(&copies);
        let done = Arc::new(Mutex::new(Vec::new()));
        let results = Arc::clone(&done);
        let outcome = self.reader.run(whose, Place::Own, move |pulse| {
            let mut code = code.lock().unwrap_or_else(PoisonError::into_inner);
            let began = thread_cpu();
            unwind_all(&mut code, process, &theirs, &results, began + time.min(LONGEST_TURN), pulse);
            thread_cpu().saturating_sub(began)
        });
        if outcome == Err(Unread::Hangs) && matches!(self.code.try_lock(), Err(TryLockError::WouldBlock)) {
            // The thread that hangs keeps the code.
            self.code = Arc::new(Mutex::new(AllCode::new()));
        }
        // The machine may be busy with other things: only CPU time counts, unless the read of a file took long.
        self.allowances.used(owner.to_string(), outcome.unwrap_or_else(|_| start.elapsed()));
        let done = std::mem::take(&mut *done.lock().unwrap_or_else(PoisonError::into_inner));
        let copies = Arc::try_unwrap(copies).unwrap_or_else(|copies| Vec::clone(&copies));
        let rest = std::iter::repeat_with(|| None);
        copies.into_iter().zip(done.into_iter().chain(rest)).collect()
    }

    /// Returns the result of a copy, and the answer to the kernel side.
    fn result(&mut self, copy: Copy, unwinding: Option<Unwinding>) -> (Unwound, Option<(StackId, Answer)>) {
        let leaf = || copy.registers.get(usize::from(super::code::HERE.pc())).copied().into_iter().collect();
        let nothing = || Unwinding { frames: leaf(), end: Unwind::Cut, words: None, wanted: None };
        let Unwinding { frames, end, words, wanted } = unwinding.unwrap_or_else(nothing);
        let user = StackId(self.ids.hash_one((&frames, end)) | 1);
        let id = copy.kernel.map_or(user, |kernel| user.with(kernel));
        let path = match copy.of {
            CopyOf::Wait { path, .. } => Some(path),
            CopyOf::Sample(_) => None,
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
        (Unwound { of, id, process, kernel, user: frames, end }, answer)
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

/// An answer to the kernel side.
enum Answer {
    Recipe(Recipe),
    Want(Vec<u16>),
}

/// Groups copies by process, in the order of their first copies. A process that has started another program since is
/// another one.
fn by_process(copies: Vec<Copy>) -> Vec<(Pid, Vec<Copy>)> {
    let mut groups: Vec<(Pid, Vec<Copy>)> = Vec::new();
    let mut places: HashMap<(Pid, [u64; 3]), usize> = HashMap::new();
    for copy in copies {
        let at = *places.entry((copy.process, copy.program)).or_insert_with(|| {
            groups.push((copy.process, Vec::new()));
            groups.len() - 1
        });
        if let Some((_, group)) = groups.get_mut(at) {
            group.push(copy);
        }
    }
    groups
}

/// Unwinds copies of one process, one after the other, until this thread's CPU clock shows `until` or no time is left. Runs
/// on the thread for files.
fn unwind_all(
    all: &mut AllCode,
    process: Pid,
    copies: &[Copy],
    results: &Mutex<Vec<Option<Unwinding>>>,
    until: Duration,
    pulse: &Pulse,
) {
    let Some(program) = copies.first().map(|copy| copy.program) else { return };
    let Some(mut code) = all.of(process, program, pulse, until) else { return };
    for copy in copies {
        if pulse.beat().is_err() || thread_cpu() >= until {
            break;
        }
        code.walk_at(copy.at_ns);
        let unwinding = unwind(copy, &mut code);
        results.lock().unwrap_or_else(PoisonError::into_inner).push(Some(unwinding));
    }
    code.keep();
}

#[cfg(test)]
#[path = "unwinder_tests.rs"]
mod tests;
