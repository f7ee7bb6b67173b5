//! Measures the time in which processes waited for a CPU, so that a time limit can be extended by it.
//!
//! A limit on the wall clock fails on a busy machine, and a generous one hides slow code. The kernel counts for each
//! thread the time in which it was ready and had no CPU (`schedstat`), and for the machine the time in which the host
//! ran something else. On an idle machine both are nearly zero.
//!
//! Threads wait at the same time. So a process counts with the wait of its longest-waiting thread, and the machine with
//! the mean of its CPUs. A sum would grow with the number of threads.

use std::{collections::BTreeMap, fs, time::Duration};

use crate::process;

/// For each thread: its wait at the begin, and its last wait that was read.
type Threads = BTreeMap<u32, (Duration, Duration)>;

/// The waits of some processes and of the calling thread since it was made.
#[derive(Debug)]
pub struct Waited {
    /// For each process, its threads with their waits.
    processes: Vec<(u32, Threads)>,
    own: Duration,
    stolen: Duration,
}

impl Waited {
    /// Begins to measure these processes and the calling thread.
    #[must_use]
    pub fn begin(pids: &[u32]) -> Self {
        let waits = |pid: &u32| (*pid, threads(*pid).map(|(thread, waited)| (thread, (waited, waited))).collect());
        Self { processes: pids.iter().map(waits).collect(), own: own(), stolen: stolen() }
    }

    /// Returns the extension up to now: the longest wait of a thread of each process, the calling thread's wait, and
    /// the time that the host took of a CPU. Threads that have ended count with the values of the previous
    /// call.
    pub fn total(&mut self) -> Duration {
        let longest = |(pid, before): &mut (u32, BTreeMap<u32, (Duration, Duration)>)| {
            for (thread, waited) in threads(*pid) {
                before.entry(thread).or_default().1 = waited;
            }
            before.values().map(|(before, now)| now.saturating_sub(*before)).max().unwrap_or_default()
        };
        let others: Duration = self.processes.iter_mut().map(longest).sum();
        others + own().saturating_sub(self.own) + stolen().saturating_sub(self.stolen)
    }
}

fn threads(pid: u32) -> impl Iterator<Item = (u32, Duration)> {
    let all = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    all.filter_map(|thread| {
        // A thread may end during the read.
        let waited = waited(&fs::read_to_string(thread.path().join("schedstat")).ok()?);
        Some((thread.file_name().to_str()?.parse().ok()?, waited))
    })
}

/// Returns the time for which the calling thread has waited for a CPU.
pub(crate) fn own() -> Duration {
    waited(&fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default())
}

/// Returns the mean stolen time of a CPU.
fn stolen() -> Duration {
    let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
    process::stolen().unwrap_or_default() / cpus(&stat)
}

/// Returns the number of CPUs from their lines in `/proc/stat`, where the first line is the sum of all.
fn cpus(stat: &str) -> u32 {
    let lines = stat.lines().filter(|line| line.starts_with("cpu")).count();
    u32::try_from(lines).unwrap_or(u32::MAX).saturating_sub(1).max(1)
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

    #[test]
    fn all_cpus_together_are_no_cpu() {
        assert_eq!(cpus("cpu  1 2 3\ncpu0 1 2 3\ncpu1 0 0 0\nintr 5\n"), 2);
        assert_eq!(cpus(""), 1);
    }

    #[test]
    fn a_process_counts_with_the_thread_that_waited_for_the_longest() {
        let millis = Duration::from_millis;
        // No process can have this pid, so no further values are read for them.
        let ended = |waits: &[u64]| {
            let wait = |(thread, wait): (u32, &u64)| (thread, (millis(100), millis(100 + wait)));
            (u32::MAX, (0..).zip(waits).map(wait).collect())
        };
        let mut waited =
            Waited { processes: vec![ended(&[10, 30, 20]), ended(&[5])], own: Duration::MAX, stolen: Duration::MAX };
        assert_eq!(waited.total(), millis(35));
    }
}
