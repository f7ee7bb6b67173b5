//! A cgroup as the checkpoint stores it.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// A cgroup of the checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct SavedCgroup {
    /// The cgroup's id.
    pub id: u64,
    /// Path from the root of the tree.
    pub path: Arc<str>,
    /// Time when the cgroup was first seen.
    pub born_ns: u64,
    /// See [`crate::cgroups::Place`].
    pub first_of_pod: bool,
    /// Time when the cgroup was gone; `None` while it lives.
    pub died_ns: Option<u64>,
}
