//! Time between two attempts, and timeouts of requests.

use std::time::Duration;

/// All delays and timeouts of a source; tests use shorter ones.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    /// Minimum delay before the second attempt. It doubles with each further attempt.
    pub(super) first: Duration,
    /// Maximum delay between two attempts.
    pub(super) most: Duration,
    /// Timeout for a whole list. The API server stops on its side after 60 s.
    pub(super) list: Duration,
    /// Timeout for a watch to begin.
    pub(super) open: Duration,
    /// Time after which a watch that has not begun counts as an outage: from then on, changes may be late.
    pub(super) hesitate: Duration,
    /// Longest silence in a watch. The API server sends a bookmark every minute.
    pub(super) idle: Duration,
    /// A watch that ends sooner counts as a failure.
    pub(super) brief: Duration,
    /// A watch that lasts this long resets the back-off.
    pub(super) settled: Duration,
    /// Minimum time between two polls of a kubelet, however often the agent pokes it.
    pub(super) polls: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            first: Duration::from_millis(800),
            most: Duration::from_secs(30),
            list: Duration::from_secs(60),
            open: Duration::from_secs(30),
            hesitate: Duration::from_secs(2),
            idle: Duration::from_secs(150),
            brief: Duration::from_secs(1),
            settled: Duration::from_secs(10),
            polls: Duration::from_secs(1),
        }
    }
}
