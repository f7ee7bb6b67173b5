//! The cgroup2 tree: the path of each cgroup id, the living cgroups, and the choice of cgroups that are rows.
//!
//! The cgroup sensor reports births and deaths, and one walk at the start reads the tree. Both are needed: the walk
//! finds the cgroups that existed before, and the sensor those that live too shortly for a walk.

mod choice;
mod flat;
mod kubepods;
mod levels;
pub mod saved_cgroup;
mod selection;
mod tree;
mod walk;

pub use choice::{Choice, PatternError, Patterns};
pub use flat::FlatPath;
pub use kubepods::{ContainerDir, DirKind, KubePath, QosClass, Runtime};
pub use levels::named_levels;
pub use selection::Selection;
pub use tree::{Place, Tree};
pub use walk::{Found, walk};
