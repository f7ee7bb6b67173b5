//! The thread that reads untrusted files. Another thread replaces it when a file server does not answer.
//!
//! No time limit can end a read of a file whose server hangs. So files are opened, read and closed on a separate
//! thread, one piece of [`Reader::run`] at a time; the caller waits as long as reads make progress. A thread that hangs
//! is left behind, and a new thread continues without the files in the same place as the hanging read: files of the
//! same pod or cgroup, and files of the same device. A thread that hangs in FUSE cannot even be killed, so these
//! threads have a separate table of descriptors: the locks and the listener of a killed agent are free for the next
//! agent.

use std::{
    io,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use nix::unistd::gettid;
use tracing::{debug, warn};

use super::clock::{Clock, waited};
use crate::{
    cgroups::KubePath,
    kernel::{own_descriptors, proc::read_text},
    model::ids::{Pid, PodRef},
    sandbox::confine_reader,
};

/// The name of the threads for files.
const THREAD: &str = "podperf-files";
/// The longest time for one read.
const PATIENCE: Duration = Duration::from_secs(2);
/// The time for which a place is avoided after a read took longer than [`PATIENCE`]. A place is also avoided until that
/// read has ended.
const AVOIDED_FOR: Duration = Duration::from_secs(60);
/// The levels of the cgroup tree at which services, users and containers outside of pods are.
const OUTER_LEVELS: usize = 2;
/// The largest number of threads that may hang at a time. Each takes some 100 KiB, and each hangs for a different
/// owner. At this limit, no files are read.
const MAX_HUNG: usize = 8;

/// The place of a file, which is avoided when a read there hangs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Place {
    /// On a device, by its number in `/proc/PID/maps`.
    Device(String),
    /// Below the root of the host, as process 1 or the agent sees it.
    Host,
    /// In the agent's own cache of debug files.
    Cache,
    /// Anywhere below `/proc/PID` of the process.
    #[default]
    Own,
}

/// The owner of a read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Whose<'a> {
    /// The pod or cgroup.
    pub(super) owner: &'a str,
    pub(super) pid: Pid,
    /// The end of the owner's time, by the reader's clock.
    pub(super) deadline: Instant,
}

/// The reason why a file was not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Unread {
    /// No time was left.
    Late,
    /// A read hangs, or hung in the last minute.
    Hangs,
}

/// Tells whether files are read: not while [`MAX_HUNG`] reads hang, and not without a thread.
#[derive(Clone, Debug, Default)]
pub struct Blocked(Arc<State>);

#[derive(Debug, Default)]
struct State {
    /// The reads that hang, or hung in the last minute.
    hung: Mutex<Vec<Hung>>,
    /// Set if no thread could be started the last time.
    no_thread: AtomicBool,
}

impl Blocked {
    /// Returns why no files are read, in words with the way out; `None` if they are read.
    pub fn why(&self) -> Option<&'static str> {
        if self.hanging() >= MAX_HUNG {
            return Some(
                "too many reads hang, in programs of as many pods or services (the log has their names: is a file \
                 server or FUSE down?)",
            );
        }
        self.0.no_thread.load(Ordering::Relaxed).then_some("no thread for them can be started (is `pids.max` reached?)")
    }

    fn hanging(&self) -> usize {
        self.hung().iter().filter(|hung| hung.hangs()).count()
    }

    /// Returns the reads that hang, or hung in the last minute.
    fn hung(&self) -> MutexGuard<'_, Vec<Hung>> {
        let mut hung = self.0.hung.lock().unwrap_or_else(PoisonError::into_inner);
        hung.retain(|hung| hung.hangs() || hung.since.elapsed() < AVOIDED_FOR);
        hung
    }
}

type Work = Box<dyn FnOnce() + Send>;

/// The handle of the thread for files, see the module.
#[derive(Debug)]
pub(super) struct Reader {
    starter: mpsc::Sender<mpsc::SyncSender<Thread>>,
    thread: Option<Thread>,
    blocked: Blocked,
    patience: Duration,
    clock: Clock,
    /// The time that the caller had waited for a CPU when the clock last stood still for it.
    waited: Option<Duration>,
}

