//! All sensors, and the list of their words: the rows of the sensors of [`ALL`], one after the other. Pure.

pub use podperf_ebpf::{
    sensor::{DropReason, Family, Hook, Program, Sensor, Series, Setting, SettingKind, Words},
    sensors::{ALL, PROGRAMS},
};

/// Returns all sensors, each with the place of its row in the list.
pub fn all() -> impl Iterator<Item = (&'static Sensor, usize)> {
    ALL.into_iter().scan(0, |next, sensor| {
        let first = *next;
        *next += sensor.words;
        Some((sensor, first))
    })
}

/// Returns the length of the list.
#[must_use]
pub fn words() -> usize {
    ALL.iter().map(|sensor| sensor.words).sum()
}

/// Returns the place of a sensor in [`ALL`].
#[must_use]
pub fn place_of(sensor: &Sensor) -> usize {
    ALL.iter().take_while(|other| other.names.sensor != sensor.names.sensor).count()
}

/// Returns the sensor of this name.
#[must_use]
pub fn named(name: &str) -> Option<&'static Sensor> {
    ALL.into_iter().find(|sensor| sensor.names.sensor == name)
}

/// Returns the reasons for drops of all sensors' own.
pub fn drops() -> impl Iterator<Item = &'static DropReason> {
    ALL.into_iter().flat_map(|sensor| sensor.drops)
}

/// Returns the name of each word of the list in the checkpoint. Do not rename a sensor, a family or a label: a number
/// under an unknown name is lost. A sensor whose labels the configuration gives is in `described` with these labels.
#[must_use]
pub fn saved_as(described: &[&'static Sensor]) -> Vec<String> {
    let mut names: Vec<String> =
        all().flat_map(|(sensor, _)| (0..sensor.words).map(|at| format!("{} {at}", sensor.names.sensor))).collect();
    for (sensor, first) in all() {
        let described = described.iter().find(|of| of.names.sensor == sensor.names.sensor);
        let families = described.copied().unwrap_or(sensor).families.iter();
        let of_node = sensor.node.iter().map(|family| (format!("node {}", family.name), family));
        let of_rows = families.map(|family| (family.name.to_owned(), family));
        // A word of both has the name of the rows.
        for (family, Family { series, .. }) in of_node.chain(of_rows) {
            for series in *series {
                let (at, count) = match series.words {
                    Words::Total(at) => (at, 1),
                    Words::Histogram { sum, buckets, .. } => (sum, 1 + buckets),
                };
                for word in 0..count {
                    // One label has the name that it had when it was the only one.
                    let labels = series.labels.join(" ");
                    let name = [sensor.names.sensor, &family, labels.trim_end(), &word.to_string()].join(" ");
                    names[first + at + word] = name;
                }
            }
        }
    }
    names
}

/// A histogram with buckets by powers of two.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Histogram {
    /// The sum of all values, in nanoseconds.
    pub sum_ns: u128,
    /// The number of values in each bucket, see [`Words::Histogram`].
    pub buckets: Vec<u64>,
    /// The binary logarithm of the upper border of the first bucket, in seconds.
    pub first: i32,
}

impl Histogram {
    /// Returns the number of values.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.buckets.iter().fold(0, |sum, bucket| sum.saturating_add(*bucket))
    }

    /// Returns the histogram in a row of the sensor; `None` without a value.
    #[must_use]
    pub fn of(row: &[u128], words: Words) -> Option<Self> {
        let Words::Histogram { sum, buckets, first } = words else { return None };
        let all = row.get(sum..=sum + buckets)?;
        let buckets = all.get(1..)?.iter().map(|count| u64::try_from(*count).unwrap_or(u64::MAX)).collect();
        let this = Self { sum_ns: *all.first()?, buckets, first };
        (this.count() > 0).then_some(this)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_word_has_a_name_of_its_own() {
        let names = saved_as(&[]);
        assert_eq!(names.len(), words());
        assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len());
        let first_of = |name: &str| all().find(|(sensor, _)| sensor.names.sensor == name).unwrap().1;
        let histograms = first_of("histograms");
        assert_eq!(names[histograms + 1], "histograms wait_duration interruptible 0");
        assert_eq!(names[histograms + 59], "histograms runqueue_latency  0");
        // The row of the idle task has both words.
        let interrupts = first_of("interrupts");
        assert_eq!(names[interrupts + 1], "interrupts interrupted hardirq 0");
        assert_eq!(names[interrupts + 12], "interrupts node interrupted hardirq 0");
        let last = first_of("calls") + named("calls").unwrap().words - 1;
        assert_eq!(names[last], "calls syscall_errors writev EPIPE 0");
    }

    #[test]
    fn series_are_within_their_rows() {
        for sensor in ALL {
            let families = sensor.families.iter().chain(sensor.node);
            for series in families.flat_map(|family| family.series) {
                let end = match series.words {
                    Words::Total(at) => at + 1,
                    Words::Histogram { sum, buckets, .. } => sum + 1 + buckets,
                };
                assert!(end <= sensor.words, "{}: {series:?}", sensor.names.sensor);
            }
        }
    }
}
