//! Readings into deltas: what each cgroup did between two readings. Pure.
//!
//! The kernel's totals only grow, but for a moment they may be read smaller than before (a task settled on two CPUs).
//! Then the old total is kept until the new one has caught up, so that no delta is negative. Counts of multiplexed
//! groups are scaled here, delta by delta: totals are never scaled, so they never fall.

use std::collections::HashMap;

use podperf_ebpf::abi;

use crate::{
    ids::CgroupId,
    kernel::{OpenCounter, RawReading},
    stacks::profile::WaitState,
};

/// What a cgroup did, over some time. Nanoseconds and counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Time on a CPU.
    pub oncpu_ns: u64,
    /// Time runnable, waiting for a CPU.
    pub runqueue_ns: u64,
    /// Time off the CPU by [`WaitState`], run-queue wait included.
    pub offcpu_ns: [u64; WaitState::ALL.len()],
    /// Context switches because a task blocked.
    pub voluntary_switches: u64,
    /// Context switches because another task was to run.
    pub involuntary_switches: u64,
    /// Moves to another CPU.
    pub migrations: u64,
    /// Page faults served from memory.
    pub minor_faults: u64,
    /// Page faults that had to read.
    pub major_faults: u64,
    /// Counters by slot, scaled for multiplexing.
    pub counts: Vec<u64>,
    /// By group: how long the group was enabled, and how long it was really on the PMU.
    pub enabled_ns: Vec<u64>,
    /// See `enabled_ns`.
    pub running_ns: Vec<u64>,
}

impl Usage {
    /// Adds another usage to this one.
    pub fn add(&mut self, other: &Self) {
        fn add_all(to: &mut Vec<u64>, from: &[u64]) {
            to.resize(to.len().max(from.len()), 0);
            to.iter_mut().zip(from).for_each(|(to, from)| *to += from);
        }
        self.oncpu_ns += other.oncpu_ns;
        self.runqueue_ns += other.runqueue_ns;
        self.offcpu_ns.iter_mut().zip(other.offcpu_ns).for_each(|(to, from)| *to += from);
        self.voluntary_switches += other.voluntary_switches;
        self.involuntary_switches += other.involuntary_switches;
        self.migrations += other.migrations;
        self.minor_faults += other.minor_faults;
        self.major_faults += other.major_faults;
        add_all(&mut self.counts, &other.counts);
        add_all(&mut self.enabled_ns, &other.enabled_ns);
        add_all(&mut self.running_ns, &other.running_ns);
    }
}

/// The last reading of each cgroup, and the layout of its counts.
#[derive(Debug)]
pub struct Readings {
    previous: HashMap<CgroupId, abi::podperf_cgroup>,
    /// Slot -> hardware group.
    groups: Vec<Option<usize>>,
}

impl Readings {
    /// Starts from zero: the first delta of a cgroup is all that the kernel counted.
    #[must_use]
    pub fn new(counters: &[OpenCounter]) -> Self {
        let mut groups = Vec::new();
        for counter in counters {
            if let Ok(slot) = counter.slot {
                groups.resize(groups.len().max(slot + 1), None);
                groups[slot] = counter.group;
            }
        }
        Self { previous: HashMap::new(), groups }
    }

    /// The deltas since the last call. Cgroups that are no longer in the table are forgotten; one that comes back
    /// starts from zero.
    pub fn advance(&mut self, reading: &RawReading) -> Vec<(CgroupId, Usage)> {
        let zero: abi::podperf_cgroup = bytemuck::Zeroable::zeroed();
        let mut seen = HashMap::with_capacity(reading.rows.len());
        let mut deltas = Vec::with_capacity(reading.rows.len());
        for row in &reading.rows {
            let mut previous = self.previous.remove(&row.cgroup).unwrap_or(zero);
            let delta = step(&mut previous, &row.counts);
            seen.insert(row.cgroup, previous);
            deltas.push((row.cgroup, self.usage(&delta)));
        }
        self.previous = seen;
        deltas
    }

