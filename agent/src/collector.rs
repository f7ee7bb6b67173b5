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
    attribution::{Ledger, Names, Owner, RowRules, Snapshot, Subject},
    cgroups::{Place, Tree, walk},
    filter::{Filter, Known},
    ids::{CgroupId, Pid, WakerId},
    kernel::{
        CpuTotals, MapUse, OpenCounter, ProgramUse, RawReading, Sensors,
        clock::monotonic_ns,
        records::{RawSample, StackRecord},
    },
    overhead::Overhead,
    pods::{PodChange, PodIndex},
    readings::{self, Readings, UnwoundTime},
    stacks::{ProfileSample, RawProfile, Window, profile::Waker},
    status::{State, Status},
    upkeep::{OverheadUse, Upkeep},
};

/// How often the rings are emptied. They hold some thousand records.
const DRAIN_EVERY: Duration = Duration::from_millis(250);
/// A reading is made at least this often, so that dead cgroups leave the kernel's table.
const READ_AT_LEAST_EVERY: Duration = Duration::from_secs(10);
/// Readings are made at most this often.
const COALESCE_FOR: Duration = Duration::from_secs(1);

/// What a reading found out.
#[derive(Clone, Debug)]
pub struct Observation {
    /// Who did what.
    pub snapshot: Snapshot,
    /// The configured events, and what became of each.
    pub counters: Arc<[OpenCounter]>,
    /// What podperf costs.
    pub overhead: OverheadUse,
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

/// What the collector needs.
#[derive(Debug)]
pub struct CollectorSettings {
    /// The cgroup2 mount.
    pub cgroup_root: PathBuf,
    /// Which rows there are.
    pub rules: RowRules,
    /// How long a pod's name may take to come; `None` where nobody will tell of pods.
    pub patience: Option<Duration>,
    /// Where it tells how many have names, and what counts.
    pub status: Status,
    /// The cap on what podperf may cost.
    pub overhead: Overhead,
    /// How often a profile is made, and who takes it; `None` makes none.
    pub profiles: Option<(Duration, mpsc::SyncSender<RawProfile>)>,
    /// What profiles take.
    pub filter: Filter,
    /// Who learns of processes with new stacks before they end.
    pub met: mpsc::SyncSender<Pid>,
    /// Stacks that are remembered at most.
    pub max_stacks: usize,
    /// Samples that are kept for a name at most.
    pub max_samples: usize,
    /// What one sample on the CPU stands for; `None` where none are taken.
    pub sample_period: Option<Duration>,
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
    Read { exports: bool, reply: oneshot::Sender<Result<Arc<Observation>, ReadError>> },
    Cut(oneshot::Sender<Option<SystemTime>>),
    Rules(Box<RowRules>),
    Pods(Box<PodChange>),
    Unwound(Vec<(Subject, UnwoundTime)>),
    Stop,
}

/// The other end of the collector's requests; cheap to clone.
#[derive(Clone, Debug)]
pub struct Reader(mpsc::Sender<Request>);

impl std::fmt::Debug for Request {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Read { .. } => "Read",
            Self::Cut(_) => "Cut",
            Self::Rules(_) => "Rules",
            Self::Pods(_) => "Pods",
            Self::Unwound(_) => "Unwound",
            Self::Stop => "Stop",
        })
    }
}

impl Reader {
    /// Reads the kernel, or takes the reading of less than a second ago. What is exported counts for the rows that have
    /// ended: they stay until they were exported twice.
    ///
    /// # Errors
    ///
    /// When the kernel's maps cannot be read, or the collector has stopped.
    pub async fn read(&self, exports: bool) -> Result<Arc<Observation>, ReadError> {
        let (reply, answer) = oneshot::channel();
        self.0.send(Request::Read { exports, reply }).map_err(|mpsc::SendError(_)| ReadError::Stopped)?;
        answer.await.unwrap_or(Err(ReadError::Stopped))
    }

