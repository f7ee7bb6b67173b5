//! The subjects that users select, and the text form of a selection. Pure.

use std::{fmt, str::FromStr};

use thiserror::Error;

use crate::{
    attribution::{Row, Subject},
    stacks::FrameOwner,
};

/// The name of a profile's subject, as users write it: `namespace/pod/container`, or the path of a cgroup.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SubjectName {
    /// The path of a cgroup that has a row of its own.
    Cgroup(String),
    /// A container.
    Container {
        /// The namespace of its pod.
        namespace: String,
        /// The name of its pod.
        pod: String,
        /// The name of the container in its pod.
        container: String,
    },
}

/// The subjects whose time a user wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Selector {
    /// All subjects.
    All,
    /// All containers of a pod.
    Pod {
        /// The pod's namespace.
        namespace: String,
        /// The pod's name.
        pod: String,
    },
    /// All containers of a workload's pods, also of pods that begin later. It has the text form of a pod, and no text is
    /// parsed as one: the agent selects the workload where no pod has the name.
    Workload {
        /// The namespace of the workload.
        namespace: String,
        /// The name of the workload.
        workload: String,
    },
    /// One subject.
    One(SubjectName),
    /// A cgroup and all rows below it. Its text form is a path that ends with `/`.
    Below(String),
}

/// The longest text of a selector, in bytes: `PATH_MAX` of the kernel.
const MOST_BYTES: usize = 4096;

/// The error for a text that is not a valid selector.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SelectorError {
    /// It names no subject.
    #[error(
        "bad subject `{0}` (`namespace/pod`, `namespace/pod/container`, or the path of a cgroup, which begins with `/`)"
    )]
    Bad(String),
    /// It has so many bytes.
    #[error("a subject of {0} bytes (at most {MOST_BYTES})")]
    Long(usize),
}

impl From<&Subject> for SubjectName {
    fn from(subject: &Subject) -> Self {
        match subject {
            Subject::Cgroup(path) => Self::Cgroup(path.to_string()),
            Subject::Container(info) => Self::Container {
                namespace: info.pod.namespace.to_string(),
                pod: info.pod.name.to_string(),
                container: info.name.to_string(),
            },
        }
    }
}

/// Containers of a pod have the same owner.
impl From<&SubjectName> for FrameOwner {
    fn from(name: &SubjectName) -> Self {
        match name {
            SubjectName::Cgroup(path) => Self { cgroup: path.clone(), ..Self::default() },
            SubjectName::Container { namespace, pod, .. } => {
                Self { namespace: namespace.clone(), pod: pod.clone(), ..Self::default() }
            }
        }
    }
}

impl fmt::Display for SubjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cgroup(path) => f.write_str(path),
            Self::Container { namespace, pod, container } => write!(f, "{namespace}/{pod}/{container}"),
        }
    }
}

impl Selector {
    /// Returns whether the selection includes this subject of a profile.
    #[must_use]
    pub fn takes(&self, subject: &Subject) -> bool {
        match (self, subject) {
            (Self::All, _) => true,
            (Self::One(SubjectName::Cgroup(one)), Subject::Cgroup(path)) => **path == **one,
            (Self::Below(above), Subject::Cgroup(path)) => is_below(path, above),
            (Self::One(SubjectName::Container { namespace, pod, container }), Subject::Container(info)) => {
                *info.pod.namespace == **namespace && *info.pod.name == **pod && *info.name == **container
            }
            (Self::Pod { namespace, pod }, Subject::Container(info)) => {
                *info.pod.namespace == **namespace && *info.pod.name == **pod
            }
            (Self::Workload { namespace, workload }, Subject::Container(info)) => {
                *info.pod.namespace == **namespace && *info.pod.workload.name == **workload
            }
            _ => false,
        }
    }

    /// Returns whether the selection includes the subject with this name. It includes none by the name of a workload,
    /// which names of subjects do not have.
    #[must_use]
    pub fn has(&self, name: &SubjectName) -> bool {
        match (self, name) {
            (Self::All, _) => true,
            (Self::One(one), name) => one == name,
            (Self::Pod { namespace, pod }, SubjectName::Container { namespace: of, pod: name, .. }) => {
                namespace == of && pod == name
            }
            (Self::Below(path), SubjectName::Cgroup(name)) => is_below(name, path),
            _ => false,
        }
    }

    /// Returns the selection of the workload that has the name of this pod; `None` for any other selection.
    #[must_use]
    pub fn as_workload(&self) -> Option<Self> {
        match self {
            Self::Pod { namespace, pod } => {
                Some(Self::Workload { namespace: namespace.clone(), workload: pod.clone() })
            }
            _ => None,
        }
    }

    /// Returns the selection of a single cgroup with all cgroups below it; `None` for any other selection, and for the
    /// root, which is the parent of all.
    #[must_use]
    pub fn with_all_below(&self) -> Option<Self> {
        match self {
            Self::One(SubjectName::Cgroup(path)) if path != "/" => Some(Self::Below(path.clone())),
            _ => None,
        }
    }
}

