//! The one thread that reads the kernel: it makes readings on request, and empties rings and cuts profile windows at
//! fixed intervals.
//!
//! Map reads block, so this thread makes them, and not a runtime worker. It alone owns the tree, the ledger and the
//! table of stacks, so they need no locks. Readings are coalesced: a request within a second after a reading gets that
//! reading.

mod choices;
mod copies;
mod cuts;
mod levels;
mod profiles;
mod reader;
pub mod readings;
mod restart;
mod sampling;
mod scrapers;
mod settings;
mod subjects;

use crate::model::facts::Fact;
use std::{
    collections::{HashMap, HashSet},
    io,
    sync::{Arc, PoisonError, mpsc},
    thread::{self, JoinHandle},
    time::{Duration, Instant, SystemTime},
};

use tracing::{debug, warn};

use crate::{
    attribution::{Ledger, Names, Snapshot},
    cgroups::{Place, Tree, walk},
    checkpoint::RestartStats,
    filter::Filters,
    kernel::{
        CpuTotals, MapUse, OpenCounter, ProgramUse, RawReading, Sensors,
        clock::{monotonic_ns, thread_cpu, wall},
        records::{RawSample, StackRecord},
    },
    limits::{Limits, OverheadUse, losses::Losses},
    model::{
        hard_interrupts::HardInterrupts,
        ids::{CgroupId, Pid},
        status::State,
        usage::{SeenTime, Usage},
    },
    pods::PodIndex,
    stacks::{CutSamples, Proofs, Window},
};
use readings::{Deltas, Readings};

pub use copies::UnwinderChannels;
use cuts::Cuts;
pub use levels::find_levels;
use profiles::Asks;
pub use reader::{ActiveFilter, Purpose, ReadError, Reader};
use reader::{Changes, FirstUse, Latest, Request};
pub use restart::Checkpoint;
use restart::{Checkpointer, Restored};
use sampling::Sampling;
pub use sampling::SamplingStates;
pub use settings::CollectorSettings;

/// The rings are emptied at this interval. They hold some thousand records.
const DRAIN_EVERY: Duration = Duration::from_millis(250);
/// The longest time between two readings: each reading lets rows of dead cgroups leave the kernel's table.
const READ_AT_LEAST_EVERY: Duration = Duration::from_secs(10);

