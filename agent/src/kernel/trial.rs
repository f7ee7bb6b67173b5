//! Opens counters for a moment, for `podperf check`.

use std::path::Path;

use super::{
    clock::monotonic,
    counters::{Counters, OpenCounter, PmuSettings},
};
use crate::events::{
    self,
    plan::{Limits, Plan, plan},
};

/// An event that every kernel with `perf_event_open(2)` counts.
const SOFTWARE_EVENT: &str = "cpu-clock";

/// Opens all counters of a plan, makes them count a loop of known length, and closes them again. Returns the state of
/// each counter.
#[must_use]
pub fn try_counters(plan: &Plan, settings: PmuSettings) -> Vec<OpenCounter> {
    let cpus = aya::util::online_cpus().unwrap_or_else(|_| vec![0]);
    Counters::open(plan, &cpus, settings, monotonic()).events().to_vec()
}

/// Checks that `perf_event_open(2)` is allowed at all, whatever the CPU can count. `paranoid` is
/// `kernel.perf_event_paranoid`.
///
/// # Errors
///
/// When the call is not allowed: the reason, and the remedy.
pub fn try_perf_event_open(paranoid: Option<i32>) -> Result<(), String> {
    let limits = Limits { events: 1, groups: 1 };
    let plan = plan(&[vec![SOFTWARE_EVENT.to_owned()]], Path::new(events::SYSFS), limits).unwrap_or_default();
    let refused = try_counters(&plan, PmuSettings { paranoid, ..PmuSettings::default() });
    refused.into_iter().find(|open| !open.state.is_counted()).map_or(Ok(()), |open| Err(open.detail))
}
