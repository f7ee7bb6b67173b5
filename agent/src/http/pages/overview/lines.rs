//! The rows of the start page and their order. Pure.

use std::{cmp::Ordering, collections::HashMap, sync::Arc, time::Duration};

use crate::export::flamegraph::real;
use crate::{
    attribution::{Row, Snapshot},
    kernel::OpenCounter,
    model::{
        facts::Fact,
        usage::Usage,
        wait::{Unwind, WaitReason, WaitState},
    },
    recording::{Cause, Coverage, Part, Selector, Waiting, holder, sort_parts},
};

/// The most things that a row waits for; the ones with the least time are left out.
const MOST_PARTS: usize = 8;

/// The columns that rows can be sorted by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Column {
    Name,
    Trouble,
    OnCpu,
    OffCpu,
    State(WaitState),
    Parked,
    Ipc,
}

/// A row of the page. Times are CPUs and threads on average.
#[derive(Clone, Debug)]
pub(super) struct Line {
    pub(super) name: String,
    /// The pod, or the path of the cgroup.
    pub(super) pod: String,
    /// `None` for a row of the node itself.
    pub(super) namespace: Option<String>,
    /// `None` if there is no profile of this row alone.
    pub(super) selector: Option<Selector>,
    pub(super) oncpu: f64,
    pub(super) offcpu: [f64; WaitState::ALL.len()],
    pub(super) ipc: Option<f64>,
    /// The threads that lost time, see [`tell`].
    pub(super) trouble: f64,
    /// `None` without profiles.
    pub(super) parked: Option<f64>,
    /// The things that the threads wait for, the most trouble first.
    pub(super) parts: Vec<Part>,
    /// The pod that has most of the CPUs, and how many.
    pub(super) holder: Option<(String, f64)>,
    /// The reason of most of the idleness that ended.
    pub(super) idle_for: Option<WaitReason>,
    /// How far the stacks of the waiting time reach.
    pub(super) coverage: Coverage,
}

impl Line {
    pub(super) fn of(row: &Row) -> Self {
        let selector = Selector::from(row);
        let is_alone = !row.is_pods_own();
        let name = if is_alone { selector.to_string() } else { format!("{selector} (outside its containers)") };
        let (pod, namespace) = match row {
            Row::Cgroup(path) => (path.to_string(), None),
            Row::Pod { namespace, pod } | Row::Container { namespace, pod, .. } => {
                (format!("{namespace}/{pod}"), Some(namespace.to_string()))
            }
        };
        Self {
            name,
            pod,
            namespace,
            selector: is_alone.then_some(selector),
            oncpu: 0.0,
            offcpu: [0.0; WaitState::ALL.len()],
            ipc: None,
            trouble: 0.0,
            parked: None,
            parts: Vec::new(),
            holder: None,
            idle_for: None,
            coverage: Coverage::default(),
        }
    }

    /// Returns the share of the waiting time whose stacks reach the outermost function; `None` without such time. Time
    /// with kernel frames only is left out.
    pub(super) fn whole(&self) -> Option<f64> {
        let of = |end| self.coverage.of(end);
        let total = self.coverage.total() - self.coverage.kernel_only;
        (total > 0).then(|| real(of(Unwind::Whole) + of(Unwind::Guessed)) / real(total))
    }

    /// Returns the threads that may be in trouble, or idle.
    fn unclear(&self) -> f64 {
        self.parts.iter().filter(|part| !part.sure).map(|part| part.threads).sum()
    }
}

impl Column {
    /// All columns, in the order of the page.
    pub(super) const ALL: [Self; 9] = [
        Self::Name,
        Self::Trouble,
        Self::OnCpu,
        Self::State(WaitState::RunQueue),
        Self::State(WaitState::Throttled),
        Self::State(WaitState::Uninterruptible),
        Self::OffCpu,
        Self::Parked,
        Self::Ipc,
    ];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Name => "name",
            Self::Trouble => "trouble",
            Self::OnCpu => "on-cpu",
            Self::OffCpu => "off-cpu",
            Self::State(state) => state.name(),
            Self::Parked => "parked",
            Self::Ipc => "ipc",
        }
    }

    pub(super) const fn heading(self) -> &'static str {
        match self {
            Self::Name => "pod or cgroup",
            Self::Trouble => "in trouble",
            Self::OnCpu => "on CPU",
            Self::State(WaitState::RunQueue) => "run queue",
            Self::OffCpu => "off CPU",
            Self::State(state) => state.name(),
            Self::Parked => "parked",
            Self::Ipc => "IPC",
        }
    }

    /// Returns whether a column has a number in any of these rows.
    pub(super) fn is_shown(self, lines: &[Line]) -> bool {
        match self {
            Self::Ipc => lines.iter().any(|line| line.ipc.is_some()),
            Self::Parked => lines.iter().any(|line| line.parked.is_some()),
            _ => true,
        }
    }

    pub(super) fn value(self, line: &Line) -> Option<f64> {
        match self {
            Self::Name => None,
            // Rows that show the same number are in the order of what may be trouble.
            Self::Trouble => Some((line.trouble * 100.0).round() / 100.0),
            Self::OnCpu => Some(line.oncpu),
            Self::OffCpu => Some((line.offcpu.iter().sum::<f64>() - line.parked.unwrap_or_default()).max(0.0)),
            Self::State(state) => Some(line.offcpu[state as usize]),
            Self::Parked => line.parked,
            Self::Ipc => line.ipc,
        }
    }

    /// Returns whether the lowest value comes first: a low IPC is the problem.
    pub(super) const fn is_ascending(self) -> bool {
        matches!(self, Self::Name | Self::Ipc)
    }

    pub(super) fn sort(self, lines: &mut [Line]) {
        let key = |line: &Line| self.value(line).map(|value| if self.is_ascending() { value } else { -value });
        lines.sort_by(|a, b| {
            let by_value = match (key(a), key(b)) {
                (Some(a), Some(b)) => a.total_cmp(&b),
                (a, b) => b.is_some().cmp(&a.is_some()),
            };
            let is_trouble = self == Self::Trouble;
            let by_unclear = if is_trouble { b.unclear().total_cmp(&a.unclear()) } else { Ordering::Equal };
            by_value.then(by_unclear).then_with(|| a.name.cmp(&b.name))
        });
    }
}