/// The result of a reading.
#[derive(Clone, Debug)]
pub struct Observation {
    /// The counts of all rows.
    pub snapshot: Snapshot,
    /// The configured events and their states.
    pub counters: Arc<[OpenCounter]>,
    /// The CPU time and memory that podperf takes.
    pub overhead: OverheadUse,
    /// Sums of the per-CPU state.
    pub cpu: CpuTotals,
    /// Hard interrupts by name; empty without the sensor `interrupts`.
    pub hard_interrupts: HardInterrupts,
    /// Losses by reason.
    pub drops: Vec<(&'static str, u64)>,
    /// Number of rows in the kernel's table of cgroups.
    pub cgroup_rows: usize,
    /// The maps and their memory.
    pub maps: Vec<MapUse>,
    /// The programs and their CPU time.
    pub programs: Vec<ProgramUse>,
    /// Number of readings so far.
    pub readings: u64,
    /// The time that this reading took.
    pub took: Duration,
    /// Number of profile windows that were dropped because symbols took too long.
    pub profiles_dropped: u64,
    /// The time of samples whose cached stack was checked.
    pub seen: SeenTime,
    /// The stacks that recipes had proved, and that were compared.
    pub proofs: Proofs,
    /// The samples on the CPU whose stack is cut.
    pub cut_samples: CutSamples,
    /// Statistics of checkpoints; `None` without checkpoints.
    pub restart: Option<RestartStats>,
}

/// Walks the cgroup tree and starts the thread. `sensors` must have been started before, so that no cgroup is missed.
///
/// # Errors
///
/// When the cgroup tree cannot be walked or the thread cannot be started.
pub fn start(
    mut sensors: Sensors,
    settings: CollectorSettings,
    checkpoint: Checkpoint,
) -> io::Result<(Reader, JoinHandle<()>)> {
    let (sender, requests) = mpsc::channel();
    let (pod_changes, latest) = (Changes::default(), Latest::new(settings.coalesce));
    let filters = Filters::new(settings.filter.clone());
    sensors.set_filter_terms(&filters.kernel_terms())?;
    let mut readings = Readings::new(sensors.counters(), sensors.most_per_ns());
    let (checkpointer, restored) = checkpoint.restore(&mut sensors, &mut readings);
    let Restored { ledger, mut tree, pods, readings_made, profiles_dropped, seen, unposted } = restored;
    let (memory, mode) = (settings.memory.clone(), settings.mode);
    let answering = settings.answering.clone();
    let limits = Limits::new(settings.overhead, answering, memory, mode, &sensors, settings.status.clone());
    let mut samples = Window::new(settings.max_stacks, settings.max_samples, seen);
    profiles::learn_functions(&mut samples, &settings);
    tree.walked(walk(&settings.cgroup_root)?, monotonic_ns());
    // Losses under previous agents are in no profile of this agent, and they are not reported as new.
    let drops_then = sensors.drops()?;
    let mut losses = Losses::since(&drops_then);
    let (state, detail) = losses.note(&drops_then, monotonic_ns());
    settings.status.set("losses", state, detail);
    let drops_then = drops_then.into_iter().collect();
    let mut collector = Collector {
        sensors,
        limits,
        readings,
        tree,
        pods: settings.patience.is_some().then_some(pods),
        pod_changes: Changes::clone(&pod_changes),
        ledger,
        choices_are_old: true,
        choose_from: Instant::now(),
        nameless: Vec::new(),
        for_filters: Duration::ZERO,
        seen_processes: HashSet::new(),
        samples,
        filters,
        window: (SystemTime::now(), Instant::now()),
        drops_then,
        sampling: Sampling::default(),
        samples_fail: false,
        losses,
        last: None,
        read_at_ns: None,
        latest: latest.clone(),
        readings_made,
        profiles_dropped,
        checkpointer,
        unposted,
        on_the_way: Arc::default(),
        cuts: Cuts::new(),
        settings,
    };
    let thread = thread::Builder::new().name("podperf-kernel".into()).spawn(move || collector.run(&requests))?;
    Ok((Reader::new(sender, pod_changes, latest), thread))
}

#[derive(Debug)]
struct Collector {
    sensors: Sensors,
    limits: Limits,
    readings: Readings,
    tree: Tree,
    /// The pods of this node; `None` if no source of pods is connected.
    pods: Option<PodIndex>,
    pod_changes: Changes,
    ledger: Ledger,
    /// Set if cgroups or pods may have changed since the tables of sensors that choose namespaces were filled.
    choices_are_old: bool,
    /// The time from which these tables may be filled again without a reading.
    choose_from: Instant,
    /// Samples of the last windows whose pod had no name yet.
    nameless: Vec<(Place, RawSample)>,
    /// CPU time for the filters of recordings, in the last window.
    for_filters: Duration,
    /// Processes of new stacks in this window, with their outermost addresses.
    seen_processes: HashSet<(Pid, Option<u64>)>,
    /// The samples since the last profile.
    samples: Window,
    /// The filter of the agent's own profiles, and the filters of recordings.
    filters: Filters,
    /// The start of the current profile window.
    window: (SystemTime, Instant),
    /// Losses at the last profile.
    drops_then: HashMap<&'static str, u64>,
    /// Finds out whether samples on the CPU come.
    sampling: Sampling,
    /// Set if the last attempt to read samples failed; the failure has been logged.
    samples_fail: bool,
    /// Keeps track of losses for the status page.
    losses: Losses,
    last: Option<(Instant, Arc<Observation>)>,
    /// `CLOCK_MONOTONIC` of the last reading.
    read_at_ns: Option<u64>,
    /// The last reading, which readers get without waking this thread.
    latest: Latest,
    readings_made: u64,
    profiles_dropped: u64,
    checkpointer: Checkpointer,
    /// Counts from before the start of this agent that are not posted to the ledger yet.
    unposted: Vec<(CgroupId, Usage)>,
    /// Each window on its way to the symbolizer holds one more reference.
    on_the_way: Arc<()>,
    /// Requests that wait for the window to be cut.
    cuts: Cuts<Asks>,
    settings: CollectorSettings,
}

impl Collector {
    fn run(&mut self, requests: &mpsc::Receiver<Request>) {
        loop {
            self.settings.heartbeat.beat();
            let due_in = self.cuts.due_in(Instant::now()).unwrap_or(DRAIN_EVERY);
            let request = requests.recv_timeout(due_in.min(DRAIN_EVERY));
            self.drain();
            self.choose_new_cgroups();
            match request {
                Ok(Request::Read { purpose, charged, reply }) => {
                    let observation = self.observation(self.settings.coalesce, charged);
                    // A second use of the same reading is no new export and no new scrape.
                    let new = if observation.is_ok() { self.latest.export(purpose) } else { FirstUse::default() };
                    if new.export {
                        self.ledger.exported();
                    }
                    if new.scrape {
                        self.ledger.note_scrape();
                    }
                    // The client may have gone.
                    reply.send(observation).ok();
                }
                Ok(Request::Cut(reply)) => self.cuts.ask(Asks::Cut(reply)),
                Ok(Request::Filter(filter, reply)) => self.cuts.ask(Asks::Filter(filter, reply)),
                Ok(Request::Unfilter(slot)) => {
                    self.filters.remove(slot);
                    self.set_filters();
                }
                Ok(Request::Subjects(reply)) => {
                    reply.send(self.subjects()).ok();
                }
                Ok(Request::Rules(rules, reply)) => {
                    self.settings.rules = *rules;
                    reply.send(()).ok();
                }
                Ok(Request::MaxMemory(max)) => self.limits.set_max_memory(max),
                Ok(Request::Pods) => {
                    let changes = self.pod_changes.lock().unwrap_or_else(PoisonError::into_inner).take();
                    self.choices_are_old = true;
                    if let Some(pods) = &mut self.pods {
                        changes.into_iter().for_each(|change| pods.apply(change, monotonic_ns()));
                    }
                }
                Ok(Request::Unwound(times)) => {
                    let level = self.settings.rules.level;
                    // A cgroup's first stacks may have names before a reading has opened its account.
                    if times.iter().any(|(subject, _)| !self.ledger.has_account(subject, level))
                        && let Err(error) = self.observation(Duration::ZERO, false)
                    {
                        debug!(%error, "no reading");
                    }
                    times.iter().for_each(|(subject, times)| self.ledger.add_unwound(subject, level, times));
                }
                Err(mpsc::RecvTimeoutError::Timeout) => {
                    if let Err(error) = self.observation(READ_AT_LEAST_EVERY, false) {
                        debug!(%error, "no reading");
                    }
                }
                Ok(Request::Stop) | Err(mpsc::RecvTimeoutError::Disconnected) => {
                    let waiting = self.cuts.take();
                    self.cut_for(waiting, true);
                    return;
                }
            }
            let due = self.cuts.due(Instant::now());
            if !due.is_empty() {
                self.cut_for(due, false);
            }
            if self.settings.profiles.as_ref().is_some_and(|(every, _)| self.window.1.elapsed() >= *every) {
                self.profile(false, false);
            }
        }
    }

