//! The kernel's monotonic clock, and its place in wall-clock time.

use std::time::{Duration, SystemTime};

use nix::time::{ClockId, clock_gettime};

/// `CLOCK_MONOTONIC`: what `bpf_ktime_get_ns` reads.
#[must_use]
pub fn monotonic() -> Duration {
    read(ClockId::CLOCK_MONOTONIC)
}

/// The same in nanoseconds.
#[must_use]
pub fn monotonic_ns() -> u64 {
    u64::try_from(monotonic().as_nanos()).unwrap_or(u64::MAX)
}

/// CPU time of this process.
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

/// It cannot fail for a clock that every Linux has.
fn read(clock: ClockId) -> Duration {
    clock_gettime(clock).map_or(Duration::ZERO, since_zero)
}

/// A library that changes a process' clocks, as tests use it, may set one below zero: a cast would make that an age.
fn since_zero(time: nix::sys::time::TimeSpec) -> Duration {
    if time.tv_sec() < 0 { Duration::ZERO } else { time.into() }
}

/// The wall-clock time of a `CLOCK_MONOTONIC` instant.
#[must_use]
pub fn wall(monotonic: u64) -> SystemTime {
    let now = SystemTime::now();
    let ago = monotonic_ns().saturating_sub(monotonic);
    now.checked_sub(Duration::from_nanos(ago)).unwrap_or(now)
}
