//! The collector's part of a restart: saves a checkpoint with each reading, and restores it in the next agent.

use crate::model::usage::SeenTime;
use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use tracing::{debug, warn};

use super::Collector;
use super::readings::{Deltas, Readings};
use crate::{
    attribution::{Ledger, schema::Schema},
    cgroups::{FlatPath, Tree},
    checkpoint::{self, Found, Store},
    kernel::{Begin, CpuTotals, MapUse, Previous, RawReading, Sensors, clock::monotonic_ns},
    model::{
        facts::Facts,
        functions,
        hard_interrupts::HardInterrupts,
        ids::CgroupId,
        status::{State, Status},
        usage::Usage,
    },
    pods::{PodIndex, saved_pods::Pods},
};

const PART: &str = "restart";
/// The kernel's table of the cgroups that have rows.
const CGROUPS: &str = "cgroups";

/// The checkpoint of the previous agent, and the store for new checkpoints.
#[derive(Debug)]
pub struct Checkpoint {
    store: Option<Store>,
    state: Option<checkpoint::State>,
    started: SystemTime,
}

impl Checkpoint {
    /// Looks for a checkpoint of the previous agent; without a store, no checkpoint is read or written. Reports in the
    /// status how this agent starts, and logs a warning for counts that are lost.
    #[must_use]
    pub fn find(store: Option<Store>, sensors: &Sensors, status: &Status) -> Self {
        let now = SystemTime::now();
        let Some(mut store) = store else { return Self { store: None, state: None, started: now } };
        let file = store.path().display().to_string();
        let found = match store.load() {
            Found::State(saved) => Ok(Some(*saved)),
            Found::Nothing => Ok(None),
            Found::Unusable(why) => Err(why),
        };
        let (how, detail) = match (&found, sensors.begin()) {
            (Ok(Some(_)), Begin::Adopted) => {
                ("adopted", "the programs and counts of the previous agent go on".to_owned())
            }
            (Ok(Some(_)), Begin::TookOver) if !sensors.unreadable().is_empty() => {
                let lost = sensors.unreadable().join("`, `");
                (
                    "incomplete",
                    format!("{}, without {GAP}, of `{lost}`: it cannot be read", taken_over(sensors.previous())),
                )
            }
            (Ok(Some(_)), Begin::TookOver) => ("taken_over", taken_over(sensors.previous())),
            (Ok(Some(_)), Begin::Anew) => {
                warn!(lost = GAP, "the previous agent had other programs or settings, or its pins are gone");
                ("anew", format!("the series of the previous agent go on, without {GAP}"))
            }
            (Ok(None), Begin::Anew) => ("first", "counts begin with this agent, and stay when it ends".to_owned()),
            (Ok(None), Begin::Adopted | Begin::TookOver) => {
                warn!(file, lost = LOST, "the programs of a previous agent go on, but its state is not there");
                ("adopted", format!("the programs of the previous agent go on, without {LOST}"))
            }
            (Err(why), _) => {
                warn!(file, why, lost = LOST, "the state of the previous agent cannot be used");
                ("unusable", format!("`{file}` cannot be used ({why}): this agent goes on without {LOST}"))
            }
        };
        status.set(PART, State::Healthy, detail);
        let saved = found.unwrap_or_default();
        store.began(saved.as_ref().map(|saved| &saved.starts), how);
        let since_epoch = |saved: &checkpoint::State| UNIX_EPOCH + Duration::from_nanos(saved.started_unix_ns);
        let started = saved.as_ref().map_or(now, since_epoch);
        Self { store: Some(store), state: saved, started }
    }
}

fn taken_over(previous: &[Previous]) -> String {
    let unmatched: BTreeSet<_> =
        previous.iter().flat_map(|generation| &generation.unmatched).map(|field| format!("`{field}`")).collect();
    let unmatched = Vec::from_iter(unmatched).join(", ");
    let anew = if unmatched.is_empty() {
        String::new()
    } else {
        format!(", and what only one of them has begins anew: {unmatched}")
    };
    format!("other programs have taken over from those of the previous agent{anew}")
}

const GAP: &str = "what was counted since its last reading";
const LOST: &str = "what ended rows had counted, and counts that waited for a name";

