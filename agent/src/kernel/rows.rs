//! The rows of facts and counts: computes the sizes of their tables, reads them, and frees the rows of dead cgroups.
//!
//! The copies of a row are in two tables, see cgroup.bpf.h: in the slot of its id on CPUs where this cgroup was the
//! first in the slot, and by its id on the remaining CPUs. The rows of a sensor are in two tables of the same kind.

use std::{
    collections::{HashMap, HashSet},
    io,
    iter::once,
    mem,
};

use podperf_ebpf::abi;
use tracing::debug;

use super::{
    listed::{CGROUPS, List},
    object::{Object, fd, raw_program},
    raw::{self, Then},
    reading::{RawRow, sum},
};
use crate::model::{
    ids::CgroupId,
    sensor_words::SensorWords,
    sensors::{self, Sensor},
};

/// The map of the parts of waits that were charged before the waits ended.
pub(super) const ROWS_SO_FAR: &str = "rows_so_far";
const ARGUMENTS: usize = abi::PODPERF_FORGET_MAX as usize;
// A row of facts and counts begins with its id, as the rows of sensors do.
const _: () = assert!(mem::offset_of!(abi::podperf_cgroup, id) == 0);
/// The number of slots of cgroups for each slot of a sensor, whose rows may be large.
const SLOTS_OF_SENSORS: u32 = 4;
/// The time between two sweeps, in nanoseconds.
const SWEEP_EVERY_NS: u64 = 300_000_000_000;
/// The smallest number of slots of a sensor.
const LEAST_SLOTS: u32 = 64;

