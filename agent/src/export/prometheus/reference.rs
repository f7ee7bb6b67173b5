//! The reference of all families, made from the tables that a scrape uses. Pure.

use std::fmt::Write as _;

use serde::Serialize;

use super::{
    BaseUnit, Kind,
    families::{self, Definition},
    workload::RowKind,
};
use crate::{
    events::catalogue::{EVENTS, Event, SHARED_FAMILY, SHARED_HELP, Scale},
    model::{
        facts::{FACTS, FactFamily, FamilyRow},
        sensors::{self, Sensor, Setting, SettingKind},
    },
};

/// The description of a family, which this machine may or may not have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Reference {
    /// The full name, as in `/metrics`.
    pub name: String,
    /// `counter`, `gauge` or `histogram`.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// `seconds` or `bytes`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unit: Option<&'static str>,
    /// All labels that its series may have.
    pub labels: Vec<&'static str>,
    /// One sentence without its full stop.
    pub help: String,
    /// The condition under which the family exists; empty if it always does.
    pub when: String,
}

/// The description that the families of all kinds of rows share.
struct OfRows {
    /// The name without the prefix.
    name: String,
    unit: Option<BaseUnit>,
    labels: Vec<&'static str>,
    /// The number of series of one row.
    series: String,
    /// The key and value in the configuration that select it.
    asked_by: String,
    by_default: bool,
    /// True if its numbers come from stacks.
    needs_stacks: bool,
    kind: Kind,
    help: &'static str,
}

/// Returns all families, in the order of the page.
#[must_use]
pub fn families() -> Vec<Reference> {
    let rows: Vec<_> = of_rows().into_iter().chain(of_sensors()).collect();
    let of_rows = RowKind::ALL.iter().flat_map(|row_kind| rows.iter().map(|family| family.of(*row_kind)));
    let of_node = |sensor: &'static Sensor| {
        sensor.node.iter().map(move |family| OfRows::of_sensor(sensor, family).of(RowKind::Node))
    };
    let of_node = sensors::ALL.into_iter().flat_map(of_node);
    of_rows.chain(of_node).chain(families::ALL.iter().map(|definition| definition.reference())).collect()
}

/// Returns the page `docs/metrics.md`.
#[must_use]
pub fn markdown() -> String {
    let mut page = String::from(INTRODUCTION);
    page.push_str("\n| metric | unit | labels | series | on by default | what it is |\n|---|---|---|---|---|---|\n");
    for family in of_rows() {
        let default = match (family.by_default, family.needs_stacks) {
            (true, false) => "yes".to_owned(),
            (true, true) => "with stacks".to_owned(),
            (false, false) => format!("`{}`", family.asked_by),
            (false, true) => format!("`{}`, with stacks", family.asked_by),
        };
        let Reference { name, unit, .. } = family.of(RowKind::Container);
        let unit = unit.unwrap_or_default();
        let (labels, series, help) = (code(&family.labels), &family.series, family.help.trim_end_matches('.'));
        writeln!(page, "| `{name}` | {unit} | {labels} | {series} | {default} | {help} |").ok();
    }
    page.push_str(SENSORS);
    page.push_str(
        "\n| metric | type | unit | labels | series | sensor | what it is |\n|---|---|---|---|---|---|---|\n",
    );
    for sensor in sensors::ALL {
        let of_containers = sensor.families.iter().map(|family| (family, RowKind::Container));
        let of_node = sensor.node.iter().map(|family| (family, RowKind::Node));
        for (family, row_kind) in of_containers.chain(of_node) {
            let family = OfRows::of_sensor(sensor, family);
            let Reference { name, kind, unit, labels: _, help, .. } = family.of(row_kind);
            let (unit, labels) = (unit.unwrap_or_default(), code(&family.labels));
            let (series, sensor) = (&family.series, sensor.names.sensor);
            writeln!(page, "| `{name}` | {kind} | {unit} | {labels} | {series} | `{sensor}` | {help} |").ok();
        }
    }
    page.push_str(SETTINGS);
    page.push_str("\n| key | values | default | what it does |\n|---|---|---|---|\n");
    for Setting { key, about, kind, .. } in sensors::ALL.into_iter().flat_map(|sensor| sensor.settings) {
        let (values, default) = values_of(*kind);
        writeln!(page, "| `{}` | {values} | `{default}` | {about} |", key.path).ok();
    }
    page.push_str(ABOUT_THE_AGENT);
    page.push_str("\n| metric | type | unit | labels | there | what it is |\n|---|---|---|---|---|---|\n");
    for definition in families::ALL {
        let Reference { name, kind, unit, labels, help, when } = definition.reference();
        let (unit, labels) = (unit.unwrap_or_default(), code(&labels));
        let when = if when.is_empty() { "always" } else { &when };
        writeln!(page, "| `{name}` | {kind} | {unit} | {labels} | {when} | {help} |").ok();
    }
    page
}

