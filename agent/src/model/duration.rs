//! Lengths of time as the kernel and receivers count them. Pure.

use std::time::Duration;

/// Returns a length in nanoseconds; the largest number if it is longer.
#[must_use]
pub fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
