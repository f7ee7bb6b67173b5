//! A cgroup as the checkpoint has it.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// A cgroup.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct KeptNode {
    /// Its id.
    pub id: u64,
    /// From the root of the tree.
    pub path: Arc<str>,
    /// When it was first seen.
    pub born_ns: u64,
    /// See [`crate::cgroups::Place`].
    pub first_of_pod: bool,
    /// When it was gone.
    pub died_ns: Option<u64>,
}