const INTRODUCTION: &str = "\
# Reference of metrics

This page is what `podperf metrics` prints, from the tables that the agent exports by; `podperf metrics --output json`
prints the same for programs. [Metrics that matter](metrics-that-matter.md) has the few to begin with, and
[Exactness](exactness.md) what each counts at its limits.

Names, types, units and labels are stable from version 1.0.0 on; until then [the changelog](../CHANGELOG.md) says what
has changed. Labels may be added to `*_info` series at any time.

## Series of containers, pods and cgroups

All are counters. A container's series have the labels `namespace`, `pod` and `container` beside their own. Each family
has two twins: `podperf_pod_...`, without `container`, with `metrics.level: pod`; and `podperf_cgroup_...` with the label
`cgroup`, a path in the cgroup2 tree, for all that belongs to no pod. No time and no count is in two of them.

A pod may also do something outside of its containers: its sandbox does, or a virtual machine that runs them. Lives of containers for
which nobody has a name belong to it, too. This is in the series of the cgroup above all pods, such as `/kubepods.slice`. Once it
takes 0.1 s of CPU time from one reading to the next, and 2 % of a CPU, the pod has series with `container=\"\"` for all that comes after. They are
the rest of the pod, not its total. Their stacks stay with the cgroup above all pods.

\"Series\" is how many one container has. With the defaults that is 11 on a machine with hardware counters, 7 without
counters, and up to 21 more with stacks. `podperf_container_info` adds one for each container, and `podperf_pod_info` one for
each pod. `metrics.level` is `container` (the default), `pod` or `node`: at `node` all pods together are one cgroup. \"With
stacks\" is with `stacks.enabled: true`: the default of the agent, and in the
chart the modes `reasons` (the default) and `profiles`. The chart's mode `metrics` takes no stacks, and has no such series.
";

const SENSORS: &str = "
## Metrics of sensors

A sensor is off by default. Turn it on with `sensors: {NAME: {enabled: true}}`. Its families of containers have the same
twins and labels as those above; those of the node have neither. Values of 0 have no series.

A histogram with native buckets is one series, and clients get it only over protobuf: set `scrape_native_histograms: true` in
Prometheus 3.8 or later, or turn on the feature `native-histograms` in earlier versions. The borders are powers of two of a
second. The receiver of `otlp.metrics` gets exponential histograms with the same borders. With `metrics.classicBuckets: true`
all clients get classic buckets, too: 30 series for each histogram. Without it, clients that do not ask for protobuf get no
histograms.

A wait is in its histogram once it has ended, with its whole length, in the cgroup in which it ended. If no thread changes its
cgroup during a wait, the sum of a histogram is the `offcpu` of the same state since the sensor was turned on, without the
waits that still last. Series of sensors do not begin with 0 as other series do; protobuf has the time at which they were empty.
";

const SETTINGS: &str = "
Some sensors have settings beside `enabled`. They are read when the agent starts:
";

const ABOUT_THE_AGENT: &str = "
## Metrics of nodes, pods, containers and the agent

The series of the agent itself are at most 100 by default (`metrics.own: brief`): those that alerts, recording rules and the
dashboards of pods and nodes need. `metrics.own: all` has some 300, for the dashboard of the agents.
";

fn code(labels: &[&str]) -> String {
    labels.iter().map(|label| format!("`{label}`")).collect::<Vec<_>>().join(", ")
}

/// Returns the values that a setting may have, and its default.
fn values_of(kind: SettingKind) -> (String, String) {
    match kind {
        SettingKind::Flag { default } => ("`true` or `false`".into(), default.to_string()),
        SettingKind::Number { default, least, most, unit } => {
            (format!("{least} to {most} {unit}").trim_end().into(), default.to_string())
        }
        SettingKind::Namespaces { most, .. } => {
            (format!("regular expressions of whole names, at most {most}"), "[]".into())
        }
        SettingKind::Names { names } => (format!("some of {}", code(names)), "[]".into()),
    }
}

fn of_rows() -> Vec<OfRows> {
    let mut rows: Vec<OfRows> = FACTS.iter().map(OfRows::of_fact).collect();
    rows.extend(EVENTS.iter().filter(|event| event.family != SHARED_FAMILY).map(OfRows::of_event));
    rows.push(OfRows {
        name: SHARED_FAMILY.into(),
        unit: None,
        labels: vec!["event", "mode"],
        series: "1 an event".into(),
        asked_by: "counters.groups".into(),
        by_default: false,
        needs_stacks: false,
        kind: Kind::Counter,
        help: SHARED_HELP,
    });
    rows
}

fn of_sensors() -> Vec<OfRows> {
    let of = |sensor: &'static Sensor| sensor.families.iter().map(move |family| OfRows::of_sensor(sensor, family));
    sensors::ALL.into_iter().flat_map(of).collect()
}

