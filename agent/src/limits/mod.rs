//! Keeps the agent within its limits between readings: its counters on the PMU, and its cost in time and memory.

pub mod cpu;
mod keeper;
pub mod losses;
pub mod max_memory;
pub mod memory;
mod pmu;

use std::sync::Arc;

use tracing::warn;

use crate::model::feature::Feature;
use crate::{
    kernel::{
        AnsweringTime, OpenCounter, RawReading, Sensors,
        clock::{monotonic, process_cpu},
    },
    model::status::{State, Status},
};
use cpu::{Cost, Overhead, Step};
use max_memory::MaxMemory;
use pmu::summary;

pub use keeper::{MemorySettings, MemoryUse};

/// The agent's cost, and the features that it has given up.
#[derive(Clone, Debug, Default)]
pub struct OverheadUse {
    /// CPU time over the last window, in percent of all CPUs' time.
    pub percent: f64,
    /// The limit in percent; 0 means no limit.
    pub most_percent: f64,
    /// Features given up to stay within the limit, in the order of giving up.
    pub shed: Vec<Feature>,
    /// Memory use, and the features given up for memory.
    pub memory: MemoryUse,
}

/// Keeps all limits.
#[derive(Debug)]
pub struct Upkeep {
    overhead: Overhead,
    answering: AnsweringTime,
    memory: keeper::Keeper,
    shed: Vec<Feature>,
    /// `true` if stacks are taken at all.
    stacks: bool,
    /// `true` if the programs leave stacks out now; `None` for adopted programs, whose state is not known.
    without_stacks: Option<bool>,
    counters: Arc<[OpenCounter]>,
    status: Status,
}

impl Upkeep {
    /// Creates the limits and reports the states for the first time.
    #[must_use]
    pub fn new(
        overhead: Overhead,
        answering: AnsweringTime,
        memory: MemorySettings,
        stacks: bool,
        sensors: &Sensors,
        status: Status,
    ) -> Self {
        let this = Self {
            overhead,
            answering,
            memory: keeper::Keeper::new(memory, status.clone()),
            shed: Vec::new(),
            stacks,
            without_stacks: None,
            counters: sensors.counters().into(),
            status,
        };
        this.tell_counters();
        this
    }

    /// Returns the configured events, each with its state.
    #[must_use]
    pub fn counters(&self) -> Arc<[OpenCounter]> {
        Arc::clone(&self.counters)
    }

    /// Returns the cost, and the features given up for it.
    #[must_use]
    pub fn overhead(&self) -> OverheadUse {
        OverheadUse {
            percent: self.overhead.percent(),
            most_percent: self.overhead.most_percent(),
            shed: self.shed.clone(),
            memory: self.memory.used(),
        }
    }

    /// Returns `true` if the programs leave stacks out.
    #[must_use]
    pub fn stacks_are_left_out(&self) -> bool {
        self.without_stacks == Some(true)
    }

    /// Sets the limit of memory.
    pub fn set_max_memory(&mut self, max: MaxMemory) {
        self.memory.set_max(max);
    }

    /// Applies the limits after a reading. `doubtful` are the slots of counters that grew by an impossible amount;
    /// `map_bytes` is the size of the maps.
    pub fn tend(&mut self, sensors: &mut Sensors, reading: &RawReading, doubtful: &[usize], map_bytes: u64) {
        let mut changed = sensors.tend(reading, doubtful);
        // Keep this order. Time spent for readers between the two calls then counts as cost only until the next
        // reading.
        let answering = self.answering.total();
        let process = process_cpu().saturating_sub(answering);
        let cost = Cost { programs: reading.cpu.programs_time(), process };
        if let Some(step) = self.overhead.observe(monotonic(), cost) {
            changed |= self.take(step, sensors);
        }
        self.memory.tend(monotonic(), map_bytes);
        // Repeats a change that the kernel has rejected.
        self.leave_stacks_out(sensors);
        if changed {
            self.counters = sensors.counters().into();
            self.tell_counters();
        }
    }

    /// Gives up a feature or restores one. Returns `true` if that changed the counters.
    fn take(&mut self, step: Step, sensors: &mut Sensors) -> bool {
        let feature = match step {
            Step::Shed if self.stacks && !self.shed.contains(&Feature::Stacks) => Some(Feature::Stacks),
            Step::Shed => Some(Feature::Counters),
            Step::Restore => self.shed.last().copied(),
        };
        let done = match (step, feature) {
            // `leave_stacks_out` does this step.
            (_, Some(Feature::Stacks)) => true,
            (Step::Shed, Some(Feature::Counters)) => sensors.shed_counters(),
            (Step::Restore, Some(Feature::Counters)) => {
                // A group that yielded meanwhile has nothing to restore.
                sensors.restore_counters();
                true
            }
            (_, Some(Feature::Caches | Feature::Recordings) | None) => false,
        };
        if let Some(feature) = feature.filter(|_| done) {
            self.overhead.done(step);
            match step {
                Step::Shed => self.shed.push(feature),
                Step::Restore => drop(self.shed.pop()),
            }
        }
        self.tell_overhead(done || step == Step::Restore);
        done && feature == Some(Feature::Counters)
    }

    /// Makes the programs take stacks or leave them out, as both limits demand.
    fn leave_stacks_out(&mut self, sensors: &mut Sensors) {
        let without = self.shed.contains(&Feature::Stacks) || self.memory.has_given_up(Feature::Stacks);
        if self.without_stacks == Some(without) {
            return;
        }
        match sensors.shed_stacks(without) {
            Ok(()) => self.without_stacks = Some(without),
            Err(error) => warn!(%error, "failed to change what the programs leave out"),
        }
    }

    fn tell_overhead(&self, helped: bool) {
        let (percent, most) = (self.overhead.percent(), self.overhead.most_percent());
        let shed: Vec<_> = Feature::FOR_CPU
            .into_iter()
            .filter_map(|feature| match (feature, self.shed.iter().filter(|shed| **shed == feature).count()) {
                (_, 0) | (Feature::Caches | Feature::Recordings, _) => None,
                (Feature::Stacks, _) => Some("stacks are not taken".to_owned()),
                (Feature::Counters, groups) => Some(format!("{groups} groups of counters are off")),
            })
            .collect();
        let (state, detail) = match (shed.is_empty(), helped) {
            (true, true) => (State::Healthy, format!("below the cap of {most} % of the node's CPU time")),
            (true, false) => {
                (State::Degraded, format!("{percent:.2} % of the node's CPU time, and nothing to give up"))
            }
            (false, _) => (
                State::Degraded,
                format!(
                    "{percent:.2} % of the node's CPU time was more than `overhead.maxPercent` of {most} %: {}",
                    shed.join(", ")
                ),
            ),
        };
        self.status.set("overhead", state, detail);
    }

    fn tell_counters(&self) {
        let events: Vec<_> =
            self.counters.iter().map(|open| (&*open.counter.name, open.state, &*open.detail)).collect();
        let (state, detail) = summary(&events);
        self.status.set("counters", state, detail);
    }
}
