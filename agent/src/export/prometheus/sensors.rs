//! The metrics of sensors: families of containers, pods, other cgroups and the node, from the descriptions of the
//! sensors. Pure.

use std::{sync::Arc, time::SystemTime};

use super::{
    BaseUnit, Family, Kind, Label, Value,
    workload::{RowKind, label, labels},
};
use crate::{
    attribution::{RowUsage, Snapshot},
    model::{
        facts::Unit,
        sensors::{self, Histogram, Sensor, Words},
        usage::Usage,
    },
};

/// Returns the families of the sensors that are on. Series whose value is 0 are left out, because most rows use
/// only a few.
pub(super) fn families(snapshot: &Snapshot, on: &[&'static Sensor]) -> Vec<Family> {
    let mut families = Vec::new();
    for sensor in on {
        for family in sensor.families {
            families.extend(RowKind::ALL.iter().map(|row_kind| of_rows(snapshot, sensor, family, *row_kind)));
        }
        families.extend(sensor.node.iter().map(|family| of_node(snapshot, sensor, family)));
    }
    families.retain(|family| !family.samples.is_empty());
    families
}

/// Returns the kind of a family.
pub(super) fn kind(family: &sensors::Family) -> Kind {
    let is_histogram = family.series.iter().any(|series| matches!(series.words, Words::Histogram { .. }));
    if is_histogram { Kind::Histogram } else { Kind::Counter }
}

fn of_rows(snapshot: &Snapshot, sensor: &Sensor, of: &sensors::Family, row_kind: RowKind) -> Family {
    let mut family = empty(of, row_kind);
    for RowUsage { row, usage, started, .. } in snapshot.rows.iter().filter(|row| RowKind::of(&row.row) == row_kind) {
        push(&mut family, sensor, of, &labels(row), (usage, *started));
    }
    family
}

fn of_node(snapshot: &Snapshot, sensor: &Sensor, of: &sensors::Family) -> Family {
    let mut family = empty(of, RowKind::Node);
    push(&mut family, sensor, of, &Arc::default(), (&snapshot.idle, snapshot.started));
    family
}

fn empty(of: &sensors::Family, row_kind: RowKind) -> Family {
    let mut family = Family::new(format!("{}{}", row_kind.prefix(), of.name), of.help, kind(of));
    family.unit = BaseUnit::of(of.unit);
    family
}

/// Adds the series of a row, which has these labels, this usage and this start.
fn push(
    family: &mut Family,
    sensor: &Sensor,
    of: &sensors::Family,
    row: &Arc<[Label]>,
    (usage, started): (&Usage, SystemTime),
) {
    let Some(words) = usage.words.of(sensor) else { return };
    for series in of.series {
        if let Some(value) = value(words, series.words, of.unit) {
            let own: Vec<Label> = of.labels_of(series).map(|(of, value)| label(of.name, value)).collect();
            family.push_of_row(row, own, value, Some(started));
        }
    }
}

/// Returns the value of a series; `None` if it is zero.
fn value(row: &[u128], words: Words, unit: Unit) -> Option<Value> {
    match words {
        Words::Histogram { .. } => Histogram::of(row, words).map(|histogram| Value::Histogram(Arc::new(histogram))),
        Words::Total(at) => {
            let total = row.get(at).copied().filter(|total| *total > 0)?;
            Some(if unit == Unit::Seconds { Value::seconds(total) } else { Value::count(total) })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        attribution::{Row, Shown},
        model::sensor_words::SensorWords,
    };

    /// The idle task's row has the counts of the node, and those of idle CPUs, which are a part of them.
    #[test]
    fn series_of_the_node_are_words_of_the_idle_row_and_those_of_rows_are_not() {
        let sensor = sensors::named("interrupts").unwrap();
        let total = |of: &sensors::Family| match of.series[4].words {
            Words::Total(at) => at,
            words => panic!("{words:?}"),
        };
        let (of_rows, [of_node, counted, of_idle]) = (&sensor.families[0], sensor.node) else { panic!("{sensor:?}") };
        assert_eq!(total(of_rows), total(of_idle));
        let usage = |numbers: &[(usize, u128)]| {
            let mut words = SensorWords::default();
            numbers.iter().for_each(|(at, value)| words.row_mut(sensors::place_of(sensor))[*at] = *value);
            Usage { words, ..Usage::default() }
        };
        let row = RowUsage {
            row: Row::Cgroup("/a".into()),
            started: SystemTime::UNIX_EPOCH,
            container: None,
            usage: usage(&[(total(of_rows), 2_000_000_000)]),
            shown: Shown::ALL,
        };
        let mut snapshot = Snapshot::of_rows(SystemTime::UNIX_EPOCH, vec![row]);
        snapshot.idle = usage(&[(total(of_node), 3_000_000_000), (total(counted), 7), (total(of_idle), 1_000_000_000)]);
        let families = families(&snapshot, &[sensor]);
        let found: Vec<_> = families
            .iter()
            .map(|family| {
                let [sample] = &family.samples[..] else { panic!("{family:?}") };
                assert_eq!(sample.labels, [label("kind", "net_rx")]);
                (&*family.name, sample.row.len(), sample.value.clone())
            })
            .collect();
        assert_eq!(
            found,
            [
                ("podperf_cgroup_interrupted", 1, Value::Real(2.0)),
                ("podperf_node_interrupted", 0, Value::Real(3.0)),
                ("podperf_node_interrupts", 0, Value::count(7)),
                ("podperf_node_idle_interrupted", 0, Value::Real(1.0)),
            ]
        );
    }
}
