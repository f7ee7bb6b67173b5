//! The steps in which the agent gives up CPU time. Pure.
//!
//! The list begins with the steps that users miss least. Times and switches stay: they are the agent's purpose.

use crate::{
    kernel::Lowered,
    model::{feature::Feature, mode::Mode},
};

/// Steps that give up one feature.
#[derive(Debug)]
pub struct Row {
    /// The feature; its name is in the metric.
    pub feature: Feature,
    /// Number of times that the feature can be given up; of counters each group, as many as there are.
    pub times: usize,
    /// Describes the state after this number of times.
    lowers: fn(usize) -> String,
    /// The loss for users.
    price: &'static str,
}

/// The features that there are to give up, besides counters.
#[derive(Clone, Copy, Debug, Default)]
pub struct Present {
    /// The part of stacks that is taken.
    pub mode: Mode,
    /// Set if a sensor with programs of its own runs.
    pub sensors: bool,
}

impl Present {
    const fn has(self, feature: Feature) -> bool {
        match feature {
            Feature::Counters => true,
            Feature::Sensors => self.sensors,
            Feature::UserFrames | Feature::Symbols => matches!(self.mode, Mode::Profiles),
            _ => !matches!(self.mode, Mode::Metrics),
        }
    }
}

/// The steps, in the order of giving up.
pub const STEPS: [Row; 7] = [
    Row {
        feature: Feature::Walks,
        times: 4,
        lowers: |times| format!("the budget of walks is 1/{} of `stacks.maxWalks`", 1_u32 << times),
        price: "fewer short waits stand for all of them",
    },
    Row {
        feature: Feature::Symbols,
        times: 1,
        lowers: |_| "files of symbols and unwind tables are read slowly".into(),
        price: "new programs get their names some windows later, and more of their stacks are cut",
    },
    // A sensor answers one question, and a storm of its events may be the whole cost. All later steps take something from
    // each pod. The steps before it leave all sums as they are.
    Row {
        feature: Feature::Sensors,
        times: 1,
        lowers: |_| "sensors with programs of their own begin nothing new".into(),
        price: "their counters stand still",
    },
    Row {
        feature: Feature::UserFrames,
        times: 1,
        lowers: |_| "new stacks of waits are taken without user frames, and samples by frame pointers".into(),
        price: "these waits have reasons, and no functions of the program",
    },
    Row {
        feature: Feature::Stacks,
        times: 1,
        lowers: |_| "stacks of waits are not taken".into(),
        price: "only long waits have reasons",
    },
    Row {
        feature: Feature::Counters,
        times: usize::MAX,
        lowers: |times| format!("{times} groups of counters are off"),
        price: "their events have no series",
    },
    Row {
        feature: Feature::Profiles,
        times: 1,
        lowers: |_| "samples on the CPU are not taken".into(),
        price: "there are no profiles, and no reasons of waits",
    },
];

fn times(given_up: &[Feature], feature: Feature) -> usize {
    given_up.iter().filter(|of| **of == feature).count()
}

/// Returns the features that can be given up next, the first one first.
pub fn next(given_up: &[Feature], present: Present) -> impl Iterator<Item = Feature> {
    let rest = STEPS.iter().filter(move |row| times(given_up, row.feature) < row.times);
    rest.map(|row| row.feature).filter(move |feature| present.has(*feature))
}

/// Returns the work that the programs leave out.
#[must_use]
pub fn lowered(given_up: &[Feature]) -> Lowered {
    Lowered {
        walk_halvings: u32::try_from(times(given_up, Feature::Walks)).unwrap_or(u32::MAX),
        sensors: given_up.contains(&Feature::Sensors),
        user_frames: given_up.contains(&Feature::UserFrames),
        wait_stacks: given_up.contains(&Feature::Stacks),
        stacks: given_up.contains(&Feature::Profiles),
    }
}

/// Returns what is given up, with its price; empty if nothing is.
#[must_use]
pub fn describe(given_up: &[Feature]) -> String {
    let rows = STEPS.iter().map(|row| (row, times(given_up, row.feature))).filter(|(_, times)| *times > 0);
    let rows = rows.map(|(row, times)| format!("{} ({})", (row.lowers)(times), row.price));
    rows.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gives up all that can be given up, with this number of groups of counters.
    fn all(present: Present, groups: usize) -> Vec<Feature> {
        let mut given_up = Vec::new();
        loop {
            let off = times(&given_up, Feature::Counters);
            let mut can = next(&given_up, present).filter(|feature| *feature != Feature::Counters || off < groups);
            let Some(feature) = can.next() else { break };
            drop(can);
            given_up.push(feature);
        }
        given_up
    }

    const STACKS: Present = Present { mode: Mode::Profiles, sensors: false };
    const SENSORS: Present = Present { mode: Mode::Metrics, sensors: true };
    const BOTH: Present = Present { mode: Mode::Profiles, sensors: true };

    #[test]
    fn walks_come_first_and_samples_on_the_cpu_last() {
        use Feature::{Counters, Profiles, Stacks, Symbols, UserFrames, Walks};
        let expected = [Walks, Walks, Walks, Walks, Symbols, UserFrames, Stacks, Counters, Counters, Profiles];
        assert_eq!(all(STACKS, 2), expected);
        assert_eq!(all(Present::default(), 2), [Counters; 2]);
    }

    #[test]
    fn without_user_frames_there_are_none_to_give_up_and_no_files_of_symbols() {
        use Feature::{Counters, Profiles, Stacks, Walks};
        let expected = [Walks, Walks, Walks, Walks, Stacks, Counters, Profiles];
        assert_eq!(all(Present { mode: Mode::Reasons, sensors: false }, 1), expected);
    }

    #[test]
    fn sensors_are_given_up_before_anything_that_each_pod_has() {
        use Feature::{Counters, Profiles, Sensors, Stacks, Symbols, UserFrames, Walks};
        let expected = [Walks, Walks, Walks, Walks, Symbols, Sensors, UserFrames, Stacks, Counters, Profiles];
        assert_eq!(all(BOTH, 1), expected);
        assert_eq!(all(SENSORS, 1), [Sensors, Counters]);
    }

    #[test]
    fn each_step_lowers_something_else() {
        let given_up = all(BOTH, 1);
        let states: Vec<_> = (0..=given_up.len()).map(|steps| describe(&given_up[..steps])).collect();
        assert!(states[0].is_empty() && states.windows(2).all(|pair| pair[0] != pair[1]), "{states:#?}");
        assert_eq!(
            states[2],
            "the budget of walks is 1/4 of `stacks.maxWalks` (fewer short waits stand for all of them)"
        );
        let lowered = lowered(&given_up);
        let most = Lowered { walk_halvings: 4, sensors: true, user_frames: true, wait_stacks: true, stacks: true };
        assert_eq!(lowered, most);
    }
}