/// The sizes that are needed to find a row, and the copies to ignore.
#[derive(Debug)]
pub(super) struct Rows {
    slots: u32,
    copies: usize,
    /// The sensors that are on, each with its place among all sensors.
    sensors: Vec<(&'static Sensor, usize)>,
    /// Copies of dead cgroups' rows that are not freed because their CPUs were offline, by CPU and cgroup.
    stale: HashSet<(usize, u64)>,
    /// The time of the last sweep.
    swept_ns: u64,
    /// Cgroups with a row that the sweep of the last reading did not find in the kernel's list of cgroups.
    suspects: HashSet<u64>,
    /// CPUs that are interrupted only to free copies that they have.
    quiet: HashSet<usize>,
    /// The list of the cgroups that have rows.
    list: List,
}

impl Rows {
    /// Computes the tables for `max_cgroups` cgroups, on a machine with `copies` possible CPUs.
    pub(super) fn new(max_cgroups: u32, copies: usize, on: &[&'static Sensor]) -> Self {
        // A slot is the upper bits of a product, so their number is a power of two.
        let slots = max_cgroups.clamp(2, 1 << 31).next_power_of_two();
        let sensors = on.iter().map(|sensor| (*sensor, sensors::place_of(sensor))).collect();
        let (stale, suspects, quiet) = (HashSet::new(), HashSet::new(), HashSet::new());
        Self { slots, copies, sensors, stale, swept_ns: 0, suspects, quiet, list: List::new(max_cgroups, copies) }
    }

    /// Interrupts these CPUs only to free copies that they have.
    pub(super) fn sparing(mut self, quiet: &[u32]) -> Self {
        self.quiet = quiet.iter().map(|cpu| *cpu as usize).collect();
        self
    }

    /// Returns the size of `rows`.
    pub(super) const fn slots(&self) -> u32 {
        self.slots
    }

    /// Returns the shift from a product of 32 bits to a slot; the programs use the same.
    pub(super) const fn slot_shift(&self) -> u32 {
        u32::BITS - self.slots.ilog2()
    }

    /// Returns the number of slots of each sensor that is on.
    pub(super) fn sensor_slots(&self) -> u32 {
        (self.slots / SLOTS_OF_SENSORS).max(LEAST_SLOTS)
    }

    /// Returns the number of slots of this sensor. Without metrics of cgroups, it has one: the row of the node.
    pub(super) fn slots_of(&self, sensor: &Sensor) -> u32 {
        if sensor.families.is_empty() { 1 } else { self.sensor_slots() }
    }

    /// Returns the shift from a product of 32 bits to a slot of a sensor.
    pub(super) fn sensor_slot_shift(&self) -> u32 {
        u32::BITS - self.sensor_slots().ilog2()
    }

    /// Returns the size of `rows_by_id`. With as many cgroups as slots, every third cgroup finds its slot taken. With
    /// few cgroups the share may be larger.
    pub(super) fn by_id(&self) -> u32 {
        (self.slots / 2).max(64)
    }

    fn slot(&self, id: u64) -> u32 {
        slot(id, self.slot_shift())
    }

    /// Reads the rows of the sensors, each as the sum over all CPUs.
    fn read_sensors(&self, object: &Object, ids: &HashSet<u64>) -> io::Result<HashMap<u64, SensorWords<u64>>> {
        let mut words_of: HashMap<u64, SensorWords<u64>> = HashMap::new();
        for &(Sensor { names, words, .. }, place) in &self.sensors {
            let mut add = |id: u64, copy: &[u64]| add_row(words_of.entry(id).or_default(), place, copy);
            let by_id = fd(object, names.rows_by_id)?;
            raw::read_words(by_id, self.copies * words, Then::Keep, |id, copies| {
                copies.chunks_exact(*words).for_each(|copy| add(id, copy));
            })?;
            // One batch reads a slot once, whatever the number of cgroups. A dead cgroup's slot is freed later.
            raw::read_words(fd(object, names.rows)?, self.copies * words, Then::Keep, |_: u32, copies| {
                let lives =
                    |(cpu, copy): &(usize, &[u64])| ids.contains(&copy[0]) && !self.stale.contains(&(*cpu, copy[0]));
                copies.chunks_exact(*words).enumerate().filter(lives).for_each(|(_, copy)| add(copy[0], copy));
            })?;
        }
        Ok(words_of)
    }

    /// Reads all rows, each as the sum over all CPUs.
    pub(super) fn read(&self, object: &Object) -> io::Result<Vec<RawRow>> {
        let mut ids = Vec::new();
        raw::read_all(fd(object, CGROUPS)?, 1, Then::Keep, |id: u64, _: &[u64]| ids.push(id))?;
        let mut parts_of: HashMap<u64, Vec<abi::podperf_cgroup>> = HashMap::new();
        raw::read_all(fd(object, "rows_by_id")?, self.copies, Then::Keep, |id: u64, copies: &[_]| {
            parts_of.entry(id).or_default().extend(copies);
        })?;
        raw::read_all(fd(object, ROWS_SO_FAR)?, 1, Then::Keep, |id: u64, row: &[_]| {
            parts_of.entry(id).or_default().extend(row);
        })?;
        let mut words_of = self.read_sensors(object, &ids.iter().copied().collect())?;
        let rows = fd(object, "rows")?;
        let mut copies = vec![bytemuck::Zeroable::zeroed(); self.copies];
        let read = |id: u64| {
            raw::lookup(rows, self.slot(id), &mut copies)?;
            let mut parts = parts_of.remove(&id).unwrap_or_default();
            let own = |&(cpu, copy): &(usize, &abi::podperf_cgroup)| copy.id == id && !self.stale.contains(&(cpu, id));
            parts.extend(copies.iter().enumerate().filter(own).map(|(_, copy)| *copy));
            Ok(RawRow { cgroup: CgroupId(id), counts: sum(&parts), words: words_of.remove(&id).unwrap_or_default() })
        };
        ids.into_iter().map(read).collect()
    }

    /// Frees the rows of dead cgroups, and returns the cgroups that no reading returns from here on. The other cgroups are
    /// in the next reading.
    pub(super) fn forget(&mut self, object: &Object, dead: &[CgroupId]) -> Vec<CgroupId> {
        // From here on these rows are not read. A program that still settles such a cgroup adds it again, with a new
        // row.
        let is_out = |id: &&CgroupId| {
            let deleted = fd(object, CGROUPS).and_then(|cgroups| raw::delete(cgroups, id.0));
            deleted.inspect_err(|error| debug!(%id, %error, "not forgotten")).is_ok()
        };
        let forgotten: Vec<_> = dead.iter().filter(is_out).copied().collect();
        let ids: Vec<u64> = forgotten.iter().map(|id| id.0).collect();
        if let Err(error) = self.free_rows(object, &ids) {
            debug!(cgroups = ids.len(), %error, "not all rows are freed, the next sweep does it");
        }
        if !ids.is_empty()
            && let Err(error) = self.list.recount(object)
        {
            debug!(%error, "the list of cgroups is not counted again, the next sweep does it");
        }
        forgotten
    }

    fn free_rows(&mut self, object: &Object, ids: &[u64]) -> io::Result<()> {
        if ids.is_empty() {
            return Ok(());
        }
        for id in ids {
            raw::delete(fd(object, "rows_by_id")?, *id)?;
            raw::delete(fd(object, ROWS_SO_FAR)?, *id)?;
        }
        let online = aya::util::online_cpus().unwrap_or_default();
        let of_quiet = if self.quiet.is_empty() { HashSet::new() } else { self.copies_in_slots(object, ids)? };
        let has_copies = |cpu: usize| of_quiet.iter().any(|(of, _)| *of == cpu);
        let mut freed = HashSet::new();
        for cpu in online {
            let number = cpu as usize;
            if (!self.quiet.contains(&number) || has_copies(number)) && free(object, cpu, ids) {
                freed.insert(number);
            }
        }
        // Until its slots are freed, a task of a dead cgroup may make such a row again.
        for id in ids {
            for (sensor, _) in &self.sensors {
                raw::delete(fd(object, sensor.names.rows_by_id)?, *id)?;
            }
        }
        if freed.len() == self.copies {
            return Ok(());
        }
        let left = self.copies_in_slots(object, ids)?;
        self.stale.extend(left.into_iter().filter(|(cpu, _)| !freed.contains(cpu)));
        Ok(())
    }

    /// Returns the copies of these rows that are in slots, by CPU and cgroup.
    fn copies_in_slots(&self, object: &Object, ids: &[u64]) -> io::Result<HashSet<(usize, u64)>> {
        let rows = fd(object, "rows")?;
        let mut found = HashSet::new();
        let mut copies: Vec<abi::podperf_cgroup> = vec![bytemuck::Zeroable::zeroed(); self.copies];
        for &id in ids {
            raw::lookup(rows, self.slot(id), &mut copies)?;
            let own = copies.iter().enumerate().filter(|(_, copy)| copy.id == id);
            found.extend(own.map(|(cpu, _)| (cpu, id)));
            for (Sensor { names, words, .. }, _) in self.sensors.iter().filter(|(of, _)| !of.families.is_empty()) {
                let mut copies = vec![0_u64; self.copies * words];
                raw::lookup(fd(object, names.rows)?, slot(id, self.sensor_slot_shift()), &mut copies)?;
                let own = copies.chunks_exact(*words).enumerate().filter(|(_, copy)| copy[0] == id);
                found.extend(own.map(|(cpu, _)| (cpu, id)));
            }
        }
        Ok(found)
    }

    /// Frees rows of cgroups that are not in the kernel's list of cgroups, so that no reading returns them and nothing
    /// else frees them: a program may make such a row at the moment in which the cgroup is forgotten. The first sweep is
    /// at the start, and then one every five minutes. The rows that it finds are freed if they are still there at the
    /// next reading.
    pub(super) fn sweep(&mut self, object: &Object, now_ns: u64) -> io::Result<()> {
        let suspects = mem::take(&mut self.suspects);
        if suspects.is_empty() && self.swept_ns > 0 && now_ns.saturating_sub(self.swept_ns) < SWEEP_EVERY_NS {
            return Ok(());
        }
        self.list.recount(object)?;
        let found = self.without_cgroup(object)?;
        if suspects.is_empty() {
            (self.swept_ns, self.suspects) = (now_ns, found);
            return Ok(());
        }
        let orphans: Vec<u64> = found.intersection(&suspects).copied().collect();
        debug!(rows = orphans.len(), "rows without a cgroup are freed");
        self.free_rows(object, &orphans)
    }

    /// Returns the cgroups that have a row and are not in the kernel's list of cgroups.
    fn without_cgroup(&self, object: &Object) -> io::Result<HashSet<u64>> {
        let mut ids = HashSet::new();
        let of_sensors =
            self.sensors.iter().map(|(Sensor { names, words, .. }, _)| (names.rows, names.rows_by_id, *words));
        for (rows, rows_by_id, words) in once(("rows", "rows_by_id", RawRow::WORDS)).chain(of_sensors) {
            raw::read_words(fd(object, rows)?, self.copies * words, Then::Keep, |_: u32, copies| {
                // The first word is the id, and 0 in a free copy.
                let copies = copies.chunks_exact(words).map(|copy| copy[0]).enumerate();
                let used = copies.filter(|(cpu, id)| *id != 0 && !self.stale.contains(&(*cpu, *id)));
                ids.extend(used.map(|(_, id)| id));
            })?;
            raw::read_words(fd(object, rows_by_id)?, self.copies * words, Then::Keep, |id: u64, _| ids.extend([id]))?;
        }
        raw::read_words(fd(object, ROWS_SO_FAR)?, RawRow::WORDS, Then::Keep, |id: u64, _| ids.extend([id]))?;
        // Last, so that a cgroup that appears meanwhile is not among those without a cgroup.
        raw::read_words(fd(object, CGROUPS)?, 1, Then::Keep, |id: u64, _| {
            ids.remove(&id);
        })?;
        Ok(ids)
    }

    /// Frees the remaining copies on CPUs that have come back online.
    pub(super) fn follow(&mut self, object: &Object, online: &[u32]) {
        if self.stale.is_empty() {
            return;
        }
        for &cpu in online {
            let left = |&&(of, _): &&(usize, u64)| of == cpu as usize;
            let ids: Vec<u64> = self.stale.iter().filter(left).map(|(_, id)| *id).collect();
            if !ids.is_empty() && free(object, cpu, &ids) {
                self.stale.retain(|(of, _)| *of != cpu as usize);
            }
        }
    }
}

/// Adds a copy of the row of the sensor at a place to the sums over all CPUs.
pub(super) fn add_row(sums: &mut SensorWords<u64>, place: usize, copy: &[u64]) {
    // The first word is the id.
    if copy.iter().skip(1).all(|word| *word == 0) {
        return;
    }
    let pairs = sums.row_mut(place).iter_mut().zip(copy).skip(1);
    pairs.for_each(|(sum, word)| *sum = sum.wrapping_add(*word));
}

/// Returns the slot of a cgroup; the programs compute the same.
fn slot(id: u64, shift: u32) -> u32 {
    #[expect(clippy::cast_possible_truncation, reason = "the low half is what is spread over the slots")]
    let low = id as u32;
    let spread = low.wrapping_mul(abi::PODPERF_SLOT_SPREAD);
    let folded = spread ^ (spread >> abi::PODPERF_SLOT_FOLD);
    folded.wrapping_mul(abi::PODPERF_SLOT_SPREAD) >> shift
}

/// Runs the program `forget` on a CPU to free its copies of these rows. Returns false if the program cannot run there.
fn free(object: &Object, cpu: u32, ids: &[u64]) -> bool {
    let Some(program) = raw_program(object, "forget") else { return false };
    ids.chunks(ARGUMENTS).all(|ids| {
        let mut args = [0; ARGUMENTS];
        args[..ids.len()].copy_from_slice(ids);
        let run = raw::run_on(program, cpu, args);
        run.inspect_err(|error| debug!(cpu, %error, "rows not freed")).is_ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_at_least_as_many_slots_as_cgroups_and_all_are_used() {
        for (max, slots) in [(16, 16), (17, 32), (4096, 4096), (5000, 8192)] {
            let rows = Rows::new(max, 1, &[]);
            assert_eq!((rows.slots(), 1_u64 << (32 - rows.slot_shift())), (slots, u64::from(slots)));
        }
    }

    #[test]
    fn ids_at_equal_distances_are_spread_over_the_slots() {
        for distance in [1, 19, 32, 48, 60, 64] {
            let rows = Rows::new(1024, 1, &[]);
            let taken: HashSet<u32> = (0..1024).map(|n| rows.slot(2_453_381 + n * distance)).collect();
            assert!(taken.len() > 550, "{} slots at distance {distance}", taken.len());
            assert!(taken.iter().all(|slot| *slot < 1024));
        }
    }
}
