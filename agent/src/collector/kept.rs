//! The collector's part of a restart: saves a checkpoint with each reading, and restores it in the next agent.

use crate::model::usage::SeenTime;
use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use tracing::warn;

use super::Collector;
use super::readings::{Deltas, Readings};
use crate::{
    attribution::{Ledger, shape::Shape},
    cgroups::Tree,
    checkpoint::{Found, Keeper, Kept},
    kernel::{Before, Begin, CpuTotals, RawReading, Sensors, clock::monotonic_ns},
    model::{
        facts::Facts,
        ids::CgroupId,
        status::{State, Status},
        usage::Usage,
    },
    pods::{PodIndex, kept::Pods},
};

const PART: &str = "restart";

/// The checkpoint of the previous agent, and the store for new checkpoints.
#[derive(Debug)]
pub struct Resumed {
    keeper: Option<Keeper>,
    kept: Option<Kept>,
    started: SystemTime,
}

impl Resumed {
    /// Looks for a checkpoint of the previous agent; without a keeper, no checkpoint is read or written. Reports in the
    /// status how this agent starts, and logs a warning for counts that are lost.
    #[must_use]
    pub fn find(keeper: Option<Keeper>, sensors: &Sensors, status: &Status) -> Self {
        let now = SystemTime::now();
        let Some(mut keeper) = keeper else { return Self { keeper: None, kept: None, started: now } };
        let file = keeper.path().display().to_string();
        let found = match keeper.find() {
            Found::Kept(kept) => Ok(Some(*kept)),
            Found::Nothing => Ok(None),
            Found::Unusable(why) => Err(why),
        };
        let (how, detail) = match (&found, sensors.begin()) {
            (Ok(Some(_)), Begin::Adopted) => {
                ("adopted", "the programs and counts of the agent before go on".to_owned())
            }
            (Ok(Some(_)), Begin::TookOver) if !sensors.unreadable().is_empty() => {
                let lost = sensors.unreadable().join("`, `");
                (
                    "incomplete",
                    format!("{}, without {GAP}, of `{lost}`: it cannot be read", taken_over(sensors.before())),
                )
            }
            (Ok(Some(_)), Begin::TookOver) => ("taken_over", taken_over(sensors.before())),
            (Ok(Some(_)), Begin::Anew) => {
                warn!(lost = GAP, "the agent before had other programs or settings, or its pins are gone");
                ("anew", format!("the series of the agent before go on, without {GAP}"))
            }
            (Ok(None), Begin::Anew) => ("first", "counts begin with this agent, and stay when it ends".to_owned()),
            (Ok(None), Begin::Adopted | Begin::TookOver) => {
                warn!(file, lost = LOST, "the programs of an agent before go on, but what it kept is not there");
                ("adopted", format!("the programs of the agent before go on, without {LOST}"))
            }
            (Err(why), _) => {
                warn!(file, why, lost = LOST, "what the agent before kept cannot be used");
                ("unusable", format!("`{file}` cannot be used ({why}): this agent goes on without {LOST}"))
            }
        };
        status.set(PART, State::Healthy, detail);
        let kept = found.unwrap_or_default();
        keeper.began(kept.as_ref().map(|kept| &kept.starts), how);
        let since_epoch = |kept: &Kept| UNIX_EPOCH + Duration::from_nanos(kept.started_unix_ns);
        let started = kept.as_ref().map_or(now, since_epoch);
        Self { keeper: Some(keeper), kept, started }
    }
}

fn taken_over(before: &[Before]) -> String {
    let astray: BTreeSet<_> =
        before.iter().flat_map(|before| &before.astray).map(|field| format!("`{field}`")).collect();
    let astray = Vec::from_iter(astray).join(", ");
    let anew = if astray.is_empty() {
        String::new()
    } else {
        format!(", and what only one of them has begins anew: {astray}")
    };
    format!("other programs have taken over from those of the agent before{anew}")
}

const GAP: &str = "what was counted since its last reading";
const LOST: &str = "what ended rows had counted, and counts that waited for a name";

/// The restored state of the collector.
#[derive(Debug)]
pub(super) struct Parts {
    pub(super) ledger: Ledger,
    pub(super) tree: Tree,
    pub(super) pods: PodIndex,
    pub(super) readings_made: u64,
    pub(super) profiles_dropped: u64,
    pub(super) seen: SeenTime,
    /// Counts of previous programs that are not posted to the ledger yet.
    pub(super) unposted: Vec<(CgroupId, Usage)>,
}

/// The place where the collector saves its checkpoints.
#[derive(Debug)]
pub(super) struct Keeping {
    keeper: Option<Keeper>,
    shape: Shape,
    started: SystemTime,
    identity: String,
    failed: bool,
}

