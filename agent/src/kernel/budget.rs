//! Which groups fit on the PMU at the same time, with some counters left for others.
//!
//! How many counters a CPU has, and which event goes on which, the kernel knows best: it refuses a group that would
//! not fit on an empty PMU. So all that is wanted is opened as one group, for a moment. It never counts: its leader is a
//! disabled software event. (A disabled hardware event would not do: on arm64 the kernel leaves it out of the sum.)

use super::perf::open_group;
use crate::events::{catalogue, plan::Attr};

/// What stands for a counter that is left free, the first that there is: events that no CPU counts on a counter of
/// their own come first.
const SPARES: [&str; 6] =
    ["branch-misses", "cache-misses", "branch-instructions", "cache-references", "instructions", "cycles"];

/// `PERF_COUNT_SW_DUMMY` of `PERF_TYPE_SOFTWARE`.
const NOTHING: (u32, u64) = (1, 9);

/// What is to be left.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reserve {
    /// Counters for others.
    pub(super) free: u32,
    /// Whether the kernel's watchdog against stuck CPUs holds one that counts cycles.
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
    /// `cpus` has one of each kind that this machine has.
    pub(super) fn new(cpus: &[u32], reserve: Reserve) -> Self {
        let kind = |cpu: &u32| Kind { cpu: *cpu, reserve: reserved(*cpu, reserve), taken: Vec::new() };
        Self(cpus.iter().map(kind).collect())
    }

    /// Whether a group would fit on the empty PMUs of `cpus` (`None` is all). One that does not would be open, and
    /// never count.
    pub(super) fn is_possible(&self, group: &[Attr], cpus: Option<&[u32]>) -> bool {
        let group = core(group);
        self.0.iter().filter(|kind| kind.is_among(cpus)).all(|kind| fit_on(kind.cpu, &group))
    }

    /// Takes the counters of a group, if they are there. The first group is always taken: without it there is nothing
    /// to leave counters for.
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

/// Those that take counters of the CPU.
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