/// A thread that reads files, or waits for work.
#[derive(Debug)]
struct Thread {
    work: mpsc::Sender<Work>,
    id: i32,
}

/// A read that hangs, or hung.
#[derive(Debug)]
struct Hung {
    pulse: Arc<Pulse>,
    place: Place,
    owners: [String; 2],
    since: Instant,
}

impl Hung {
    fn hangs(&self) -> bool {
        !self.pulse.ended.load(Ordering::Acquire)
    }
}

/// The progress of a piece of work.
#[derive(Debug)]
pub(super) struct Pulse {
    deadline: Instant,
    clock: Clock,
    /// The time that the thread had waited for a CPU when it began, in nanoseconds.
    waited_before: AtomicU64,
    reads: AtomicU64,
    late: AtomicBool,
    ended: AtomicBool,
    place: Mutex<Place>,
    /// The places of reads that hang, or hung in the last minute.
    avoided: Vec<Place>,
    is_avoided: AtomicBool,
}

impl Reader {
    /// Starts the thread `podperf-readers`, which starts the threads for files, because the confined caller must not
    /// start threads. With `confined`, the threads for files can only read.
    ///
    /// # Errors
    ///
    /// When that thread cannot be started.
    pub(super) fn start(confined: bool) -> io::Result<Self> {
        Self::start_as(THREAD, confined)
    }

    /// Does what [`Self::start`] does. The threads for files have this name.
    pub(super) fn start_as(name: &'static str, confined: bool) -> io::Result<Self> {
        let (starter, asked) = mpsc::channel::<mpsc::SyncSender<Thread>>();
        thread::Builder::new().name("podperf-readers".into()).spawn(move || {
            for answer in asked {
                if let Some(thread) = start_thread(name, confined) {
                    answer.send(thread).ok();
                }
            }
        })?;
        Ok(Self::with_starter(starter))
    }

    /// Returns a reader that cannot start threads.
    #[cfg(test)]
    pub(super) fn without_threads() -> Self {
        Self::with_starter(mpsc::channel().0)
    }

    fn with_starter(starter: mpsc::Sender<mpsc::SyncSender<Thread>>) -> Self {
        let (blocked, clock) = (Blocked::default(), Clock::default());
        Self { starter, thread: None, blocked, patience: PATIENCE, clock, waited: None }
    }

    /// Tells `blocked` from now on.
    pub(super) fn telling(self, blocked: Blocked) -> Self {
        Self { blocked, ..self }
    }

    /// Sets the longest time for one read.
    pub(super) fn with_patience(self, patience: Duration) -> Self {
        Self { patience, ..self }
    }

