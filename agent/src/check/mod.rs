//! What `podperf check` says: for each thing that the agent needs, whether it is there, and if not, what would mend it.
//!
//! [`probe`] looks and tries, which is all the I/O; [`judge`] makes lines of what was found, in the agent's own words;
//! [`table`] prints them. Nothing is changed on the machine, and no lock is taken: it works beside a running agent.

pub mod judge;
pub mod probe;
mod report;
pub mod table;
mod text;

pub use report::{Check, Report, Verdict};
