//! Turns readings into deltas: the growth of each cgroup's counts between two readings. Pure.
//!
//! The kernel's totals only grow, but a total may briefly read smaller than before (a task settled on two CPUs). Then
//! the old total is kept until the new total has caught up, so that no delta is negative. Counts of multiplexed groups
//! are scaled here, delta by delta: totals are never scaled, so they never fall.

use std::collections::{BTreeSet, HashMap};

use podperf_ebpf::abi;

use crate::{
    events::multiplexing::{Pool, Share, Turns},
    kernel::{OpenCounter, RawReading, RawRow},
    model::{
        facts::{Fact, Facts},
        ids::CgroupId,
        sensor_words::SensorWords,
        usage::Usage,
        wait::{Unwind, WaitState},
    },
};

/// The last reading of each cgroup, and the layout of its counts.
#[derive(Debug)]
pub struct Readings {
    /// The last totals of each cgroup.
    previous: HashMap<CgroupId, Previous>,
    readings: u64,
    /// Slot -> hardware group.
    groups: Vec<Option<usize>>,
    /// The most that an event can count in a nanosecond of one CPU.
    most_per_ns: f64,
}

/// The last totals of a cgroup.
#[derive(Clone, Debug)]
struct Previous {
    counts: abi::podperf_cgroup,
    /// The words of the sensors.
    words: SensorWords<u64>,
    /// The number of the last reading that had this cgroup.
    last_had: u64,
}

impl Default for Previous {
    fn default() -> Self {
        Self { counts: bytemuck::Zeroable::zeroed(), words: SensorWords::default(), last_had: 0 }
    }
}

/// The count and the times of one event are read one after the other: the count may grow by this much in between.
const BETWEEN: f64 = 1e5;

impl Readings {
    /// Starts from zero: the first delta of a cgroup contains all that the kernel has counted.
    #[must_use]
    pub fn new(counters: &[OpenCounter], most_per_ns: f64) -> Self {
        let mut groups = Vec::new();
        for counter in counters {
            if let Some(slot) = counter.slot {
                groups.resize(groups.len().max(slot + 1), None);
                groups[slot] = counter.group;
            }
        }
        Self { previous: HashMap::new(), readings: 0, groups, most_per_ns }
    }

    /// Returns readings for rows whose counters have these groups by slot; no growth is treated as doubtful.
    #[must_use]
    pub fn of_groups(groups: Vec<Option<usize>>) -> Self {
        Self { previous: HashMap::new(), readings: 0, groups, most_per_ns: f64::INFINITY }
    }

    /// Returns the totals of each row that already became deltas: the words of the row and then those of the sensors,
    /// without zeros at the end.
    #[must_use]
    pub fn save(&self) -> Vec<(u64, Vec<u64>)> {
        let words = |previous: &Previous| {
            let counts: &[u64] = bytemuck::cast_slice(std::slice::from_ref(&previous.counts));
            let words: Vec<u64> = counts.iter().copied().chain(previous.words.list()).collect();
            words[..words.iter().rposition(|word| *word != 0).map_or(0, |last| last + 1)].to_vec()
        };
        self.previous.iter().map(|(cgroup, previous)| (cgroup.0, words(previous))).collect()
    }

    /// Restores the totals that a previous agent saved.
    pub fn restore(&mut self, saved: Vec<(u64, Vec<u64>)>) {
        for (cgroup, saved) in saved {
            let mut previous = Previous { last_had: self.readings, ..Previous::default() };
            previous.words = SensorWords::of_list(saved.get(RawRow::WORDS..).unwrap_or_default());
            let words: &mut [u64] = bytemuck::cast_slice_mut(std::slice::from_mut(&mut previous.counts));
            words.iter_mut().zip(saved).for_each(|(word, saved)| *word = saved);
            self.previous.insert(CgroupId(cgroup), previous);
        }
    }