/// The restored state of the collector.
#[derive(Debug)]
pub(super) struct Restored {
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
pub(super) struct Checkpointer {
    store: Option<Store>,
    schema: Schema,
    started: SystemTime,
    identity: String,
    failed: bool,
}

impl Checkpoint {
    /// Restores the state from the checkpoint, and adds the counts of previous programs that it does not include yet.
    pub(super) fn restore(self, sensors: &mut Sensors, readings: &mut Readings) -> (Checkpointer, Restored) {
        let on: Vec<_> = sensors.sensor_states().iter().map(|of| of.sensor).collect();
        let schema = Schema::of(sensors.counters()).naming(&on);
        let identity = sensors.identity();
        let (has_checkpoint, saved) = (self.state.is_some(), self.state.unwrap_or_default());
        let theirs = Schema::of_slots(saved.slots).naming(functions::saved(&saved.labels).as_slice());
        let same_rows = saved.identity == identity;
        // The totals of these programs begin at zero. If the identity of the checkpoint is known here, its base is
        // added; otherwise, the totals that the previous agent had shown are added.
        let is_saved = |generation: &Previous| generation.identity == saved.identity;
        let known = same_rows || sensors.previous().iter().any(is_saved);
        let names = HardInterrupts::of_numbers(&saved.shown).names();
        let mut totals = if known { saved.base } else { saved.shown };
        let mut unposted = Vec::new();
        let mut tree = Tree::restore(saved.tree);
        for generation in sensors.previous().iter().filter(|it| !saved.counted.contains(&it.identity)) {
            let mut rows = Readings::of_groups(theirs.slots().iter().map(|(_, group)| *group).collect());
            if is_saved(generation) {
                rows.restore(generation.posted(&saved.posted));
            }
            let Deltas { usages: deltas, unprofiled, .. } = rows.advance(&generation.reading);
            let as_ours = |usage: &Usage| schema.usage(&theirs.words(usage), theirs.labels());
            unposted.extend(deltas.iter().map(|(cgroup, usage)| (*cgroup, as_ours(usage))));
            unposted.extend(
                unprofiled.iter().map(|(cgroup, times)| (*cgroup, Facts::of_waits_without_samples(times).into())),
            );
            let RawReading { cpu, drops, hard_interrupts, .. } = &generation.reading;
            for (label, number) in self::totals(cpu, drops.iter().copied(), hard_interrupts, &theirs) {
                let total = totals.entry(label).or_default();
                *total = total.wrapping_add(number);
            }
            generation.changes.iter().for_each(|change| tree.apply(change.clone(), monotonic_ns()));
        }
        // The time since the last reading is not counted as CPU time if the counts in that time are lost.
        let without_gap = known && sensors.unreadable().is_empty();
        let read_ns = saved.ledger.read_ns.filter(|_| without_gap);
        sensors.restore(&totals_of(&totals, &schema), &totals, names, read_ns);
        if same_rows {
            readings.restore(saved.posted);
        }
        let pods = Pods::of(saved.pods);
        let mut ledger = Ledger::restore(saved.ledger, &saved.labels, &schema, &pods, self.started, SystemTime::now());
        if !has_checkpoint && sensors.begin() != Begin::Anew {
            ledger.show_found_counts(monotonic_ns());
        }
        let restored = Restored {
            ledger,
            tree,
            pods: PodIndex::restore(&saved.reported, &pods),
            readings_made: saved.readings,
            profiles_dropped: saved.profiles_dropped,
            seen: saved.seen,
            unposted,
        };
        (Checkpointer { store: self.store, schema, started: self.started, identity, failed: false }, restored)
    }
}

impl Collector {
    /// Saves all changes of this reading in the checkpoint. Only then the reading may be shown: an agent that restores
    /// the checkpoint never shows smaller counts.
    pub(super) fn save_checkpoint(&mut self, reading: &RawReading) {
        let Some(store) = &self.checkpointer.store else { return };
        let schema = &self.checkpointer.schema;
        let mut pods = Pods::default();
        let reported = self.pods.as_ref().map(|index| index.save(&mut pods)).unwrap_or_default();
        let ledger = self.ledger.save(schema, &mut pods);
        let (base, base_drops, base_interrupts) = self.sensors.base();
        let saved = checkpoint::State {
            identity: self.checkpointer.identity.clone(),
            counted: self.sensors.previous().iter().map(|it| it.identity.clone()).collect(),
            boot: store.boot().to_owned(),
            started_unix_ns: unix_ns(self.checkpointer.started),
            starts: store.stats().starts.clone(),
            labels: schema.labels().to_vec(),
            slots: schema.slots().to_vec(),
            posted: self.readings.save(),
            base: totals(base, base_drops.iter().copied(), base_interrupts, schema),
            shown: totals(&reading.cpu, reading.drops.iter().copied(), &reading.hard_interrupts, schema),
            readings: self.readings_made,
            profiles_dropped: self.profiles_dropped,
            seen: self.samples.seen(),
            tree: self.tree.save(),
            pods: pods.into_saved(),
            reported,
            ledger,
        };
        let Some(store) = &mut self.checkpointer.store else { return };
        let written = store.save(&saved);
        let failed = written.is_err();
        if let Err(error) = written {
            let detail = format!(
                "failed to write `{}`: {error} (a restart now would lose counts; make room, or set `restart.pin: false`)",
                store.path().display()
            );
            self.settings.status.set(PART, State::Degraded, detail);
        } else if self.checkpointer.failed {
            self.settings.status.set(PART, State::Healthy, "what a restart needs is kept again");
        }
        self.checkpointer.failed = failed;
        if !failed {
            self.sensors.forget_previous();
        }
    }

