//! The kernel's monotonic clock, and its place in wall-clock time.

use std::time::{Duration, SystemTime};

use nix::time::{ClockId, clock_gettime};

/// `CLOCK_MONOTONIC` in nanoseconds: what `bpf_ktime_get_ns` reads.
#[must_use]
pub fn monotonic_ns() -> u64 {
    // It cannot fail for a clock that every Linux has.
    clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(0, |now| {
        u64::try_from(now.tv_sec()).unwrap_or(0) * 1_000_000_000 + u64::try_from(now.tv_nsec()).unwrap_or(0)
    })
}

/// The wall-clock time of a `CLOCK_MONOTONIC` instant.
#[must_use]
pub fn wall(monotonic: u64) -> SystemTime {
    let now = SystemTime::now();
    let ago = monotonic_ns().saturating_sub(monotonic);
    now.checked_sub(Duration::from_nanos(ago)).unwrap_or(now)
}
