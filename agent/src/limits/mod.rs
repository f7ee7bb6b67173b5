//! Keeps the agent within its limits between readings: its counters on the PMU, and its cost in time and memory.
//! [`steps`] is the list of the steps that save CPU time.

pub mod cpu;
pub mod losses;
pub mod max_memory;
pub mod memory;
mod memory_limiter;
mod pmu;
pub mod steps;

use std::sync::Arc;

use tracing::warn;

use crate::model::feature::Feature;
use crate::{
    kernel::{
        AnsweringTime, Lowered, OpenCounter, RawReading, SensorState, Sensors,
        clock::{monotonic, process_cpu},
    },
    model::{
        mode::Mode,
        status::{State, Status},
    },
};
use cpu::{Change, Cost, Overhead};
use max_memory::MaxMemory;
use memory::GivenUp;
use memory_limiter::MemoryLimiter;
use pmu::summary;
use steps::Present;

pub use memory_limiter::{MemorySettings, MemoryUse};

/// Describes a sensor that is given up.
const GIVEN_UP: &str = "given up to stay below `overhead.maxPercent`: its counters stand still, except for what had \
                        begun before";

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
pub struct Limits {
    overhead: Overhead,
    answering: AnsweringTime,
    memory: MemoryLimiter,
    shed: Vec<Feature>,
    present: Present,
    /// The sensors that can be given up: those with programs of their own, which run. Riders cost too little.
    own_programs: Vec<SensorState>,
    /// The work that the programs leave out now; `None` for adopted programs, whose state is not known.
    lowered: Option<Lowered>,
    /// The share of the state that the symbolizer reads.
    given_up: GivenUp,
    counters: Arc<[OpenCounter]>,
    status: Status,
}

impl Limits {
    /// Creates the limits and reports the states for the first time.
    #[must_use]
    pub fn new(
        overhead: Overhead,
        answering: AnsweringTime,
        memory: MemorySettings,
        mode: Mode,
        sensors: &Sensors,
        status: Status,
    ) -> Self {
        let is_costly = |of: &&SensorState| !of.sensor.programs.is_empty() && of.state == State::Healthy;
        let own_programs: Vec<_> = sensors.sensor_states().iter().filter(is_costly).cloned().collect();
        let this = Self {
            overhead,
            answering,
            given_up: memory.given_up.clone(),
            memory: MemoryLimiter::new(memory, status.clone()),
            shed: Vec::new(),
            present: Present { mode, sensors: !own_programs.is_empty() },
            own_programs,
            lowered: None,
            counters: sensors.counters().into(),
            status,
        };
        this.report_counters();
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

    /// Returns `true` if the programs take no stacks: neither of waits nor on the CPU.
    #[must_use]
    pub fn stacks_are_left_out(&self) -> bool {
        self.lowered.is_some_and(|lowered| lowered.stacks)
    }

    /// Sets the limit of memory.
    pub fn set_max_memory(&mut self, max: MaxMemory) {
        self.memory.set_max(max);
    }

    /// Applies the limits after a reading. `doubtful` are the slots of counters that grew by an impossible amount;
    /// `map_bytes` is the size of the maps.
    pub fn apply(&mut self, sensors: &mut Sensors, reading: &RawReading, doubtful: &[usize], map_bytes: u64) {
        let mut changed = sensors.update_counters(reading, doubtful);
        // Keep this order. Time spent for readers between the two calls then counts as cost only until the next
        // reading.
        let answering = self.answering.total();
        let process = process_cpu().saturating_sub(answering);
        let cost = Cost { programs: reading.cpu.programs_time(), process };
        if let Some(change) = self.overhead.observe(monotonic(), cost) {
            changed |= self.make(change, sensors);
        }
        self.memory.update(monotonic(), map_bytes);
        // Repeats a change that the kernel has rejected.
        self.lower(sensors);
        if changed {
            self.counters = sensors.counters().into();
            self.report_counters();
        }
    }

    /// Gives up a feature or restores some. Returns `true` if that changed the counters.
    fn make(&mut self, change: Change, sensors: &mut Sensors) -> bool {
        let features = match change {
            // `lower` gives up all features but counters.
            Change::Shed => {
                let next = steps::next(&self.shed, self.present)
                    .find(|feature| *feature != Feature::Counters || sensors.shed_counters());
                self.shed.extend(next);
                next.into_iter().collect()
            }
            Change::Restore(steps) => self.shed.split_off(self.shed.len().saturating_sub(steps)),
        };
        if !features.is_empty() {
            self.overhead.done(change);
        }
        let counters = features.iter().filter(|feature| **feature == Feature::Counters).count();
        if change != Change::Shed {
            // A group that yielded meanwhile has nothing to restore.
            (0..counters).for_each(|_| _ = sensors.restore_counters());
        }
        self.report_overhead(!features.is_empty());
        counters > 0
    }

    /// Makes the programs and the symbolizer leave out what both limits demand.
    fn lower(&mut self, sensors: &mut Sensors) {
        self.given_up.set_spreads_symbols(self.shed.contains(&Feature::Symbols));
        let mut lowered = steps::lowered(&self.shed);
        lowered.stacks |= self.memory.has_given_up(Feature::Stacks);
        if self.lowered == Some(lowered) {
            return;
        }
        match sensors.lower(lowered) {
            Ok(()) => {
                if self.lowered.replace(lowered).is_some_and(|before| before.sensors) != lowered.sensors {
                    self.report_sensors(lowered.sensors);
                }
            }
            Err(error) => warn!(%error, "failed to change what the programs leave out"),
        }
    }

    fn report_overhead(&self, helped: bool) {
        let (percent, most) = (self.overhead.percent(), self.overhead.most_percent());
        let given_up = steps::describe(&self.shed);
        let (state, detail) = match (given_up.is_empty(), helped) {
            (true, true) => (State::Healthy, format!("below the cap of {most} % of the node's CPU time")),
            (true, false) => {
                (State::Degraded, format!("{percent:.2} % of the node's CPU time, and nothing to give up"))
            }
            (false, _) => (
                State::Degraded,
                format!(
                    "over `overhead.maxPercent` of {most} % of the node's CPU time, and {percent:.2} % when this was \
                     decided: {given_up}"
                ),
            ),
        };
        self.status.set("overhead", state, detail);
    }

    fn report_sensors(&self, are_given_up: bool) {
        for SensorState { sensor, state, detail } in &self.own_programs {
            let (state, detail) = if are_given_up { (State::Degraded, GIVEN_UP) } else { (*state, detail.as_str()) };
            self.status.set(sensor.names.sensor, state, detail);
        }
    }

    fn report_counters(&self) {
        let events: Vec<_> =
            self.counters.iter().map(|open| (&*open.counter.name, open.state, &*open.detail)).collect();
        let (state, detail) = summary(&events);
        self.status.set("counters", state, detail);
    }
}
