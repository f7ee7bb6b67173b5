//! Runs a loop of known length on a chosen CPU while the CPU's counters count.

use std::{fs, io, os::fd::BorrowedFd, time::Instant};

use nix::{
    sched::{CpuSet, sched_getaffinity, sched_setaffinity},
    unistd::Pid,
};

use super::perf;
use crate::events::plausible::{Growth, Spin};

/// The rounds of the loop, with two instructions each: one is a branch. They take a third of a millisecond on a slow
/// CPU.
const ROUNDS: u64 = 1_000_000;
/// The assumed fastest clock in GHz, if the machine does not report it. No CPU is faster.
const FASTEST_GHZ: f64 = 10.0;

/// Runs the loop on `cpu`, and returns the growth of each of its counters meanwhile.
///
/// # Errors
///
/// When the calling thread may not run on that CPU.
pub(super) fn spin(cpu: u32, counters: &[BorrowedFd<'_>]) -> io::Result<(Spin, Vec<Option<Growth>>)> {
    let this_thread = Pid::from_raw(0);
    let before = sched_getaffinity(this_thread)?;
    let mut only = CpuSet::new();
    only.set(cpu as usize)?;
    sched_setaffinity(this_thread, &only)?;

    let start = Instant::now();
    let first: Vec<_> = counters.iter().map(|counter| perf::read(*counter).ok()).collect();
    spin_for(ROUNDS);
    let last: Vec<_> = counters.iter().map(|counter| perf::read(*counter).ok()).collect();
    let wall_ns = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);

    sched_setaffinity(this_thread, &before)?;
    let grown = first.into_iter().zip(last).map(|(first, last)| {
        let (first, last) = (first?, last?);
        Some(Growth {
            count: last.count.wrapping_sub(first.count),
            enabled_ns: last.enabled_ns.saturating_sub(first.enabled_ns),
            running_ns: last.running_ns.saturating_sub(first.running_ns),
        })
    });
    let grown = grown.collect();
    Ok((Spin { instructions: 2 * ROUNDS, branches: ROUNDS, wall_ns, most_ghz: most_ghz(cpu) }, grown))
}

/// Returns the fastest clock of a CPU, in GHz.
pub(super) fn most_ghz(cpu: u32) -> f64 {
    let path = format!("/sys/devices/system/cpu/cpu{cpu}/cpufreq/cpuinfo_max_freq");
    let khz = fs::read_to_string(path).ok().and_then(|text| text.trim().parse::<f64>().ok());
    khz.filter(|khz| *khz > 0.0).map_or(FASTEST_GHZ, |khz| khz / 1e6)
}

#[cfg(target_arch = "x86_64")]
fn spin_for(rounds: u64) {
    // SAFETY: the code changes only one register, which it declares, and the flags.
    unsafe {
        std::arch::asm!("2:", "dec {rounds}", "jnz 2b", rounds = inout(reg) rounds => _, options(nomem, nostack));
    }
}

#[cfg(target_arch = "aarch64")]
fn spin_for(rounds: u64) {
    // SAFETY: the code changes only one register, which it declares, and the flags.
    unsafe {
        std::arch::asm!(
            "2:",
            "subs {rounds}, {rounds}, #1",
            "b.ne 2b",
            rounds = inout(reg) rounds => _,
            options(nomem, nostack)
        );
    }
}
