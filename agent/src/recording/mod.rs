//! Recordings: what some cgroups or pods did for a while, from the windows that the symbolizer hands out.
//!
//! [`Windows`] gives each window to whom it may concern: the last minutes to [`Recent`], which pages show, and to the
//! recordings in progress. [`record`] makes one of them, [`Merger`] adds its windows up within a bound; what becomes of the sum is the
//! exporters' affair. Neither kernel nor names are asked here.

mod identity;
mod merged;
mod merger;
mod recent;
mod recorder;
mod selector;
mod weight;
mod windows;

pub use merged::{Merged, MergedSample, MergedSubject, Side};
pub use merger::{Merger, smaller};
pub use recent::{Recent, Size};
pub use recorder::{LONGEST, RecordError, SHORTEST, Wanted, record};
pub use selector::{Selector, SelectorError, SubjectName};
pub use windows::{Control, Ticket, Windows};
