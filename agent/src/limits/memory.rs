//! The memory budget of podperf, and the features that it gives up when the budget is nearly used up. Pure.
//!
//! The budget counts the process, the maps of the programs, and their records of the node's threads, which the kernel
//! charges to the same cgroup. The order is fixed, and begins with the features that users miss least: first the caches
//! of symbols and windows, then recordings and flame graphs, then stacks. Counts are never given up.

use super::max_memory::MaxMemory;
use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use crate::model::feature::Feature;

/// Share of its container's limit that podperf takes as its budget, in percent. The rest is for memory outside of its
/// accounts: the kernel's page tables and sockets, the files that it reads, and growth between two measurements.
pub const SHARE_PERCENT: u64 = 80;
/// Memory of the process itself with next to nothing to count, in bytes.
pub const OWN_BYTES: u64 = 20 << 20;

/// Share of the budget above which a feature is given up, in percent.
const NEAR_PERCENT: u64 = 90;
const NEAR: f64 = 0.9;
/// Share of the budget below which there is room for a feature.
const ROOM: f64 = 0.7;
/// Time with room after which a feature comes back.
const QUIET: Duration = Duration::from_secs(300);
/// Time for a given-up feature to show its effect before the next one is given up, unless the budget is exceeded.
const SETTLE: Duration = Duration::from_secs(5);

/// The state without a budget. A limit that the kernel does not show here, as of cgroup v1, is not known.
pub const WITHOUT_BUDGET: &str = "without a budget: `overhead.maxMemory` is 0, or no limit of the container is visible";

/// Features to give up, in this order.
pub const ORDER: [Feature; 3] = [Feature::Caches, Feature::Recordings, Feature::Stacks];

/// The budget, and its origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Size of the budget, in bytes.
    pub bytes: u64,
    /// The container's limit, in bytes, if the budget is a share of that limit; `None` if the budget is configured.
    pub limit: Option<u64>,
}

/// Memory use of podperf, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Used {
    /// Resident memory of the process.
    pub process: u64,
    /// Memory of the programs' maps, records of threads included.
    pub maps: u64,
}

/// The step to take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Give up the next feature.
    Shed,
    /// Restore the feature that was given up last.
    Restore,
}

/// The budget, and the measured use.
#[derive(Clone, Copy, Debug, Default)]
pub struct Memory {
    budget: Option<Budget>,
    used: Used,
    /// Number of features of [`ORDER`] that are given up.
    given_up: usize,
    last: Option<Duration>,
    /// Time since which there is room.
    room_since: Option<Duration>,
    /// `true` if the budget has changed since something was given up.
    anew: bool,
}

/// The features that are given up now, and the room that is left. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct GivenUp(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    /// Number of features of [`ORDER`] that are given up.
    count: AtomicUsize,
    /// Bytes that the process may have resident before a feature is given up; `u64::MAX` without a budget.
    most_resident: AtomicU64,
    /// `true` if the work on symbols is spread over windows, and there is little time to unwind, to save CPU time.
    spreads_symbols: AtomicBool,
}

impl Default for Shared {
    fn default() -> Self {
        let most_resident = AtomicU64::new(u64::MAX);
        Self { count: AtomicUsize::new(0), most_resident, spreads_symbols: AtomicBool::new(false) }
    }
}

impl Budget {
    /// Returns the budget by the configuration, in a container with this limit in bytes; `None` without a limit.
    #[must_use]
    pub fn of(max: MaxMemory, limit: Option<u64>) -> Option<Self> {
        match max {
            MaxMemory::Share => limit.map(Self::share_of),
            MaxMemory::None => None,
            MaxMemory::Bytes(bytes) => Some(Self { bytes, limit: None }),
        }
    }

    /// Returns the budget for a container's limit.
    #[must_use]
    pub const fn share_of(limit: u64) -> Self {
        Self { bytes: limit - limit / 100 * (100 - SHARE_PERCENT), limit: Some(limit) }
    }
}

impl Used {
    /// Returns the sum in bytes.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        self.process.saturating_add(self.maps)
    }
}

impl GivenUp {
    /// Returns `true` if this feature is given up for memory.
    #[must_use]
    pub fn has(&self, feature: Feature) -> bool {
        ORDER.iter().take(self.0.count.load(Ordering::Relaxed)).any(|given_up| *given_up == feature)
    }

    pub(crate) fn set(&self, count: usize) {
        self.0.count.store(count, Ordering::Relaxed);
    }

    /// Returns `true` if a process with `resident` bytes may take `more` bytes and no feature must be given up.
    #[must_use]
    pub fn has_room(&self, resident: u64, more: u64) -> bool {
        resident.saturating_add(more) <= self.0.most_resident.load(Ordering::Relaxed)
    }

