//! Attributes counts: sums the deltas of each cgroup id into one account per row, and turns the accounts into a
//! [`Snapshot`]. Pure.
//!
//! [`Names`] finds the [`Owner`] of a cgroup from its path and the pods of the node. [`RowRules`] chooses the [`Row`]
//! that counts the owner, and the [`Ledger`] keeps the accounts. [`Subject`] does the same for profiles.

mod ledger;
mod node_time;
mod owner;
mod pods_own;
mod rows;
pub mod saved_ledger;
pub mod schema;
mod snapshot;
mod subject;
mod zero_first;

pub use ledger::Ledger;
pub use owner::{Names, Owner};
pub use rows::{Level, NotExported, Row, RowRules, UNRESOLVED, Verdict};
pub use snapshot::{RowUsage, Snapshot};
pub use subject::Subject;
pub use zero_first::{NumberSet, Scrapes, Shown};