    /// Reads the new records from the rings, and takes unwound stacks.
    fn drain(&mut self) {
        let unwound = self.unwound();
        let now_ns = monotonic_ns();
        let (tree, samples, choices_are_old) = (&mut self.tree, &mut self.samples, &mut self.choices_are_old);
        let (seen, new_processes, most) =
            (&mut self.seen_processes, &self.settings.new_processes, self.settings.max_stacks);
        self.sensors.drain(
            |record| {
                // An exec gives a process new addresses. If the channel is full, the process is read together with its
                // window. The kernel's frames need nothing of the process.
                if let StackRecord::Stack(stack) = &record
                    && let outermost @ Some(_) = stack.user.last().copied()
                    && seen.len() < most
                    && seen.insert((stack.process, outermost))
                {
                    new_processes.try_send(stack.process).ok();
                }
                samples.record(record);
            },
            |record| {
                *choices_are_old = true;
                tree.apply(record, now_ns);
            },
        );
        self.add_unwound(unwound);
    }

    /// Returns the last observation if it is younger than `age`; otherwise makes a new one. If `charged`, the account
    /// of readers pays for it.
    fn observation(&mut self, age: Duration, charged: bool) -> Result<Arc<Observation>, ReadError> {
        if let Some((at, last)) = self.last.as_ref().filter(|(at, _)| at.elapsed() < age) {
            debug!(age = ?at.elapsed(), "coalesced");
            return Ok(Arc::clone(last));
        }
        // Without this reader, the agent would not have made this reading yet.
        let for_a_reader = charged && self.last.as_ref().is_some_and(|(at, _)| at.elapsed() < READ_AT_LEAST_EVERY);
        let (start, spent) = (Instant::now(), thread_cpu());
        let failed = |error| ReadError::Kernel(Arc::new(error));
        // Ongoing waits are charged together with the samples, so the rows are read after them.
        self.take_samples().map_err(failed)?;
        let reading = self.sensors.read().map_err(failed)?;
        let taken = wall(reading.at_ns);
        self.mind_the_tree(&reading);
        self.name_levels();
        // Names also come with time, and with a walk. A container that a reading shows by name is chosen.
        self.choices_are_old = true;
        self.choose_cgroups();
        let Deltas { usages: mut deltas, doubtful, unprofiled } = self.readings.advance(&reading);
        let without_stacks = self.limits.stacks_are_left_out();
        self.samples.add_unprofiled(&unprofiled, reading.at_ns, !without_stacks);
        if without_stacks && self.settings.sample_period.is_some() {
            readings::count_unsampled(&mut deltas);
        }
        readings::join(&mut deltas, self.samples.take_profiled());
        deltas.append(&mut self.unposted);
        let ran_ns: u128 = deltas.iter().map(|(_, usage)| usage.facts[Fact::ON_CPU]).sum();
        let maps = self.sensors.map_use();
        let programs = self.sensors.program_use(&reading.cpu);
        self.mind_samples(&programs, ran_ns, without_stacks);
        self.limits.apply(&mut self.sensors, &reading, &doubtful, maps.iter().map(|map| map.bytes).sum());
        let names = names(&self.tree, self.pods.as_ref(), &self.settings);
        self.ledger.begin_reading(taken, reading.at_ns);
        self.ledger.reveal(self.latest.scrapes());
        let ran_ns = ran_ns.try_into().unwrap_or(u64::MAX);
        self.ledger.pass_node_time(reading.online_ns, ran_ns, reading.cpu.idle_ns, reading.stolen_ns);
        self.ledger.post(deltas, &names, &self.settings.rules, reading.at_ns);
        self.ledger.settle(&names, &self.settings.rules, reading.at_ns);
        let snapshot = self.ledger.snapshot(taken, reading.cpu.idle_ns, &names);
        self.report_names(&snapshot);
        let (state, detail) = self.losses.note(&reading.drops, reading.at_ns);
        self.settings.status.set("losses", state, detail);
        self.readings_made += 1;
        // The checkpoint is saved before the reading is shown, and before posted counts are forgotten.
        self.save_checkpoint(&reading);
        self.forget_dead(&reading, &maps);
        let observation = Arc::new(Observation {
            snapshot,
            counters: self.limits.counters(),
            overhead: self.limits.overhead(),
            cpu: reading.cpu,
            cgroup_rows: reading.rows.len(),
            hard_interrupts: reading.hard_interrupts,
            drops: reading.drops,
            maps,
            programs,
            readings: self.readings_made,
            took: start.elapsed(),
            profiles_dropped: self.profiles_dropped,
            seen: self.samples.seen(),
            proofs: self.samples.proofs(),
            cut_samples: self.samples.cut_samples(),
            restart: self.restart_stats(),
        });
        let now = Instant::now();
        self.last = Some((now, Arc::clone(&observation)));
        self.latest.publish(now, &observation);
        if for_a_reader {
            // A thread runs on at most one CPU, even if its CPU clock shows more time.
            self.settings.answering.charge(thread_cpu().saturating_sub(spent).min(start.elapsed()));
        }
        Ok(observation)
    }

