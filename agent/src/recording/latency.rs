//! Recordings of the length of a function's calls: the difference of two readings. Pure.

use std::{collections::HashMap, time::Duration};

use super::{Selector, SubjectName};
use crate::{
    attribution::{Row, RowUsage, Snapshot},
    model::{
        functions,
        sensors::{self, Histogram, Words},
        usage::Usage,
    },
};

/// The description of a requested recording.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WantedLatency {
    /// The subjects whose calls are counted.
    pub selector: Selector,
    /// The name of a function of the configuration, or the text of another one, see `Code::of_text`.
    pub function: String,
    /// The length of the recording.
    pub duration: Duration,
}

/// A finished recording.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Latency {
    /// The function, as it was asked for.
    pub function: String,
    /// The selection of subjects.
    pub title: String,
    /// The length of the recording.
    pub duration: Duration,
    /// The calls; `None` without any.
    pub calls: Option<Histogram>,
    /// The reason why it ended early.
    pub ended: Option<String>,
}

/// Returns the calls that ended between two readings; `None` without any. `function` is the number of the function in
/// the rows.
#[must_use]
pub fn calls_between(before: &Snapshot, after: &Snapshot, selector: &Selector, function: usize) -> Option<Histogram> {
    let words = functions::words(function)?;
    let Words::Histogram { buckets, first, .. } = words else { return None };
    let mut all = vec![0_u128; 1 + buckets];
    if *selector == Selector::All {
        // Rows that have ended meanwhile are elsewhere.
        add(&mut all, usages(after), words);
        let mut earlier = vec![0_u128; 1 + buckets];
        add(&mut earlier, usages(before), words);
        all.iter_mut().zip(earlier).for_each(|(now, then)| *now = now.saturating_sub(then));
    } else {
        let known: HashMap<&Row, &RowUsage> = before.rows.iter().map(|row| (&row.row, row)).collect();
        for row in after.rows.iter().filter(|row| takes(selector, &row.row, after)) {
            let mut now = vec![0_u128; 1 + buckets];
            add(&mut now, std::iter::once(&row.usage), words);
            // A row with another start begins at zero.
            if let Some(then) = known.get(&row.row).filter(|then| then.started == row.started) {
                let mut earlier = vec![0_u128; 1 + buckets];
                add(&mut earlier, std::iter::once(&then.usage), words);
                now.iter_mut().zip(earlier).for_each(|(now, then)| *now = now.saturating_sub(then));
            }
            all.iter_mut().zip(now).for_each(|(sum, by)| *sum += by);
        }
    }
    Histogram::of(&all, Words::Histogram { sum: 0, buckets, first })
}

/// Returns the number of calls of the node so far.
#[must_use]
pub fn calls_of_node(snapshot: &Snapshot, function: usize) -> u128 {
    let Some(words @ Words::Histogram { buckets, .. }) = functions::words(function) else { return 0 };
    let mut all = vec![0_u128; 1 + buckets];
    add(&mut all, usages(snapshot), words);
    all.iter().skip(1).sum()
}

/// Returns all usages of a reading, which do not overlap.
fn usages(snapshot: &Snapshot) -> impl Iterator<Item = &Usage> {
    snapshot.rows.iter().map(|row| &row.usage).chain([&snapshot.elsewhere, &snapshot.idle])
}

/// Adds the words of a histogram: its sum, then its buckets.
fn add<'a>(to: &mut [u128], usages: impl Iterator<Item = &'a Usage>, words: Words) {
    let (Some(sensor), Words::Histogram { sum, buckets, .. }) = (sensors::named(functions::SENSOR), words) else {
        return;
    };
    for usage in usages {
        let row = usage.words.of(sensor).and_then(|row| row.get(sum..=sum + buckets)).unwrap_or_default();
        to.iter_mut().zip(row).for_each(|(sum, by)| *sum += by);
    }
}

/// Returns whether a selection includes a row.
fn takes(selector: &Selector, row: &Row, snapshot: &Snapshot) -> bool {
    match (selector, row) {
        (Selector::All, _) => true,
        (Selector::One(SubjectName::Cgroup(_)) | Selector::Below(_), Row::Cgroup(path)) => {
            selector.has(&SubjectName::Cgroup(path.to_string()))
        }
        (
            Selector::One(SubjectName::Container { namespace, pod, container }),
            Row::Container { namespace: of, pod: name, container: own },
        ) => **namespace == **of && **pod == **name && **container == **own,
        (
            Selector::Pod { namespace, pod },
            Row::Pod { namespace: of, pod: name } | Row::Container { namespace: of, pod: name, .. },
        ) => **namespace == **of && **pod == **name,
        (
            Selector::Workload { namespace, workload },
            Row::Pod { namespace: of, pod: name } | Row::Container { namespace: of, pod: name, .. },
        ) => snapshot.pods.iter().any(|pod| {
            **namespace == **of && pod.namespace == *of && pod.name == *name && *pod.workload.name == **workload
        }),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;
    use crate::attribution::Shown;

    /// Returns a row with this many calls in bucket 2 of the second function.
    fn row(path: &str, started: u64, calls: u128) -> RowUsage {
        let sensor = sensors::named(functions::SENSOR).unwrap();
        let Some(Words::Histogram { sum, .. }) = functions::words(1) else { panic!("no histogram") };
        let mut usage = Usage::default();
        let words = usage.words.row_mut(sensors::place_of(sensor));
        (words[sum], words[sum + 3]) = (calls * 12_000, calls);
        let started = SystemTime::UNIX_EPOCH + Duration::from_secs(started);
        RowUsage { row: Row::Cgroup(path.into()), started, container: None, usage, shown: Shown::ALL }
    }

    fn snapshot(rows: Vec<RowUsage>) -> Snapshot {
        Snapshot::of_rows(SystemTime::UNIX_EPOCH, rows)
    }

    #[test]
    fn calls_are_those_of_the_subject_between_the_readings() {
        let before = snapshot(vec![row("/a", 1, 5), row("/a/b", 1, 2), row("/c", 1, 9)]);
        let after = snapshot(vec![row("/a", 1, 8), row("/a/b", 2, 1), row("/c", 1, 10), row("/d", 2, 1)]);
        let calls = |subject: &str, function| {
            let selector = if subject == "all" { Selector::All } else { subject.parse().unwrap() };
            calls_between(&before, &after, &selector, function)
        };
        let of_a = calls("/a", 1).unwrap();
        assert_eq!((of_a.count(), of_a.sum_ns, of_a.buckets[2], of_a.first), (3, 36_000, 3, -18));
        assert_eq!(calls("/a/", 1).unwrap().count(), 4, "the row below came back, and began at zero");
        assert_eq!((calls("/d", 1).unwrap().count(), calls("/e", 1), calls("/a", 0)), (1, None, None));
        assert_eq!((calls_of_node(&before, 1), calls_of_node(&after, 1), calls_of_node(&after, 0)), (16, 20, 0));
        assert_eq!(calls("all", 1).unwrap().count(), 4);
    }
}
