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
        sensors::{self, Sensor},
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
    of_rows.chain(families::ALL.iter().map(|definition| definition.reference())).collect()
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
    page.push_str(TIMES);
    page.push_str(SENSORS);
    page.push_str(
        "\n| metric | type | unit | labels | series | sensor | what it is |\n|---|---|---|---|---|---|---|\n",
    );
    for sensor in sensors::ALL {
        for family in sensor.families.iter().map(|family| OfRows::of_sensor(sensor, family)) {
            let Reference { name, kind, unit, labels: _, help, .. } = family.of(RowKind::Container);
            let (unit, labels) = (unit.unwrap_or_default(), code(&family.labels));
            let (series, sensor) = (&family.series, sensor.names.sensor);
            writeln!(page, "| `{name}` | {kind} | {unit} | {labels} | {series} | `{sensor}` | {help} |").ok();
        }
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
# Metrics

This page is what `podperf metrics` prints, from the tables that the agent exports by; `podperf metrics --output json`
prints the same for programs.

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

const TIMES: &str = r#"
## Meaning of the times

At each moment a thread does one of five things, and a second of its life is one second in exactly one of these series:

| a thread | series |
|---|---|
| runs | `oncpu` |
| is ready to run, and other threads have the CPUs | `offcpu{state="run_queue"}` |
| is ready to run, and the CPU quota of its cgroup is used up | `offcpu{state="throttled"}` |
| is blocked, and a signal can end that: sockets, pipes, locks of programs, timers | `offcpu{state="interruptible"}` |
| is blocked, and no signal but SIGKILL can end that: storage, locks of the kernel | `offcpu{state="uninterruptible"}` |

So for the threads of a container, but for what the kernel leaves out of threads (interrupts, stolen time):

```text
oncpu + offcpu{run_queue} + offcpu{throttled} + offcpu{interruptible} + offcpu{uninterruptible} = lives of its threads
```

* A blocked thread that is woken up and waits for a CPU is in the run queue from then on. The wait for the CPU is charged when
  the thread has a CPU, since only then the time of the wake-up is known. Since Linux 6.12 the kernel may leave a blocked
  thread in the run queue for some milliseconds; the wait of that thread is charged as much later.
* A new thread is in the run queue until it runs for the first time.
* A wait counts while it goes on, once it has lasted 0.1 s: a thread that has hung for an hour has an hour in its series, and a
  second more each second. Threads that were blocked when podperf started count from its start. An agent in a container
  needs `hostPID: true` for both: without it a wait counts when it ends, and not at all if it began before the agent.
* A thread that moves to another cgroup leaves its time so far behind, also if the thread is blocked. If a whole process
  moves, the kernel reports one of its threads. The reported thread and the threads that run leave their time behind; each
  other blocked thread takes the time that was not charged yet, at most since the last reading, to the new cgroup.
* On [isolated CPUs](limits.md#isolated-cpus) a running thread is counted when it leaves the CPU, and idle time with the next
  switch. `overhead.interruptIsolatedCpus: true` counts both at each reading.
* Before Linux 6.18 the kernel stops a whole run queue when a quota is used up. Then `throttled` has the threads that left the
  CPU for that reason; threads that wake up later, or were in the queue before, are in `run_queue`.
* While a BPF scheduler (`sched_ext`) runs, `throttled` has only what the kernel's own scheduler holds back. A BPF scheduler may
  enforce CPU limits itself: the wait is in `run_queue` then, and neither podperf nor cAdvisor knows whether the limit or a
  neighbour is the cause. `podperf_node_scheduler_info` names such a scheduler. If a container's `oncpu` is near its limit, the
  limit is the likely cause.
* Time of a running thread that its CPU spends on interrupts, and time in which a virtual machine has no physical CPU
  for it, are in no series of a container where the kernel leaves them out of the thread's run time
  (`CONFIG_IRQ_TIME_ACCOUNTING`, `CONFIG_PARAVIRT_TIME_ACCOUNTING`). They are `podperf_node_unaccounted_seconds_total`
  then, which begins with the first reading. The increases of the `oncpu` of all rows, of
  `podperf_node_idle_seconds_total` and of `podperf_node_unaccounted_seconds_total` are the time that the node's CPUs
  were online, on isolated CPUs the time up to their last switch. A CPU that is offline is neither idle nor unaccounted;
  the agent knows to a quarter of a second when it went and came. The CPUs are not read at one moment: some milliseconds
  may be unaccounted that are in a row one reading later.

`wait` tells the time of `offcpu` by reason. It needs stacks. `wait{reason="run_queue"}` and `wait{reason="throttled"}` are
the two states of that name. All other reasons divide the blocked states. `wait{reason="unknown"}` has the time whose stack is
not known, and all blocked time if [the kernel hides the names of its functions](troubleshooting.md#no-stacks). `wait` and
`offcpu` differ in three cases:

* Kernel threads are in `offcpu` and not in `wait`.
* Waits at a new place in a program may appear in `wait` up to a minute late. If the stack of the place is still not known then,
  they are in `unknown`.
* The kernel side copies or walks a stack where it does not remember it. If a CPU needs more of that than `stacks.maxWalks` allows, only
  some of the waits shorter than 10 ms have one, and each of these counts for several. On average the sums are right. A
  container with few waits beside one with very many may differ by a half over some seconds, and by some per cent over five
  minutes.

`waits` counts the waits that have ended, by the same reasons. For a reason for which threads are blocked, the rate of `wait` divided
by the rate of `waits` is the mean length of a wait, if waits are short beside the interval. Do not divide for `run_queue` and
`unknown`: their `wait` contains time that no ended wait stands for.

| a thread, for ten seconds | `oncpu` | `run_queue` | `throttled` | `interruptible` | `uninterruptible` |
|---|---|---|---|---|---|
| computes, alone on its CPU | 10 | | | | |
| computes beside another one on one CPU | 5 | 5 | | | |
| computes with a quota of a fifth of a CPU, on Linux 6.18 | 2 | | 8 | | |
| sleeps | | | | 10 | |
| sleeps 2 ms at a time at nice 19 beside two that compute | | 9 | | 1 | |
| waits for its child's `exec` after `vfork` | | | | | 10 |
| waits for a disk | | | | | 10 |
| waits for the answer of a FUSE file system | | | | 10 | |
| waits for a page of a FUSE file system that the kernel reads ahead | | | | | 10 |
| is stopped, or its cgroup is frozen | | | | 10 | |
"#;

const SENSORS: &str = "
## Metrics of sensors

A sensor is off by default. Turn it on with `sensors: {NAME: {enabled: true}}`. Its families have the same twins and labels
as those above. Values of 0 have no series.

A histogram with native buckets is one series, and clients get it only over protobuf: set `scrape_native_histograms: true` in
Prometheus 3.8 or later, or turn on the feature `native-histograms` in earlier versions. The borders are powers of two of a
second. The receiver of `otlp.metrics` gets exponential histograms with the same borders. With `metrics.classicBuckets: true`
all clients get classic buckets, too: 30 series for each histogram. Without it, clients that do not ask for protobuf get no
histograms.

A wait is in its histogram once it has ended, with its whole length, in the cgroup in which it ended. If no thread changes its
cgroup during a wait, the sum of a histogram is the `offcpu` of the same state since the sensor was turned on, without the
waits that still last. Series of sensors do not begin with 0 as other series do; protobuf has the time at which they were empty.
";

const ABOUT_THE_AGENT: &str = "
## Meaning of the counters

A counter of a container counts while one of its threads is on a CPU: in user and in kernel mode, and also the interrupts that this
CPU serves meanwhile. Where the container runs a virtual machine, what the guest does is counted, too. So on a CPU that serves a
busy network card, instructions per cycle (IPC) are in part those of the driver. A series without the label `mode` is of both
modes. For the program alone, count user mode in its place:

```yaml
counters:
  groups: [[\"cycles:u\", \"instructions:u\"]]
```

The rules and alerts of the chart then go by the program alone. If an event is counted in both ways, they take the series of both
modes together.

Events of one group are counted in the same moments, so their ratio is exact also where groups take turns on the CPU's counters. A
ratio of two groups, such as cache misses per instruction, is then exact over minutes only.

Where groups take turns on a CPU's counters (`pmu.multiplex`, or other programs that count), podperf divides each count by the share
of the time for which its group had the counters. Both are since the last reading, which is at most some seconds ago. A container with
at least 0.1 s of CPU time since then has its own share. Shorter ones have the share of all short ones together: a turn is some
milliseconds long, and each saw too few of them. So the sum of many short containers is right, and the count of a single one is an estimate.

* A container has no series of a counter until it was counted for the first time: not counted is not the same as 0.
* No count is multiplied by more than 64. If a group had the counters for less of the time, the series does not grow, and no later
  count makes up for it. `podperf_pmu_event_running_seconds_total` divided by `podperf_pmu_event_enabled_seconds_total` is the part of
  the time that was really counted.

## New series begin with 0

A number of a container, pod or cgroup stays 0 in the first scrape after it starts to grow, and has its value from the next one
on ([why](decisions/zero-first.md)). So `rate()` and `increase()` have the whole of a job that lived between two scrapes, and
the first wait for a reason. This holds for requests with the header `X-Prometheus-Scrape-Timeout-Seconds`, which Prometheus
sends; `curl` gets the values at once. `metrics.zeroFirst: false` turns it off.

## Metrics of nodes, pods, containers and the agent
";

fn code(labels: &[&str]) -> String {
    labels.iter().map(|label| format!("`{label}`")).collect::<Vec<_>>().join(", ")
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
            labels: family.label.iter().map(|label| label.name).collect(),
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
            when: self.when.into(),
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
