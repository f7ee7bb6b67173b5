//! The metrics of sensors: families of containers, pods and other cgroups, from the descriptions of the sensors. Pure.

use std::sync::Arc;

use super::{
    BaseUnit, Family, Kind, Label, Value,
    workload::{RowKind, label, labels},
};
use crate::{
    attribution::{RowUsage, Snapshot},
    model::{
        facts::Unit,
        sensors::{self, Histogram, Sensor, Words},
    },
};

/// Returns the families of the sensors that are on. Series whose value is 0 are left out, because most rows use
/// only a few.
pub(super) fn families(snapshot: &Snapshot, on: &[&'static Sensor]) -> Vec<Family> {
    let mut families = Vec::new();
    for sensor in on {
        for family in sensor.families {
            families.extend(RowKind::ALL.iter().map(|row_kind| self::family(snapshot, sensor, family, *row_kind)));
        }
    }
    families.retain(|family| !family.samples.is_empty());
    families
}

/// Returns the kind of a family.
pub(super) fn kind(family: &sensors::Family) -> Kind {
    let is_histogram = family.series.iter().any(|series| matches!(series.words, Words::Histogram { .. }));
    if is_histogram { Kind::Histogram } else { Kind::Counter }
}

fn family(snapshot: &Snapshot, sensor: &Sensor, of: &sensors::Family, row_kind: RowKind) -> Family {
    let mut family = Family::new(format!("{}{}", row_kind.prefix(), of.name), of.help, kind(of));
    family.unit = BaseUnit::of(of.unit);
    let first = sensors::first_of(sensor);
    for RowUsage { row, usage, started, .. } in snapshot.rows.iter().filter(|row| RowKind::of(&row.row) == row_kind) {
        let Some(words) = usage.words.get(first..first + sensor.words) else { continue };
        let row = labels(row);
        for series in of.series {
            if let Some(value) = value(words, series.words, of.unit) {
                let own: Vec<Label> = of.label.iter().map(|of| label(of.name, series.label)).collect();
                family.push_of_row(&row, own, value, Some(*started));
            }
        }
    }
    family
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