    /// Walks the tree again if the cgroup sensor lost records, or if a cgroup counts that was never announced.
    fn mind_the_tree(&mut self, reading: &RawReading) {
        let lost = |drops: &[(&'static str, u64)]| {
            drops.iter().find(|(reason, _)| *reason == "cgroup_ring").map_or(0, |(_, count)| *count)
        };
        let before = self.last.as_ref().map_or(0, |(_, last)| lost(&last.drops));
        let unknown = |tree: &Tree| -> HashSet<CgroupId> {
            let ids = reading.rows.iter().map(|row| row.cgroup).chain(reading.charged.iter().copied());
            ids.filter(|id| *id != CgroupId::IDLE && tree.place(*id).is_none()).collect()
        };
        let news = unknown(&self.tree).iter().any(|id| !self.tree.is_missing(*id));
        if !news && !self.tree.is_stale() && lost(&reading.drops) == before {
            return;
        }
        match walk(&self.settings.cgroup_root) {
            Ok(found) => {
                self.tree.walked(found, monotonic_ns());
                self.tree.note_missing(&unknown(&self.tree), monotonic_ns());
            }
            Err(error) => warn!(root = %self.settings.cgroup_root.display(), %error, "failed to walk the cgroup tree"),
        }
    }

    /// Reports in the status whether the containers on this node have names.
    fn report_names(&self, snapshot: &Snapshot) {
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
}

fn names<'a>(tree: &'a Tree, pods: Option<&'a PodIndex>, settings: &CollectorSettings) -> Names<'a> {
    let patience = settings.patience.unwrap_or_default();
    Names { tree, pods, patience_ns: u64::try_from(patience.as_nanos()).unwrap_or(u64::MAX) }
}