impl Resumed {
    /// Restores the state from the checkpoint, and adds the counts of previous programs that it does not include yet.
    pub(super) fn resume(self, sensors: &mut Sensors, readings: &mut Readings) -> (Keeping, Parts) {
        let shape = Shape::of(sensors.counters());
        let identity = sensors.identity();
        let (is_kept, kept) = (self.kept.is_some(), self.kept.unwrap_or_default());
        let theirs = Shape::of_slots(kept.slots);
        let same_rows = kept.identity == identity;
        // The totals of these programs begin at zero. If the identity of the checkpoint is known here, its base is
        // added; otherwise, the totals that the previous agent had shown are added.
        let is_before = |before: &Before| before.identity == kept.identity;
        let known = same_rows || sensors.before().iter().any(is_before);
        let mut totals = if known { kept.base } else { kept.shown };
        let mut unposted = Vec::new();
        let mut tree = Tree::resume(kept.tree);
        for before in sensors.before().iter().filter(|before| !kept.folded.contains(&before.identity)) {
            let mut rows = Readings::of_groups(theirs.slots().iter().map(|(_, group)| *group).collect());
            if is_before(before) {
                rows.resume(before.posted(&kept.posted));
            }
            let Deltas { usages: deltas, unprofiled, .. } = rows.advance(&before.reading);
            let as_ours = |usage: &Usage| shape.usage(&theirs.words(usage), theirs.labels());
            unposted.extend(deltas.iter().map(|(cgroup, usage)| (*cgroup, as_ours(usage))));
            unposted.extend(
                unprofiled.iter().map(|(cgroup, times)| (*cgroup, Facts::of_waits_without_samples(times).into())),
            );
            for (label, number) in self::totals(&before.reading.cpu, before.reading.drops.iter().copied(), &theirs) {
                let total = totals.entry(label).or_default();
                *total = total.wrapping_add(number);
            }
            before.changes.iter().for_each(|change| tree.apply(change.clone(), monotonic_ns()));
        }
        // The time since the last reading is not counted as CPU time if the counts in that time are lost.
        let without_gap = known && sensors.unreadable().is_empty();
        sensors.resume(&totals_of(&totals, &shape), &totals, kept.ledger.read_ns.filter(|_| without_gap));
        if same_rows {
            readings.resume(kept.posted);
        }
        let pods = Pods::of(kept.pods);
        let mut ledger = Ledger::resume(kept.ledger, &kept.labels, &shape, &pods, self.started, SystemTime::now());
        if !is_kept && sensors.begin() != Begin::Anew {
            ledger.show_found_counts(monotonic_ns());
        }
        let parts = Parts {
            ledger,
            tree,
            pods: PodIndex::resume(&kept.told, &pods),
            readings_made: kept.readings,
            profiles_dropped: kept.profiles_dropped,
            seen: kept.seen,
            unposted,
        };
        (Keeping { keeper: self.keeper, shape, started: self.started, identity, failed: false }, parts)
    }
}

impl Collector {
    /// Saves all changes of this reading in the checkpoint. Only then the reading may be shown: an agent that restores
    /// the checkpoint never shows smaller counts.
    pub(super) fn keep(&mut self, reading: &RawReading) {
        let Some(keeper) = &self.keeping.keeper else { return };
        let shape = &self.keeping.shape;
        let mut pods = Pods::default();
        let told = self.pods.as_ref().map(|index| index.keep(&mut pods)).unwrap_or_default();
        let ledger = self.ledger.keep(shape, &mut pods);
        let (base, base_drops) = self.sensors.base();
        let kept = Kept {
            identity: self.keeping.identity.clone(),
            folded: self.sensors.before().iter().map(|before| before.identity.clone()).collect(),
            boot: keeper.boot().to_owned(),
            started_unix_ns: unix_ns(self.keeping.started),
            starts: keeper.stats().starts.clone(),
            labels: shape.labels().to_vec(),
            slots: shape.slots().to_vec(),
            posted: self.readings.keep(),
            base: totals(base, base_drops.iter().map(|(reason, count)| (*reason, *count)), shape),
            shown: totals(&reading.cpu, reading.drops.iter().copied(), shape),
            readings: self.readings_made,
            profiles_dropped: self.profiles_dropped,
            seen: self.samples.seen(),
            tree: self.tree.keep(),
            pods: pods.into_kept(),
            told,
            ledger,
        };
        let Some(keeper) = &mut self.keeping.keeper else { return };
        let written = keeper.keep(&kept);
        let failed = written.is_err();
        if let Err(error) = written {
            let detail = format!(
                "failed to write `{}`: {error} (a restart now would lose counts; make room, or set `restart.pin: false`)",
                keeper.path().display()
            );
            self.settings.status.set(PART, State::Degraded, detail);
        } else if self.keeping.failed {
            self.settings.status.set(PART, State::Healthy, "what a restart needs is kept again");
        }
        self.keeping.failed = failed;
        if !failed {
            self.sensors.forget_before();
        }
    }

    /// Returns the restart statistics for the metrics; `None` if no checkpoint is kept.
    pub(super) fn restart_stats(&self) -> Option<crate::checkpoint::RestartStats> {
        self.keeping.keeper.as_ref().map(|keeper| keeper.stats().clone())
    }
}

fn totals<'a>(cpu: &CpuTotals, drops: impl Iterator<Item = (&'a str, u64)>, shape: &Shape) -> BTreeMap<String, u64> {
    let mut cpu = *cpu;
    let mut totals: BTreeMap<String, u64> =
        cpu.numbers(shape.slots()).into_iter().map(|(label, number)| (label, *number)).collect();
    totals.extend(drops.map(|(reason, count)| (format!("drop {reason}"), count)));
    totals.retain(|_, number| *number != 0);
    totals
}

fn totals_of(totals: &BTreeMap<String, u64>, shape: &Shape) -> CpuTotals {
    let mut cpu = CpuTotals::default();
    for (label, number) in cpu.numbers(shape.slots()) {
        *number = totals.get(&label).copied().unwrap_or(0);
    }
    cpu
}

fn unix_ns(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}
