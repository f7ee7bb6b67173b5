//! The cgroup2 tree: which id is which path, which of them live, and which of them are rows of their own.
//!
//! Fed by the cgroup sensor's births and deaths and by one walk at the start; both are needed, since the walk sees
//! what was there before and the sensor what lives too shortly to be walked over.

mod choice;
pub mod kept;
mod kubepods;
mod selection;
mod tree;
mod walk;

pub use choice::{Choice, PatternError, Patterns};
pub use kubepods::{ContainerDir, DirKind, KubePath, QosClass, Runtime};
pub use selection::Selection;
pub use tree::{Place, Tree};
pub use walk::walk;
