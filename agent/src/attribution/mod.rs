//! Who did it: deltas per cgroup id become accounts per row, and accounts a [`Snapshot`]. Pure.
//!
//! [`Names`] finds the [`Owner`] of a cgroup from its path and the pods of the node, [`RowRules`] the [`Row`] that the
//! owner is counted in, and the [`Ledger`] keeps the accounts. [`Subject`] is the same for profiles.

pub mod kept;
mod ledger;
mod node_time;
mod owner;
mod pods_own;
mod rows;
pub mod shape;
mod snapshot;
mod subject;
mod zero_first;

pub use ledger::Ledger;
pub use owner::{Names, Owner};
pub use rows::{Level, NotExported, Row, RowRules, UNRESOLVED, Verdict};
pub use snapshot::{RowUsage, Snapshot};
pub use subject::Subject;
pub use zero_first::{NumberSet, Scrapes, Shown};
