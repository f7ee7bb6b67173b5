//! The owners by which frames are counted whose files were not read: pods and rows of cgroups. Pure.

use crate::{attribution::Subject, model::labelled::Labels};

/// The pod or the row of cgroups that frames belong to. Fields that do not apply are empty.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct FrameOwner {
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's name.
    pub pod: String,
    /// The row of cgroups.
    pub cgroup: String,
}

impl FrameOwner {
    /// Returns the owner of a subject. Containers of a pod share the time for reading files.
    pub(super) fn of(subject: &Subject) -> Self {
        match subject {
            Subject::Cgroup(path) => Self { cgroup: path.to_string(), ..Self::default() },
            Subject::Container(info) => {
                let (namespace, pod) = (info.pod.namespace.to_string(), info.pod.name.to_string());
                Self { namespace, pod, ..Self::default() }
            }
        }
    }

    /// Returns the owner of a subject with this text: `namespace/pod/container`, or the path of a cgroup.
    pub(super) fn named(subject: &str) -> Self {
        let mut parts = subject.splitn(3, '/');
        match (parts.next(), parts.next(), parts.next()) {
            (Some(namespace), Some(pod), Some(_)) if !namespace.is_empty() => {
                Self { namespace: namespace.into(), pod: pod.into(), ..Self::default() }
            }
            _ => Self { cgroup: subject.into(), ..Self::default() },
        }
    }

    /// Returns a text that is unique for the owner: paths begin with a slash, and names contain none.
    pub(super) fn text(&self) -> String {
        if self.pod.is_empty() { self.cgroup.clone() } else { format!("{}/{}", self.namespace, self.pod) }
    }
}

impl Labels for FrameOwner {
    const MOST: usize = 100;

    fn rest() -> Self {
        Self { cgroup: "(others)".into(), ..Self::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn containers_of_a_pod_are_one_owner_also_by_their_text() {
        let text = |subject| FrameOwner::named(subject).text();
        assert_eq!(["shop/cart/app", "shop/cart/proxy"].map(text), ["shop/cart", "shop/cart"]);
        let pod = FrameOwner { namespace: "shop".into(), pod: "cart".into(), ..FrameOwner::default() };
        assert_eq!(FrameOwner::named("shop/cart/app"), pod);
        for path in ["/", "/a.slice/b.service/c", "(unresolved)"] {
            assert_eq!(FrameOwner::named(path), FrameOwner::of(&Subject::Cgroup(path.into())));
        }
    }
}
