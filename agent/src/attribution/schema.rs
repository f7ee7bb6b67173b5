//! The numbers of a usage, each with a label. A checkpoint of an agent with other events, or of another version with
//! other reasons, finds its numbers by the labels. Pure.

use std::{
    collections::{HashMap, HashSet},
    mem,
};

use super::NumberSet;
use crate::{
    kernel::OpenCounter,
    model::{
        facts::Fact,
        sensors::{self, ALL, Sensor},
        usage::Usage,
    },
};

/// The labels of a usage's numbers, in their order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schema {
    labels: Vec<String>,
    slots: Vec<(String, Option<usize>)>,
    groups: usize,
    /// The places of the sensors whose words follow, see [`sensors::place_of`].
    sensors: Vec<usize>,
}

impl Schema {
    /// Returns the schema of usages with these counters.
    #[must_use]
    pub fn of(counters: &[OpenCounter]) -> Self {
        let mut slots: Vec<_> =
            counters.iter().filter_map(|open| Some((open.slot?, open.counter.name.clone(), open.group))).collect();
        slots.sort_unstable();
        Self::of_slots(slots.into_iter().map(|(_, name, group)| (name, group)).collect())
    }

    /// Returns the schema for the names and groups of the counters, by slot.
    #[must_use]
    pub fn of_slots(slots: Vec<(String, Option<usize>)>) -> Self {
        let groups = slots.iter().filter_map(|(_, group)| *group).max().map_or(0, |last| last + 1);
        // The leader's name identifies a group.
        let leader = |group: usize| slots.iter().find(|(_, of)| *of == Some(group)).map_or("", |(name, _)| name);
        let labels = Fact::all()
            .map(Fact::saved_as)
            .chain(slots.iter().map(|(name, _)| counter_label(name)))
            .chain((0..groups).map(|group| format!("enabled {}", leader(group))))
            .chain((0..groups).map(|group| format!("running {}", leader(group))))
            .collect();
        Self { labels, slots, groups, sensors: Vec::new() }.naming(&[])
    }

    /// Returns the schema for these sensors, whose labels the configuration may give. Their words come before those of
    /// all other sensors: words of sensors that are off are mostly zeros at the end, which are not saved.
    #[must_use]
    pub fn naming(mut self, on: &[&'static Sensor]) -> Self {
        let words: usize = self.sensors.iter().map(|place| ALL[*place].words).sum();
        self.labels.truncate(self.labels.len().saturating_sub(words));
        let names = sensors::saved_as(on);
        let is_on = |sensor: &Sensor| on.iter().any(|of| of.names.sensor == sensor.names.sensor);
        let mut all: Vec<_> = sensors::all().enumerate().collect();
        all.sort_by_key(|(_, (sensor, _))| !is_on(sensor));
        for (_, (sensor, first)) in &all {
            self.labels.extend_from_slice(&names[*first..first + sensor.words]);
        }
        self.sensors = all.into_iter().map(|(place, _)| place).collect();
        self
    }

    /// Returns the labels of the numbers.
    #[must_use]
    pub fn labels(&self) -> &[String] {
        &self.labels
    }

    /// Returns the counters' names and groups, by slot.
    #[must_use]
    pub fn slots(&self) -> &[(String, Option<usize>)] {
        &self.slots
    }

    /// Returns the numbers of a usage without the zeros at the end.
    #[must_use]
    pub fn words(&self, usage: &Usage) -> Vec<u128> {
        let mut usage = usage.clone();
        let of_sensors = mem::take(&mut usage.words);
        let mut words: Vec<u128> = self.numbers(&mut usage).map(|number| *number).collect();
        let is_used = |place: &usize| of_sensors.rows().any(|(used, _)| used == *place);
        let used = self.sensors.iter().rposition(is_used).map_or(0, |last| last + 1);
        words.extend(self.sensors[..used].iter().flat_map(|place| of_sensors.padded(*place)));
        words.truncate(words.iter().rposition(|word| *word != 0).map_or(0, |last| last + 1));
        words
    }

    /// Returns the usage with these numbers. `labels` may come from another agent; a number whose label does not exist
    /// here is left out.
    #[must_use]
    pub fn usage(&self, words: &[u128], labels: &[String]) -> Usage {
        let mut usage = Usage::default();
        let by_label: HashMap<&str, u128> = labels.iter().map(String::as_str).zip(words.iter().copied()).collect();
        let mut saved = self.labels.iter().map(|label| by_label.get(label.as_str()).copied().unwrap_or(0));
        // The numbers come first: they end before a label is taken for them.
        self.numbers(&mut usage).zip(saved.by_ref()).for_each(|(number, saved)| *number = saved);
        for place in &self.sensors {
            let row: Vec<u128> = saved.by_ref().take(ALL[*place].words).collect();
            usage.words.set(*place, &row);
        }
        usage
    }

    /// Returns the indexes of numbers among the labels.
    #[must_use]
    pub fn places(&self, numbers: NumberSet) -> Vec<usize> {
        (0..self.labels.len().min(NumberSet::BITS as usize)).filter(|place| numbers >> place & 1 == 1).collect()
    }

    /// Returns the numbers at these indexes of `labels`, which may come from another agent.
    #[must_use]
    pub fn numbers_at(&self, places: &[usize], labels: &[String]) -> NumberSet {
        let at: HashSet<_> = places.iter().filter_map(|place| labels.get(*place)).collect();
        let of = self.labels.iter().enumerate().take(NumberSet::BITS as usize).filter(|(_, label)| at.contains(label));
        of.fold(0, |numbers, (place, _)| numbers | 1 << place)
    }

    /// Returns the numbers without the words of sensors, in the order of the labels.
    fn numbers<'a>(&self, usage: &'a mut Usage) -> impl Iterator<Item = &'a mut u128> + use<'a> {
        usage.counts.resize(self.slots.len(), 0);
        usage.enabled_ns.resize(self.groups, 0);
        usage.running_ns.resize(self.groups, 0);
        usage.all_numbers()
    }
}

