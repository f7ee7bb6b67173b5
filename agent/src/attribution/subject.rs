//! Whose a profile is. Pure.

use std::{
    fmt,
    hash::{Hash, Hasher},
    sync::Arc,
};

use super::{Owner, RowRules, UNRESOLVED};
use crate::{cgroups::Place, pods::ContainerInfo};

/// What a profile is of. Equal when it is the same cgroup, or the same life of a container.
#[derive(Clone, Debug)]
pub enum Subject {
    /// A row of cgroups.
    Cgroup(Arc<str>),
    /// A container.
    Container(Arc<ContainerInfo>),
}

impl Subject {
    /// The subject of what a cgroup did. Containers always have profiles of their own, whatever the level of metrics,
    /// unless their namespace or pod does not want to be told apart.
    #[must_use]
    pub fn of(place: &Place, owner: &Owner, rules: &RowRules) -> Self {
        match owner {
            Owner::Cgroup => Self::Cgroup(rules.selection.row(&place.path).into()),
            Owner::Container(info) if rules.wants(&info.pod).is_ok() => Self::Container(Arc::clone(info)),
            Owner::Container(_) | Owner::Pod(_) => Self::Cgroup(rules.common_row(place).into()),
            Owner::Unknown | Owner::Unresolved => Self::unresolved(),
        }
    }

    /// The subject of what nobody has a name for.
    #[must_use]
    pub fn unresolved() -> Self {
        Self::Cgroup(UNRESOLVED.into())
    }
}

/// `namespace/pod/container`, or the cgroup's path.
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
