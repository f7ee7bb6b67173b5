//! Scales the counts of a group that was on the PMU for only a part of the time: groups that do not fit together take
//! turns, every few milliseconds. Pure.
//!
//! A count is multiplied by `enabled / running`. A row with 100 ms or more on the CPUs saw many turns, so it is scaled
//! by its own times. A row of one millisecond was on the PMU for its whole time or not at all: scaled by its own times,
//! it would show its raw count or nothing, and the sum of all short rows would be too small. Therefore short rows are
//! scaled by the times of all short rows together. The count of one short row is an estimate, but the sum of many is
//! right.

/// A row with at least this much time on the CPUs since the last reading saw enough turns. A turn takes 4 ms by default
/// (`perf_event_mux_interval_ms` in sysfs).
const LONG_NS: u64 = 100_000_000;
/// The largest factor.
const MOST_TIMES: u64 = 64;

/// The times for which a group was enabled and was really on the PMU since the last reading, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Turns {
    /// Time of all CPUs on which the group wanted to count.
    pub enabled_ns: u64,
    /// The part of this time in which the group counted.
    pub running_ns: u64,
}

impl Turns {
    const fn add(&mut self, other: Self) {
        self.enabled_ns += other.enabled_ns;
        self.running_ns += other.running_ns;
    }

    const fn is_long(self) -> bool {
        self.enabled_ns >= LONG_NS
    }

    /// Returns the share that scales this row. Returns `None` if the group counted for no time or too little time: this
    /// is not the same as a count of zero.
    #[must_use]
    pub fn share(self, pool: Pool) -> Option<Share> {
        let by = match (self.is_long(), pool.short.is_long()) {
            (true, _) => self,
            (false, true) => pool.short,
            (false, false) => pool.all,
        };
        let counted = self.running_ns > 0 && by.enabled_ns / MOST_TIMES <= by.running_ns;
        counted.then_some(Share(by))
    }
}

/// The turns of many rows since the last reading.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pool {
    /// The turns of rows that are too short for a share of their own. Long rows may have a different share: a user who
    /// counts a single process takes the PMU only from that process.
    short: Turns,
    /// The turns of all rows, used when the short rows have too little time.
    all: Turns,
}

impl Pool {
    /// Adds a row.
    pub const fn add(&mut self, row: Turns) {
        self.all.add(row);
        if !row.is_long() {
            self.short.add(row);
        }
    }
}

/// The part of the time in which a group counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share(Turns);

impl Share {
    /// Returns the count as if the group had been on the PMU all the time.
    #[must_use]
    pub fn scale(self, count: u64) -> u64 {
        let Turns { enabled_ns, running_ns } = self.0;
        if running_ns == 0 || running_ns >= enabled_ns {
            return count;
        }
        let scaled = u128::from(count) * u128::from(enabled_ns) / u128::from(running_ns);
        u64::try_from(scaled).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn turns(enabled_ns: u64, running_ns: u64) -> Turns {
        Turns { enabled_ns, running_ns }
    }

    fn pool(rows: &[Turns]) -> Pool {
        let mut pool = Pool::default();
        rows.iter().for_each(|row| pool.add(*row));
        pool
    }

    #[test]
    fn a_row_that_was_always_on_the_pmu_is_not_scaled() {
        let all = pool(&[turns(1_000 * MS, 1_000 * MS)]);
        assert_eq!(turns(MS, MS).share(all).unwrap().scale(7), 7);
        let half = pool(&[turns(1_000 * MS, 500 * MS)]);
        assert_eq!(turns(500 * MS, 500 * MS).share(half).unwrap().scale(7), 7);
    }

    #[test]
    fn a_long_row_has_its_own_share_and_a_short_one_that_of_the_short_ones() {
        // Another user counts the process of the long row. The short rows have the PMU all the time, or half of the
        // time.
        let long = turns(1_000 * MS, 250 * MS);
        let always = pool(&[&[long][..], &[turns(10 * MS, 10 * MS); 20]].concat());
        let half = pool(&[&[long][..], &[turns(10 * MS, 5 * MS); 20]].concat());
        assert_eq!(long.share(always).unwrap().scale(10), 40);
        assert_eq!(turns(MS, MS).share(always).unwrap().scale(10), 10);
        assert_eq!(turns(MS, MS).share(half).unwrap().scale(10), 20);
        // Two short rows of a millisecond are too little for a share.
        assert_eq!(turns(MS, MS).share(pool(&[long, turns(MS, MS)])).unwrap().scale(1_000), 3_988);
    }

    #[test]
    fn too_little_stands_for_nothing() {
        // A row that never was on the PMU, and a row after an hour off it.
        assert_eq!(turns(MS, 0).share(pool(&[turns(1_000 * MS, 500 * MS)])), None);
        let hour = turns(3_600_000 * MS, MS);
        assert_eq!(hour.share(pool(&[hour])), None);
        assert!(turns(640 * MS, 10 * MS).share(Pool::default()).is_some());
        assert_eq!(turns(641 * MS, 10 * MS - 1).share(Pool::default()), None);
    }

    /// Returns the sum of the short rows' counts as a part of the true count: `groups` take turns of 4 ms, and each row
    /// runs for `life_us` in `runs`, at moments that are independent of the turns.
    fn simulated(life_us: u64, runs: u64, groups: u64) -> f64 {
        const ROWS: u64 = 20_000;
        const TURN_US: u64 = 4_000;
        let mut state = 1_u64;
        let mut random = move |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        let mut rows = Vec::new();
        for _ in 0..ROWS {
            let mut on_pmu_us = 0;
            for _ in 0..runs {
                let start = random(groups * TURN_US);
                let on_pmu = |at: &u64| at % (groups * TURN_US) < TURN_US;
                on_pmu_us += (start..start + life_us / runs).filter(on_pmu).count() as u64;
            }
            rows.push(turns(life_us * 1_000, on_pmu_us * 1_000));
        }
        let pool = pool(&rows);
        // Three events in a nanosecond.
        let count = |row: &Turns| row.share(pool).map_or(0, |share| share.scale(row.running_ns * 3));
        let counted: u64 = rows.iter().map(count).sum();
        let truth = ROWS * life_us * 3_000;
        f64::from(u32::try_from(counted * 10_000 / truth).unwrap()) / 10_000.0
    }

    #[test]
    fn short_rows_together_count_what_they_did() {
        for (life_us, runs, groups) in [(500, 1, 2), (2_000, 1, 2), (2_000, 4, 2), (2_000, 1, 4), (8_000, 4, 4)] {
            let part = simulated(life_us, runs, groups);
            assert!((part - 1.0).abs() < 0.03, "{life_us} us in {runs} runs, {groups} groups: {part} of the truth");
        }
    }
}