/// Returns the rows of a snapshot, with the growth since an earlier one. Without an earlier one there are no rates: the
/// usage of a row may be that of previous agents, too. `queue` is what threads in the run queue wait for.
pub(super) fn of(
    now: &Snapshot,
    counters: &Arc<[OpenCounter]>,
    before: Option<&Snapshot>,
    over: Duration,
    waiting: &HashMap<String, Waiting>,
    queue: &Cause,
) -> Vec<Line> {
    let before = before.unwrap_or(now);
    let before: HashMap<&Row, &Usage> = before.rows.iter().map(|row| (&row.row, &row.usage)).collect();
    let over_ns = over.as_secs_f64().max(0.001) * 1e9;
    let rows = now.rows.iter().map(|row| {
        let nothing = Usage::default();
        let then = before.get(&row.row).copied().unwrap_or(&nothing);
        let share = |fact| growth(row.usage.facts[fact], then.facts[fact]) / over_ns;
        let mut line = Line::of(&row.row);
        line.oncpu = share(Fact::ON_CPU);
        for (share_of, state) in line.offcpu.iter_mut().zip(WaitState::ALL) {
            *share_of = share(Fact::off_cpu(state));
        }
        line.ipc = ipc(counters, &row.usage, then);
        line
    });
    let mut lines: Vec<Line> = rows.collect();
    tell(&mut lines, waiting, queue);
    lines
}

/// Writes into the rows how many threads are in trouble, and for what they wait. Trouble is the time in the run queue
/// while other pods had the CPUs, throttled and uninterruptible time, and the part of other waits that
/// [`Part::trouble`] names. A pod that has half of the time on CPUs waits for itself in half of its time in the run
/// queue: that half is its own doing.
pub(super) fn tell(lines: &mut [Line], waiting: &HashMap<String, Waiting>, queue: &Cause) {
    let mut pods: HashMap<String, f64> = HashMap::new();
    for line in lines.iter() {
        *pods.entry(line.pod.clone()).or_default() += line.oncpu;
    }
    let on_cpu: HashMap<&str, f64> = pods.iter().map(|(name, cpus)| (name.as_str(), *cpus)).collect();
    let all = on_cpu.values().sum::<f64>().max(f64::MIN_POSITIVE);
    for line in lines {
        let waits = waiting.get(&line.name);
        let of = |state: WaitState| line.offcpu[state as usize];
        let (queued, throttled) = (of(WaitState::RunQueue), of(WaitState::Throttled));
        let blocked = of(WaitState::Uninterruptible);
        let own = on_cpu.get(line.pod.as_str()).copied().unwrap_or_default() / all;
        line.trouble = queued * (1.0 - own) + throttled + blocked + waits.map_or(0.0, Waiting::asleep);
        // The states are exact, so their numbers are not those of the samples.
        let is_of_states =
            |part: &Part| matches!(part.cause, Cause::Reason(WaitReason::RunQueue | WaitReason::Throttled));
        let mut parts = waits.map(Waiting::parts).unwrap_or_default();
        parts.retain(|part| !is_of_states(part));
        let states = [(queue.clone(), queued), (Cause::Reason(WaitReason::Throttled), throttled)];
        parts.extend(states.map(|(cause, threads)| Part { cause, sure: true, threads }));
        if waits.is_none() {
            parts.push(Part { cause: Cause::Kernel, sure: true, threads: blocked });
        }
        parts.retain(|part| part.threads > 0.0);
        sort_parts(&mut parts);
        parts.truncate(MOST_PARTS);
        line.parts = parts;
        line.holder = holder(&on_cpu, &line.pod).map(|(name, cpus)| (name.to_owned(), cpus));
        line.parked = (!waiting.is_empty()).then(|| waits.map_or(0.0, Waiting::parked));
        line.idle_for = waits.and_then(Waiting::idle_for);
        line.coverage = waits.map(|waits| waits.coverage).unwrap_or_default();
    }
}

fn growth(now: u128, then: u128) -> f64 {
    real(u64::try_from(now.saturating_sub(then)).unwrap_or(u64::MAX))
}

/// Returns instructions per cycle; `None` unless both events were counted.
fn ipc(counters: &Arc<[OpenCounter]>, now: &Usage, then: &Usage) -> Option<f64> {
    let count = |name: &str| {
        let open = counters.iter().find(|open| open.counter.name == name && open.state.is_counted())?;
        let at = |usage: &Usage| usage.counts.get(open.slot?).copied();
        Some(growth(at(now)?, at(then).unwrap_or(0)))
    };
    let (instructions, cycles) = (count("instructions")?, count("cycles")?);
    (cycles > 0.0).then(|| instructions / cycles)
}
