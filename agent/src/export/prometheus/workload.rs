//! The metrics of workloads: `podperf_container_*`, `podperf_pod_*`, `podperf_cgroup_*` and `podperf_node_*`. Pure.

use std::{borrow::Cow, sync::Arc, time::SystemTime};

use super::{
    BaseUnit, Family, Kind, Label, Value,
    families::{CONTAINER_INFO, NODE_IDLE, NODE_STOLEN, NODE_UNACCOUNTED, POD_INFO},
};
use crate::{
    attribution::{Row, RowUsage, Snapshot},
    events::plan::Scale,
    kernel::OpenCounter,
    model::facts::{FACTS, FactFamily, FamilyRow, Unit},
    model::usage::Usage,
};

/// The name of the row that has the counts of idle CPUs.
const IDLE_ROW: &str = "(idle)";

/// The kind of a row: each kind has families of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RowKind {
    Container,
    Pod,
    Cgroup,
    /// The node itself, which is no row.
    Node,
}

impl RowKind {
    /// The kinds of rows.
    pub(super) const ALL: [Self; 3] = [Self::Container, Self::Pod, Self::Cgroup];

    pub(super) const fn prefix(self) -> &'static str {
        match self {
            Self::Container => "podperf_container_",
            Self::Pod => "podperf_pod_",
            Self::Cgroup => "podperf_cgroup_",
            Self::Node => "podperf_node_",
        }
    }

    /// Returns the names of the labels that identify a row.
    pub(super) const fn labels(self) -> &'static [&'static str] {
        match self {
            Self::Container => &["namespace", "pod", "container"],
            Self::Pod => &["namespace", "pod"],
            Self::Cgroup => &["cgroup"],
            Self::Node => &[],
        }
    }

    pub(super) const fn of(row: &Row) -> Self {
        match row {
            Row::Container { .. } => Self::Container,
            Row::Pod { .. } => Self::Pod,
            Row::Cgroup(_) => Self::Cgroup,
        }
    }
}

/// A row with its kind and its labels.
struct NamedRow<'a> {
    row_kind: RowKind,
    labels: Arc<[Label]>,
    usage: &'a Usage,
    /// The usage to export, in which new values may be zero.
    shown: Cow<'a, Usage>,
    started: SystemTime,
}

impl<'a> NamedRow<'a> {
    fn of(row: &'a RowUsage, zero_first: bool) -> Self {
        Self {
            row_kind: RowKind::of(&row.row),
            labels: labels(&row.row),
            usage: &row.usage,
            shown: if zero_first { row.shown.of(&row.usage) } else { Cow::Borrowed(&row.usage) },
            started: row.started,
        }
    }
}

/// Returns the labels that identify a row, with their values.
pub(super) fn labels(row: &Row) -> Arc<[Label]> {
    let values: &[&str] = match row {
        Row::Container { namespace, pod, container } => &[namespace, pod, container],
        Row::Pod { namespace, pod } => &[namespace, pod],
        Row::Cgroup(path) => &[path],
    };
    RowKind::of(row).labels().iter().zip(values).map(|(&name, value)| label(name, value)).collect()
}

pub(super) fn label(name: &'static str, value: &str) -> Label {
    (name.into(), value.to_owned().into())
}

