//! Checks whether a counter counts plausibly. Pure.
//!
//! Hypervisors without a complete virtual PMU let the agent open events that stay zero, and broken hypervisors return
//! any value. So a loop of known length runs while the counters count: their growth must be at least that length, and
//! at most the limit that the clock sets.

use super::{
    catalogue,
    plan::{Attr, Mode},
};

/// The largest number of instructions or other events in one cycle: no CPU has more.
pub const MOST_PER_CYCLE: f64 = 16.0;
/// The smallest number of cycles per instruction of the loop.
const LEAST_CYCLES_SHARE: f64 = 1.0 / MOST_PER_CYCLE;
/// The tolerance: clocks of two sources differ a little, and reading them takes time.
const SLACK: f64 = 1.25;

/// The loop that ran, and its time.
#[derive(Clone, Copy, Debug)]
pub struct Spin {
    /// Instructions of the loop, all in user mode.
    pub instructions: u64,
    /// Branches of the loop.
    pub branches: u64,
    /// The time that passed, in nanoseconds.
    pub wall_ns: u64,
    /// The fastest clock of this CPU, in GHz.
    pub most_ghz: f64,
}

/// The growth of a counter while the loop ran.
#[derive(Clone, Copy, Debug, Default)]
pub struct Growth {
    /// Growth of the count.
    pub count: u64,
    /// Growth of the enabled time, in nanoseconds.
    pub enabled_ns: u64,
    /// Growth of the running time, in nanoseconds.
    pub running_ns: u64,
}

/// Returns why the growth is impossible, with the remedy. Returns `None` if it is possible, or if the counter was not
/// on the PMU all the time.
#[must_use]
pub fn implausible(attr: &Attr, mode: Option<Mode>, spin: &Spin, grown: Growth) -> Option<String> {
    if grown.running_ns == 0 || grown.running_ns < grown.enabled_ns {
        return None;
    }
    let most = most(attr, spin.wall_ns, spin.most_ghz);
    let count = grown.count;
    if real(count) > most {
        return Some(format!(
            "it counted {count} in {} us, more than a clock of {:.1} GHz allows ({ADVICE})",
            spin.wall_ns / 1000,
            spin.most_ghz
        ));
    }
    let least = least(attr, spin);
    (mode != Some(Mode::Kernel) && real(count) < least)
        .then(|| format!("it counted {count} where a loop has at least {least:.0} ({ADVICE})"))
}

/// Returns the largest count that an event can reach in `ns` nanoseconds.
#[must_use]
pub fn most(attr: &Attr, ns: u64, most_ghz: f64) -> f64 {
    let cycles = real(ns) * most_ghz * SLACK;
    if is(attr, "cycles") { cycles } else { cycles * MOST_PER_CYCLE }
}

const ADVICE: &str = "a virtual PMU that does not really count: see `podperf check`, and remove the event or mend the \
                      hypervisor";

/// Returns the smallest count of an event in the loop.
fn least(attr: &Attr, spin: &Spin) -> f64 {
    if is(attr, "instructions") {
        real(spin.instructions) / SLACK
    } else if is(attr, "branch-instructions") {
        real(spin.branches) / SLACK
    } else if is(attr, "cycles") {
        real(spin.instructions) * LEAST_CYCLES_SHARE
    } else {
        0.0
    }
}

fn is(attr: &Attr, name: &str) -> bool {
    catalogue::find(name).is_some_and(|event| event.kind.id() == attr.kind && event.config == attr.config)
}

#[expect(clippy::cast_precision_loss, reason = "counts of some microseconds, and bounds of hours")]
fn real(count: u64) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::events::catalogue::find;

    const SPIN: Spin = Spin { instructions: 2_000_000, branches: 1_000_000, wall_ns: 500_000, most_ghz: 4.0 };

    fn judge(event: &str, count: u64) -> Option<String> {
        let event = find(event).unwrap();
        let attr = Attr::of(event.kind.id(), event.config);
        implausible(&attr, None, &SPIN, Growth { count, enabled_ns: 500_000, running_ns: 500_000 })
    }

    #[test]
    fn what_a_loop_has_is_plausible() {
        for (event, count) in [
            ("instructions", 2_000_100),
            ("cycles", 1_000_300),
            ("branch-instructions", 1_000_020),
            ("cache-misses", 0),
            ("branch-misses", 3),
        ] {
            assert_eq!(judge(event, count), None, "{event}");
        }
    }

    #[test]
    fn zeros_of_a_virtual_machine_are_not() {
        for event in ["instructions", "cycles", "branch-instructions"] {
            assert!(judge(event, 0).unwrap().contains("counted 0 where a loop has at least"), "{event}");
        }
    }

    #[test]
    fn more_than_the_clock_allows_is_not() {
        for (event, count) in [("cycles", 3_000_000), ("instructions", 1 << 40), ("cache-misses", u64::MAX)] {
            assert!(judge(event, count).unwrap().contains("more than a clock of 4.0 GHz allows"), "{event}");
        }
    }

    #[test]
    fn who_was_not_on_the_pmu_all_the_time_is_not_judged() {
        let instructions = find("instructions").unwrap();
        let attr = Attr::of(instructions.kind.id(), instructions.config);
        for (enabled_ns, running_ns) in [(500_000, 0), (500_000, 400_000), (0, 0)] {
            assert_eq!(implausible(&attr, None, &SPIN, Growth { count: 0, enabled_ns, running_ns }), None);
        }
    }

    #[test]
    fn kernel_mode_alone_sees_nothing_of_the_loop() {
        let instructions = find("instructions").unwrap();
        let attr = Attr::of(instructions.kind.id(), instructions.config);
        let grown = Growth { count: 0, enabled_ns: 500_000, running_ns: 500_000 };
        assert_eq!(implausible(&attr, Some(Mode::Kernel), &SPIN, grown), None);
    }
}
