//! What the workloads did: `podperf_cgroup_*` and `podperf_node_*`. Pure.

use std::borrow::Cow;

use super::{BaseUnit, Family, Kind, Value};
use crate::{
    attribution::Snapshot, events::plan::Scale, kernel::OpenCounter, readings::Usage, stacks::profile::WaitState,
};

/// The row of counters while CPUs were idle.
const IDLE_ROW: &str = "(idle)";

/// One family that needs no PMU: its name, and its series in a usage.
struct Fact {
    name: &'static str,
    help: &'static str,
    unit: Option<BaseUnit>,
    series: &'static [Series],
}

/// The labels of one series beside the row's own, and its value.
type Series = (&'static [(&'static str, &'static str)], fn(&Usage) -> Value);

/// One row per family.
const FACTS: [Fact; 6] = [
    Fact {
        name: "oncpu",
        help: "Time on a CPU",
        unit: Some(BaseUnit::Seconds),
        series: &[(&[], |usage| Value::seconds(usage.oncpu_ns))],
    },
    Fact {
        name: "runqueue_wait",
        help: "Time runnable but waiting for a CPU",
        unit: Some(BaseUnit::Seconds),
        series: &[(&[], |usage| Value::seconds(usage.runqueue_ns))],
    },
    Fact {
        name: "offcpu",
        help: "Time off the CPU, by the state in which it was left; run-queue wait is part of it",
        unit: Some(BaseUnit::Seconds),
        series: &[
            (&[("state", WaitState::Interruptible.name())], |usage| Value::seconds(usage.offcpu_ns[0])),
            (&[("state", WaitState::Uninterruptible.name())], |usage| Value::seconds(usage.offcpu_ns[1])),
            (&[("state", WaitState::Preempted.name())], |usage| Value::seconds(usage.offcpu_ns[2])),
        ],
    },
    Fact {
        name: "context_switches",
        help: "Context switches: voluntary because a task blocked, involuntary because another was to run",
        unit: None,
        series: &[
            (&[("kind", "voluntary")], |usage| Value::Count(usage.voluntary_switches)),
            (&[("kind", "involuntary")], |usage| Value::Count(usage.involuntary_switches)),
        ],
    },
    Fact {
        name: "cpu_migrations",
        help: "Moves of tasks to another CPU",
        unit: None,
        series: &[(&[], |usage| Value::Count(usage.migrations))],
    },
    Fact {
        name: "page_faults",
        help: "Page faults: minor served from memory, major had to read",
        unit: None,
        series: &[
            (&[("kind", "minor")], |usage| Value::Count(usage.minor_faults)),
            (&[("kind", "major")], |usage| Value::Count(usage.major_faults)),
        ],
    },
];

/// The families of a snapshot. Counters that are not open have none.
pub(super) fn families(snapshot: &Snapshot, counters: &[OpenCounter], facts: bool) -> Vec<Family> {
    let mut families = Vec::new();
    if facts {
        for fact in &FACTS {
            let mut family = Family::new(format!("podperf_cgroup_{}", fact.name), fact.help, Kind::Counter);
            family.unit = fact.unit;
            for (row, usage) in &snapshot.rows {
                for (labels, value) in fact.series {
                    let labels: Vec<_> = [("cgroup", row.as_str())].into_iter().chain(labels.iter().copied()).collect();
                    family.push(&labels, value(usage));
                }
            }
            families.push(family);
        }
        families.push(
            Family::new("podperf_node_idle", "Time that CPUs were idle, all CPUs together", Kind::Counter)
                .unit(BaseUnit::Seconds)
                .sample(&[], Value::seconds(snapshot.idle_ns)),
        );
    }
    families.extend(counter_families(snapshot, counters));
    families
}

fn counter_families(snapshot: &Snapshot, counters: &[OpenCounter]) -> Vec<Family> {
    let mut families: Vec<Family> = Vec::new();
    for open in counters {
        let (Ok(slot), counter) = (&open.slot, &open.counter) else { continue };
        let (name, unit) = match counter.scale {
            Scale::Count => (counter.family, None),
            Scale::Nanoseconds => (counter.family.trim_end_matches("_seconds"), Some(BaseUnit::Seconds)),
        };
        let name: Cow<'static, str> = format!("podperf_cgroup_{name}").into();
        // Counters of one family: user and kernel mode, or the shared one of raw events.
        let index = families.iter().position(|family| family.name == name).unwrap_or_else(|| {
            let mut family = Family::new(name, counter.help, Kind::Counter);
            family.unit = unit;
            families.push(family);
            families.len() - 1
        });
        let rows = snapshot.rows.iter().map(|(row, usage)| (row.as_str(), usage)).chain([(IDLE_ROW, &snapshot.idle)]);
        for (row, usage) in rows {
            let mut labels = vec![("cgroup", row)];
            labels.extend(counter.event_label.as_deref().map(|event| ("event", event)));
            labels.extend(counter.mode.map(|mode| ("mode", mode.name())));
            let count = usage.counts.get(*slot).copied().unwrap_or(0);
            let value = match counter.scale {
                Scale::Count => Value::Count(count),
                Scale::Nanoseconds => Value::seconds(count),
            };
            families[index].push(&labels, value);
        }
    }
    families
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;

    #[test]
    fn every_row_has_its_times_switches_and_faults() {
        let usage = Usage { oncpu_ns: 1_500_000_000, offcpu_ns: [1, 2, 3], major_faults: 4, ..Usage::default() };
        let snapshot = Snapshot {
            taken: SystemTime::UNIX_EPOCH,
            rows: vec![("/a".into(), usage)],
            retired: Usage::default(),
            idle_ns: 2_000_000_000,
            idle: Usage::default(),
            cgroups_tracked: 1,
            cgroups_unresolved: 0,
        };
        let families = families(&snapshot, &[], true);
        let value = |name: &str, label: &str| {
            let family = families.iter().find(|family| family.name == name).unwrap();
            let has_label = |sample: &&super::super::Sample| sample.labels.iter().any(|(_, value)| value == label);
            family.samples.iter().find(has_label).unwrap().value
        };
        assert_eq!(value("podperf_cgroup_oncpu", "/a"), Value::Real(1.5));
        assert_eq!(value("podperf_cgroup_offcpu", "uninterruptible"), Value::Real(2e-9));
        assert_eq!(value("podperf_cgroup_page_faults", "major"), Value::Count(4));
        assert_eq!(families.last().unwrap().samples[0].value, Value::Real(2.0));
        assert!(super::families(&snapshot, &[], false).is_empty());
    }
}
