//! Measures how long processes waited for a CPU, so that a limit of time can be extended by that.
//!
//! A limit on the wall clock fails on a busy machine, and a wide one hides what is slow. The kernel counts for each
//! thread how long it was ready and had no CPU (`schedstat`), and for a guest how long the host ran something else. On
//! an idle machine both are nearly nothing.

use std::{collections::BTreeMap, fs, time::Duration};

use crate::process;

/// The waits of some processes and of the calling thread since it was made.
#[derive(Debug)]
pub struct Waited {
    pids: Vec<u32>,
    /// By thread: its wait at the begin, and the last one that was read.
    threads: BTreeMap<u32, (Duration, Duration)>,
    own: Duration,
    stolen: Duration,
}

impl Waited {
    /// Begins to measure these processes and the calling thread.
    #[must_use]
    pub fn begin(pids: &[u32]) -> Self {
        let pids = pids.to_vec();
        let threads = threads(&pids).map(|(thread, waited)| (thread, (waited, waited))).collect();
        Self { pids, threads, own: own(), stolen: stolen() }
    }

    /// Returns the sum so far. Ended threads count with the value at the previous call.
    pub fn total(&mut self) -> Duration {
        for (thread, waited) in threads(&self.pids) {
            self.threads.entry(thread).or_default().1 = waited;
        }
        let others: Duration = self.threads.values().map(|(before, now)| now.saturating_sub(*before)).sum();
        others + own().saturating_sub(self.own) + stolen().saturating_sub(self.stolen)
    }
}

fn threads(pids: &[u32]) -> impl Iterator<Item = (u32, Duration)> {
    let of = |pid: &u32| fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    pids.iter().flat_map(of).filter_map(|thread| {
        // A thread may end meanwhile.
        let waited = waited(&fs::read_to_string(thread.path().join("schedstat")).ok()?);
        Some((thread.file_name().to_str()?.parse().ok()?, waited))
    })
}

fn own() -> Duration {
    waited(&fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default())
}

fn stolen() -> Duration {
    process::stolen().unwrap_or_default()
}

/// Returns the second field; zero on a kernel that does not count it.
fn waited(schedstat: &str) -> Duration {
    Duration::from_nanos(schedstat.split_whitespace().nth(1).and_then(|field| field.parse().ok()).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_field_is_the_wait() {
        assert_eq!(waited("12 34 56\n"), Duration::from_nanos(34));
        assert_eq!(waited(""), Duration::ZERO);
    }
}
