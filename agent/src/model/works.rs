//! Items of the kernel's work queues that ran, by the function that they call. Pure.

use std::{collections::BTreeMap, ops::AddAssign};

use super::labelled::{Labelled, Labels};

/// The name of the function of a work item. All functions of one name are one series.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct WorkFunction(String);

impl WorkFunction {
    /// Returns the value of the label `function`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0
    }
}

impl Labels for WorkFunction {
    const MOST: usize = 64;

    fn rest() -> Self {
        Self("(other)".to_owned())
    }
}

/// Numbers of work items that ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Number of runs.
    pub runs: u64,
    /// Time from their starts to their ends, in nanoseconds.
    pub ns: u64,
    /// Number of the runs before which the item was seen to wait for a worker.
    pub waits: u64,
    /// Time of these waits, from the activations to the starts, in nanoseconds.
    pub waited_ns: u64,
}

impl AddAssign for Work {
    fn add_assign(&mut self, more: Self) {
        self.runs += more.runs;
        self.ns += more.ns;
        self.waits += more.waits;
        self.waited_ns += more.waited_ns;
    }
}

/// The work items by function. Clones share the counts.
#[derive(Clone, Debug, Default)]
pub struct WorkCounts(Labelled<WorkFunction, Work>);

impl WorkCounts {
    /// Returns counts with at most `most` series of functions, beside that of the rest.
    #[must_use]
    pub fn at_most(most: usize) -> Self {
        Self(Labelled::at_most(most))
    }

    /// Adds work. A function without a name counts as one of the rest.
    pub fn add(&self, function: Option<&str>, more: Work) {
        let function = function.map_or_else(WorkFunction::rest, |name| WorkFunction(name.to_owned()));
        self.0.add(&function, more);
    }

    /// Returns the work of each function.
    #[must_use]
    pub fn sums(&self) -> BTreeMap<WorkFunction, Work> {
        self.0.sums()
    }
}