/// Returns the families of a snapshot. Closed counters and kinds without a row have no family. With `zero_first`,
/// series that scrapers have not seen yet are zero.
pub(super) fn families(
    snapshot: &Snapshot,
    counters: &[OpenCounter],
    facts: &[FactFamily],
    zero_first: bool,
) -> Vec<Family> {
    let mut families = Vec::new();
    let rows: Vec<NamedRow<'_>> = snapshot.rows.iter().map(|row| NamedRow::of(row, zero_first)).collect();
    for row_kind in RowKind::ALL {
        let mut rows: Vec<&NamedRow<'_>> = rows.iter().filter(|row| row.row_kind == row_kind).collect();
        if rows.is_empty() {
            continue;
        }
        let wanted = FACTS.iter().filter(|fact| facts.contains(&fact.family));
        families.extend(wanted.map(|fact| fact_family(fact, row_kind, &rows)));
        let idle = NamedRow {
            row_kind,
            labels: labels(&Row::Cgroup(IDLE_ROW.into())),
            usage: &snapshot.idle,
            shown: Cow::Borrowed(&snapshot.idle),
            started: snapshot.started,
        };
        rows.extend((row_kind == RowKind::Cgroup).then_some(&idle));
        families.extend(counter_families(row_kind, &rows, counters, snapshot));
    }
    if !facts.is_empty() {
        families.push(NODE_IDLE.of(Value::seconds(snapshot.idle_ns)).created(snapshot.started));
        let unaccounted = NODE_UNACCOUNTED.of(Value::seconds(snapshot.unaccounted_ns));
        families.push(unaccounted.created(snapshot.started));
        let stolen = snapshot.stolen_ns.map(|ns| NODE_STOLEN.of(Value::seconds(ns)).created(snapshot.started));
        families.extend(stolen);
    }
    families.extend(info_families(snapshot, &rows));
    families
}

