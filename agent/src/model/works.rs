//! Items of the kernel's work queues that ran, by the function that they call. Pure.

use std::collections::BTreeMap;

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

/// The runs of work items by function. Clones share the counts.
#[derive(Clone, Debug, Default)]
pub struct WorkCounts {
    runs: Labelled<WorkFunction>,
    ns: Labelled<WorkFunction>,
}

impl WorkCounts {
    /// Returns counts with series for at most so many functions, beside that of the rest.
    #[must_use]
    pub fn at_most(most: usize) -> Self {
        Self { runs: Labelled::at_most(most), ns: Labelled::at_most(most) }
    }

    /// Adds runs and their time in nanoseconds. A function without a name counts as one of the rest.
    pub fn add(&self, function: Option<&str>, runs: u64, ns: u64) {
        let function = function.map_or_else(WorkFunction::rest, |name| WorkFunction(name.to_owned()));
        self.runs.add(&function, runs);
        self.ns.add(&function, ns);
    }

    /// Returns the number of runs of each function.
    #[must_use]
    pub fn runs(&self) -> BTreeMap<WorkFunction, u64> {
        self.runs.sums()
    }

    /// Returns the time from the starts to the ends of the runs of each function, in nanoseconds.
    #[must_use]
    pub fn times(&self) -> BTreeMap<WorkFunction, u64> {
        self.ns.sums()
    }
}