    pub(crate) fn set_most_resident(&self, bytes: u64) {
        self.0.most_resident.store(bytes, Ordering::Relaxed);
    }

    /// Returns `true` if the work on symbols is spread over windows, and there is little time to unwind, to save CPU
    /// time.
    #[must_use]
    pub fn spreads_symbols(&self) -> bool {
        self.0.spreads_symbols.load(Ordering::Relaxed)
    }

    pub(crate) fn set_spreads_symbols(&self, spreads: bool) {
        self.0.spreads_symbols.store(spreads, Ordering::Relaxed);
    }
}

impl Memory {
    /// Sets the budget. A feature that was given up for another budget comes back as soon as this one has room.
    pub fn set_budget(&mut self, budget: Option<Budget>) {
        self.anew = self.budget != budget;
        self.budget = budget;
    }

    /// Returns the budget; `None` without a limit.
    #[must_use]
    pub const fn budget(&self) -> Option<Budget> {
        self.budget
    }

    /// Returns the bytes that the process may have resident, beside the maps, before a feature is given up; `u64::MAX`
    /// without a budget.
    #[must_use]
    pub fn most_resident(&self) -> u64 {
        let near = |budget: Budget| (budget.bytes / 100).saturating_mul(NEAR_PERCENT);
        self.budget.map_or(u64::MAX, |budget| near(budget).saturating_sub(self.used.maps))
    }

    /// Returns the last measured use.
    #[must_use]
    pub const fn used(&self) -> Used {
        self.used
    }

    /// Returns the features that are given up, in the order of giving up.
    #[must_use]
    pub fn given_up(&self) -> &'static [Feature] {
        &ORDER[..self.given_up]
    }

    /// Returns `true` if the last measured use was nearly the whole budget.
    #[must_use]
    pub fn is_near(&self) -> bool {
        self.share() > NEAR
    }

    /// Returns the use as a share of the budget.
    fn share(&self) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "a share")]
        let share = |budget: Budget| self.used.bytes() as f64 / budget.bytes.max(1) as f64;
        self.budget.map_or(0.0, share)
    }

    /// Measures the use at `now`, and returns the step to take, at most one.
    pub fn observe(&mut self, now: Duration, used: Used) -> Option<Step> {
        self.used = used;
        if self.budget.is_none() {
            return (self.given_up > 0).then_some(Step::Restore);
        }
        let share = self.share();
        if share > NEAR {
            (self.room_since, self.anew) = (None, false);
            let settles = self.last.is_some_and(|last| now.saturating_sub(last) < SETTLE);
            if settles && share <= 1.0 {
                return None;
            }
            self.last = Some(now);
            return Some(Step::Shed);
        }
        if self.given_up == 0 || share > ROOM {
            self.room_since = None;
            return None;
        }
        let since = *self.room_since.get_or_insert(now);
        if !self.anew && now.saturating_sub(since) < QUIET {
            return None;
        }
        self.room_since = None;
        Some(Step::Restore)
    }

    /// Takes a step. Returns `false` if there was nothing to give up or to restore.
    pub const fn take(&mut self, step: Step) -> bool {
        match step {
            Step::Shed if self.given_up < ORDER.len() => self.given_up += 1,
            Step::Restore if self.given_up > 0 => self.given_up -= 1,
            Step::Shed | Step::Restore => return false,
        }
        true
    }
}

impl fmt::Display for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.limit {
            None => write!(f, "`overhead.maxMemory` of {}", Mebi(self.bytes)),
            Some(limit) => write!(f, "{}, {SHARE_PERCENT} % of the container's {}", Mebi(self.bytes), Mebi(limit)),
        }
    }
}

/// A number of bytes in a form for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mebi(pub u64);