/// Returns whether a cgroup is another one, or below it.
fn is_below(path: &str, above: &str) -> bool {
    path.strip_prefix(above).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

impl FromStr for Selector {
    type Err = SelectorError;

    fn from_str(text: &str) -> Result<Self, SelectorError> {
        if text.len() > MOST_BYTES {
            return Err(SelectorError::Long(text.len()));
        }
        // The row of cgroups without a known path has a name in brackets.
        if text.starts_with(['/', '(']) {
            return Ok(match text.strip_suffix('/') {
                None | Some("") => Self::One(SubjectName::Cgroup(text.to_owned())),
                Some(path) => Self::Below(path.to_owned()),
            });
        }
        let parts: Vec<String> = text.split('/').map(str::to_owned).collect();
        let parts = if parts.iter().any(String::is_empty) { Vec::new() } else { parts };
        match <[String; 2]>::try_from(parts) {
            Ok([namespace, pod]) => Ok(Self::Pod { namespace, pod }),
            Err(parts) => match <[String; 3]>::try_from(parts) {
                Ok([namespace, pod, container]) => Ok(Self::One(SubjectName::Container { namespace, pod, container })),
                Err(_) => Err(SelectorError::Bad(text.to_owned())),
            },
        }
    }
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => f.write_str("all"),
            Self::Pod { namespace, pod: name } | Self::Workload { namespace, workload: name } => {
                write!(f, "{namespace}/{name}")
            }
            Self::One(name) => name.fmt(f),
            Self::Below(path) => write!(f, "{path}/"),
        }
    }
}

impl From<&Row> for Selector {
    fn from(row: &Row) -> Self {
        match row {
            Row::Cgroup(path) => Self::One(SubjectName::Cgroup(path.to_string())),
            Row::Pod { namespace, pod } => Self::Pod { namespace: namespace.to_string(), pod: pod.to_string() },
            // Recordings have no subject for the pod's own row, so the whole pod is selected.
            Row::Container { namespace, pod, .. } if row.is_pods_own() => {
                Self::Pod { namespace: namespace.to_string(), pod: pod.to_string() }
            }
            Row::Container { namespace, pod, container } => Self::One(SubjectName::Container {
                namespace: namespace.to_string(),
                pod: pod.to_string(),
                container: container.to_string(),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::pods::{ContainerInfo, Pod, Workload, WorkloadKind};

    fn container(name: &str) -> SubjectName {
        SubjectName::Container { namespace: "shop".into(), pod: "cart-0".into(), container: name.into() }
    }

    fn cgroup(path: &str) -> SubjectName {
        SubjectName::Cgroup(path.into())
    }

    #[test]
    fn a_selector_is_shown_as_it_was_written() {
        for text in ["shop/cart-0", "shop/cart-0/web", "/", "/system.slice", "/system.slice/", "(unresolved)"] {
            assert_eq!(text.parse::<Selector>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn what_names_nobody_is_refused_with_what_would() {
        for text in ["", "cart-0", "shop/", "shop//web", "a/b/c/d"] {
            let error = text.parse::<Selector>().unwrap_err().to_string();
            assert!(error.contains(&format!("`{text}`")) && error.contains("`namespace/pod`"), "{error}");
        }
        let longest = format!("/{}", "x".repeat(MOST_BYTES - 1));
        assert!(longest.parse::<Selector>().is_ok());
        assert_eq!(format!("{longest}x").parse::<Selector>(), Err(SelectorError::Long(MOST_BYTES + 1)));
    }

    #[test]
    fn a_pod_has_its_containers_and_a_cgroup_itself() {
        let has = |selector: &str, name: &SubjectName| selector.parse::<Selector>().unwrap().has(name);
        assert!(has("shop/cart-0", &container("web")) && has("shop/cart-0/web", &container("web")));
        assert!(!has("shop/cart-0/web", &container("side")) && !has("shop/cart-1", &container("web")));
        assert!(has("/a", &cgroup("/a")) && !has("/a", &cgroup("/a/b")) && !has("/", &cgroup("/a")));
        assert!(has("/a/", &cgroup("/a")) && has("/a/", &cgroup("/a/b")) && !has("/a/", &cgroup("/ab")));
        assert!(Selector::All.has(&container("web")) && Selector::All.has(&cgroup("/")));
    }

    #[test]
    fn users_write_the_name_of_a_subject_as_it_is_shown() {
        let info = ContainerInfo {
            pod: Arc::new(Pod { name: "cart-0".into(), ..Pod::example() }),
            name: "web".into(),
            image: "image".into(),
            id: "ab".repeat(32).parse().unwrap(),
        };
        for (subject, name) in
            [(Subject::Container(Arc::new(info)), container("web")), (Subject::Cgroup("/a".into()), cgroup("/a"))]
        {
            assert_eq!(SubjectName::from(&subject), name);
            for text in ["shop/cart-0", "shop/cart-0/web", "shop/cart-1", "/a", "/a/", "/", "/ab"] {
                let selector: Selector = text.parse().unwrap();
                assert_eq!(selector.takes(&subject), selector.has(&name), "{text} of {name}");
            }
            assert_eq!(subject.to_string().parse(), Ok(Selector::One(name)));
        }
    }

    #[test]
    fn a_workload_has_the_containers_of_its_pods_and_the_name_of_a_pod() {
        let pod = Pod { workload: workload("cart"), name: "cart-7c9".into(), ..Pod::example() };
        let id = "ab".repeat(32).parse().unwrap();
        let info = ContainerInfo { pod: Arc::new(pod), name: "web".into(), image: "image".into(), id };
        let subject = Subject::Container(Arc::new(info));
        let of = |text: &str| text.parse::<Selector>().unwrap().as_workload();
        let cart = of("shop/cart").unwrap();
        assert!(cart.takes(&subject) && !cart.takes(&Subject::Cgroup("/cart".into())));
        assert!(!of("shop/car").unwrap().takes(&subject) && !of("other/cart").unwrap().takes(&subject));
        assert_eq!((cart.to_string().as_str(), of("shop/cart/web"), of("/cart")), ("shop/cart", None, None));
    }

    fn workload(name: &str) -> Workload {
        Workload { kind: WorkloadKind::Deployment, name: name.into() }
    }
}