    /// Deletes the kernel's rows of cgroups that were dead before the last reading: this reading contains all their
    /// counts. While checkpoints fail, the rows stay: they are all that the next agent would have of these counts.
    pub(super) fn forget_dead(&mut self, reading: &RawReading, maps: &[MapUse]) {
        let Some(last_ns) = self.read_at_ns.replace(reading.at_ns) else { return };
        let room = maps.iter().find(|map| map.map == CGROUPS).map_or(0, |map| map.max_entries);
        if may_forget(self.checkpointer.failed, reading.rows.len() as u64, room) {
            let ids = reading.rows.iter().map(|row| row.cgroup);
            let dead: Vec<_> = ids.filter(|id| self.tree.died_before(*id, last_ns)).collect();
            self.readings.forget(&self.sensors.forget_cgroups(&dead));
        }
        let charged = reading.charged.iter().copied();
        let gone: Vec<_> = charged.filter(|id| self.tree.died_before(*id, last_ns)).collect();
        if let Err(error) = self.sensors.forget_charged(&gone) {
            debug!(%error, "removed cgroups are not forgotten");
        }
        if let Err(error) = self.sensors.sweep(reading.at_ns) {
            debug!(%error, "no sweep");
        }
        self.tree.prune(reading.at_ns);
        if let Some(pods) = &mut self.pods {
            let outside = self.tree.living().filter(|place| place.kube.is_none());
            let outside: HashSet<_> = outside.filter_map(|place| Some(FlatPath::parse(&place.path)?.id)).collect();
            pods.prune(reading.at_ns, |pod| self.tree.has_pod(pod), |id| outside.contains(id));
        }
    }

    /// Returns the restart statistics for the metrics; `None` without checkpoints.
    pub(super) fn restart_stats(&self) -> Option<checkpoint::RestartStats> {
        self.checkpointer.store.as_ref().map(|store| store.stats().clone())
    }
}

/// Returns true if rows of dead cgroups may leave the kernel's table: the last checkpoint contains their counts, or the
/// table is three quarters full, and living cgroups need its room more than a next agent needs these counts.
const fn may_forget(checkpoint_failed: bool, rows: u64, room: u64) -> bool {
    !checkpoint_failed || rows * 4 >= room * 3
}

fn totals<'a>(
    cpu: &CpuTotals,
    drops: impl Iterator<Item = (&'a str, u64)>,
    interrupts: &HardInterrupts,
    schema: &Schema,
) -> BTreeMap<String, u64> {
    let mut cpu = *cpu;
    let mut totals: BTreeMap<String, u64> =
        cpu.numbers(schema.slots()).into_iter().map(|(label, number)| (label, *number)).collect();
    totals.extend(drops.map(|(reason, count)| (format!("drop {reason}"), count)));
    totals.extend(interrupts.numbers());
    totals.retain(|_, number| *number != 0);
    totals
}

fn totals_of(totals: &BTreeMap<String, u64>, schema: &Schema) -> CpuTotals {
    let mut cpu = CpuTotals::default();
    for (label, number) in cpu.numbers(schema.slots()) {
        *number = totals.get(&label).copied().unwrap_or(0);
    }
    cpu
}

fn unix_ns(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_the_dead_stay_while_no_checkpoint_has_them_and_there_is_room() {
        assert!(may_forget(false, 1, 4096));
        assert!(!may_forget(true, 3071, 4096));
        assert!(may_forget(true, 3072, 4096));
        assert!(may_forget(true, 0, 0), "the size of the table is not known");
    }
}