fn fact_family(fact: &FamilyRow, row_kind: RowKind, rows: &[&NamedRow<'_>]) -> Family {
    let mut family = Family::new(format!("{}{}", row_kind.prefix(), fact.name), fact.help, Kind::Counter);
    family.unit = BaseUnit::of(fact.unit);
    for NamedRow { labels: row, usage, shown, started, .. } in rows.iter().copied() {
        for (label, number) in fact.series {
            if fact.sparse && usage.facts[*number] == 0 {
                continue;
            }
            let value = shown.facts[*number];
            let value = if fact.unit == Unit::Seconds { Value::seconds(value) } else { Value::count(value) };
            let labels = fact.label.map(|of| (of.name.into(), (*label).into()));
            family.push_of_row(row, labels.into_iter().collect(), value, Some(*started));
        }
    }
    family
}

fn counter_families(
    row_kind: RowKind,
    rows: &[&NamedRow<'_>],
    counters: &[OpenCounter],
    snapshot: &Snapshot,
) -> Vec<Family> {
    let mut families: Vec<Family> = Vec::new();
    for open in counters {
        let (Some(slot), counter, true) = (open.slot, &open.counter, open.state.is_counted()) else { continue };
        let (name, unit) = match counter.scale {
            Scale::Count => (counter.family, None),
            Scale::Nanoseconds => (counter.family.trim_end_matches("_seconds"), Some(BaseUnit::Seconds)),
        };
        let name = format!("{}{name}", row_kind.prefix());
        // Counters of one family differ in mode (user or kernel), or are raw events, which share a family.
        let index = families.iter().position(|family| family.name == name).unwrap_or_else(|| {
            let mut family = Family::new(name, counter.help, Kind::Counter);
            family.unit = unit;
            families.push(family);
            families.len() - 1
        });
        let event = counter.event_label.as_deref().map(|event| label("event", event));
        let mode = counter.mode.map(|mode| ("mode".into(), mode.name().into()));
        let more: Vec<Label> = event.into_iter().chain(mode).collect();
        for NamedRow { labels: row, usage, shown, started, .. } in rows.iter().copied() {
            // A counter that was never on the PMU while this row ran has no series: its count is unknown, not zero.
            let of_group = |times: &[u128]| open.group.and_then(|group| times.get(group).copied());
            if of_group(&usage.running_ns) == Some(0) && of_group(&usage.enabled_ns).is_some_and(|ns| ns > 0) {
                continue;
            }
            let count = shown.counts.get(slot).copied().unwrap_or(0);
            let value = match counter.scale {
                Scale::Count => Value::count(count),
                Scale::Nanoseconds => Value::seconds(count),
            };
            let created = snapshot.counter_started(slot, *started);
            families[index].push_of_row(row, more.clone(), value, Some(created));
        }
    }
    families
}

/// Returns the information families of the pods and containers that have rows.
fn info_families(snapshot: &Snapshot, rows: &[NamedRow<'_>]) -> Vec<Family> {
    let mut pods = POD_INFO.family();
    for pod in &snapshot.pods {
        let uid = pod.uid.map(|uid| uid.to_string()).unwrap_or_default();
        let known = [
            &*pod.namespace,
            &pod.name,
            &uid,
            &pod.workload.name,
            pod.workload.kind.name(),
            &pod.qos_class,
            &pod.priority_class,
        ];
        let asked = pod.labels.iter().map(|(name, value)| (Cow::Owned(name.to_string()), value.to_string().into()));
        let known = POD_INFO.labels.iter().zip(known).map(|(&name, value)| label(name, value));
        let labels = known.chain(asked).collect();
        pods.push_of_row(&Arc::default(), labels, Value::Count(1), None);
    }
    let mut containers = CONTAINER_INFO.family();
    for (RowUsage { container, .. }, NamedRow { labels: row, .. }) in snapshot.rows.iter().zip(rows) {
        let Some(info) = container else { continue };
        let more = vec![("container_id".into(), info.id.to_string().into()), label("image", &info.image)];
        containers.push_of_row(row, more, Value::Count(1), None);
    }
    [pods, containers].into_iter().filter(|family| !family.samples.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use strum::VariantArray as _;

    use super::{
        super::{Sample, histogram::Form},
        *,
    };
    use crate::model::{
        facts::{Fact, Facts},
        wait::WaitState,
    };
    use crate::{
        attribution::Shown,
        pods::{ContainerInfo, Pod, Workload, WorkloadKind},
    };

    const NATIVE: Form = Form { native: true, classic: false };

    fn snapshot(rows: Vec<RowUsage>, pods: Vec<Arc<Pod>>) -> Snapshot {
        Snapshot {
            pods,
            idle_ns: 2_000_000_000,
            unaccounted_ns: 3_000_000_000,
            ..Snapshot::of_rows(SystemTime::UNIX_EPOCH, rows)
        }
    }

    fn value(families: &[Family], name: &str, label: &str) -> Value {
        let family = families.iter().find(|family| family.name == name).unwrap();
        let has_label = |sample: &&Sample| sample.row.iter().chain(&sample.labels).any(|(_, value)| value == label);
        family.samples.iter().find(has_label).unwrap().value.clone()
    }

    #[test]
    fn families_are_named_as_in_the_configuration() {
        for &family in FactFamily::VARIANTS {
            assert_eq!(serde_yaml::to_value(family).unwrap().as_str(), Some(family.name()));
        }
    }

    #[test]
    fn every_row_has_its_times_switches_and_faults() {
        let usage = {
            let states = WaitState::ALL.into_iter().zip(1..).map(|(state, ns)| (Fact::off_cpu(state), ns));
            let mut facts = Facts::from([(Fact::ON_CPU, 1_500_000_000), (Fact::MAJOR_FAULTS, 4)]);
            states.for_each(|(fact, ns)| facts[fact] = ns);
            Usage::from(facts)
        };
        let row = RowUsage {
            row: Row::Cgroup("/a".into()),
            started: SystemTime::UNIX_EPOCH,
            container: None,
            usage,
            shown: Shown::ALL,
        };
        let snapshot = snapshot(vec![row], vec![]);
        let families = families(&snapshot, &[], FactFamily::VARIANTS, false);
        assert_eq!(value(&families, "podperf_cgroup_oncpu", "/a"), Value::Real(1.5));
        assert_eq!(value(&families, "podperf_cgroup_offcpu", "uninterruptible"), Value::Real(2e-9));
        assert_eq!(value(&families, "podperf_cgroup_page_faults", "major"), Value::Count(4));
        let node: Vec<_> = families.iter().rev().take(2).map(|family| family.samples[0].value.clone()).collect();
        assert_eq!(node, [Value::Real(3.0), Value::Real(2.0)]);
        assert!(super::families(&snapshot, &[], &[], false).is_empty());
    }

    #[test]
    fn totals_grow_beyond_64_bits_in_every_format() {
        let full = 1_u128 << 64;
        let of = |format: super::super::Format, more: u128| {
            let facts = Facts::from([(Fact::ON_CPU, full + more), (Fact::VOLUNTARY_SWITCHES, full + more)]);
            let row = RowUsage {
                row: Row::Cgroup("/a".into()),
                started: SystemTime::UNIX_EPOCH,
                container: None,
                usage: facts.into(),
                shown: Shown::ALL,
            };
            let families = families(&snapshot(vec![row], vec![]), &[], FactFamily::VARIANTS, false);
            format.encode(families, NATIVE, false).unwrap()
        };
        for format in [super::super::Format::Text, super::super::Format::OpenMetrics] {
            let text = String::from_utf8(of(format, 1 << 40)).unwrap();
            for (series, expected) in [
                ("podperf_cgroup_oncpu_seconds_total{cgroup=\"/a\"} ", 18_446_745_173.221_18),
                (
                    "podperf_cgroup_context_switches_total{cgroup=\"/a\",kind=\"voluntary\"} ",
                    18_446_745_173_221_180_000.0,
                ),
            ] {
                let value = text.lines().find_map(|line| line.strip_prefix(series)).unwrap();
                assert_eq!(value.parse(), Ok(expected), "{series}");
            }
        }
        assert_ne!(of(super::super::Format::Protobuf, 0), of(super::super::Format::Protobuf, 1 << 40));
    }

    #[test]
    fn containers_have_families_of_their_own_and_their_pods_are_described_once() {
        let id = "c0".repeat(32);
        let pod = Arc::new(Pod {
            name: "web-5d4f8c7b9-x2x1p".into(),
            workload: Workload { kind: WorkloadKind::Deployment, name: "web".into() },
            qos_class: "burstable".into(),
            priority_class: "high".into(),
            labels: vec![("label_team".into(), "checkout".into())],
            ..Pod::example()
        });
        let container = |name: &str| RowUsage {
            row: Row::Container {
                namespace: Arc::clone(&pod.namespace),
                pod: Arc::clone(&pod.name),
                container: name.into(),
            },
            started: SystemTime::UNIX_EPOCH,
            container: Some(Arc::new(ContainerInfo {
                pod: Arc::clone(&pod),
                name: name.into(),
                image: "shop/web:1".into(),
                id: id.parse().unwrap(),
            })),
            usage: Facts::from([(Fact::ON_CPU, 1_000_000_000)]).into(),
            shown: Shown::ALL,
        };
        let snapshot = snapshot(vec![container("app"), container("proxy")], vec![Arc::clone(&pod)]);
        let text = super::super::Format::Text
            .encode(families(&snapshot, &[], FactFamily::VARIANTS, false), NATIVE, false)
            .unwrap();
        let text = String::from_utf8(text).unwrap();
        for line in [
            "podperf_container_oncpu_seconds_total\
             {namespace=\"shop\",pod=\"web-5d4f8c7b9-x2x1p\",container=\"app\"} 1.0",
            "podperf_pod_info{namespace=\"shop\",pod=\"web-5d4f8c7b9-x2x1p\",\
             uid=\"6ef0362e-e3b9-43a3-acdb-de4ba71f1fa4\",workload=\"web\",workload_type=\"deployment\",\
             qos_class=\"burstable\",priority_class=\"high\",label_team=\"checkout\"} 1",
            &format!(
                "podperf_container_info{{namespace=\"shop\",pod=\"web-5d4f8c7b9-x2x1p\",container=\"proxy\",\
                 container_id=\"{id}\",image=\"shop/web:1\"}} 1"
            ),
        ] {
            assert!(text.lines().any(|found| found == line), "no `{line}` in\n{text}");
        }
        assert!(!text.contains("podperf_cgroup_"), "families without rows:\n{text}");
    }
}
