//! Converts an observation to points, by instrument. Pure.

use std::{
    collections::BTreeMap,
    time::{SystemTime, UNIX_EPOCH},
};

use opentelemetry::KeyValue;

use super::names::{self, RowKind, START};
use crate::{
    attribution::{RowUsage, Snapshot},
    collector::Observation,
    kernel::OpenCounter,
    model::facts::{FACTS, FactFamily, FamilyRow},
    model::hard_interrupts::HardInterrupts,
    model::sensors::{Family, Sensor, Words},
    model::usage::Usage,
};

/// The name of the row that has the counts of idle CPUs, as in `/metrics`.
const IDLE_ROW: &str = "(idle)";

/// The points of one instrument.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Points {
    pub(super) unit: &'static str,
    pub(super) values: Values,
}

/// The attributes and total of each series. One of the attributes is [`START`].
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Values {
    Counts(Vec<(Vec<KeyValue>, u64)>),
    Seconds(Vec<(Vec<KeyValue>, f64)>),
}

impl Values {
    fn of_unit(unit: &str) -> Self {
        if unit == "s" { Self::Seconds(Vec::new()) } else { Self::Counts(Vec::new()) }
    }

    #[expect(clippy::cast_precision_loss, reason = "53 bits of nanoseconds are 104 days without an error")]
    fn push(&mut self, attributes: Vec<KeyValue>, value: u128) {
        match self {
            Self::Counts(counts) => counts.push((attributes, within_63_bits(value))),
            Self::Seconds(seconds) => seconds.push((attributes, value as f64 / 1e9)),
        }
    }
}

/// Returns the part of a count that an integer of OTLP holds, which is signed. A receiver takes the fall to 0 for a
/// restart: one interval is lost. A count that stood still at the largest integer would lose all others.
fn within_63_bits(count: u128) -> u64 {
    u64::try_from(count % (1 << 63)).unwrap_or(0)
}

/// Instruments by name. They have the same series as `/metrics`.
pub(super) type Observed = BTreeMap<String, Points>;

/// The kind of a row, the attributes that identify it, its usage, and its start.
type NamedRow<'a> = (RowKind, Vec<KeyValue>, &'a Usage, SystemTime);