    /// Runs `work` on the thread for files. `work` must beat its pulse before each read.
    pub(super) fn run<T: Send + 'static>(
        &mut self,
        whose: Whose<'_>,
        place: Place,
        work: impl FnOnce(&Pulse) -> T + Send + 'static,
    ) -> Result<T, Unread> {
        self.stand_still();
        if self.clock.now() >= whose.deadline {
            return Err(Unread::Late);
        }
        if self.avoids_owner(whose) || self.avoids(&place) || self.blocked.hanging() >= MAX_HUNG {
            return Err(Unread::Hangs);
        }
        let hung = self.blocked.hung();
        let avoided = hung.iter().map(|hung| hung.place.clone()).filter(|place| *place != Place::Own).collect();
        drop(hung);
        let pulse = Pulse { clock: self.clock.clone(), avoided, ..Pulse::new(whose.deadline, place) };
        let pulse = Arc::new(pulse);
        let (answer, answered) = mpsc::sync_channel(1);
        let told = Arc::clone(&pulse);
        let work = move || {
            told.begin();
            let result = work(&told);
            told.clock.stand(told.waited());
            told.ended.store(true, Ordering::Release);
            answer.send(result).ok();
        };
        let Some(thread) = self.thread.take().or_else(|| self.start_thread()) else { return Err(Unread::Late) };
        if thread.work.send(Box::new(work)).is_err() {
            return Err(Unread::Late);
        }
        let result = self.wait(&answered, &pulse, thread.id);
        if matches!(result, Err(Unread::Hangs)) {
            self.give_up(Arc::clone(&pulse), whose);
        }
        let result = result?;
        self.stand_still();
        self.thread = Some(thread);
        if pulse.late.load(Ordering::Relaxed) { Err(Unread::Late) } else { Ok(result) }
    }

    /// Waits for the answer of a thread.
    ///
    /// # Errors
    ///
    /// [`Unread::Hangs`] if its read makes no progress, and [`Unread::Late`] if it has ended without an answer.
    fn wait<T>(&self, answered: &mpsc::Receiver<T>, pulse: &Pulse, thread: i32) -> Result<T, Unread> {
        let mut reads = 0;
        loop {
            match answered.recv_timeout(self.patience) {
                Ok(answer) => return Ok(answer),
                Err(mpsc::RecvTimeoutError::Disconnected) => return Err(Unread::Late),
                Err(mpsc::RecvTimeoutError::Timeout) => {}
            }
            let now = pulse.reads.load(Ordering::Relaxed);
            // A thread without CPU time does not hang.
            if std::mem::replace(&mut reads, now) == now && !runs(thread) {
                // If it sleeps because it has just ended its work, the answer is here.
                return answered.try_recv().map_err(|error| match error {
                    mpsc::TryRecvError::Empty => Unread::Hangs,
                    mpsc::TryRecvError::Disconnected => Unread::Late,
                });
            }
        }
    }

    /// Notes that another thread calls from now on.
    pub(super) fn new_caller(&mut self) {
        self.waited = None;
    }

    /// Returns the clock of the deadlines.
    pub(super) fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Lets the clock stand still for the time that the caller has waited for a CPU since the last time.
    fn stand_still(&mut self) {
        let now = waited();
        if let Some(before) = self.waited.replace(now) {
            self.clock.stand(now.saturating_sub(before));
        }
    }

    /// Returns whether reads at a place are avoided now.
    pub(super) fn avoids(&self, place: &Place) -> bool {
        *place != Place::Own && self.blocked.hung().iter().any(|hung| hung.place == *place)
    }

    fn avoids_owner(&self, whose: Whose<'_>) -> bool {
        if self.blocked.hung().is_empty() {
            return false;
        }
        let names = whose.names();
        // A process that has ended has no cgroup.
        let is_its_own = |name: &String| !name.is_empty() && names.contains(name);
        self.blocked.hung().iter().any(|hung| hung.owners.iter().any(is_its_own))
    }

    fn give_up(&mut self, pulse: Arc<Pulse>, whose: Whose<'_>) {
        let (owner, place) = (whose.owner, pulse.place());
        let hung = Hung { pulse, place: place.clone(), owners: whose.names(), since: Instant::now() };
        self.blocked.hung().push(hung);
        let hanging = self.blocked.hanging();
        warn!(owner, pid = whose.pid.0, ?place, hanging, "a read of a file hangs: files of this owner get no names");
    }

    fn start_thread(&self) -> Option<Thread> {
        let (answer, answered) = mpsc::sync_channel(1);
        let thread = self.starter.send(answer).ok().and_then(|()| answered.recv().ok());
        self.blocked.0.no_thread.store(thread.is_none(), Ordering::Relaxed);
        thread
    }
}

fn start_thread(name: &str, confined: bool) -> Option<Thread> {
    let (work, works) = mpsc::channel::<Work>();
    let (tell, told) = mpsc::sync_channel(1);
    let started = thread::Builder::new().name(name.into()).spawn(move || {
        if let Err(error) = own_descriptors() {
            debug!(%error, "a read that hangs keeps the agent's locks until it ends");
        }
        if confined && let Err(error) = confine_reader() {
            warn!(error = format!("{:#}", anyhow::Error::from(error)), "files are read without a sandbox");
        }
        tell.send(gettid().as_raw()).ok();
        works.into_iter().for_each(|work| work());
    });
    if let Err(error) = started {
        warn!(%error, "failed to start a thread for files (is `pids.max` reached?)");
        return None;
    }
    Some(Thread { work, id: told.recv().ok()? })
}

