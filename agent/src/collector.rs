//! The one thread that reads the kernel: readings on request, rings and profile windows by the clock.
//!
//! Map reads block, so they happen here and not on a runtime worker; and with one owner, the tree, the ledger and the
//! table of stacks need no locks. Readings are coalesced: who asks within a second of the last gets that one.

use std::{
    collections::{HashMap, HashSet},
    io,
    path::PathBuf,
    sync::{Arc, mpsc},
    thread::{self, JoinHandle},
    time::{Duration, Instant, SystemTime},
};

use thiserror::Error;
use tokio::sync::oneshot;
use tracing::{debug, warn};

use crate::{
    attribution::{Ledger, Snapshot, UNRESOLVED},
    cgroups::{Selection, Tree, walk},
    ids::{CgroupId, StackId},
    kernel::{
        CpuTotals, MapUse, ProgramUse, RawReading, Sensors,
        clock::monotonic_ns,
        records::{RawStack, RawWait, StackRecord},
    },
    readings::Readings,
    stacks::{ProfileWait, RawProfile},
};

/// How often the rings are emptied. They hold some thousand records.
const DRAIN_EVERY: Duration = Duration::from_millis(250);
/// A reading is made at least this often, so that dead cgroups leave the kernel's table.
const READ_AT_LEAST_EVERY: Duration = Duration::from_secs(10);
/// Readings are made at most this often.
const COALESCE_FOR: Duration = Duration::from_secs(1);
/// How long counts wait for their cgroup's path.
const PATIENCE_NS: u64 = 30_000_000_000;

/// What a reading found out.
#[derive(Clone, Debug)]
pub struct Observation {
    /// Who did what.
    pub snapshot: Snapshot,
    /// Sums of the per-CPU state.
    pub cpu: CpuTotals,
    /// Losses by reason.
    pub drops: Vec<(&'static str, u64)>,
    /// Rows in the kernel's table of cgroups.
    pub cgroup_rows: usize,
    /// The maps and what they cost.
    pub maps: Vec<MapUse>,
    /// The programs and what they cost.
    pub programs: Vec<ProgramUse>,
    /// Readings so far.
    pub readings: u64,
    /// How long this one took.
    pub took: Duration,
    /// Profile windows that were given up because symbols took too long.
    pub profiles_dropped: u64,
}

/// Which rows there are, and for how long: what a reload may change.
#[derive(Clone, Debug)]
pub struct RowSettings {
    /// Which cgroups are rows.
    pub selection: Selection,
    /// How long an ended row is kept.
    pub grace: Duration,
}

/// What the collector needs.
#[derive(Debug)]
pub struct CollectorSettings {
    /// The cgroup2 mount.
    pub cgroup_root: PathBuf,
    /// Rows.
    pub rows: RowSettings,
    /// How often a profile is made, and who takes it; `None` makes none.
    pub profiles: Option<(Duration, mpsc::SyncSender<RawProfile>)>,
    /// Stacks that are remembered at most.
    pub max_stacks: usize,
}

/// Why a reading failed.
#[derive(Clone, Debug, Error)]
pub enum ReadError {
    /// A map could not be read.
    #[error("failed to read the kernel's maps: {0}")]
    Kernel(Arc<io::Error>),
    /// The collector has stopped.
    #[error("the collector has stopped (see the log)")]
    Stopped,
}

enum Request {
    Read(oneshot::Sender<Result<Arc<Observation>, ReadError>>),
    Rows(RowSettings),
    Stop,
}

/// The other end of the collector's requests; cheap to clone.
#[derive(Clone, Debug)]
pub struct Reader(mpsc::Sender<Request>);

impl std::fmt::Debug for Request {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Read(_) => "Read",
            Self::Rows(_) => "Rows",
            Self::Stop => "Stop",
        })
    }
}

impl Reader {
    /// Reads the kernel, or takes the reading of less than a second ago.
    ///
    /// # Errors
    ///
    /// When the kernel's maps cannot be read, or the collector has stopped.
    pub async fn read(&self) -> Result<Arc<Observation>, ReadError> {
        let (reply, answer) = oneshot::channel();
        self.0.send(Request::Read(reply)).map_err(|mpsc::SendError(_)| ReadError::Stopped)?;
        answer.await.unwrap_or(Err(ReadError::Stopped))
    }

    /// Changes which cgroups are rows, from the next reading on. Existing rows keep what they have.
    pub fn set_rows(&self, rows: RowSettings) {
        // A collector that has stopped has no rows.
        self.0.send(Request::Rows(rows)).ok();
    }

    /// Asks the collector to send its last profile and end.
    pub fn stop(&self) {
        self.0.send(Request::Stop).ok();
    }
}

