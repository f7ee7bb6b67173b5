//! Describes lost counts: the numbers that are too small, and the remedy. Pure.
//!
//! The kernel side counts each loss by its reason (`podperf_bpf_drops_total`). This module lists the reasons that make
//! a number too small. A record that is sent again, found again or added to another one is no loss.

use std::collections::BTreeMap;

use crate::model::{sensors, status::State};

/// Time for which a loss is reported after it was last seen, in nanoseconds.
const REPORTED_FOR_NS: u64 = 60_000_000_000;

/// One reason of losses.
struct Row {
    /// Name of the reason in `podperf_bpf_drops_total`.
    reason: &'static str,
    lost: &'static str,
    remedy: &'static str,
}

const ROWS: [Row; 7] = [
    Row {
        reason: "cgroup_table",
        lost: "a cgroup found no row, and is counted in one above it, or not at all",
        remedy: "raise `cgroups.max` and restart the agent",
    },
    Row {
        reason: "task_storage",
        lost: "the kernel had no memory for a thread's record, and did not count the thread",
        remedy: "is the node out of memory?",
    },
    Row {
        reason: "event_read",
        lost: "a counter could not be read",
        remedy: "does someone else take counters away? A restart of the agent opens them anew",
    },
    Row {
        reason: "sample_table",
        lost: "time found neither room in profiles nor a row; metrics have it",
        remedy: "raise `stacks.maxSamples` and restart the agent",
    },
    Row {
        reason: "sample_stack",
        lost: "a cgroup had too many stacks, and its time is in profiles as unknown",
        remedy: "raise `stacks.maxSamples` and restart the agent",
    },
    Row {
        reason: "sample_busy",
        lost: "the kernel had locked a table of samples, and some time is in profiles as unknown",
        remedy: "larger tables would not help; a newer kernel may",
    },
    Row {
        reason: "sensor_table",
        lost: "a cgroup found no row of a sensor, and its sensors' metrics are too small",
        remedy: "raise `cgroups.max` and restart the agent",
    },
];

/// Returns all reasons: those of [`ROWS`], then those of the sensors.
fn rows() -> impl Iterator<Item = Row> {
    let row = |own: &sensors::DropReason| Row {
        reason: own.name,
        lost: own.lost,
        remedy: "the other counts of the sensor are right",
    };
    ROWS.into_iter().chain(sensors::drops().map(row))
}

/// The losses so far, and their times, by reason.
#[derive(Debug, Default)]
pub struct Losses(BTreeMap<&'static str, Seen>);

#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    count: u64,
    /// Time at which the count last grew; `None` if it has not grown yet.
    last_ns: Option<u64>,
}

impl Losses {
    /// Creates a list that ignores the losses in `drops`, which previous agents have counted.
    #[must_use]
    pub fn since(drops: &[(&'static str, u64)]) -> Self {
        Self(rows().map(|row| (row.reason, Seen { count: count(drops, row.reason), last_ns: None })).collect())
    }

    /// Applies the losses of a reading, and returns the state and its detail.
    pub fn note(&mut self, drops: &[(&'static str, u64)], now_ns: u64) -> (State, String) {
        let mut reported = Vec::new();
        for row in rows() {
            let seen = self.0.entry(row.reason).or_default();
            let count = count(drops, row.reason);
            if count > seen.count {
                *seen = Seen { count, last_ns: Some(now_ns) };
            }
            if seen.last_ns.is_some_and(|last_ns| now_ns.saturating_sub(last_ns) < REPORTED_FOR_NS) {
                reported.push(format!("`{}`, {count} times: {} ({})", row.reason, row.lost, row.remedy));
            }
        }
        if reported.is_empty() {
            (State::Healthy, "none in the last minute".into())
        } else {
            (State::Degraded, reported.join("; "))
        }
    }
}

fn count(drops: &[(&'static str, u64)], reason: &str) -> u64 {
    drops.iter().find(|(of, _)| *of == reason).map_or(0, |(_, count)| *count)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn a_loss_is_reported_with_its_remedy_until_it_is_a_minute_old() {
        let mut losses = Losses::default();
        assert_eq!(losses.note(&[("cgroup_table", 0)], SECOND).0, State::Healthy);
        let (state, says) = losses.note(&[("cgroup_table", 7), ("event_read", 0)], 2 * SECOND);
        assert_eq!(state, State::Degraded);
        assert!(says.contains("7 times") && says.contains("`cgroups.max`") && !says.contains("event_read"), "{says}");
        assert_eq!(losses.note(&[("cgroup_table", 7)], 61 * SECOND).0, State::Degraded);
        assert_eq!(losses.note(&[("cgroup_table", 7)], 62 * SECOND).0, State::Healthy);
        // The count grows again.
        assert_eq!(losses.note(&[("cgroup_table", 8)], 90 * SECOND).0, State::Degraded);
    }

    #[test]
    fn a_loss_of_a_sensor_is_reported_in_its_own_words() {
        let (state, says) = Losses::default().note(&[("locks_missed_end", 3)], SECOND);
        assert_eq!(state, State::Degraded);
        assert!(says.starts_with("`locks_missed_end`, 3 times: the end of a wait"), "{says}");
    }

    #[test]
    fn what_was_lost_before_is_no_news() {
        let mut losses = Losses::since(&[("cgroup_table", 7)]);
        assert_eq!(losses.note(&[("cgroup_table", 7)], SECOND).0, State::Healthy);
        assert_eq!(losses.note(&[("cgroup_table", 8)], SECOND).0, State::Degraded);
    }

    #[test]
    fn what_is_sent_or_found_again_is_no_loss() {
        let drops = [("cgroup_ring", 9), ("cgroup_share", 9), ("stack_ring", 9), ("task_busy", 9), ("long_wait", 9)];
        assert_eq!(Losses::default().note(&drops, SECOND).0, State::Healthy);
    }

    #[test]
    fn every_reason_is_one_that_the_kernel_side_has() {
        for row in rows() {
            assert!(crate::kernel::DROPS.contains(&row.reason), "{}", row.reason);
        }
    }
}
