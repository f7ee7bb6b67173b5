//! The rows, which have series of their own, and the rules that choose them. Pure.

use std::{sync::Arc, time::Duration};

use serde::{Deserialize, Serialize};

use super::Owner;
use crate::{
    cgroups::{Choice, FlatPath, Place, Selection},
    pods::Pod,
};

/// Path of the row for all counts without a name.
pub const UNRESOLVED: &str = "(unresolved)";

/// A container, pod or cgroup with series of its own. Rows do not overlap: their sum, idle time included, is the node.
/// The names in `rename` are stored in the checkpoint, and never change.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Deserialize, Serialize)]
pub enum Row {
    /// A cgroup by its path, or [`UNRESOLVED`].
    #[serde(rename = "Cgroup")]
    Cgroup(Arc<str>),
    /// A whole pod.
    #[serde(rename = "Pod")]
    Pod {
        /// The pod's namespace.
        namespace: Arc<str>,
        /// The pod's name.
        pod: Arc<str>,
    },
    /// A container, through all its lives. With an empty container name: the pod's counts outside of its containers.
    #[serde(rename = "Container")]
    Container {
        /// Namespace of the pod.
        namespace: Arc<str>,
        /// Name of the pod.
        pod: Arc<str>,
        /// The container's name in the pod.
        container: Arc<str>,
    },
}

impl Row {
    /// Returns `true` for a pod's counts outside of its named containers: its sandbox, or a virtual machine that runs
    /// them.
    #[must_use]
    pub fn is_pods_own(&self) -> bool {
        matches!(self, Self::Container { container, .. } if container.is_empty())
    }

    /// Returns `true` if the row counts against [`RowRules::max_containers`]. A pod's own row (see
    /// [`Row::is_pods_own`]) does not.
    #[must_use]
    pub fn is_limited(&self) -> bool {
        !matches!(self, Self::Cgroup(_)) && !self.is_pods_own()
    }

    /// Returns `true` if rows of this kind exist at this level.
    #[must_use]
    pub const fn is_at(&self, level: Level) -> bool {
        match self {
            Self::Cgroup(_) => true,
            Self::Pod { .. } => matches!(level, Level::Pod),
            Self::Container { .. } => matches!(level, Level::Container),
        }
    }
}

/// Granularity of the rows of pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// One row per container.
    Container,
    /// One row per pod.
    Pod,
    /// No rows: all pods are in the row of their common cgroup.
    Node,
}

/// Reason why a container has no row of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum NotExported {
    /// The pod's annotation opts out.
    Annotation,
    /// The number of rows has reached its limit.
    Limit,
    /// The configuration excludes the pod's namespace.
    Namespace,
}

impl NotExported {
    /// All reasons, in the order of the type.
    pub const ALL: [Self; 3] = [Self::Annotation, Self::Limit, Self::Namespace];

    /// Returns the label value.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.into()
    }
}

/// Rules that choose the rows and the time for which they stay: the settings that a reload may change.
#[derive(Clone, Debug)]
pub struct RowRules {
    /// Choice of the cgroups that are rows.
    pub selection: Selection,
    /// Choice of the namespaces whose pods are rows.
    pub namespaces: Choice,
    /// Granularity of the rows of pods.
    pub level: Level,
    /// Largest number of rows of pods and containers.
    pub max_containers: usize,
    /// Time for which an ended row is kept.
    pub grace: Duration,
    /// `true` if rows hold back each number until its zero was scraped.
    pub zero_first: bool,
}

/// The row for an owner's counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// A row of its own.
    Own(Row),
    /// The row of the cgroup that all pods have in common. The reason is set if the owner could have a row of its own.
    Common(Option<NotExported>),
    /// No row yet: the counts wait for a name.
    Wait,
}

impl RowRules {
    /// Returns the row for the counts of a cgroup.
    #[must_use]
    pub fn verdict(&self, place: &Place, owner: &Owner) -> Verdict {
        match owner {
            Owner::Cgroup => Verdict::Own(Row::Cgroup(self.selection.row(&place.path).into())),
            _ if self.level == Level::Node => Verdict::Common(None),
            Owner::Container(info) => self.verdict_of_pod(&info.pod, Some(&info.name)),
            Owner::Pod(pod) => self.verdict_of_pod(pod, None),
            Owner::Unresolved => Verdict::Own(Row::Cgroup(UNRESOLVED.into())),
            Owner::Unknown => Verdict::Wait,
        }
    }

    /// Returns the row of the cgroup that all pods have in common, which counts everything that is in none of the pods'
    /// rows.
    #[must_use]
    pub fn common_row<'a>(&self, place: &'a Place) -> &'a str {
        let root_len = match &place.kube {
            Some(kube) => kube.root_len,
            None => FlatPath::parse(&place.path).map_or(place.path.len(), |flat| flat.root_len),
        };
        self.selection.row(&place.path[..root_len])
    }

    /// Checks whether a pod may have rows of its own.
    ///
    /// # Errors
    ///
    /// Returns the reason if the pod may not.
    pub fn wants(&self, pod: &Pod) -> Result<(), NotExported> {
        if !pod.scrape {
            Err(NotExported::Annotation)
        } else if !self.namespaces.has(&pod.namespace) {
            Err(NotExported::Namespace)
        } else {
            Ok(())
        }
    }

    fn verdict_of_pod(&self, pod: &Pod, container: Option<&Arc<str>>) -> Verdict {
        if let Err(why) = self.wants(pod) {
            return Verdict::Common(Some(why));
        }
        let (namespace, name) = (Arc::clone(&pod.namespace), Arc::clone(&pod.name));
        match (self.level, container) {
            (Level::Container, container) => {
                let container = container.map_or_else(|| "".into(), Arc::clone);
                Verdict::Own(Row::Container { namespace, pod: name, container })
            }
            (Level::Pod, _) => Verdict::Own(Row::Pod { namespace, pod: name }),
            (Level::Node, _) => Verdict::Common(None),
        }
    }
}
