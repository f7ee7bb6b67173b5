//! Counts frames whose files were not read, by pod or row of cgroups. Pure.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

use crate::attribution::Subject;

/// The largest number of rows with a count of their own; the frames of further rows are counted together.
const MAX_ROWS: usize = 100;
const OTHERS: &str = "(others)";

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

    fn others() -> Self {
        Self { cgroup: OTHERS.into(), ..Self::default() }
    }
}

/// The counts by owner. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct UnreadFrames(Arc<Mutex<BTreeMap<FrameOwner, u64>>>);

impl UnreadFrames {
    /// Returns the counts. The row for all further owners is always included.
    #[must_use]
    pub fn counts(&self) -> BTreeMap<FrameOwner, u64> {
        let mut counts = Mutex::lock(&self.0).unwrap_or_else(PoisonError::into_inner).clone();
        counts.entry(FrameOwner::others()).or_default();
        counts
    }

    pub(super) fn add(&self, owner: &FrameOwner, frames: u64) {
        if frames == 0 {
            return;
        }
        let mut counts = Mutex::lock(&self.0).unwrap_or_else(PoisonError::into_inner);
        let known = counts.contains_key(owner) || counts.len() < MAX_ROWS;
        let owner = if known { owner.clone() } else { FrameOwner::others() };
        *counts.entry(owner).or_default() += frames;
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

    #[test]
    fn frames_are_counted_for_their_owner_and_rows_are_bounded() {
        let unread = UnreadFrames::default();
        let owner = |number: usize| FrameOwner::of(&Subject::Cgroup(format!("/{number}").into()));
        for number in 0..2 * MAX_ROWS {
            unread.add(&owner(number), 2);
            unread.add(&owner(number), 1);
        }
        unread.add(&owner(5 * MAX_ROWS), 0);
        let counts = unread.counts();
        assert_eq!(counts.get(&owner(7)), Some(&3));
        assert_eq!(counts.get(&FrameOwner::others()), Some(&(3 * MAX_ROWS as u64)));
        assert_eq!(counts.len(), MAX_ROWS + 1);
    }
}