impl fmt::Display for Mebi {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        #[expect(clippy::cast_precision_loss, reason = "for people")]
        let mebi = self.0 as f64 / f64::from(1 << 20);
        if mebi.fract() == 0.0 || mebi >= 100.0 { write!(f, "{mebi:.0} MiB") } else { write!(f, "{mebi:.1} MiB") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn of(mebi: u64) -> Memory {
        let mut memory = Memory::default();
        memory.set_budget(Some(Budget { bytes: mebi * MIB, limit: None }));
        memory
    }

    /// Measures every ten seconds from `from` on, with each given use in MiB; takes each returned step.
    fn observe(memory: &mut Memory, from: u64, mebis: impl IntoIterator<Item = u64>) -> Vec<usize> {
        let looks = mebis.into_iter().zip(0_u64..).map(|(mebi, at)| {
            let used = Used { process: mebi * MIB / 2, maps: mebi * MIB / 2 };
            if let Some(step) = memory.observe(Duration::from_secs(from + 10 * at), used) {
                memory.take(step);
            }
            memory.given_up().len()
        });
        looks.collect()
    }

    #[test]
    fn a_budget_is_configured_or_a_share_of_the_containers_limit() {
        assert_eq!(Budget::of(MaxMemory::Share, None), None);
        assert_eq!(Budget::of(MaxMemory::Share, Some(1000)).unwrap().bytes, 800);
        assert_eq!(Budget::of(MaxMemory::None, Some(1000)), None);
        assert_eq!(Budget::of(MaxMemory::Bytes(900), Some(1000)), Some(Budget { bytes: 900, limit: None }));
    }

    #[test]
    fn without_a_budget_nothing_is_given_up() {
        assert_eq!(observe(&mut Memory::default(), 0, [1 << 20, 1 << 20]), [0, 0]);
    }

    #[test]
    fn near_the_budget_one_after_the_other_is_given_up_and_no_more_than_there_is() {
        let mut memory = of(100);
        assert_eq!(observe(&mut memory, 0, [90, 91, 80, 95, 99, 99, 120]), [0, 1, 1, 2, 3, 3, 3]);
        assert_eq!(memory.given_up(), [Feature::Caches, Feature::Recordings, Feature::Stacks]);
    }

    #[test]
    fn what_was_given_up_has_to_show_what_it_saves_unless_the_budget_is_passed() {
        let mut memory = of(100);
        let mut look = |second, mebi| {
            let step = memory.observe(Duration::from_secs(second), Used { process: mebi * MIB, maps: 0 });
            step.inspect(|step| assert!(memory.take(*step)))
        };
        assert_eq!(look(0, 95), Some(Step::Shed));
        assert_eq!(look(4, 95), None);
        assert_eq!(look(4, 101), Some(Step::Shed));
        assert_eq!(look(9, 95), Some(Step::Shed));
    }

    #[test]
    fn with_room_for_five_minutes_it_comes_back_one_by_one() {
        let mut memory = of(100);
        observe(&mut memory, 0, [95, 95]);
        let steps = observe(&mut memory, 100, [60; 70]);
        assert_eq!((steps[29], steps[30], steps[60], steps[61]), (2, 1, 1, 0));
    }

    #[test]
    fn between_room_and_near_nothing_changes() {
        let mut memory = of(100);
        observe(&mut memory, 0, [95]);
        assert_eq!(observe(&mut memory, 100, [80; 100]), [1; 100]);
        // Room that is interrupted does not count.
        let wavering = (0..100).map(|at| if at % 20 == 0 { 80 } else { 60 });
        assert_eq!(observe(&mut memory, 2000, wavering), [1; 100]);
    }

    #[test]
    fn a_larger_budget_or_none_gives_back_without_a_wait() {
        let mut memory = of(100);
        observe(&mut memory, 0, [95, 95, 95]);
        memory.set_budget(Some(Budget { bytes: 200 * MIB, limit: None }));
        assert_eq!(observe(&mut memory, 100, [95, 95, 95]), [2, 1, 0]);
        memory.set_budget(Some(Budget { bytes: 100 * MIB, limit: None }));
        assert_eq!(observe(&mut memory, 200, [95, 95]), [1, 2]);
        memory.set_budget(None);
        assert_eq!(observe(&mut memory, 300, [95, 95]), [1, 0]);
    }

    #[test]
    fn who_shares_it_sees_what_is_given_up() {
        let given_up = GivenUp::default();
        assert!(!given_up.has(Feature::Caches));
        given_up.set(2);
        assert!(given_up.has(Feature::Caches) && given_up.has(Feature::Recordings) && !given_up.has(Feature::Stacks));
        given_up.set(0);
        assert!(!given_up.has(Feature::Caches));
    }

    #[test]
    fn there_is_room_up_to_where_something_would_be_given_up() {
        let given_up = GivenUp::default();
        assert!(given_up.has_room(u64::MAX, 1), "without a budget");
        let mut memory = of(100);
        observe(&mut memory, 0, [40]);
        given_up.set_most_resident(memory.most_resident());
        // The maps take 20 of the 90 MiB.
        assert!(given_up.has_room(30 * MIB, 39 * MIB) && !given_up.has_room(30 * MIB, 41 * MIB));
        memory.set_budget(None);
        assert_eq!(memory.most_resident(), u64::MAX);
    }

    #[test]
    fn a_budget_says_where_it_is_from() {
        assert_eq!(Budget { bytes: 200 * MIB, limit: None }.to_string(), "`overhead.maxMemory` of 200 MiB");
        assert_eq!(Budget::share_of(512 * MIB).to_string(), "410 MiB, 80 % of the container's 512 MiB");
    }
}
