//! Holds podperf to its memory budget, and reports the state of the part `memory`.

use std::time::Duration;

use tracing::{info, warn};

use super::{
    max_memory::MaxMemory,
    memory::{Budget, GivenUp, Mebi, Memory, Step, Used, WITHOUT_BUDGET},
};
use crate::model::feature::Feature;
use crate::{
    kernel::memory::{Limit, resident},
    model::status::{State, Status},
};

const PART: &str = "memory";

/// Settings of the memory limit.
#[derive(Clone, Debug)]
pub struct MemorySettings {
    /// The configured limit.
    pub max: MaxMemory,
    /// The container's limit.
    pub limit: Limit,
    /// Description of the maps that were made smaller to fit; `None` if none were.
    pub reduced: Option<String>,
    /// The shared list of features that are given up.
    pub given_up: GivenUp,
    /// `true` if there is anything to give up: without stacks there are no symbols and no recordings.
    pub stacks: bool,
}

/// Memory use of podperf, and the features given up for it.
#[derive(Clone, Copy, Debug, Default)]
pub struct MemoryUse {
    /// Memory of the process and the maps.
    pub used: Used,
    /// The budget; `None` without a limit.
    pub budget: Option<Budget>,
    /// Features given up now, in the order of giving up.
    pub shed: &'static [Feature],
}

/// Holds podperf to its budget, see the module.
#[derive(Debug)]
pub(super) struct MemoryLimiter {
    memory: Memory,
    settings: MemorySettings,
    /// `true` if the last needed step could be taken.
    helped: bool,
    status: Status,
}

impl MemoryLimiter {
    pub(super) fn new(settings: MemorySettings, status: Status) -> Self {
        let mut this = Self { memory: Memory::default(), settings, helped: true, status };
        this.follow_limit();
        this.report();
        this
    }

    pub(super) fn used(&self) -> MemoryUse {
        MemoryUse { used: self.memory.used(), budget: self.memory.budget(), shed: self.memory.given_up() }
    }

    pub(super) fn has_given_up(&self, feature: Feature) -> bool {
        self.memory.given_up().contains(&feature)
    }

    pub(super) const fn set_max(&mut self, max: MaxMemory) {
        self.settings.max = max;
    }

    /// Measures the memory, and gives up or restores at most one feature.
    pub(super) fn update(&mut self, now: Duration, map_bytes: u64) {
        self.follow_limit();
        let used = Used { process: resident(), maps: map_bytes };
        let step = self.memory.observe(now, used);
        self.settings.given_up.set_most_resident(self.memory.most_resident());
        let Some(step) = step else {
            self.helped |= !self.memory.is_near();
            return self.report();
        };
        self.helped = (self.settings.stacks || step == Step::Restore) && self.memory.take(step);
        if self.helped {
            let given_up = self.memory.given_up();
            self.settings.given_up.set(given_up.len());
            let (now, used) = (names(given_up), Mebi(used.bytes()).to_string());
            match step {
                Step::Shed => warn!(given_up = now, used, "near the budget of memory, something more is given up"),
                Step::Restore => info!(given_up = now, used, "there is memory again, something comes back"),
            }
        }
        self.report();
    }

    /// A container's limit may change while it runs.
    fn follow_limit(&mut self) {
        let limit = if self.settings.max == MaxMemory::Share { self.settings.limit.bytes() } else { None };
        let budget = Budget::of(self.settings.max, limit);
        if budget != self.memory.budget() {
            self.memory.set_budget(budget);
        }
    }

    fn report(&self) {
        let MemoryUse { used, budget, shed } = self.used();
        let Some(budget) = budget else {
            return self.status.set(PART, State::Healthy, WITHOUT_BUDGET);
        };
        let (process, maps) = (Mebi(used.process), Mebi(used.maps));
        let mut detail = format!("process {process} and maps {maps}, of {budget}");
        if !shed.is_empty() {
            detail += &format!("; given up: {}", names(shed));
        }
        if !self.helped {
            detail += "; there is nothing more to give up (raise `overhead.maxMemory`, or the container's limit)";
        }
        if let Some(reduced) = &self.settings.reduced {
            detail += &format!("; {reduced}");
        }
        let is_healthy = shed.is_empty() && self.helped && self.settings.reduced.is_none();
        self.status.set(PART, if is_healthy { State::Healthy } else { State::Degraded }, detail);
    }
}

fn names(features: &[Feature]) -> String {
    if features.is_empty() {
        return "nothing".into();
    }
    features.iter().map(|feature| feature.name()).collect::<Vec<_>>().join(", ")
}