    /// Returns the growth since the last call. Cgroups that are no longer in the table are forgotten; a cgroup that
    /// returns starts from zero.
    pub fn advance(&mut self, reading: &RawReading) -> Deltas {
        self.readings += 1;
        let mut unprofiled = Vec::new();
        let mut deltas = Vec::with_capacity(reading.rows.len());
        let mut doubtful = BTreeSet::new();
        let short = self.turns_of_short_rows(reading);
        for row in &reading.rows {
            let previous = self.previous.entry(row.cgroup).or_default();
            previous.last_had = self.readings;
            let words = step_words(&mut previous.words, &row.words);
            let delta = step(&mut previous.counts, &row.counts);
            if delta.is_some() || words != SensorWords::default() {
                let mut delta = delta.unwrap_or_else(bytemuck::Zeroable::zeroed);
                doubtful.extend(withhold(&self.groups, self.most_per_ns, &mut delta));
                deltas.push((row.cgroup, Usage { words, ..usage(&self.groups, &delta, &short) }));
                if delta.unprofiled_ns.iter().any(|ns| *ns > 0) {
                    unprofiled.push((row.cgroup, delta.unprofiled_ns));
                }
            }
        }
        self.previous.retain(|_, previous| previous.last_had == self.readings);
        Deltas { usages: deltas, doubtful: doubtful.into_iter().collect(), unprofiled }
    }

    /// Forgets cgroups whose rows are freed: if a row returns, it starts from zero.
    pub fn forget(&mut self, cgroups: &[CgroupId]) {
        cgroups.iter().for_each(|cgroup| drop(self.previous.remove(cgroup)));
    }

    /// Returns the turns on the PMU of short rows since the last call, by group. Short rows cannot be scaled by their
    /// own turns.
    fn turns_of_short_rows(&self, reading: &RawReading) -> Vec<Pool> {
        let mut all = vec![Pool::default(); number_of(&self.groups)];
        for row in reading.rows.iter().filter(|row| row.cgroup != CgroupId::IDLE) {
            let previous = self.previous.get(&row.cgroup).map(|previous| &previous.counts);
            for (group, pool) in all.iter_mut().enumerate() {
                let grown = |now: &[u64], before: Option<u64>| growth(now[group], before.unwrap_or(0)).unwrap_or(0);
                pool.add(Turns {
                    enabled_ns: grown(&row.counts.enabled_ns, previous.map(|row| row.enabled_ns[group])),
                    running_ns: grown(&row.counts.running_ns, previous.map(|row| row.running_ns[group])),
                });
            }
        }
        all
    }
}

/// The growth of all counts between two readings.
#[derive(Debug, Default)]
pub struct Deltas {
    /// Deltas of the cgroups whose counts grew.
    pub usages: Vec<(CgroupId, Usage)>,
    /// The slots of counters that grew by more than is possible: this growth is in no delta.
    pub doubtful: Vec<usize>,
    /// Time off the CPU that is in no sample, in nanoseconds, by [`WaitState`].
    pub unprofiled: Vec<(CgroupId, [u64; WaitState::ALL.len()])>,
}

/// Adds the profiled times to the counted usages.
pub fn join(deltas: &mut Vec<(CgroupId, Usage)>, mut profiled: HashMap<CgroupId, Facts>) {
    for (cgroup, usage) in deltas.iter_mut() {
        if let Some(profiled) = profiled.remove(cgroup) {
            usage.facts.add(&profiled);
        }
    }
    deltas.extend(profiled.into_iter().map(|(cgroup, profiled)| (cgroup, profiled.into())));
}

/// Counts the time on the CPU as time without stacks: no samples were taken.
pub fn count_unsampled(deltas: &mut [(CgroupId, Usage)]) {
    for (_, usage) in deltas {
        usage.facts[Fact::unwound(Unwind::Shed)] += usage.facts[Fact::ON_CPU];
    }
}

/// Returns the number of groups.
fn number_of(by_slot: &[Option<usize>]) -> usize {
    by_slot.iter().flatten().max().map_or(0, |last| last + 1)
}

