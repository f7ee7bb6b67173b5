//! Charges the running task of a CPU with its time until now, so that a reading includes this time. This interrupts the
//! CPU.

use tracing::debug;

use super::{
    clock::monotonic_ns,
    object::{Object, raw_program},
    raw,
};

/// Settles the running task of each CPU, one CPU after the other. Returns the mean of the moments at which that
/// happened, in nanoseconds of `CLOCK_MONOTONIC`.
pub(super) fn flush(object: &Object) -> u64 {
    flush_without(object, &[])
}

/// Settles the running task of each CPU that is not in `quiet`, and returns the mean moment like [`flush`]. A task on a
/// quiet CPU is charged when it leaves the CPU, and its counts are in the next reading after that.
pub(super) fn flush_without(object: &Object, quiet: &[u32]) -> u64 {
    let mut cpus = aya::util::online_cpus().unwrap_or_default();
    cpus.retain(|cpu| !quiet.contains(cpu));
    let began = monotonic_ns();
    let since = || monotonic_ns().saturating_sub(began);
    let settled = |cpu: &u32| {
        let before = since();
        flush_on(object, *cpu);
        before.midpoint(since())
    };
    began + cpus.iter().map(settled).sum::<u64>() / (cpus.len().max(1) as u64)
}

/// Settles the running task of a CPU. A CPU that went offline has nothing to settle.
pub(super) fn flush_on(object: &Object, cpu: u32) {
    let Some(program) = raw_program(object, "flush") else { return };
    if let Err(error) = raw::run_on(program, cpu, [0; 12]) {
        debug!(cpu, %error, "not flushed");
    }
}