/// Returns the label of a counter's numbers.
#[must_use]
pub fn counter_label(name: &str) -> String {
    format!("count {name}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::sensor_words::SensorWords;

    fn slots(names: &[(&str, Option<usize>)]) -> Schema {
        Schema::of_slots(names.iter().map(|(name, group)| ((*name).to_owned(), *group)).collect())
    }

    fn example() -> Usage {
        let mut usage =
            Usage { counts: vec![11, 12, 13], enabled_ns: vec![14, 15], running_ns: vec![16, 17], ..Usage::default() };
        usage.words = SensorWords::of_list(&(1..=sensors::words() as u128).collect::<Vec<_>>());
        usage.facts.numbers_mut().zip(100..).for_each(|(number, value)| *number = value);
        usage
    }

    #[test]
    fn a_usage_comes_back_as_it_was() {
        let schema = slots(&[("cycles", Some(0)), ("instructions", Some(0)), ("cache-misses", Some(1))]);
        let words = schema.words(&example());
        assert_eq!(words.len(), schema.labels().len());
        assert_eq!(schema.usage(&words, schema.labels()), example());
        assert_eq!(schema.words(&Usage::default()), [0_u128; 0]);
    }

    #[test]
    fn words_of_sensors_that_are_on_come_first_and_are_found_by_their_names() {
        let (calls, histograms) = (sensors::named("calls").unwrap(), sensors::named("histograms").unwrap());
        let (before, after) = (slots(&[]).naming(&[histograms]), slots(&[]).naming(&[calls]));
        let mut usage = Usage::default();
        usage.words.row_mut(sensors::place_of(histograms))[histograms.words - 1] = 7;
        let words = before.words(&usage);
        assert_eq!(words.len(), before.labels().len() - sensors::words() + histograms.words);
        assert_eq!(after.usage(&words, before.labels()).words, usage.words);
        usage.words.row_mut(sensors::place_of(calls))[1] = 5;
        assert_eq!(after.usage(&before.words(&usage), before.labels()).words, usage.words);
    }

    #[test]
    fn counters_are_found_by_their_names_in_another_order() {
        let before = slots(&[("cycles", Some(0)), ("instructions", Some(0)), ("cache-misses", Some(1))]);
        let after = slots(&[("cache-misses", Some(0)), ("page-faults", None), ("cycles", Some(2))]);
        let usage = after.usage(&before.words(&example()), before.labels());
        assert_eq!(usage.counts, [13, 0, 11]);
        assert_eq!((usage.enabled_ns, usage.running_ns), (vec![15, 0, 14], vec![17, 0, 16]));
        assert_eq!(usage.facts, example().facts);
    }

    /// A changed name loses the number that was saved under the old name: add a name, never change one.
    #[test]
    fn labels_are_what_every_version_has_written() {
        let schema = slots(&[("cycles", Some(0)), ("cache-misses", Some(1))]);
        let expected = [
            "oncpu",
            "voluntary_switches",
            "involuntary_switches",
            "migrations",
            "minor_faults",
            "major_faults",
            "offcpu Interruptible",
            "offcpu Uninterruptible",
            "offcpu RunQueue",
            "offcpu Throttled",
            "wait Futex",
            "wait Poll",
            "wait Disk",
            "wait Network",
            "wait PageFault",
            "wait Pipe",
            "wait Sleep",
            "wait KernelLock",
            "wait Child",
            "wait Stopped",
            "wait MemoryLimit",
            "wait RunQueue",
            "wait Throttled",
            "wait Other",
            "wait Unknown",
            "waits",
            "oncpu_samples",
            "waits Futex",
            "waits Poll",
            "waits Disk",
            "waits Network",
            "waits PageFault",
            "waits Pipe",
            "waits Sleep",
            "waits KernelLock",
            "waits Child",
            "waits Stopped",
            "waits MemoryLimit",
            "waits RunQueue",
            "waits Throttled",
            "waits Other",
            "waits Unknown",
            "unwound Whole",
            "unwound Truncated",
            "unwound Broken",
            "unwound NoFramePointers",
            "unwound Shed",
            "unwound Guessed",
            "unwound Cut",
            "count cycles",
            "count cache-misses",
            "enabled cycles",
            "enabled cache-misses",
            "running cycles",
            "running cache-misses",
        ];
        assert_eq!(schema.labels()[..expected.len()], expected);
        assert_eq!(schema.labels()[expected.len()..], sensors::saved_as(&[]));
    }

    #[test]
    fn labels_are_distinct() {
        let schema = slots(&[("cycles", Some(0)), ("cache-misses", Some(1))]);
        let mut labels = schema.labels().to_vec();
        labels.sort_unstable();
        labels.dedup();
        assert_eq!(labels.len(), schema.labels().len());
    }
}
