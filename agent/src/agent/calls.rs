//! Recordings of system calls.

use std::{sync::Arc, time::Duration};

use super::Agent;
use crate::{
    collector::Purpose,
    kernel::LOADING_BYTES,
    model::{feature::Feature, mode::Mode},
    recording::{self, CallReport, CallsWanted, RecordError, Registration, Selector},
};

impl Agent {
    /// Records the system calls of a subject for a while. The places, the ids and the readers of such recordings are
    /// those of all recordings, but there is one at a time: it slows all system calls of the node, and loads programs.
    /// `is_stranger` is true for a reader outside of the agent's own pod and machine.
    ///
    /// # Errors
    ///
    /// Fails if the name is unknown, if the mode or the limits forbid it, if the kernel cannot, or if there were no
    /// calls.
    pub async fn record_calls(
        &self,
        registration: Registration,
        is_stranger: bool,
        selector: &Selector,
        duration: Duration,
    ) -> Result<CallReport, RecordError> {
        // In these modes the server may be open to everybody, and a recording slows all system calls of the node.
        match self.mode() {
            Mode::Metrics => {
                let way = self.runner.take_stacks();
                return Err(RecordError::NotTaken(format!("the agent makes no recordings in its mode ({way})")));
            }
            Mode::Reasons if is_stranger && self.access.is_none() => {
                let way = self.runner.take_user_frames();
                return Err(RecordError::NotTaken(format!(
                    "everybody may ask this agent, and a recording of system calls slows those of the whole node (ask \
                     from the agent's own pod or machine, turn authorization on, or {way})"
                )));
            }
            Mode::Reasons | Mode::Profiles => {}
        }
        let Ok(turn) = Arc::clone(&self.calls_turn).try_acquire_owned() else { return Err(RecordError::Busy) };
        self.drawer.has_bytes(LOADING_BYTES)?;
        let selector = self.find(selector).await?;
        if self.reader.read(Purpose::Look).await?.overhead.shed.contains(&Feature::Sensors) {
            let why = "events of sensors are given up for now, to cost less (see `overhead.maxPercent`)";
            return Err(RecordError::NotTaken(why.to_owned()));
        }
        let percent = self.lock_config().overhead.max_percent;
        let most = (percent > 0.0).then_some(percent / 100.0);
        let wanted = CallsWanted { selector, duration, most, cpus: self.cpus };
        let report = recording::record_calls(&self.reader, registration, turn, &wanted).await?;
        if report.calls.is_empty() {
            let seconds = report.duration.as_secs_f64();
            let why = format!("`{}` made no system call in {seconds:.1} s (record for longer)", report.title);
            return Err(RecordError::Nothing(why));
        }
        Ok(report)
    }
}