/// Returns whether a thread of this process runs, or is ready to run.
fn runs(thread: i32) -> bool {
    let stat = read_text(format!("/proc/self/task/{thread}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('R'))
}

/// Returns the owner of a process by its cgroup; empty if the process has none.
pub(super) fn owner_of(pid: Pid) -> String {
    owner_at(&cgroup_of(pid))
}

/// Returns the path of a process's cgroup; empty if the process has none.
pub(super) fn cgroup_of(pid: Pid) -> String {
    let text = read_text(format!("/proc/{}/cgroup", pid.0)).unwrap_or_default();
    text.lines().find_map(|line| line.strip_prefix("0::")).unwrap_or_default().to_owned()
}

/// Returns whether an owner that was found by a cgroup is a pod.
pub(super) fn is_pod(owner: &str) -> bool {
    owner.starts_with("pod ")
}

/// Returns the owner of a cgroup with this path: all containers of a pod have the same owner, and so have all cgroups
/// below a service, a user or a container outside of pods. Pure.
pub(super) fn owner_at(path: &str) -> String {
    let pod = KubePath::parse(path).map(|place| place.pod).or_else(|| PodRef::outside(path));
    let outer = path.match_indices('/').nth(OUTER_LEVELS).map_or(path, |(end, _)| &path[..end]);
    pod.map_or_else(|| outer.to_owned(), |pod| pod_owner(&pod))
}

/// Returns the name of a pod as an owner.
pub(super) fn pod_owner(pod: &PodRef) -> String {
    match pod {
        PodRef::Uid(uid) => format!("pod {uid}"),
        PodRef::Static(hash) => format!("pod {hash}"),
    }
}

impl Whose<'_> {
    /// Returns both names of the owner: a process that is read before its window is known only by its cgroup.
    fn names(&self) -> [String; 2] {
        [self.owner.to_owned(), owner_of(self.pid)]
    }
}

impl Pulse {
    pub(super) fn new(deadline: Instant, place: Place) -> Self {
        Self {
            deadline,
            clock: Clock::default(),
            waited_before: AtomicU64::new(0),
            reads: AtomicU64::new(0),
            late: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            place: Mutex::new(place),
            avoided: Vec::new(),
            is_avoided: AtomicBool::new(false),
        }
    }

    /// Sets the place of the next reads. They fail if this place is avoided.
    pub(super) fn at(&self, place: Place) {
        self.is_avoided.store(self.avoided.contains(&place), Ordering::Relaxed);
        *Mutex::lock(&self.place).unwrap_or_else(PoisonError::into_inner) = place;
    }

    /// Returns the place of the current reads.
    pub(super) fn place(&self) -> Place {
        Mutex::lock(&self.place).unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Notes that this thread begins.
    fn begin(&self) {
        self.waited_before.store(waited().as_nanos().try_into().unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Returns for how long the thread has waited for a CPU since it began.
    fn waited(&self) -> Duration {
        waited().saturating_sub(Duration::from_nanos(self.waited_before.load(Ordering::Relaxed)))
    }

    /// Returns whether a read was refused because no time was left.
    pub(super) fn is_late(&self) -> bool {
        self.late.load(Ordering::Relaxed)
    }

    /// Counts a read; must be called before each read. Returns an error if no time is left, or if the place is avoided.
    pub(super) fn beat(&self) -> io::Result<()> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        if self.is_avoided.load(Ordering::Relaxed) {
            return Err(io::ErrorKind::TimedOut.into());
        }
        // The time without a CPU is read only if it matters.
        let is_in_time = |still| self.clock.now() < self.deadline + still;
        if is_in_time(Duration::ZERO) || is_in_time(self.clock.stands(self.waited())) {
            return Ok(());
        }
        self.late.store(true, Ordering::Relaxed);
        Err(io::ErrorKind::TimedOut.into())
    }
}

#[cfg(test)]
#[path = "reader_tests.rs"]
mod tests;
