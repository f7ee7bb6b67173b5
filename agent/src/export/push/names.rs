//! The OpenTelemetry names of rows and counters. Pure. Families that need no PMU have their names in
//! [`crate::model::facts`].

use std::sync::Arc;

use opentelemetry::KeyValue;

use crate::{
    attribution::Row,
    events::{parse::Mode, plan::Scale},
    kernel::OpenCounter,
    model::facts::Unit,
};

/// The kind of a row: each kind has instruments of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub(super) enum RowKind {
    Container,
    Pod,
    Cgroup,
    /// The node itself, which is no row.
    Node,
}

impl RowKind {
    pub(super) const fn of(row: &Row) -> Self {
        match row {
            Row::Container { .. } => Self::Container,
            Row::Pod { .. } => Self::Pod,
            Row::Cgroup(_) => Self::Cgroup,
        }
    }

    fn name(self) -> &'static str {
        self.into()
    }

    /// Returns the full name of an instrument.
    pub(super) fn instrument(self, name: &str) -> String {
        format!("podperf.{}.{name}", self.name())
    }
}

/// Returns the attributes that identify a row.
pub(super) fn attributes(row: &Row) -> Vec<KeyValue> {
    let text = |key: &'static str, value: &Arc<str>| KeyValue::new(key, Arc::clone(value));
    match row {
        Row::Container { namespace, pod, container } => {
            let of_container = (!row.is_pods_own()).then(|| text("k8s.container.name", container));
            let of_pod = [text("k8s.namespace.name", namespace), text("k8s.pod.name", pod)];
            of_pod.into_iter().chain(of_container).collect()
        }
        Row::Pod { namespace, pod } => vec![text("k8s.namespace.name", namespace), text("k8s.pod.name", pod)],
        Row::Cgroup(path) => vec![text("podperf.cgroup.path", path)],
    }
}

/// The attribute that carries the start of a series through OpenTelemetry's SDK, which gives all series the same start.
/// [`super::exporter`] removes it.
pub(super) const START: &str = "podperf.start_time_unix_nano";

/// Returns the name of a unit.
pub(super) const fn of_unit(unit: Unit) -> &'static str {
    match unit {
        Unit::Seconds => "s",
        Unit::Things(things) => things,
    }
}

/// The units of the words in a family's name. The first match counts, so more specific words come first.
const UNITS: [(&str, &str); 6] = [
    ("misses", "{miss}"),
    ("references", "{reference}"),
    ("loads", "{load}"),
    ("instructions", "{instruction}"),
    ("cycles", "{cycle}"),
    ("events", "{event}"),
];

/// Returns the name and unit of a counter's family.
pub(super) fn of_counter(open: &OpenCounter) -> (String, &'static str) {
    let family = open.counter.family;
    match open.counter.scale {
        Scale::Nanoseconds => (family.trim_end_matches("_seconds").replace('_', "."), "s"),
        Scale::Count => (family.replace('_', "."), unit(family)),
    }
}

fn unit(family: &str) -> &'static str {
    UNITS.iter().find(|(word, _)| family.contains(word)).map_or("1", |(_, unit)| unit)
}

/// Returns the attributes that distinguish the counters of one family.
pub(super) fn counter_attributes(open: &OpenCounter) -> Vec<KeyValue> {
    let event = open.counter.event_label.clone().map(|event| KeyValue::new("podperf.event", event));
    let mode = open.counter.mode.map(|mode| KeyValue::new("cpu.mode", cpu_mode(mode)));
    event.into_iter().chain(mode).collect()
}

/// Returns the value of OpenTelemetry's `cpu.mode`. Its conventions have `user` and `system` for containers. They have
/// no `kernel`, which is the label in `/metrics`.
const fn cpu_mode(mode: Mode) -> &'static str {
    match mode {
        Mode::User => "user",
        Mode::Kernel => "system",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::events::catalogue::EVENTS;

    #[test]
    fn kernel_mode_is_system_by_the_conventions() {
        assert_eq!([Mode::User, Mode::Kernel].map(cpu_mode), ["user", "system"]);
    }

    #[test]
    fn what_a_pod_does_outside_of_its_containers_has_no_container() {
        let keys = |container: &str| -> Vec<String> {
            let row = Row::Container { namespace: "shop".into(), pod: "cart-0".into(), container: container.into() };
            attributes(&row).into_iter().map(|attribute| attribute.key.to_string()).collect()
        };
        assert_eq!(keys("app"), ["k8s.namespace.name", "k8s.pod.name", "k8s.container.name"]);
        assert_eq!(keys(""), ["k8s.namespace.name", "k8s.pod.name"]);
    }

    #[test]
    fn every_event_of_the_catalogue_has_a_unit() {
        for event in EVENTS.iter().filter(|event| event.scale == Scale::Count) {
            assert_ne!(unit(event.family), "1", "{}", event.family);
        }
        assert_eq!((unit("cpu_stalled_cycles_frontend"), unit("l1d_load_misses")), ("{cycle}", "{miss}"));
    }
}
