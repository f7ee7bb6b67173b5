//! Sums of what cgroups did: what deltas and accounts are made of. Pure.

use serde::{Deserialize, Serialize};

use super::wait::{Unwind, WaitReason, WaitState};

/// What a cgroup did, over some time. Nanoseconds and counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Time on a CPU.
    pub oncpu_ns: u64,
    /// Time off the CPU by [`WaitState`].
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
    /// What of its time is in profiles.
    pub profiled: ProfiledTime,
}

/// What of a cgroup's time is in profiles.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProfiledTime {
    /// Off the CPU, by [`WaitReason`].
    pub waits_ns: [u64; WaitReason::ALL.len()],
    /// Waits that ended, long ones included.
    pub waits: u64,
    /// Waits that ended, by [`WaitReason`].
    pub waits_for: [u64; WaitReason::ALL.len()],
    /// Samples on the CPU.
    pub oncpu_samples: u64,
    /// On and off the CPU, by how far the walk of the stack came ([`Unwind`]); one window late.
    pub unwound_ns: UnwoundTime,
}

/// Time by [`Unwind`].
pub type UnwoundTime = [u64; Unwind::ALL.len()];

impl ProfiledTime {
    /// Time off the CPU, in nanoseconds by [`WaitState`], that is in no sample.
    #[must_use]
    pub fn unknown(by_state: &[u64; WaitState::ALL.len()]) -> Self {
        let mut this = Self::default();
        for (state, ns) in WaitState::ALL.into_iter().zip(by_state) {
            let reason = match state {
                WaitState::RunQueue => WaitReason::RunQueue,
                WaitState::Throttled => WaitReason::Throttled,
                WaitState::Interruptible | WaitState::Uninterruptible => WaitReason::Unknown,
            };
            this.waits_ns[reason as usize] += ns;
        }
        this
    }

    /// Adds other time to this.
    pub fn add(&mut self, other: &Self) {
        grow_all(&mut self.waits_ns, &other.waits_ns);
        grow(&mut self.waits, other.waits);
        grow_all(&mut self.waits_for, &other.waits_for);
        grow(&mut self.oncpu_samples, other.oncpu_samples);
        grow_all(&mut self.unwound_ns, &other.unwound_ns);
    }
}

/// Time asleep with a remembered stack that was looked at, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub struct SeenTime {
    /// All of it.
    pub all_ns: u64,
    /// The part whose stack was not the remembered one. Its samples have the stack that was seen.
    pub wrong_ns: u64,
}

/// Adds, and stops at the largest number (584 years in nanoseconds): a total that began again at 0 would read as a fall.
const fn grow(sum: &mut u64, by: u64) {
    *sum = sum.saturating_add(by);
}

fn grow_all(sums: &mut [u64], by: &[u64]) {
    sums.iter_mut().zip(by).for_each(|(sum, by)| grow(sum, *by));
}

impl Usage {
    /// Adds another usage to this one.
    pub fn add(&mut self, other: &Self) {
        fn add_all(to: &mut Vec<u64>, from: &[u64]) {
            to.resize(to.len().max(from.len()), 0);
            grow_all(to, from);
        }
        grow(&mut self.oncpu_ns, other.oncpu_ns);
        grow_all(&mut self.offcpu_ns, &other.offcpu_ns);
        grow(&mut self.voluntary_switches, other.voluntary_switches);
        grow(&mut self.involuntary_switches, other.involuntary_switches);
        grow(&mut self.migrations, other.migrations);
        grow(&mut self.minor_faults, other.minor_faults);
        grow(&mut self.major_faults, other.major_faults);
        add_all(&mut self.counts, &other.counts);
        add_all(&mut self.enabled_ns, &other.enabled_ns);
        add_all(&mut self.running_ns, &other.running_ns);
        self.profiled.add(&other.profiled);
    }

    /// The numbers that are shown as series, counters last; times of groups are none.
    pub fn numbers(&mut self) -> Vec<&mut u64> {
        self.parts().0
    }

    /// The same, and by group how long it was enabled and how long on the PMU.
    pub fn parts(&mut self) -> (Vec<&mut u64>, [&mut Vec<u64>; 2]) {
        let Self {
            oncpu_ns,
            offcpu_ns,
            voluntary_switches,
            involuntary_switches,
            migrations,
            minor_faults,
            major_faults,
            counts,
            enabled_ns,
            running_ns,
            profiled,
        } = self;
        let mut numbers =
            vec![oncpu_ns, voluntary_switches, involuntary_switches, migrations, minor_faults, major_faults];
        numbers.extend(offcpu_ns);
        numbers.extend(&mut profiled.waits_ns);
        numbers.extend([&mut profiled.waits, &mut profiled.oncpu_samples]);
        numbers.extend(&mut profiled.waits_for);
        numbers.extend(&mut profiled.unwound_ns);
        numbers.extend(counts);
        (numbers, [enabled_ns, running_ns])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two thousand threads that sleep fill it in 107 days.
    #[test]
    fn a_full_sum_does_not_wrap() {
        let mut sum = Usage { offcpu_ns: [u64::MAX - 1, 1, 0, 0], counts: vec![u64::MAX], ..Usage::default() };
        sum.add(&Usage { offcpu_ns: [5, 5, 0, 0], counts: vec![1, 2], ..Usage::default() });
        assert_eq!((sum.offcpu_ns, sum.counts), ([u64::MAX, 6, 0, 0], vec![u64::MAX, 2]));
    }
}