    fn usage(&self, delta: &abi::podperf_cgroup) -> Usage {
        let facts = &delta.facts;
        let counts = self
            .groups
            .iter()
            .enumerate()
            .map(|(slot, group)| match group {
                None => delta.counts[slot],
                Some(group) => scale(delta.counts[slot], delta.enabled_ns[*group], delta.running_ns[*group]),
            })
            .collect();
        Usage {
            oncpu_ns: facts.run_ns,
            runqueue_ns: facts.runqueue_ns,
            offcpu_ns: delta.offcpu_ns,
            voluntary_switches: facts.voluntary,
            involuntary_switches: facts.involuntary,
            migrations: facts.migrations,
            minor_faults: facts.minor_faults,
            major_faults: facts.major_faults,
            counts,
            enabled_ns: delta.enabled_ns.to_vec(),
            running_ns: delta.running_ns.to_vec(),
        }
    }
}

/// Word by word: the growth since `previous`, which moves along; no growth where the total is behind.
fn step(previous: &mut abi::podperf_cgroup, now: &abi::podperf_cgroup) -> abi::podperf_cgroup {
    let mut delta: abi::podperf_cgroup = bytemuck::Zeroable::zeroed();
    let previous: &mut [u64] = bytemuck::cast_slice_mut(std::slice::from_mut(previous));
    let words: &[u64] = bytemuck::cast_slice(std::slice::from_ref(now));
    let grown: &mut [u64] = bytemuck::cast_slice_mut(std::slice::from_mut(&mut delta));
    for ((previous, now), grown) in previous.iter_mut().zip(words).zip(grown) {
        let growth = now.wrapping_sub(*previous);
        if growth.cast_signed() >= 0 {
            *grown = growth;
            *previous = *now;
        }
    }
    delta
}

/// What the event would have counted on the PMU all the time. A group that was never on it counted nothing, which is
/// not the same as zero: its enabled and running times tell.
fn scale(count: u64, enabled_ns: u64, running_ns: u64) -> u64 {
    if running_ns == 0 || running_ns >= enabled_ns {
        return count;
    }
    let scaled = u128::from(count) * u128::from(enabled_ns) / u128::from(running_ns);
    u64::try_from(scaled).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::RawRow;

    const CGROUP: CgroupId = CgroupId(42);

    fn readings(groups: Vec<Option<usize>>) -> Readings {
        Readings { previous: HashMap::new(), groups }
    }

    fn read(readings: &mut Readings, fill: impl FnOnce(&mut abi::podperf_cgroup)) -> Usage {
        let mut counts: abi::podperf_cgroup = bytemuck::Zeroable::zeroed();
        fill(&mut counts);
        let reading = RawReading { rows: vec![RawRow { cgroup: CGROUP, counts }], ..RawReading::default() };
        readings.advance(&reading).remove(0).1
    }

    #[test]
    fn the_first_delta_is_everything_and_the_next_the_growth() {
        let mut readings = readings(vec![]);
        assert_eq!(read(&mut readings, |row| row.facts.run_ns = 10).oncpu_ns, 10);
        assert_eq!(read(&mut readings, |row| row.facts.run_ns = 15).oncpu_ns, 5);
    }

    #[test]
    fn a_total_that_is_behind_gives_nothing_until_it_has_caught_up() {
        let mut readings = readings(vec![]);
        let mut sum = 0;
        for (total, expected_sum) in [(10, 10), (8, 10), (9, 10), (12, 12)] {
            sum += read(&mut readings, |row| row.facts.minor_faults = total).minor_faults;
            assert_eq!(sum, expected_sum, "at {total}");
        }
    }

    #[test]
    fn deltas_are_scaled_by_enabled_over_running_and_totals_never_fall() {
        // Scaling totals instead would read 200 and then 110 / 70 * 120 = 188.
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

    #[test]
    fn a_row_that_the_agent_deleted_and_the_kernel_made_again_counts_from_zero() {
        let mut readings = readings(vec![]);
        read(&mut readings, |row| row.facts.run_ns = 10);
        readings.advance(&RawReading::default());
        assert_eq!(read(&mut readings, |row| row.facts.run_ns = 3).oncpu_ns, 3);
    }
}
