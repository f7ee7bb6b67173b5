//! What has series of its own. Pure.

use std::{sync::Arc, time::Duration};

use serde::{Deserialize, Serialize};

use super::Owner;
use crate::{
    cgroups::{Choice, Place, Selection},
    pods::Pod,
};

/// The row of what nobody has a name for.
pub const UNRESOLVED: &str = "(unresolved)";

/// A container, pod or cgroup with series of its own. Rows do not overlap: their sum, idle time included, is the node.
/// The names in `rename` are in the kept file, and never change.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Deserialize, Serialize)]
pub enum Row {
    /// A cgroup by its path, or [`UNRESOLVED`].
    #[serde(rename = "Cgroup")]
    Cgroup(Arc<str>),
    /// All of a pod.
    #[serde(rename = "Pod")]
    Pod {
        /// Its namespace.
        namespace: Arc<str>,
        /// Its name.
        pod: Arc<str>,
    },
    /// A container, through all its lives. Without a name: what a pod does outside of them.
    #[serde(rename = "Container")]
    Container {
        /// Its pod's namespace.
        namespace: Arc<str>,
        /// Its pod's name.
        pod: Arc<str>,
        /// Its name in the pod.
        container: Arc<str>,
    },
}

impl Row {
    /// Whether it is what a pod does outside of the containers that have a name: its sandbox, or a virtual machine that runs them.
    #[must_use]
    pub fn is_pods_own(&self) -> bool {
        matches!(self, Self::Container { container, .. } if container.is_empty())
    }

    /// Whether it counts against [`RowRules::max_containers`]: a pod has one that does not.
    #[must_use]
    pub fn is_limited(&self) -> bool {
        !matches!(self, Self::Cgroup(_)) && !self.is_pods_own()
    }

    /// Whether there are such rows at this level.
    #[must_use]
    pub const fn is_at(&self, level: Level) -> bool {
        match self {
            Self::Cgroup(_) => true,
            Self::Pod { .. } => matches!(level, Level::Pod),
            Self::Container { .. } => matches!(level, Level::Container),
        }
    }
}

/// How fine the rows of pods are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// One per container.
    Container,
    /// One per pod.
    Pod,
    /// None: all pods are in the row of their common cgroup.
    Node,
}

/// Why a container has no row of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NotExported {
    /// Its pod does not want to.
    Annotation,
    /// There are as many as may be.
    Limit,
    /// Its namespace is not wanted.
    Namespace,
}

impl NotExported {
    /// All, in the order of the type.
    pub const ALL: [Self; 3] = [Self::Annotation, Self::Limit, Self::Namespace];

    /// The label value.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Limit => "limit",
            Self::Namespace => "namespace",
            Self::Annotation => "annotation",
        }
    }
}

/// Which rows there are, and for how long: what a reload may change.
#[derive(Clone, Debug)]
pub struct RowRules {
    /// Which cgroups are rows.
    pub selection: Selection,
    /// Which namespaces' pods are rows.
    pub namespaces: Choice,
    /// How fine they are.
    pub level: Level,
    /// How many rows of pods and containers there are at most.
    pub max_containers: usize,
    /// How long an ended row is kept.
    pub grace: Duration,
    /// Rows hold back each number until its zero was scraped.
    pub zero_first: bool,
}

/// Where an owner's counts go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// To a row of its own.
    Own(Row),
    /// To the row of the cgroup that all pods have in common, and why, where the owner could have one of its own.
    Common(Option<NotExported>),
    /// Nowhere yet.
    Wait,
}

impl RowRules {
    /// Where the counts of a cgroup go.
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

    /// The row of the cgroup that all pods have in common: what is in none of their rows is counted there.
    #[must_use]
    pub fn common_row<'a>(&self, place: &'a Place) -> &'a str {
        self.selection.row(place.kube.as_ref().map_or(&place.path, |kube| &place.path[..kube.root_len]))
    }

    /// Whether a pod may be told apart.
    ///
    /// # Errors
    ///
    /// The reason why not.
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
