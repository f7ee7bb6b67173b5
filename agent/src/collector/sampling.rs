//! Finds out whether samples on the CPU come at all. Some hypervisors let the agent open an event of the CPU's counters
//! that never fires.

use super::Collector;
use crate::{
    kernel::{ProgramUse, SAMPLE},
    model::status::State,
};

/// The time for which threads run without any sample, in periods of the sampler, until the part is degraded.
const MOST_PERIODS: u128 = 500;

/// The states of the part `cpu samples`: while samples come, and while none does although threads run.
pub type SamplingStates = [(State, String); 2];

/// The time that threads have run since the last sample.
#[derive(Debug, Default)]
pub(super) struct Sampling {
    /// The runs of the sampler up to the last reading; `None` if it did not have to run since then.
    runs: Option<u64>,
    unsampled_ns: u128,
}

impl Sampling {
    /// Notes a reading. `runs` are all runs of the sampler, and `ran_ns` is the time for which threads have run since
    /// the last reading. Returns the time that they have run without a sample.
    fn note(&mut self, runs: u64, ran_ns: u128) -> u128 {
        match self.runs.replace(runs) {
            Some(before) if before == runs => self.unsampled_ns += ran_ns,
            _ => self.unsampled_ns = 0,
        }
        self.unsampled_ns
    }
}

impl Collector {
    /// Reports whether samples come. `ran_ns` is the time for which threads have run since the last reading.
    pub(super) fn mind_samples(&mut self, programs: &[ProgramUse], ran_ns: u128, without_stacks: bool) {
        let (Some([coming, silent]), Some(period)) = (&self.settings.samples, self.settings.sample_period) else {
            return;
        };
        if without_stacks {
            self.sampling = Sampling::default();
            return;
        }
        let runs = programs.iter().find(|program| program.program == SAMPLE).map_or(0, |sampler| sampler.runs);
        let is_silent = self.sampling.note(runs, ran_ns) > period.as_nanos() * MOST_PERIODS;
        let (state, detail) = if is_silent { silent } else { coming };
        self.settings.status.set("cpu samples", *state, detail.as_str());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_that_run_without_a_sample_are_noticed_and_one_sample_is_enough() {
        let mut sampling = Sampling::default();
        assert_eq!(sampling.note(7, 1000), 0, "of the time before, nothing is known");
        assert_eq!([sampling.note(7, 100), sampling.note(7, 0), sampling.note(7, 50)], [100, 100, 150]);
        assert_eq!(sampling.note(8, 1000), 0);
        assert_eq!(sampling.note(8, 10), 10);
        // The programs of another generation may begin again.
        assert_eq!(sampling.note(0, 10), 0);
    }
}
