//! Recordings: the time of some cgroups or pods over a period, merged from the windows of the symbolizer.
//!
//! [`Windows`] sends each window to its readers: to [`Recent`], which holds the last minutes for pages, and to the
//! recordings in progress. [`record`] makes one recording, and [`Merger`] adds its windows up within a limit. The
//! exporters write the result. [`Waiting`] adds up what pods lost, and for whom they waited. [`record_calls`] makes a
//! recording of system calls, which needs no windows: it starts and ends programs of its own. Apart from that, this
//! module reads nothing from the kernel and looks up no names.

mod blocking;
mod calls;
mod coverage;
#[cfg(test)]
pub(crate) mod fixture;
mod identity;
mod latency;
mod merged;
mod merger;
mod recent;
mod recorder;
mod selector;
mod trouble;
mod waiting;
mod weight;
mod windows;

pub use blocking::blocking;
pub use calls::{CallReport, CallsWanted, EndedEarly, record_calls};
pub use coverage::Coverage;
pub use latency::{Latency, WantedLatency, calls_between, calls_of_node};
pub use merged::{Merged, MergedSample, MergedSubject, Side};
pub use merger::{Merger, smaller};
pub use recent::{Recent, Size};
pub use recorder::{LONGEST, LOST_WINDOW, RecordError, SHORTEST, Wanted, record};
pub use selector::{Selector, SelectorError, SubjectName};
pub use trouble::{Cause, Judgement, Peers, Wait, pod_of};
pub use waiting::{Part, Waiting, holder, sort_parts};
pub use windows::{Control, Registration, Windows};
