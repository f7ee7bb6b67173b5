//! The events that are counted: from the configured names to the arguments of `perf_event_open(2)`.
//!
//! [`parse`] reads one configured event, [`catalogue`] lists the named events, [`pmu`] looks up the terms of a PMU in
//! sysfs, and [`plan`] combines all groups into the one value that the kernel side opens. These modules open no event:
//! [`hint`] gives the remedy when the kernel refuses, [`neighbour`] decides when to make room for other users of the
//! PMU, [`plausible`] finds impossible counts, [`multiplexing`] scales counts, and [`state`] names the states of an
//! event. Text files of sysfs are the only I/O.

pub mod catalogue;
#[cfg(test)]
mod fixture;
pub mod hint;
pub mod multiplexing;
pub mod neighbour;
pub mod parse;
pub mod plan;
pub mod plausible;
pub mod pmu;
pub mod state;

/// The directory in which the kernel lists its PMUs.
pub const SYSFS: &str = "/sys/bus/event_source/devices";

/// A suggestion with less similarity than this is noise.
const SIMILAR: f64 = 0.75;

/// Returns the candidate that `text` is most likely a misspelling of.
fn nearest<'a>(text: &str, candidates: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let text = text.to_ascii_lowercase();
    candidates
        .map(|candidate| (strsim::jaro_winkler(&text, &candidate.to_ascii_lowercase()), candidate))
        .filter(|(similarity, _)| *similarity >= SIMILAR)
        .max_by(|(left, _), (right, _)| left.total_cmp(right))
        .map(|(_, candidate)| candidate)
}

/// Returns the remedy for a misspelling, for the brackets of an error.
fn did_you_mean(nearest: Option<&str>, otherwise: &str) -> String {
    nearest.map_or_else(|| otherwise.to_owned(), |name| format!("did you mean `{name}`?"))
}
