//! Finds the groups that fit on the PMU at the same time, with some counters left for other users.
//!
//! Only the kernel knows the number of counters of a CPU, and the events that each counter can count: it refuses a
//! group that would not fit on an empty PMU. So all wanted events are opened as one group for a moment. This group
//! never counts: its leader is a disabled software event. (A disabled hardware event as leader would not work: on
//! arm64 the kernel leaves it out of the sum.)

use super::perf::open_group;
use crate::events::{catalogue, plan::Attr};

/// Events that stand for a counter that is left free; the first one that the CPU has is used. Events for which no CPU
/// has a dedicated counter come first.
const SPARES: [&str; 6] =
    ["branch-misses", "cache-misses", "branch-instructions", "cache-references", "instructions", "cycles"];

/// The event that counts nothing: `PERF_COUNT_SW_DUMMY` of `PERF_TYPE_SOFTWARE`.
const NOTHING: (u32, u64) = (1, 9);

/// The counters that podperf leaves free.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reserve {
    /// Number of counters for other users.
    pub(super) free: u32,
    /// Set if the kernel's watchdog against stuck CPUs holds one counter, which counts cycles.
    pub(super) watchdog: bool,
}

/// The counters of one CPU of each kind.
#[derive(Debug)]
pub(super) struct Budget(Vec<Kind>);

#[derive(Debug)]
struct Kind {
    cpu: u32,
    reserve: Vec<Attr>,
    taken: Vec<Attr>,
}

impl Budget {
    /// Creates a budget; `cpus` has one CPU of each kind that this machine has.
    pub(super) fn new(cpus: &[u32], reserve: Reserve) -> Self {
        let kind = |cpu: &u32| Kind { cpu: *cpu, reserve: reserved(*cpu, reserve), taken: Vec::new() };
        Self(cpus.iter().map(kind).collect())
    }

    /// Returns whether a group would fit on the empty PMUs of `cpus` (`None`: all CPUs). A group that does not fit
    /// could be opened, but would never count.
    pub(super) fn is_possible(&self, group: &[Attr], cpus: Option<&[u32]>) -> bool {
        let group = core(group);
        self.0.iter().filter(|kind| kind.is_among(cpus)).all(|kind| fit_on(kind.cpu, &group))
    }

    /// Takes the counters of a group, and returns whether they were free. The first group is always taken: without it
    /// there is nothing to leave counters for.
    pub(super) fn take(&mut self, group: &[Attr], cpus: Option<&[u32]>) -> bool {
        let group = core(group);
        let fits =
            |kind: &Kind| kind.taken.is_empty() || fit_on(kind.cpu, &[&*kind.taken, &*group, &*kind.reserve].concat());
        let mut kinds: Vec<_> = self.0.iter_mut().filter(|kind| kind.is_among(cpus)).collect();
        let all_fit = group.is_empty() || kinds.iter().all(|kind| fits(kind));
        if all_fit {
            kinds.iter_mut().for_each(|kind| kind.taken.extend(&group));
        }
        all_fit
    }
}

impl Kind {
    fn is_among(&self, cpus: Option<&[u32]>) -> bool {
        cpus.is_none_or(|cpus| cpus.contains(&self.cpu))
    }
}

/// Returns the events of a group that take counters of the CPU.
fn core(group: &[Attr]) -> Vec<Attr> {
    group.iter().filter(|attr| attr.core).copied().collect()
}

fn fit_on(cpu: u32, events: &[Attr]) -> bool {
    let (kind, config) = NOTHING;
    open_group(cpu, &[&[Attr::of(kind, config)], events].concat()).is_ok()
}

fn reserved(cpu: u32, reserve: Reserve) -> Vec<Attr> {
    let attr = |name: &&str| catalogue::find(name).map(|event| Attr::of(event.kind.id(), event.config));
    let is_there = |attr: &Attr| open_group(cpu, std::slice::from_ref(attr)).is_ok();
    let spare = SPARES.iter().filter_map(attr).find(is_there);
    let watchdog = reserve.watchdog.then(|| attr(&"cycles")).flatten().filter(is_there);
    let spares = std::iter::repeat_n(spare, reserve.free as usize).flatten();
    spares.chain(watchdog).collect()
}
