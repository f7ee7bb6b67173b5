//! The report of `podperf check`. It shows whether each thing that the agent needs is there, with a remedy for missing
//! ones.
//!
//! [`probe`] does all the I/O: it looks and tries. [`judge`] makes the lines from the findings, in the agent's own
//! words, each with its [`Code`]. [`table`] prints the lines. The check changes nothing on the machine and takes no
//! lock, so it works beside a running agent.

mod code;
pub mod judge;
pub mod probe;
mod remedy;
mod report;
pub mod table;
mod text;

pub use code::Code;
pub use remedy::Remedy;
pub use report::{Check, Report, Verdict};