    /// Ends the current profile window now, and says when it had begun, by which it is known again. `None` when it could
    /// not be handed on, or none is made.
    ///
    /// # Errors
    ///
    /// When the collector has stopped.
    pub async fn cut(&self) -> Result<Option<SystemTime>, ReadError> {
        let (reply, answer) = oneshot::channel();
        self.0.send(Request::Cut(reply)).map_err(|mpsc::SendError(_)| ReadError::Stopped)?;
        answer.await.map_err(|oneshot::error::RecvError { .. }| ReadError::Stopped)
    }

    /// Changes which cgroups are rows, from the next reading on. Existing rows keep what they have.
    pub fn set_rules(&self, rules: RowRules) {
        // A collector that has stopped has no rows.
        self.0.send(Request::Rules(Box::new(rules))).ok();
    }

    /// Tells of pods.
    pub fn tell(&self, change: PodChange) {
        self.0.send(Request::Pods(Box::new(change))).ok();
    }

    /// Tells how far the walks of a window's stacks came.
    pub fn tell_unwound(&self, times: Vec<(Subject, UnwoundTime)>) {
        self.0.send(Request::Unwound(times)).ok();
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
pub fn start(mut sensors: Sensors, settings: CollectorSettings) -> io::Result<(Reader, JoinHandle<()>)> {
    let (sender, requests) = mpsc::channel();
    sensors.set_filter_terms(settings.filter.kernel_terms())?;
    let readings = Readings::new(sensors.counters(), sensors.most_per_ns());
    let upkeep = Upkeep::new(settings.overhead, settings.profiles.is_some(), &sensors, settings.status.clone());
    let mut samples = Window::new(settings.max_stacks, settings.max_samples);
    if settings.profiles.is_some() {
        samples.learn_functions();
    }
    let mut tree = Tree::default();
    tree.walked(walk(&settings.cgroup_root)?, monotonic_ns());
    let mut collector = Collector {
        sensors,
        upkeep,
        readings,
        tree,
        not_found: HashSet::new(),
        pods: settings.patience.is_some().then(PodIndex::default),
        ledger: Ledger::default(),
        nameless: Vec::new(),
        samples,
        window: (SystemTime::now(), Instant::now()),
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
    upkeep: Upkeep,
    readings: Readings,
    tree: Tree,
    /// Cgroups that count, but that the last walk did not find.
    not_found: HashSet<CgroupId>,
    /// The pods of this node; `None` where nobody tells of any.
    pods: Option<PodIndex>,
    ledger: Ledger,
    /// Samples of the last windows whose pod had no name yet.
    nameless: Vec<(Place, RawSample)>,
    /// Since the last profile.
    samples: Window,
    /// When the current profile window began.
    window: (SystemTime, Instant),
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
                Ok(Request::Read { exports, reply }) => {
                    let observation = self.observation(COALESCE_FOR);
                    if exports && observation.is_ok() {
                        self.ledger.exported();
                    }
                    // Who asked may have gone.
                    reply.send(observation).ok();
                }
                Ok(Request::Cut(reply)) => {
                    let began = self.profile(false);
                    reply.send(began).ok();
                }
                Ok(Request::Rules(rules)) => self.settings.rules = *rules,
                Ok(Request::Pods(change)) => {
                    if let Some(pods) = &mut self.pods {
                        pods.apply(*change, monotonic_ns());
                    }
                }
                Ok(Request::Unwound(times)) => {
                    for (subject, times) in times {
                        self.ledger.add_unwound(&subject, self.settings.rules.level, times);
                    }
                }
                Err(mpsc::RecvTimeoutError::Timeout) => {
                    if let Err(error) = self.observation(READ_AT_LEAST_EVERY) {
                        debug!(%error, "no reading");
                    }
                }
                Ok(Request::Stop) | Err(mpsc::RecvTimeoutError::Disconnected) => {
                    self.profile(true);
                    return;
                }
            }
            if self.settings.profiles.as_ref().is_some_and(|(every, _)| self.window.1.elapsed() >= *every) {
                self.profile(false);
            }
        }
    }