impl OfRows {
    fn of_fact(fact: &FamilyRow) -> Self {
        let upto = if fact.sparse { "up to " } else { "" };
        Self {
            name: fact.name.into(),
            unit: BaseUnit::of(fact.unit),
            labels: fact.label.iter().map(|label| label.name).collect(),
            series: format!("{upto}{}", fact.series.len()),
            asked_by: format!("metrics.facts: {}", fact.family.name()),
            by_default: FactFamily::DEFAULT.contains(&fact.family),
            needs_stacks: fact.needs_stacks(),
            kind: Kind::Counter,
            help: fact.help,
        }
    }

    fn of_event(event: &Event) -> Self {
        let unit = (event.scale == Scale::Nanoseconds).then_some(BaseUnit::Seconds);
        Self {
            name: event.family.trim_end_matches("_seconds").into(),
            unit,
            labels: if event.splits { vec!["mode"] } else { Vec::new() },
            series: "1".into(),
            asked_by: format!("counters.groups: {}", event.name),
            by_default: event.on_by_default,
            needs_stacks: false,
            kind: Kind::Counter,
            help: event.help,
        }
    }

    fn of_sensor(sensor: &Sensor, family: &sensors::Family) -> Self {
        Self {
            name: family.name.into(),
            unit: BaseUnit::of(family.unit),
            labels: family.labels.iter().map(|label| label.name).collect(),
            series: format!("up to {}", family.series.len()),
            asked_by: format!("sensors.{}.enabled", sensor.names.sensor),
            by_default: sensor.is_default,
            needs_stacks: false,
            kind: super::sensors::kind(family),
            help: family.help,
        }
    }

    fn of(&self, row_kind: RowKind) -> Reference {
        Reference {
            name: full_name(&format!("{}{}", row_kind.prefix(), self.name), self.unit, self.kind),
            kind: self.kind.name(),
            unit: self.unit.map(BaseUnit::name),
            labels: row_kind.labels().iter().chain(&self.labels).copied().collect(),
            help: self.help.trim_end_matches('.').into(),
            when: match (self.by_default, self.needs_stacks) {
                (true, false) => String::new(),
                (true, true) => "with `stacks.enabled`".into(),
                (false, false) => format!("with `{}`", self.asked_by),
                (false, true) => format!("with `{}` and `stacks.enabled`", self.asked_by),
            },
        }
    }
}

impl Definition {
    fn reference(&self) -> Reference {
        Reference {
            name: full_name(self.name, self.unit, self.kind),
            kind: self.kind.name(),
            unit: self.unit.map(BaseUnit::name),
            labels: self.labels.to_vec(),
            help: self.help.into(),
            when: match (self.when, self.detail) {
                (when, false) => when.into(),
                ("", true) => "with `metrics.own: all`".into(),
                (when, true) => format!("{when} and `metrics.own: all`"),
            },
        }
    }
}

/// Returns a family's name as text 0.0.4 has it.
fn full_name(name: &str, unit: Option<BaseUnit>, kind: Kind) -> String {
    let unit = unit.map(|unit| format!("_{}", unit.name())).unwrap_or_default();
    let total = if kind == Kind::Counter { "_total" } else { "" };
    format!("{name}{unit}{total}")
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_family_is_there_once_and_is_described_in_one_sentence() {
        let mut seen = HashSet::new();
        for family in families() {
            assert!(seen.insert(family.name.clone()), "{} twice", family.name);
            assert!(!family.help.is_empty() && !family.help.ends_with('.'), "{}: {}", family.name, family.help);
            assert!(!family.help.contains('|'), "{}: {}", family.name, family.help);
            assert_eq!(family.name.ends_with("_total"), family.kind == "counter", "{}", family.name);
        }
    }

    #[test]
    fn series_of_the_defaults_are_as_many_as_the_page_says() {
        let of = |event: bool| {
            let families = of_rows().into_iter().filter(|row| row.by_default && row.name.starts_with("cpu_") == event);
            families.filter_map(|row| row.series.parse::<u32>().ok()).sum::<u32>()
        };
        // The two are the families of information.
        assert_eq!((of(false) + 2, of(false) + of(true) + 2), (9, 13));
        let with_stacks = of_rows().into_iter().filter(|row| row.by_default && row.needs_stacks);
        let most =
            with_stacks.filter_map(|row| row.series.trim_start_matches("up to ").parse::<u32>().ok()).sum::<u32>();
        assert_eq!(most, 21);
    }

    #[test]
    fn the_page_names_every_family_of_containers_and_of_the_agent() {
        let page = markdown();
        for family in families() {
            let twin = ["podperf_pod_", "podperf_cgroup_"].iter().any(|prefix| family.name.starts_with(prefix));
            let is_info = family.name.ends_with("_info");
            assert!(twin && !is_info || page.contains(&format!("| `{}` |", family.name)), "{}", family.name);
        }
    }
}