/// Walks the cgroup tree and starts the thread. `sensors` must have been started before, so that no cgroup is missed.
///
/// # Errors
///
/// When the cgroup tree cannot be walked or the thread cannot be started.
pub fn start(sensors: Sensors, settings: CollectorSettings) -> io::Result<(Reader, JoinHandle<()>)> {
    let (sender, requests) = mpsc::channel();
    let readings = Readings::new(sensors.counters());
    let mut tree = Tree::default();
    tree.walked(walk(&settings.cgroup_root)?, monotonic_ns());
    let mut collector = Collector {
        sensors,
        readings,
        tree,
        not_found: HashSet::new(),
        ledger: Ledger::default(),
        stacks: HashMap::new(),
        long_waits: Vec::new(),
        window: (SystemTime::now(), Instant::now()),
        windows: 0,
        drops_then: HashMap::new(),
        last: None,
        readings_made: 0,
        profiles_dropped: 0,
        settings,
    };
    let thread = thread::Builder::new().name("podperf-kernel".into()).spawn(move || collector.run(&requests))?;
    Ok((Reader(sender), thread))
}

#[derive(Debug)]
struct Collector {
    sensors: Sensors,
    readings: Readings,
    tree: Tree,
    /// Cgroups that count, but that the last walk did not find.
    not_found: HashSet<CgroupId>,
    ledger: Ledger,
    /// The frames of the stacks that the kernel side has sent, and the window that last used each.
    stacks: HashMap<StackId, (Arc<RawStack>, u64)>,
    /// Since the last profile.
    long_waits: Vec<RawWait>,
    /// When the current profile window began.
    window: (SystemTime, Instant),
    windows: u64,
    /// Losses at the last profile.
    drops_then: HashMap<&'static str, u64>,
    last: Option<(Instant, Arc<Observation>)>,
    readings_made: u64,
    profiles_dropped: u64,
    settings: CollectorSettings,
}

impl Collector {
    fn run(&mut self, requests: &mpsc::Receiver<Request>) {
        loop {
            let request = requests.recv_timeout(DRAIN_EVERY);
            self.drain();
            match request {
                Ok(Request::Read(reply)) => {
                    let observation = self.observation(COALESCE_FOR);
                    if observation.is_ok() {
                        self.ledger.exported();
                    }
                    // Who asked may have gone.
                    reply.send(observation).ok();
                }
                Ok(Request::Rows(rows)) => self.settings.rows = rows,
                Err(mpsc::RecvTimeoutError::Timeout) => {
                    if let Err(error) = self.observation(READ_AT_LEAST_EVERY) {
                        debug!(%error, "no reading");
                    }
                }
                Ok(Request::Stop) | Err(mpsc::RecvTimeoutError::Disconnected) => {
                    self.profile();
                    return;
                }
            }
            if self.settings.profiles.as_ref().is_some_and(|(every, _)| self.window.1.elapsed() >= *every) {
                self.profile();
            }
        }
    }

    /// Takes what is new in the rings.
    fn drain(&mut self) {
        let now_ns = monotonic_ns();
        let (tree, stacks, long_waits, window) = (&mut self.tree, &mut self.stacks, &mut self.long_waits, self.windows);
        self.sensors.drain(
            |record| match record {
                StackRecord::Stack(stack) => {
                    stacks.insert(stack.id, (Arc::new(stack), window));
                }
                StackRecord::LongWait(wait) => long_waits.push(wait),
            },
            |record| tree.apply(record, now_ns),
        );
    }

    /// The last observation if it is younger than `age`, else a new one.
    fn observation(&mut self, age: Duration) -> Result<Arc<Observation>, ReadError> {
        if let Some((at, last)) = self.last.as_ref().filter(|(at, _)| at.elapsed() < age) {
            debug!(age = ?at.elapsed(), "coalesced");
            return Ok(Arc::clone(last));
        }
        let start = Instant::now();
        let reading = self.sensors.read().map_err(|error| ReadError::Kernel(Arc::new(error)))?;
        let taken = SystemTime::now();
        self.mind_the_tree(&reading);
        let deltas = self.readings.advance(&reading);
        self.ledger.post(deltas, &self.tree, &self.settings.rows.selection, reading.at_ns, PATIENCE_NS);
        let grace_ns = u64::try_from(self.settings.rows.grace.as_nanos()).unwrap_or(u64::MAX);
        self.ledger.retire(&self.tree, reading.at_ns, grace_ns);
        self.forget_dead(&reading);
        self.readings_made += 1;
        let observation = Arc::new(Observation {
            snapshot: self.ledger.snapshot(taken, reading.cpu.idle_ns, &self.tree),
            cpu: reading.cpu,
            cgroup_rows: reading.rows.len(),
            drops: reading.drops,
            maps: self.sensors.map_use(),
            programs: self.sensors.program_use(),
            readings: self.readings_made,
            took: start.elapsed(),
            profiles_dropped: self.profiles_dropped,
        });
        self.last = Some((Instant::now(), Arc::clone(&observation)));
        Ok(observation)
    }