fn usage(by_slot: &[Option<usize>], delta: &abi::podperf_cgroup, short: &[Pool]) -> Usage {
    let turns = |group: usize| Turns { enabled_ns: delta.enabled_ns[group], running_ns: delta.running_ns[group] };
    let shares: Vec<_> = short.iter().enumerate().map(|(group, pool)| turns(group).share(*pool)).collect();
    let counts = by_slot.iter().enumerate().map(|(slot, group)| match group {
        None => u128::from(delta.counts[slot]),
        Some(group) => shares[*group].map_or(0, |share| share.scale(delta.counts[slot]).into()),
    });
    let mut facts = Facts::default();
    let words: &[u64] = bytemuck::cast_slice(std::slice::from_ref(delta));
    for (fact, word) in Fact::all().filter_map(|fact| Some((fact, fact.word()?))) {
        facts[fact] = words[word].into();
    }
    // If an event was counted for no time or too little time, its running time must be zero: otherwise it would read as
    // a count of zero.
    let running = |(group, share): (usize, &Option<Share>)| share.map_or(0, |_| delta.running_ns[group].into());
    Usage {
        facts,
        counts: counts.collect(),
        enabled_ns: delta.enabled_ns[..short.len()].iter().copied().map(u128::from).collect(),
        running_ns: shares.iter().enumerate().map(running).collect(),
        words: SensorWords::default(),
    }
}

/// Removes growth that is too large for any CPU, and returns the slots of these counters.
fn withhold(by_slot: &[Option<usize>], most_per_ns: f64, delta: &mut abi::podperf_cgroup) -> Vec<usize> {
    let mut doubtful = Vec::new();
    for (slot, group) in by_slot.iter().enumerate() {
        let Some(group) = group else { continue };
        if real(delta.counts[slot]) > real(delta.enabled_ns[*group]) * most_per_ns + BETWEEN {
            delta.counts[slot] = 0;
            doubtful.push(slot);
        }
    }
    doubtful
}

#[expect(clippy::cast_precision_loss, reason = "compared with a bound that is generous")]
fn real(count: u64) -> f64 {
    count as f64
}

/// Returns the growth of each word since `previous`, and updates `previous`. A word that is smaller than before has no
/// growth. Returns `None` if no word grew.
fn step(previous: &mut abi::podperf_cgroup, now: &abi::podperf_cgroup) -> Option<abi::podperf_cgroup> {
    let mut any = 0;
    let mut delta: abi::podperf_cgroup = bytemuck::Zeroable::zeroed();
    let previous: &mut [u64] = bytemuck::cast_slice_mut(std::slice::from_mut(previous));
    let words: &[u64] = bytemuck::cast_slice(std::slice::from_ref(now));
    let grown: &mut [u64] = bytemuck::cast_slice_mut(std::slice::from_mut(&mut delta));
    for ((previous, now), grown) in previous.iter_mut().zip(words).zip(grown) {
        if let Some(growth) = growth(*now, *previous) {
            *grown = growth;
            *previous = *now;
            any |= growth;
        }
    }
    (any != 0).then_some(delta)
}

/// Returns the growth of the words of the sensors, and updates `previous`.
fn step_words(previous: &mut SensorWords<u64>, now: &SensorWords<u64>) -> SensorWords<u128> {
    let mut all_grown = SensorWords::default();
    for (place, row) in now.rows() {
        let mut grown = vec![0; row.len()];
        for ((previous, now), grown) in previous.row_mut(place).iter_mut().zip(row).zip(&mut grown) {
            if let Some(growth) = growth(*now, *previous) {
                *grown = growth.into();
                *previous = *now;
            }
        }
        all_grown.set(place, &grown);
    }
    all_grown
}

