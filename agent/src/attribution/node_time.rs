//! The time of the node's CPUs that is in no row and not idle: interrupts, and time that the hypervisor took, where the
//! kernel leaves them out of the run time of threads. Pure.

/// Sums since the first reading.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct NodeTime {
    /// Unaccounted time, in nanoseconds, all CPUs together.
    pub(super) unaccounted_ns: u64,
    /// Run and idle time in excess of the time online, in nanoseconds, to be subtracted later: not all CPUs are read at
    /// one moment.
    pub(super) excess_ns: u64,
    /// Idle time at the last reading, in nanoseconds; `None` before the first.
    pub(super) idle_ns: Option<u64>,
    /// The kernel's account of stolen time, and the stolen time since the first reading, in nanoseconds; `None` before
    /// the first reading with such an account.
    pub(super) stolen: Option<(u64, u64)>,
}

impl NodeTime {
    /// Adds a reading, in nanoseconds: the time that CPUs were online and the time that threads ran since the last
    /// reading, and the running total of idle time.
    pub(super) fn pass(&mut self, online_ns: u64, ran_ns: u64, idle_ns: u64) {
        let Some(before) = self.idle_ns.replace(idle_ns) else { return };
        let spent = ran_ns.saturating_add(idle_ns.saturating_sub(before)).saturating_add(self.excess_ns);
        self.unaccounted_ns += online_ns.saturating_sub(spent);
        // A larger excess is an error, and would hide unaccounted time later.
        self.excess_ns = spent.saturating_sub(online_ns).min(online_ns);
    }

    /// Adds a reading of stolen time, whose running total is `total_ns`; `None` if it is not known. If the kernel
    /// corrects its account downwards, the sum stands still until the account is as large again.
    pub(super) fn pass_stolen(&mut self, total_ns: Option<u64>) {
        let Some(total_ns) = total_ns else { return };
        let (before_ns, stolen_ns) = self.stolen.unwrap_or((total_ns, 0));
        self.stolen = Some((before_ns.max(total_ns), stolen_ns + total_ns.saturating_sub(before_ns)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_neither_run_nor_idle_is_unaccounted_and_never_falls() {
        let mut node = NodeTime::default();
        node.pass(1_000, 10, 5);
        assert_eq!(node.unaccounted_ns, 0, "the first reading is where it begins");
        let mut last = 0;
        for (online, ran, idle, unaccounted) in
            [(100, 60, 35, 10), (100, 70, 75, 10), (100, 40, 100, 35), (100, 100, 100, 35)]
        {
            node.pass(online, ran, idle);
            assert_eq!(node.unaccounted_ns, unaccounted);
            assert!(node.unaccounted_ns >= last);
            last = node.unaccounted_ns;
        }
        assert_eq!(node.excess_ns, 0);
        let sums = 60 + 70 + 40 + 100 + (100 - 5) + node.unaccounted_ns;
        assert_eq!(sums, 400);
    }

    #[test]
    fn stolen_time_is_counted_from_the_first_reading_and_never_falls() {
        let mut node = NodeTime::default();
        let totals = [None, Some(50), Some(60), None, Some(40), Some(65)];
        let sums = totals.map(|total| {
            node.pass_stolen(total);
            node.stolen.map(|(_, stolen_ns)| stolen_ns)
        });
        assert_eq!(sums, [None, Some(0), Some(10), Some(10), Some(10), Some(15)]);
    }
}