    /// Walks the tree again where the cgroup sensor could not tell, or a cgroup counts that nobody announced.
    fn mind_the_tree(&mut self, reading: &RawReading) {
        let lost = |drops: &[(&'static str, u64)]| {
            drops.iter().find(|(reason, _)| *reason == "cgroup_ring").map_or(0, |(_, count)| *count)
        };
        let before = self.last.as_ref().map_or(0, |(_, last)| lost(&last.drops));
        let unknown = |tree: &Tree| -> HashSet<CgroupId> {
            let ids = reading.rows.iter().map(|row| row.cgroup);
            ids.filter(|id| *id != CgroupId::IDLE && tree.path(*id).is_none()).collect()
        };
        // What one walk did not find, the next will not either.
        let news = !unknown(&self.tree).is_subset(&self.not_found);
        if !news && !self.tree.is_stale() && lost(&reading.drops) == before {
            return;
        }
        match walk(&self.settings.cgroup_root) {
            Ok(found) => {
                self.tree.walked(found, monotonic_ns());
                self.not_found = unknown(&self.tree);
            }
            Err(error) => warn!(root = %self.settings.cgroup_root.display(), %error, "failed to walk the cgroup tree"),
        }
    }

    /// Deletes the kernel's rows of cgroups that were dead before the last reading: this one had all they did.
    fn forget_dead(&mut self, reading: &RawReading) {
        let Some(last_ns) = self
            .last
            .as_ref()
            .map(|(at, _)| reading.at_ns.saturating_sub(u64::try_from(at.elapsed().as_nanos()).unwrap_or(0)))
        else {
            return;
        };
        for row in reading.rows.iter().filter(|row| self.tree.died_before(row.cgroup, last_ns)) {
            if let Err(error) = self.sensors.forget_cgroup(row.cgroup) {
                debug!(cgroup = %row.cgroup, %error, "not forgotten");
            }
        }
        self.tree.prune(reading.at_ns);
    }

    /// Ends the profile window and hands it on.
    fn profile(&mut self) {
        let Some((_, taker)) = &self.settings.profiles else { return };
        let waits = match self.sensors.take_waits() {
            Ok(waits) => waits,
            Err(error) => {
                warn!(%error, "failed to read the waits: they will be in the next profile");
                return;
            }
        };
        let drops = self.sensors.drops().unwrap_or_default();
        let taker = taker.clone();
        // What the waits refer to was sent before them.
        self.drain();
        let mut losses = Vec::new();
        for (reason, count) in drops {
            let new = count - self.drops_then.insert(reason, count).unwrap_or(0);
            if new > 0 && !matches!(reason, "cgroup_table" | "event_read" | "cgroup_ring") {
                losses.push((reason, new));
            }
        }
        let selection = &self.settings.rows.selection;
        let windows = self.windows;
        let (tree, stacks) = (&self.tree, &mut self.stacks);
        let waits = waits
            .into_iter()
            .chain(self.long_waits.drain(..))
            .map(|wait| ProfileWait {
                row: tree.path(wait.key.cgroup).map_or(UNRESOLVED, |path| selection.row(path)).to_owned(),
                stack: stacks.get_mut(&wait.key.stack).map(|(stack, used)| {
                    *used = windows;
                    Arc::clone(stack)
                }),
                wait,
            })
            .collect();
        let window = std::mem::replace(&mut self.window, (SystemTime::now(), Instant::now()));
        let profile = RawProfile { start: window.0, duration: window.1.elapsed(), waits, losses };
        if taker.try_send(profile).is_err() {
            self.profiles_dropped += 1;
        }
        self.forget_stacks();
        self.windows += 1;
    }

    /// Keeps the table of stacks within its size: those that the last windows did not use go, and will be sent again.
    fn forget_stacks(&mut self) {
        if self.stacks.len() <= self.settings.max_stacks {
            return;
        }
        let (sensors, windows) = (&self.sensors, self.windows);
        self.stacks.retain(|id, (_, used)| {
            let keep = *used == windows;
            if !keep && let Err(error) = sensors.forget_stack(*id) {
                debug!(%error, "stack not forgotten");
            }
            keep
        });
    }
}
