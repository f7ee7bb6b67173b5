//! What the agent looks after between readings: its counters on the PMU, and its own cost.

use std::sync::Arc;

use tracing::warn;

use crate::{
    events::state::summary,
    kernel::{
        OpenCounter, RawReading, Sensors,
        clock::{monotonic, process_cpu},
    },
    overhead::{Cost, Overhead, Step},
    status::{State, Status},
};

/// What can be given up, in that order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Feature {
    /// Stacks of waits.
    Stacks,
    /// A group of counters; from the last to the first.
    Counters,
}

impl Feature {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Stacks, Self::Counters];

    /// The value of the label `feature`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Stacks => "stacks",
            Self::Counters => "counters",
        }
    }
}

/// The agent's cost, and what it gave up.
#[derive(Clone, Debug, Default)]
pub struct OverheadUse {
    /// Percent of all CPUs' time, over the last window.
    pub percent: f64,
    /// The cap in percent; 0 is none.
    pub most_percent: f64,
    /// What is given up now, the first first.
    pub shed: Vec<Feature>,
}

/// Looks after both.
#[derive(Debug)]
pub struct Upkeep {
    overhead: Overhead,
    shed: Vec<Feature>,
    /// Whether stacks are taken at all.
    stacks: bool,
    counters: Arc<[OpenCounter]>,
    status: Status,
}

impl Upkeep {
    /// Tells the states for the first time.
    #[must_use]
    pub fn new(overhead: Overhead, stacks: bool, sensors: &Sensors, status: Status) -> Self {
        let this = Self { overhead, shed: Vec::new(), stacks, counters: sensors.counters().into(), status };
        this.tell_counters();
        this
    }

    /// The configured events, and what became of each.
    #[must_use]
    pub fn counters(&self) -> Arc<[OpenCounter]> {
        Arc::clone(&self.counters)
    }

    /// The cost, and what is given up for it.
    #[must_use]
    pub fn overhead(&self) -> OverheadUse {
        OverheadUse {
            percent: self.overhead.percent(),
            most_percent: self.overhead.most_percent(),
            shed: self.shed.clone(),
        }
    }

    /// After a reading; `doubtful` are the slots of counters that grew by more than can be.
    pub fn tend(&mut self, sensors: &mut Sensors, reading: &RawReading, doubtful: &[usize]) {
        let mut changed = sensors.tend(reading, doubtful);
        let cost = Cost { programs: reading.cpu.programs_time(), process: process_cpu() };
        if let Some(step) = self.overhead.observe(monotonic(), cost) {
            changed |= self.take(step, sensors);
        }
        if changed {
            self.counters = sensors.counters().into();
            self.tell_counters();
        }
    }

    /// Gives up a feature or takes one up again; whether that changed the counters.
    fn take(&mut self, step: Step, sensors: &mut Sensors) -> bool {
        let feature = match step {
            Step::Shed if self.stacks && !self.shed.contains(&Feature::Stacks) => Some(Feature::Stacks),
            Step::Shed => Some(Feature::Counters),
            Step::Restore => self.shed.last().copied(),
        };
        let done = match (step, feature) {
            (_, Some(Feature::Stacks)) => match sensors.shed_stacks(step == Step::Shed) {
                Ok(()) => true,
                Err(error) => {
                    warn!(%error, "failed to change what the programs leave out");
                    false
                }
            },
            (Step::Shed, Some(Feature::Counters)) => sensors.shed_counters(),
            (Step::Restore, Some(Feature::Counters)) => {
                // A group that yielded meanwhile has nothing to come back to.
                sensors.restore_counters();
                true
            }
            (_, None) => false,
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

    fn tell_overhead(&self, helped: bool) {
        let (percent, most) = (self.overhead.percent(), self.overhead.most_percent());
        let shed: Vec<_> = Feature::ALL
            .into_iter()
            .filter_map(|feature| match (feature, self.shed.iter().filter(|shed| **shed == feature).count()) {
                (_, 0) => None,
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
