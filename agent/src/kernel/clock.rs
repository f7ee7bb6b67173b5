//! The kernel's monotonic clock, and its place in wall-clock time.

use std::time::{Duration, SystemTime};

use nix::time::{ClockId, clock_gettime};

/// Returns the time of `CLOCK_MONOTONIC`, which `bpf_ktime_get_ns` reads.
#[must_use]
pub fn monotonic() -> Duration {
    read(ClockId::CLOCK_MONOTONIC)
}

/// Returns the time of `CLOCK_MONOTONIC` in nanoseconds.
#[must_use]
pub fn monotonic_ns() -> u64 {
    u64::try_from(monotonic().as_nanos()).unwrap_or(u64::MAX)
}

/// Returns the CPU time of this process.
#[must_use]
pub fn process_cpu() -> Duration {
    read(ClockId::CLOCK_PROCESS_CPUTIME_ID)
}

/// Returns the CPU time of the calling thread.
#[must_use]
pub fn thread_cpu() -> Duration {
    read(ClockId::CLOCK_THREAD_CPUTIME_ID)
}

/// Returns the CPU time of a thread of this process; `None` if there is no such thread.
#[must_use]
pub fn cpu_of_thread(thread: i32) -> Option<Duration> {
    // `make_thread_cpuclock(thread, CPUCLOCK_SCHED)` of the kernel's posix-timers_types.h.
    clock_gettime(ClockId::from_raw((!thread << 3) | 6)).ok().map(since_zero)
}

/// Reads a clock that every Linux has, so the read cannot fail.
fn read(clock: ClockId) -> Duration {
    clock_gettime(clock).map_or(Duration::ZERO, since_zero)
}

/// Converts a time, and returns zero for a negative one: a cast would turn it into a huge duration. Libraries that
/// change a process' clocks, as tests use them, can set a clock below zero.
fn since_zero(time: nix::sys::time::TimeSpec) -> Duration {
    if time.tv_sec() < 0 { Duration::ZERO } else { time.into() }
}

/// Returns the wall-clock time of a `CLOCK_MONOTONIC` instant, given in nanoseconds.
#[must_use]
pub fn wall(monotonic: u64) -> SystemTime {
    let now = SystemTime::now();
    let ago = monotonic_ns().saturating_sub(monotonic);
    now.checked_sub(Duration::from_nanos(ago)).unwrap_or(now)
}