/// Returns the growth of one total; `None` if `now` is smaller than `before`.
fn growth(now: u64, before: u64) -> Option<u64> {
    let growth = now.wrapping_sub(before);
    (growth.cast_signed() >= 0).then_some(growth)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::sensors;

    const CGROUP: CgroupId = CgroupId(42);

    fn readings(groups: Vec<Option<usize>>) -> Readings {
        Readings { previous: HashMap::new(), readings: 0, groups, most_per_ns: 80.0 }
    }

    fn read(readings: &mut Readings, fill: impl FnOnce(&mut abi::podperf_cgroup)) -> Usage {
        let mut counts: abi::podperf_cgroup = bytemuck::Zeroable::zeroed();
        fill(&mut counts);
        let reading = RawReading {
            rows: vec![RawRow { cgroup: CGROUP, counts, words: SensorWords::default() }],
            ..RawReading::default()
        };
        readings.advance(&reading).usages.pop().map(|(_, usage)| usage).unwrap_or_default()
    }

    #[test]
    fn the_first_delta_is_everything_and_the_next_the_growth() {
        let mut readings = readings(vec![]);
        assert_eq!(read(&mut readings, |row| row.run_ns = 10).facts[Fact::ON_CPU], 10);
        assert_eq!(read(&mut readings, |row| row.run_ns = 15).facts[Fact::ON_CPU], 5);
    }

    #[test]
    fn a_total_that_is_behind_gives_nothing_until_it_has_caught_up() {
        let mut readings = readings(vec![]);
        let mut sum = 0;
        for (total, expected_sum) in [(10, 10), (8, 10), (9, 10), (12, 12)] {
            sum += read(&mut readings, |row| row.minor_faults = total).facts[Fact::MINOR_FAULTS];
            assert_eq!(sum, expected_sum, "at {total}");
        }
    }

    #[test]
    fn deltas_are_scaled_by_enabled_over_running_and_totals_never_fall() {
        // Scaling the totals instead would give 200 and then 110 / 70 * 120 = 188.
        let mut readings = readings(vec![Some(0)]);
        let mut total = 0;
        for (count, enabled, running, expected) in [(100, 100, 50, 200), (110, 120, 70, 210), (110, 140, 70, 210)] {
            total += read(&mut readings, |row| {
                row.counts[0] = count;
                row.enabled_ns[0] = enabled;
                row.running_ns[0] = running;
            })
            .counts[0];
            assert_eq!(total, expected);
        }
    }

    fn read_group(readings: &mut Readings, count: u64, enabled: u64, running: u64) -> Usage {
        read(readings, |row| {
            row.counts[0] = count;
            row.enabled_ns[0] = enabled;
            row.running_ns[0] = running;
        })
    }

    #[test]
    fn time_off_the_pmu_is_never_counted() {
        let mut readings = readings(vec![Some(0)]);
        assert_eq!(
            read_group(&mut readings, 0, 50, 0),
            Usage { counts: vec![0], enabled_ns: vec![50], running_ns: vec![0], ..Usage::default() }
        );
        // An hour off the PMU, then a millisecond on it.
        const HOUR: u64 = 3_600_000_000_000;
        let usage = read_group(&mut readings, 3_000_000, 50 + HOUR, 1_000_000);
        assert_eq!((usage.counts, usage.enabled_ns, usage.running_ns), (vec![0], vec![HOUR.into()], vec![0]));
        let usage = read_group(&mut readings, 3_000_000 + 100, 50 + HOUR + 100, 1_000_000 + 50);
        assert_eq!((usage.counts, usage.enabled_ns, usage.running_ns), (vec![200], vec![100], vec![50]));
    }

    #[test]
    fn a_short_row_is_scaled_by_the_share_of_short_rows() {
        let row = |cgroup, count, enabled, running| {
            let mut counts: abi::podperf_cgroup = bytemuck::Zeroable::zeroed();
            (counts.counts[0], counts.enabled_ns[0], counts.running_ns[0]) = (count, enabled, running);
            RawRow { cgroup: CgroupId(cgroup), counts, words: SensorWords::default() }
        };
        let mut readings = readings(vec![Some(0)]);
        // The group had the PMU for itself until then: the share of another interval must not scale this one.
        readings.advance(&RawReading { rows: vec![row(1, 9_000, 9_000, 9_000)], ..RawReading::default() });
        let idle = row(CgroupId::IDLE.0, 200_000_000, 200_000_000, 200_000_000);
        let rows = vec![row(1, 9_000 + 240, 9_000 + 970, 9_000 + 240), row(2, 10, 10, 10), row(3, 0, 20, 0), idle];
        let deltas = readings.advance(&RawReading { rows, ..RawReading::default() });
        let counts: Vec<u128> = deltas.usages.iter().map(|(_, usage)| usage.counts[0]).collect();
        assert_eq!(counts, [960, 40, 0, 200_000_000]);
        assert_eq!(deltas.usages[2].1.running_ns, [0]);
    }

    #[test]
    fn growth_that_no_clock_allows_is_withheld_and_reported() {
        let mut readings = readings(vec![Some(0), None]);
        for (count, enabled, expected, told) in [
            (1_000_000, 1_000_000, 1_000_000, vec![]),
            (u64::MAX >> 1, 2_000_000, 0, vec![0]),
            ((u64::MAX >> 1) + 5, 3_000_000, 5, vec![]),
        ] {
            let mut counts: abi::podperf_cgroup = bytemuck::Zeroable::zeroed();
            (counts.counts, counts.enabled_ns[0], counts.running_ns[0]) = ([count; 16], enabled, enabled);
            let reading = RawReading {
                rows: vec![RawRow { cgroup: CGROUP, counts, words: SensorWords::default() }],
                ..RawReading::default()
            };
            let mut deltas = readings.advance(&reading);
            assert_eq!((deltas.usages.pop().unwrap().1.counts[0], deltas.doubtful), (expected, told));
        }
    }

    #[test]
    fn who_goes_on_counts_what_came_after() {
        let mut before = readings(vec![]);
        read(&mut before, |row| (row.run_ns, row.minor_faults) = (10, 3));
        let mut after = readings(vec![]);
        after.restore(before.save());
        let usage = read(&mut after, |row| (row.run_ns, row.minor_faults) = (12, 3));
        assert_eq!((usage.facts[Fact::ON_CPU], usage.facts[Fact::MINOR_FAULTS]), (2, 0));
    }

    #[test]
    fn words_of_a_sensor_go_on_alone() {
        let place = sensors::ALL.len() - 1;
        let words = |number| {
            let mut words = SensorWords::default();
            words.row_mut(place)[1] = number;
            words
        };
        let reading = |number| RawReading {
            rows: vec![RawRow { cgroup: CGROUP, counts: bytemuck::Zeroable::zeroed(), words: words(number) }],
            ..RawReading::default()
        };
        let mut before = readings(vec![]);
        assert_eq!(before.advance(&reading(10)).usages.len(), 1);
        let mut after = readings(vec![]);
        after.restore(before.save());
        assert!(after.advance(&reading(10)).usages.is_empty());
        let usages = after.advance(&reading(12)).usages;
        let rows: Vec<_> = usages[0].1.words.rows().map(|(place, row)| (place, row[1])).collect();
        assert_eq!(rows, [(place, 2)]);
    }

    #[test]
    fn time_that_is_in_no_sample_is_reported_by_cgroup_and_state() {
        let mut readings = readings(vec![]);
        let mut counts: abi::podperf_cgroup = bytemuck::Zeroable::zeroed();
        for (total, expected) in [
            ([0, 0, 5, 0], vec![(CGROUP, [0, 0, 5, 0])]),
            ([0, 0, 5, 0], vec![]),
            ([7, 0, 6, 2], vec![(CGROUP, [7, 0, 1, 2])]),
        ] {
            counts.unprofiled_ns = total;
            let reading = RawReading {
                rows: vec![RawRow { cgroup: CGROUP, counts, words: SensorWords::default() }],
                ..RawReading::default()
            };
            assert_eq!(readings.advance(&reading).unprofiled, expected);
        }
    }

    #[test]
    fn time_on_the_cpu_without_samples_is_shed() {
        let usage = Usage { facts: Facts::from([(Fact::ON_CPU, 5), (Fact::MINOR_FAULTS, 1)]), ..Usage::default() };
        let mut deltas = vec![(CGROUP, usage)];
        count_unsampled(&mut deltas);
        let facts = deltas[0].1.facts;
        assert_eq!((facts[Fact::ON_CPU], facts[Fact::unwound(Unwind::Shed)]), (5, 5));
    }

    #[test]
    fn a_row_that_the_agent_deleted_and_the_kernel_made_again_counts_from_zero() {
        let mut readings = readings(vec![]);
        read(&mut readings, |row| row.run_ns = 10);
        readings.advance(&RawReading::default());
        assert_eq!(read(&mut readings, |row| row.run_ns = 3).facts[Fact::ON_CPU], 3);
        // A late task made the row again before a reading without it.
        readings.forget(&[CGROUP]);
        assert_eq!(read(&mut readings, |row| row.run_ns = 2).facts[Fact::ON_CPU], 2);
    }
}
