//! Finds the subject of a profile. Pure.

use std::{
    fmt,
    hash::{Hash, Hasher},
    sync::Arc,
};

use super::{Level, Owner, Row, RowRules, UNRESOLVED};
use crate::{cgroups::Place, pods::ContainerInfo};

/// The subject of a profile. Two subjects are equal if they are the same cgroup, or the same life of a container.
#[derive(Clone, Debug)]
pub enum Subject {
    /// A row of cgroups.
    Cgroup(Arc<str>),
    /// A container.
    Container(Arc<ContainerInfo>),
}

impl Subject {
    /// Returns the subject of a cgroup's samples. A container always has profiles of its own, at every level of
    /// metrics, unless its namespace or pod opts out.
    #[must_use]
    pub fn of(place: &Place, owner: &Owner, rules: &RowRules) -> Self {
        match owner {
            Owner::Cgroup => Self::Cgroup(rules.selection.row(&place.path).into()),
            Owner::Container(info) if rules.wants(&info.pod).is_ok() => Self::Container(Arc::clone(info)),
            Owner::Container(_) | Owner::Pod(_) => Self::Cgroup(rules.common_row(place).into()),
            Owner::Unknown | Owner::Unresolved => Self::unresolved(),
        }
    }

    /// Returns the row with the subject's counts; `None` if the rows are those of the node, and it is a container.
    #[must_use]
    pub fn row(&self, level: Level) -> Option<Row> {
        Some(match (self, level) {
            (Self::Cgroup(path), _) => Row::Cgroup(Arc::clone(path)),
            (Self::Container(info), Level::Container) => Row::Container {
                namespace: Arc::clone(&info.pod.namespace),
                pod: Arc::clone(&info.pod.name),
                container: Arc::clone(&info.name),
            },
            (Self::Container(info), Level::Pod) => {
                Row::Pod { namespace: Arc::clone(&info.pod.namespace), pod: Arc::clone(&info.pod.name) }
            }
            (Self::Container(_), Level::Node) => return None,
        })
    }

    /// Returns the subject of samples without a name.
    #[must_use]
    pub fn unresolved() -> Self {
        Self::Cgroup(UNRESOLVED.into())
    }
}

/// Formats as `namespace/pod/container`, or as the cgroup's path.
impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cgroup(path) => f.write_str(path),
            Self::Container(info) => write!(f, "{}/{}/{}", info.pod.namespace, info.pod.name, info.name),
        }
    }
}

impl PartialEq for Subject {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Cgroup(a), Self::Cgroup(b)) => a == b,
            (Self::Container(a), Self::Container(b)) => a.id == b.id,
            _ => false,
        }
    }
}

impl Eq for Subject {}

impl Hash for Subject {
    fn hash<H: Hasher>(&self, state: &mut H) {
        match self {
            Self::Cgroup(path) => path.hash(state),
            Self::Container(info) => info.id.hash(state),
        }
    }
}
