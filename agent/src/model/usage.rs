//! Sums of the counts of cgroups, which deltas and accounts consist of. Pure.

use serde::{Deserialize, Serialize};

use super::{facts::Facts, sensor_words::SensorWords};

/// Counts of a cgroup over some time. All times are in nanoseconds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// The facts.
    pub facts: Facts,
    /// Counters by slot, scaled for multiplexing.
    pub counts: Vec<u128>,
    /// Time for which each group was enabled.
    pub enabled_ns: Vec<u128>,
    /// Time for which each group was on the PMU.
    pub running_ns: Vec<u128>,
    /// The words of the sensors.
    pub words: SensorWords<u128>,
}

/// Time asleep with a stack from the stack cache that was checked, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub struct SeenTime {
    /// The whole checked time.
    pub all_ns: u64,
    /// The part of the time whose stack differed from the cached one. Its samples have the stack that was seen.
    pub wrong_ns: u64,
}

impl From<Facts> for Usage {
    fn from(facts: Facts) -> Self {
        Self { facts, ..Self::default() }
    }
}

impl Usage {
    /// Adds another usage to this one.
    pub fn add(&mut self, other: &Self) {
        fn add_all(to: &mut Vec<u128>, from: &[u128]) {
            to.resize(to.len().max(from.len()), 0);
            to.iter_mut().zip(from).for_each(|(sum, by)| *sum += by);
        }
        self.facts.add(&other.facts);
        add_all(&mut self.counts, &other.counts);
        add_all(&mut self.enabled_ns, &other.enabled_ns);
        add_all(&mut self.running_ns, &other.running_ns);
        self.words.add(&other.words);
    }

    /// Returns the numbers that are shown as series, counters last. Times of groups and words of sensors are not among
    /// them.
    pub fn numbers(&mut self) -> impl Iterator<Item = &mut u128> {
        self.facts.numbers_mut().chain(&mut self.counts)
    }

    /// Returns all numbers but the words of sensors: those of [`Usage::numbers`], then the times of the groups, first
    /// enabled, then running.
    pub fn all_numbers(&mut self) -> impl Iterator<Item = &mut u128> {
        let Self { facts, counts, enabled_ns, running_ns, words: _ } = self;
        facts.numbers_mut().chain(counts).chain(enabled_ns).chain(running_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::{super::facts::Fact, *};

    #[test]
    fn a_sum_grows_beyond_64_bits() {
        let full = u128::from(u64::MAX);
        let usage = |number| Usage {
            counts: vec![number],
            words: SensorWords::of_list(&[0, number]),
            ..Usage::from(Facts::from([(Fact::ON_CPU, number)]))
        };
        let mut sum = usage(full);
        sum.add(&usage(2));
        assert_eq!(sum, usage(full + 2));
    }
}
