//! Which events are counted: from the configured names to what `perf_event_open(2)` takes.
//!
//! [`parse`] reads one configured event, [`catalogue`] knows the events that have a name, [`pmu`] looks up the terms of
//! a PMU in sysfs, and [`plan`] makes of all groups the one value that the kernel side opens. Opening is not done here;
//! [`hint`] only says what to do when the kernel refuses, [`neighbour`] when to make room for others, [`plausible`]
//! which counts cannot be, [`multiplexing`] what a count stands for, and [`state`] has the words for what becomes of an
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

/// Where the kernel lists its PMUs.
pub const SYSFS: &str = "/sys/bus/event_source/devices";

/// Below this similarity a suggestion is noise.
const SIMILAR: f64 = 0.75;

/// The candidate that `text` is most likely a misspelling of.
fn nearest<'a>(text: &str, candidates: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let text = text.to_ascii_lowercase();
    candidates
        .map(|candidate| (strsim::jaro_winkler(&text, &candidate.to_ascii_lowercase()), candidate))
        .filter(|(similarity, _)| *similarity >= SIMILAR)
        .max_by(|(left, _), (right, _)| left.total_cmp(right))
        .map(|(_, candidate)| candidate)
}

/// The way out of a misspelling, for the brackets of an error.
fn did_you_mean(nearest: Option<&str>, otherwise: &str) -> String {
    nearest.map_or_else(|| otherwise.to_owned(), |name| format!("did you mean `{name}`?"))
}