pub(super) fn observed(observation: &Observation, facts: &[FactFamily], on: &[&'static Sensor]) -> Observed {
    let mut observed = of_snapshot(&observation.snapshot, &observation.counters, facts, on);
    push_hard_interrupts(&mut observed, &observation.hard_interrupts, observation.snapshot.started);
    observed
}

fn of_snapshot(
    snapshot: &Snapshot,
    counters: &[OpenCounter],
    facts: &[FactFamily],
    on: &[&'static Sensor],
) -> Observed {
    let mut observed = Observed::new();
    let rows: Vec<NamedRow<'_>> = snapshot.rows.iter().map(faced).collect();
    for fact in FACTS.iter().filter(|fact| facts.contains(&fact.family)) {
        rows.iter().for_each(|row| push_fact(&mut observed, fact, row));
    }
    let node = (RowKind::Node, Vec::new(), &snapshot.idle, snapshot.started);
    for sensor in on {
        rows.iter().for_each(|row| push_totals(&mut observed, sensor, sensor.families, row));
        push_totals(&mut observed, sensor, sensor.node, &node);
    }
    let idle = vec![KeyValue::new("podperf.cgroup.path", IDLE_ROW)];
    let idle = (RowKind::Cgroup, idle, &snapshot.idle, snapshot.started);
    for open in counters.iter().filter(|open| open.state.is_counted()) {
        rows.iter().chain([&idle]).for_each(|row| push_counter(&mut observed, open, row, snapshot));
    }
    if !facts.is_empty() {
        let times =
            [("podperf.node.idle.time", snapshot.idle_ns), ("podperf.node.unaccounted.time", snapshot.unaccounted_ns)];
        let stolen = snapshot.stolen_ns.map(|ns| ("podperf.node.stolen.time", ns));
        for (name, ns) in times.into_iter().chain(stolen) {
            points(&mut observed, name.to_owned(), "s").push(vec![start(snapshot.started)], ns.into());
        }
    }
    observed
}

fn faced(row: &RowUsage) -> NamedRow<'_> {
    (RowKind::of(&row.row), names::attributes(&row.row), &row.usage, row.started)
}

fn points<'a>(observed: &'a mut Observed, name: String, unit: &'static str) -> &'a mut Values {
    &mut observed.entry(name).or_insert_with(|| Points { unit, values: Values::of_unit(unit) }).values
}

fn start(started: SystemTime) -> KeyValue {
    let since = started.duration_since(UNIX_EPOCH).unwrap_or_default();
    KeyValue::new(START, i64::try_from(since.as_nanos()).unwrap_or(i64::MAX))
}

fn push_fact(observed: &mut Observed, fact: &FamilyRow, (row_kind, attributes, usage, started): &NamedRow<'_>) {
    let values = points(observed, row_kind.instrument(fact.instrument), names::of_unit(fact.unit));
    for (label, number) in fact.series {
        let value = usage.facts[*number];
        if fact.sparse && value == 0 {
            continue;
        }
        let more = fact.label.map(|of| KeyValue::new(of.attribute, *label)).into_iter().chain([start(*started)]);
        values.push(attributes.iter().cloned().chain(more).collect(), value);
    }
}

/// Adds the totals of a sensor's families. Leaves out series whose value is 0, because most rows use only a few, and
/// histograms, which [`super::histograms`] makes.
fn push_totals(
    observed: &mut Observed,
    sensor: &Sensor,
    families: &[Family],
    (row_kind, attributes, usage, started): &NamedRow<'_>,
) {
    let Some(words) = usage.words.of(sensor) else { return };
    for family in families {
        for series in family.series {
            let Words::Total(at) = series.words else { continue };
            let Some(total) = words.get(at).copied().filter(|total| *total > 0) else { continue };
            let more = family.labels_of(series).map(|(of, value)| KeyValue::new(of.attribute, value));
            let more = more.chain([start(*started)]);
            points(observed, row_kind.instrument(family.instrument), names::of_unit(family.unit))
                .push(attributes.iter().cloned().chain(more).collect(), total);
        }
    }
}

fn push_hard_interrupts(observed: &mut Observed, by_name: &HardInterrupts, started: SystemTime) {
    for (name, handled) in by_name.iter() {
        for (instrument, unit, value) in [
            ("podperf.node.hard_interrupts", "{interrupt}", handled.count),
            ("podperf.node.hard_interrupt.time", "s", handled.ns),
        ] {
            let attributes = vec![KeyValue::new("podperf.interrupt.name", name.to_owned()), start(started)];
            points(observed, instrument.to_owned(), unit).push(attributes, value.into());
        }
    }
}

fn push_counter(observed: &mut Observed, open: &OpenCounter, row: &NamedRow<'_>, snapshot: &Snapshot) {
    let (row_kind, attributes, usage, started) = row;
    let Some(slot) = open.slot else { return };
    // A counter that was never on the PMU while this row ran has no series: its count is unknown, not zero.
    let of_group = |times: &[u128]| open.group.and_then(|group| times.get(group).copied());
    if of_group(&usage.running_ns) == Some(0) && of_group(&usage.enabled_ns).is_some_and(|ns| ns > 0) {
        return;
    }
    let (name, unit) = names::of_counter(open);
    let more = names::counter_attributes(open).into_iter().chain([start(snapshot.counter_started(slot, *started))]);
    let attributes = attributes.iter().cloned().chain(more).collect();
    points(observed, row_kind.instrument(&name), unit).push(attributes, usage.counts.get(slot).copied().unwrap_or(0));
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use strum::VariantArray as _;

    use super::*;
    use crate::{
        attribution::{Row, Shown},
        events::{
            plan::{Counter, Scale, Source},
            state::EventState,
        },
        model::{
            facts::{Fact, Facts},
            hard_interrupts::Handled,
            sensor_words::SensorWords,
            sensors,
            wait::{WaitReason, WaitState},
        },
    };

    fn at(second: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(second)
    }

    fn snapshot() -> Snapshot {
        let usage = Usage {
            facts: Facts::from([
                (Fact::ON_CPU, 1_500_000_000),
                (Fact::off_cpu(WaitState::Interruptible), 1_000_000_000),
                (Fact::off_cpu(WaitState::Uninterruptible), 2_000_000_000),
                (Fact::off_cpu(WaitState::RunQueue), 3_000_000_000),
                (Fact::VOLUNTARY_SWITCHES, 7),
                (Fact::WAITS, 3),
                (Fact::wait(WaitReason::Disk), 5_000_000_000),
            ]),
            counts: vec![11, 12],
            enabled_ns: vec![5],
            running_ns: vec![5],
            words: SensorWords::default(),
        };
        let container = Row::Container { namespace: "shop".into(), pod: "cart-0".into(), container: "app".into() };
        let never = Usage { running_ns: vec![0], ..usage.clone() };
        let rows = [(container, usage), (Row::Cgroup("/a".into()), never)];
        let row = |(row, usage)| RowUsage { row, started: at(6), container: None, usage, shown: Shown::ALL };
        Snapshot {
            taken: SystemTime::UNIX_EPOCH,
            counters_started: vec![at(5), at(7)],
            idle_ns: 4_000_000_000,
            cgroups_tracked: 2,
            ..Snapshot::of_rows(at(5), rows.into_iter().map(row).collect())
        }
    }

    fn counter(family: &'static str, slot: Option<usize>, group: Option<usize>, state: EventState) -> OpenCounter {
        let counter = Counter {
            name: family.to_owned(),
            family,
            help: "",
            scale: Scale::Count,
            event_label: None,
            mode: None,
            source: Source::Unsupported(String::new()),
            cpus: None,
            kernel_event: String::new(),
        };
        OpenCounter { counter, slot, group, state, detail: String::new() }
    }

    /// Returns the series of an instrument, as text.
    fn series(observed: &Observed, name: &str) -> Vec<(String, String)> {
        let text = |attributes: &[KeyValue]| {
            let shown = attributes.iter().filter(|it| it.key.as_str() != START);
            let parts: Vec<_> = shown.map(|it| format!("{}={}", it.key, it.value)).collect();
            parts.join(" ")
        };
        match &observed.get(name).unwrap_or_else(|| panic!("no {name} in {:?}", observed.keys())).values {
            Values::Counts(counts) => counts.iter().map(|(it, value)| (text(it), value.to_string())).collect(),
            Values::Seconds(seconds) => seconds.iter().map(|(it, value)| (text(it), value.to_string())).collect(),
        }
    }

    /// Returns the starts of an instrument's series, in seconds.
    fn starts(observed: &Observed, name: &str) -> Vec<i64> {
        let start = |attributes: &[KeyValue]| {
            let found = attributes.iter().find(|it| it.key.as_str() == START).map(|it| it.value.clone());
            let Some(opentelemetry::Value::I64(start)) = found else { panic!("no start: {attributes:?}") };
            start / 1_000_000_000
        };
        match &observed[name].values {
            Values::Counts(counts) => counts.iter().map(|(it, _)| start(it)).collect(),
            Values::Seconds(seconds) => seconds.iter().map(|(it, _)| start(it)).collect(),
        }
    }

    #[test]
    fn a_series_starts_with_its_row_or_later_with_its_counter() {
        let cycles = counter("cpu_cycles", Some(0), None, EventState::Placed);
        let misses = counter("cpu_cache_misses", Some(1), None, EventState::Placed);
        let observed = of_snapshot(&snapshot(), &[cycles, misses], FactFamily::VARIANTS, &[]);
        assert_eq!(starts(&observed, "podperf.container.oncpu.time"), [6]);
        assert_eq!(starts(&observed, "podperf.node.idle.time"), [5]);
        assert_eq!(starts(&observed, "podperf.container.cpu.cycles"), [6]);
        // The two series are `/a` and the row of idle CPUs.
        assert_eq!(starts(&observed, "podperf.cgroup.cpu.cycles"), [6, 5]);
        assert_eq!(starts(&observed, "podperf.cgroup.cpu.cache.misses"), [7, 7]);
    }

    #[test]
    fn facts_are_sent_by_row_under_the_names_of_opentelemetry() {
        let observed = of_snapshot(&snapshot(), &[], FactFamily::VARIANTS, &[]);
        let app = "k8s.namespace.name=shop k8s.pod.name=cart-0 k8s.container.name=app";
        let pair = |labels: String, value: &str| (labels, value.to_owned());
        assert_eq!(series(&observed, "podperf.container.oncpu.time"), [pair(app.to_owned(), "1.5")]);
        assert_eq!(
            series(&observed, "podperf.container.offcpu.time"),
            [
                pair(format!("{app} podperf.offcpu.state=interruptible"), "1"),
                pair(format!("{app} podperf.offcpu.state=uninterruptible"), "2"),
                pair(format!("{app} podperf.offcpu.state=run_queue"), "3"),
                pair(format!("{app} podperf.offcpu.state=throttled"), "0"),
            ]
        );
        assert_eq!(
            series(&observed, "podperf.cgroup.context_switches")[0],
            pair("podperf.cgroup.path=/a podperf.switch.kind=voluntary".to_owned(), "7")
        );
        // A reason without a wait has no series.
        assert_eq!(
            series(&observed, "podperf.container.wait.time"),
            [pair(format!("{app} podperf.offcpu.reason=disk"), "5")]
        );
        assert_eq!(
            series(&observed, "podperf.container.profile.samples"),
            [pair(format!("{app} podperf.profile=offcpu"), "3")]
        );
        assert_eq!(series(&observed, "podperf.container.incomplete_stack.time"), []);
        assert_eq!(series(&observed, "podperf.node.idle.time"), [pair(String::new(), "4")]);
        assert_eq!(observed["podperf.container.oncpu.time"].unit, "s");
        assert!(of_snapshot(&snapshot(), &[], &[], &[]).is_empty());
    }

    #[test]
    fn a_time_grows_beyond_64_bits_and_a_count_begins_again_beyond_63() {
        let full = 1_u128 << 64;
        let mut snapshot = snapshot();
        let facts = &mut snapshot.rows[0].usage.facts;
        (facts[Fact::ON_CPU], facts[Fact::VOLUNTARY_SWITCHES]) = (full + 1_000_000_000, full + 7);
        let observed = of_snapshot(&snapshot, &[], FactFamily::VARIANTS, &[]);
        let value = |name: &str| series(&observed, name)[0].1.clone();
        assert_eq!(value("podperf.container.oncpu.time"), "18446744074.709553");
        assert_eq!(value("podperf.container.context_switches"), "7");
    }

    #[test]
    fn counters_are_sent_where_they_counted_and_idle_is_a_row() {
        let counters = [
            counter("cpu_cycles", Some(0), Some(0), EventState::Placed),
            counter("cpu_cache_misses", Some(1), None, EventState::Placed),
            counter("cpu_instructions", None, None, EventState::Unsupported),
        ];
        let observed = of_snapshot(&snapshot(), &counters, &[], &[]);
        let names: Vec<_> = observed.keys().map(String::as_str).collect();
        let all =
            ["cgroup.cpu.cache.misses", "cgroup.cpu.cycles", "container.cpu.cache.misses", "container.cpu.cycles"];
        assert_eq!(names, all.map(|name| format!("podperf.{name}")));
        // `/a` was never on the PMU for the first group.
        let cycles = series(&observed, "podperf.cgroup.cpu.cycles");
        assert_eq!(cycles, [("podperf.cgroup.path=(idle)".to_owned(), "0".to_owned())]);
        assert_eq!(series(&observed, "podperf.cgroup.cpu.cache.misses").len(), 2);
        assert_eq!(observed["podperf.container.cpu.cache.misses"].unit, "{miss}");
    }

    #[test]
    fn totals_of_a_sensor_are_sums_with_the_unit_of_their_family() {
        let sensor = sensors::named("locks").unwrap();
        let mut words = SensorWords::default();
        let series: Vec<_> = sensor.families.iter().flat_map(|family| family.series).collect();
        for (value, series) in (1_u128..).zip(&series) {
            let Words::Total(at) = series.words else { panic!("{series:?}") };
            words.row_mut(sensors::place_of(sensor))[at] = value * 500_000_000;
        }
        let mut snapshot = snapshot();
        snapshot.rows[0].usage.words = words;
        let observed = of_snapshot(&snapshot, &[], &[], &[sensor]);
        // The other row has no words, and so no instruments.
        let names: Vec<_> = observed.iter().map(|(name, points)| (name.as_str(), points.unit)).collect();
        assert_eq!(
            names,
            [
                ("podperf.container.kernel_lock.contentions", "{wait}"),
                ("podperf.container.kernel_lock.wait", "s"),
                ("podperf.container.lock.blocking", "s"),
                ("podperf.container.user_lock.wait", "s"),
                ("podperf.container.user_lock.waits", "{wait}"),
            ]
        );
        assert_eq!(names.iter().map(|(name, _)| self::series(&observed, name).len()).sum::<usize>(), series.len());
        let app = "k8s.namespace.name=shop k8s.pod.name=cart-0 k8s.container.name=app";
        let pair = |label: &str, value: &str| (format!("{app} {label}").trim_end().to_owned(), value.to_owned());
        let waits = self::series(&observed, "podperf.container.kernel_lock.wait");
        assert_eq!(waits[0], pair("podperf.lock=mmap_lock", "0.5"));
        let contentions = self::series(&observed, "podperf.container.kernel_lock.contentions");
        assert_eq!(contentions[0], pair("podperf.lock=mmap_lock", "6000000000"));
        assert_eq!(self::series(&observed, "podperf.container.user_lock.wait"), [pair("", "11.5")]);
        assert_eq!(starts(&observed, "podperf.container.user_lock.wait"), [6]);
        // A sensor that is off has no instruments, and neither has one that counted nothing.
        assert!(of_snapshot(&snapshot, &[], &[], &[]).is_empty());
        snapshot.rows[0].usage.words = SensorWords::default();
        assert!(of_snapshot(&snapshot, &[], &[], &[sensor]).is_empty());
    }

    #[test]
    fn totals_of_the_node_are_words_of_the_idle_row() {
        let sensor = sensors::named("interrupts").unwrap();
        let mut words = SensorWords::default();
        for (family, value) in sensor.node.iter().zip([3_000_000_000, 7, 1_000_000_000]) {
            let Words::Total(at) = family.series[4].words else { panic!("{family:?}") };
            words.row_mut(sensors::place_of(sensor))[at] = value;
        }
        let mut snapshot = snapshot();
        snapshot.idle.words = words;
        let observed = of_snapshot(&snapshot, &[], &[], &[sensor]);
        // The rows have no words.
        let names: Vec<_> = observed.keys().map(String::as_str).collect();
        assert_eq!(
            names,
            ["podperf.node.idle.interrupted.time", "podperf.node.interrupted.time", "podperf.node.interrupts"]
        );
        let net_rx = |value: &str| [("podperf.interrupt.kind=net_rx".to_owned(), value.to_owned())];
        assert_eq!(series(&observed, "podperf.node.interrupted.time"), net_rx("3"));
        assert_eq!(series(&observed, "podperf.node.interrupts"), net_rx("7"));
        assert_eq!(series(&observed, "podperf.node.idle.interrupted.time"), net_rx("1"));
        assert_eq!(starts(&observed, "podperf.node.interrupted.time"), [5]);
    }

    #[test]
    fn hard_interrupts_have_a_number_and_a_time_for_each_name() {
        let (mut observed, mut by_name) = (Observed::new(), HardInterrupts::default());
        by_name.add(b"ahci", Handled { count: 2, ns: 500_000_000 });
        push_hard_interrupts(&mut observed, &by_name, at(5));
        let ahci = |value: &str| [("podperf.interrupt.name=ahci".to_owned(), value.to_owned())];
        assert_eq!(series(&observed, "podperf.node.hard_interrupts"), ahci("2"));
        assert_eq!(series(&observed, "podperf.node.hard_interrupt.time"), ahci("0.5"));
    }

    #[test]
    fn a_series_with_two_labels_has_an_attribute_for_each() {
        let sensor = sensors::named("calls").unwrap();
        let mut words = SensorWords::default();
        words.row_mut(sensors::place_of(sensor))[sensor.words - 1] = 7;
        let mut snapshot = snapshot();
        snapshot.rows[0].usage.words = words;
        let observed = of_snapshot(&snapshot, &[], &[], &[sensor]);
        let errors = series(&observed, "podperf.container.syscall.errors");
        let (attributes, value) = &errors[0];
        assert!(attributes.ends_with(" podperf.syscall=writev podperf.errno=EPIPE") && value == "7", "{errors:?}");
    }

    #[test]
    fn each_instrument_of_the_sensors_is_on_the_page_with_its_unit_and_attribute() {
        let page = include_str!("../../../../docs/otlp.md");
        let of_rows = sensors::ALL.into_iter().flat_map(|sensor| sensor.families).map(|family| ("container", family));
        let of_node = sensors::ALL.into_iter().flat_map(|sensor| sensor.node).map(|family| ("node", family));
        for (of, family) in of_rows.chain(of_node) {
            let name = format!("| `podperf.{of}.{}` |", family.instrument);
            let row = page.lines().find(|line| line.starts_with(&name)).unwrap_or_else(|| panic!("no row `{name}`"));
            let unit = names::of_unit(family.unit);
            assert!(row.contains(&format!("| `{unit}` |")), "not `{unit}`: {row}");
            let attributes: Vec<_> = family.labels.iter().map(|label| format!("`{}`", label.attribute)).collect();
            let cell = format!("| {}", attributes.join(", "));
            assert!(row.ends_with(&format!("{} |", cell.trim_end())), "not `{cell} |`: {row}");
        }
    }
}