    /// Takes what is new in the rings.
    fn drain(&mut self) {
        let now_ns = monotonic_ns();
        let (tree, samples) = (&mut self.tree, &mut self.samples);
        let met = &self.settings.met;
        self.sensors.drain(
            |record| {
                if let StackRecord::Stack(stack) = &record {
                    // Who finds no room is met with its window.
                    met.try_send(stack.process).ok();
                }
                samples.record(record);
            },
            |record| tree.apply(record, now_ns),
        );
    }

    /// Takes what was sampled since the last time.
    fn take_samples(&mut self) -> io::Result<()> {
        if self.settings.profiles.is_none() {
            return Ok(());
        }
        let samples = self.sensors.take_samples()?;
        // What they refer to was sent before them.
        self.drain();
        self.samples.add(samples, monotonic_ns());
        Ok(())
    }

    /// The last observation if it is younger than `age`, else a new one.
    fn observation(&mut self, age: Duration) -> Result<Arc<Observation>, ReadError> {
        if let Some((at, last)) = self.last.as_ref().filter(|(at, _)| at.elapsed() < age) {
            debug!(age = ?at.elapsed(), "coalesced");
            return Ok(Arc::clone(last));
        }
        let start = Instant::now();
        let failed = |error| ReadError::Kernel(Arc::new(error));
        let reading = self.sensors.read().map_err(failed)?;
        let taken = SystemTime::now();
        self.take_samples().map_err(failed)?;
        self.mind_the_tree(&reading);
        let (mut deltas, doubtful) = self.readings.advance(&reading);
        readings::join(&mut deltas, self.samples.take_profiled());
        self.upkeep.tend(&mut self.sensors, &reading, &doubtful);
        let names = names(&self.tree, self.pods.as_ref(), &self.settings);
        self.ledger.post(deltas, &names, &self.settings.rules, reading.at_ns);
        self.ledger.settle(&names, &self.settings.rules, reading.at_ns);
        let snapshot = self.ledger.snapshot(taken, reading.cpu.idle_ns, &names);
        self.tell_names(&snapshot);
        self.forget_dead(&reading);
        self.readings_made += 1;
        let observation = Arc::new(Observation {
            snapshot,
            counters: self.upkeep.counters(),
            overhead: self.upkeep.overhead(),
            cpu: reading.cpu,
            cgroup_rows: reading.rows.len(),
            drops: reading.drops,
            maps: self.sensors.map_use(),
            programs: self.sensors.program_use(&reading.cpu),
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
            ids.filter(|id| *id != CgroupId::IDLE && tree.place(*id).is_none()).collect()
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
        let ids = reading.rows.iter().map(|row| row.cgroup);
        let dead: Vec<_> = ids.filter(|id| self.tree.died_before(*id, last_ns)).collect();
        if !dead.is_empty()
            && let Err(error) = self.sensors.forget_cgroups(&dead)
        {
            debug!(cgroups = dead.len(), %error, "not forgotten");
        }
        self.tree.prune(reading.at_ns);
        if let Some(pods) = &mut self.pods {
            pods.prune(reading.at_ns, |pod| self.tree.has_pod(pod));
        }
    }

    /// Says whether the containers that run here have names.
    fn tell_names(&self, snapshot: &Snapshot) {
        if self.pods.is_none() {
            return;
        }
        let (containers, unresolved) = self.ledger.containers();
        let (state, detail) = if unresolved == 0 {
            let waiting = snapshot.cgroups_unresolved;
            (State::Healthy, format!("{containers} containers and sandboxes; the counts of {waiting} wait for a name"))
        } else {
            (State::Degraded, format!("{unresolved} of {containers} containers are of pods that the API does not know"))
        };
        self.settings.status.set("names", state, detail);
    }

    /// Ends the profile window, hands it on and says when it had begun. The last one has all that still waits for a name.
    fn profile(&mut self, last: bool) -> Option<SystemTime> {
        let (_, taker) = self.settings.profiles.as_ref()?;
        let taker = taker.clone();
        if let Err(error) = self.take_samples() {
            warn!(%error, "failed to read the samples: they will be in the next profile");
            return None;
        }
        let drops = self.sensors.drops().unwrap_or_default();
        let mut losses = Vec::new();
        for (reason, count) in drops {
            let new = count - self.drops_then.insert(reason, count).unwrap_or(0);
            if new > 0 && !matches!(reason, "cgroup_table" | "event_read" | "cgroup_ring") {
                losses.push((reason, new));
            }
        }
        let samples = self.samples.end(last);
        let samples = self.name_samples(samples, last);
        let window = std::mem::replace(&mut self.window, (SystemTime::now(), Instant::now()));
        let profile = RawProfile {
            start: window.0,
            duration: window.1.elapsed(),
            samples,
            losses,
            sample_period: self.settings.sample_period,
        };
        let handed_on = taker.try_send(profile).is_ok();
        self.profiles_dropped += u64::from(!handed_on);
        let forgotten = self.samples.forget();
        if let Err(error) = self.sensors.forget_sent(&forgotten) {
            debug!(%error, "stacks not forgotten");
        }
        self.samples.learn_functions();
        handed_on.then_some(window.0)
    }

    /// Finds whose the samples of a window are. Those without a name yet come with a later window, if there is one.
    fn name_samples(&mut self, samples: Vec<RawSample>, last: bool) -> Vec<ProfileSample> {
        let now_ns = monotonic_ns();
        let names = names(&self.tree, self.pods.as_ref(), &self.settings);
        let rules = &self.settings.rules;
        let nameless = std::mem::take(&mut self.nameless);
        let mut named = Vec::with_capacity(samples.len());
        let mut wakers: HashMap<WakerId, Option<Arc<Waker>>> = HashMap::new();
        let samples = samples.into_iter().map(|sample| (self.tree.place(sample.key.cgroup).cloned(), sample));
        for (place, sample) in samples.chain(nameless.into_iter().map(|(place, sample)| (Some(place), sample))) {
            let stack = sample.key.stack.and_then(|id| self.samples.stack(id));
            let path = place.as_ref().map(|place| Arc::clone(&place.path));
            let subject = match place {
                Some(place) => {
                    let owner = names.owner(&place, now_ns);
                    let has_room = !last && self.nameless.len() < self.settings.max_samples;
                    if has_room && matches!(owner, Owner::Unknown) {
                        self.nameless.push((place, sample));
                        continue;
                    }
                    Subject::of(&place, &owner, rules)
                }
                None => Subject::unresolved(),
            };
            let reason = self.samples.reason(&sample.key);
            let known = Known::new(&sample.key, path.as_deref().unwrap_or_default(), &subject, reason);
            if !self.settings.filter.passes(sample.key.filters, &known) {
                continue;
            }
            let waker = sample.key.waker.and_then(|id| {
                let name = || {
                    let waker = self.samples.waker(id)?;
                    let place = waker.cgroup.and_then(|cgroup| names.tree.place(cgroup));
                    let subject = match (waker.cgroup, place) {
                        (None, _) => "(interrupt)".into(),
                        (_, None) => Subject::unresolved().to_string(),
                        (_, Some(place)) => Subject::of(place, &names.owner(place, now_ns), rules).to_string(),
                    };
                    Some(Arc::new(Waker { thread: waker.thread.clone(), subject }))
                };
                wakers.entry(id).or_insert_with(name).clone()
            });
            named.push(ProfileSample { subject, stack, reason, waker, sample });
        }
        named
    }
}

fn names<'a>(tree: &'a Tree, pods: Option<&'a PodIndex>, settings: &CollectorSettings) -> Names<'a> {
    let patience = settings.patience.unwrap_or_default();
    Names { tree, pods, patience_ns: u64::try_from(patience.as_nanos()).unwrap_or(u64::MAX) }
}
