//! Queue of pod changes for the thread that owns the index, which may be busy. Pure.
//!
//! The queue keeps all changes in their order up to a bound, so that it skips no status and no container id. Above the
//! bound it folds all changes of a pod into the last one. Then at most one change per pod is left, plus the pods that
//! came and went meanwhile. The oldest of these are dropped above the bound, and any counts of theirs stay without a
//! name.

use std::collections::{HashMap, HashSet, VecDeque};

use super::{Pod, PodChange, index::key};
use crate::model::ids::PodRef;

/// Maximum number of changes that wait before they are folded.
const MOST: usize = 4096;

/// The queue of changes.
#[derive(Debug)]
pub struct Pending {
    changes: VecDeque<PodChange>,
    most: usize,
    /// Number of changes after the last fold: a fold cannot remove more.
    left: usize,
}

impl Default for Pending {
    fn default() -> Self {
        Self::new(MOST)
    }
}

impl Pending {
    pub(super) const fn new(most: usize) -> Self {
        Self { changes: VecDeque::new(), most, left: 0 }
    }

    /// Adds a change. Returns whether it is the first in the queue, and the number of pods lost to the bound.
    pub fn push(&mut self, change: PodChange) -> (bool, usize) {
        let first = self.changes.is_empty();
        if first {
            self.left = 0;
        }
        self.changes.push_back(change);
        // After a fold that left many changes, the next one waits until their number has doubled.
        let lost = if self.changes.len() > self.most.max(2 * self.left) { self.fold() } else { 0 };
        (first, lost)
    }

    /// Removes and returns all changes, in their order.
    pub fn take(&mut self) -> VecDeque<PodChange> {
        std::mem::take(&mut self.changes)
    }

    /// Folds all changes of a pod into one. Returns the number of dropped pods.
    fn fold(&mut self) -> usize {
        let changes = std::mem::take(&mut self.changes);
        // Only two facts about outages matter: whether there was one, and whether it lasts.
        let outage = changes.iter().any(|change| matches!(change, PodChange::Disconnected));
        let is_state = |change: &&PodChange| !matches!(change, PodChange::Applied(_) | PodChange::Deleted(_));
        let lasts = matches!(changes.iter().rev().find(is_state), Some(PodChange::Disconnected));
        let connects = changes.iter().any(|change| matches!(change, PodChange::Connected));
        let mut list = None;
        // `gone` holds the pods reported before the last list that are not in it; `pods` those reported after it.
        let (mut gone, mut pods) = (Latest::default(), Latest::default());
        for change in changes {
            match change {
                PodChange::All(all) => {
                    let listed: HashSet<_> = all.iter().filter_map(key).collect();
                    let before = list.replace(all).into_iter().flatten().map(|pod| (pod, false));
                    let told = before.chain(std::mem::take(&mut pods).into_pods()).map(|(pod, _)| (pod, true));
                    let earlier = std::mem::take(&mut gone).into_pods();
                    let unlisted =
                        earlier.chain(told).filter(|(pod, _)| key(pod).is_some_and(|key| !listed.contains(&key)));
                    gone = unlisted.fold(Latest::default(), |mut latest, (pod, deleted)| {
                        latest.put(pod, deleted);
                        latest
                    });
                }
                PodChange::Applied(pod) => pods.put(pod, false),
                PodChange::Deleted(pod) => pods.put(pod, true),
                PodChange::Connected | PodChange::Disconnected => {}
            }
        }
        let lost = gone.drop_deleted(self.most / 2) + pods.drop_deleted(self.most / 2);
        let told = |(pod, deleted)| if deleted { PodChange::Deleted(pod) } else { PodChange::Applied(pod) };
        self.changes.extend(outage.then_some(PodChange::Disconnected));
        self.changes.extend(gone.into_pods().map(told));
        self.changes.extend(list.map(PodChange::All));
        self.changes.extend(pods.into_pods().map(told));
        self.changes.extend((connects && !lasts).then_some(PodChange::Connected));
        self.changes.extend(lasts.then_some(PodChange::Disconnected));
        self.left = self.changes.len();
        lost
    }
}

/// The last report of each pod and whether it was the pod's end, in the order of the first reports.
#[derive(Debug, Default)]
struct Latest {
    pods: HashMap<PodRef, (usize, Pod, bool)>,
}

impl Latest {
    fn put(&mut self, pod: Pod, deleted: bool) {
        let Some(key) = key(&pod) else { return };
        let number = self.pods.len();
        let place = self.pods.entry(key).or_insert_with(|| (number, pod.clone(), deleted));
        (place.1, place.2) = (pod, deleted);
    }

    /// Keeps only the last `most` deleted pods. Returns the number of removed pods.
    fn drop_deleted(&mut self, most: usize) -> usize {
        let deleted = self.pods.iter().filter(|(_, (_, _, deleted))| *deleted);
        let mut deleted: Vec<_> = deleted.map(|(key, (number, ..))| (*number, *key)).collect();
        deleted.sort_unstable_by_key(|(number, _)| *number);
        let many = deleted.len().saturating_sub(most);
        for (_, key) in deleted.iter().take(many) {
            self.pods.remove(key);
        }
        many
    }

    fn into_pods(self) -> impl Iterator<Item = (Pod, bool)> {
        let mut pods: Vec<_> = self.pods.into_values().collect();
        pods.sort_unstable_by_key(|(number, ..)| *number);
        pods.into_iter().map(|(_, pod, deleted)| (pod, deleted))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::pods::{Container, ContainerKind, Outlook, PodIndex};

    const PODS: u8 = 6;

    /// One of a few pods, with its last container.
    fn pod(number: u8, life: u8) -> Pod {
        let container = Container {
            name: "app".into(),
            image: "image".into(),
            kind: ContainerKind::Main,
            current: format!("{number:032x}{life:032x}").parse().ok(),
            last: None,
            ended: false,
        };
        Pod {
            uid: format!("00000000-0000-0000-0000-{number:012x}").parse().ok(),
            name: format!("pod-{number}").into(),
            containers: vec![container],
            ..Pod::example()
        }
    }

    fn change() -> impl Strategy<Value = PodChange> {
        let any = || (0..PODS, 0_u8..4).prop_map(|(number, life)| pod(number, life));
        prop_oneof![
            4 => any().prop_map(PodChange::Applied),
            3 => any().prop_map(PodChange::Deleted),
            1 => proptest::collection::btree_map(0..PODS, 0_u8..4, 0..4)
                .prop_map(|pods| PodChange::All(pods.into_iter().map(|(number, life)| pod(number, life)).collect())),
            1 => Just(PodChange::Connected),
            1 => Just(PodChange::Disconnected),
        ]
    }

    /// Returns all that matters of an index: which pods live, which are known, and since when the index is in step.
    fn seen(changes: impl IntoIterator<Item = PodChange>) -> (usize, Vec<(Outlook, bool, bool)>, Option<u64>) {
        let mut index = PodIndex::default();
        index.apply(PodChange::All(vec![pod(0, 9), pod(1, 9)]), 1);
        changes.into_iter().for_each(|change| index.apply(change, 2));
        let pods = (0..PODS).map(|number| {
            let of = pod(number, 0);
            let key = key(&of).unwrap();
            let known = index.pod(key).cloned();
            let last = known.as_ref().and_then(|pod| pod.containers[0].current);
            let named = last.is_none_or(|id| index.container(id).is_some());
            (index.outlook(&of.namespace, &of.name, Some("app")), known.is_some(), named)
        });
        (index.len(), pods.collect(), index.synced_ns())
    }

    proptest! {
        #[test]
        fn an_index_is_the_same_whether_changes_were_folded_or_not(changes in proptest::collection::vec(change(), 0..60)) {
            let mut pending = Pending::new(2 * usize::from(PODS) + 4);
            for change in changes.iter().cloned() {
                pending.push(change);
            }
            prop_assert_eq!(seen(pending.take()), seen(changes));
        }
    }

    #[test]
    fn below_the_bound_each_change_comes_in_its_order() {
        let mut pending = Pending::new(8);
        let changes: Vec<_> = (0..8).map(|life| PodChange::Applied(pod(1, life))).collect();
        let firsts: Vec<_> = changes.iter().map(|change| pending.push(change.clone())).collect();
        assert_eq!(firsts[..2], [(true, 0), (false, 0)]);
        assert_eq!(Vec::from(pending.take()), changes);
        assert_eq!(pending.push(PodChange::Connected), (true, 0));
    }

    #[test]
    fn changes_of_a_pod_are_no_more_than_the_bound_and_its_last_is_sent() {
        let mut pending = Pending::new(100);
        for life in 0..10_000_u32 {
            pending.push(PodChange::Applied(pod(1, u8::try_from(life % 200).unwrap())));
            assert!(pending.changes.len() <= 100, "{}", pending.changes.len());
        }
        assert_eq!(pending.take().pop_back(), Some(PodChange::Applied(pod(1, 199))));
    }

    #[test]
    fn of_pods_that_came_and_went_the_earliest_are_lost_and_counted() {
        let mut pending = Pending::new(100);
        let mut lost = 0;
        let pod = |number: u32| Pod { uid: format!("00000000-0000-0000-0000-{number:012x}").parse().ok(), ..pod(0, 0) };
        for number in 0..10_000 {
            lost += pending.push(PodChange::Applied(pod(number))).1;
            lost += pending.push(PodChange::Deleted(pod(number))).1;
            assert!(pending.changes.len() <= 201, "{}", pending.changes.len());
        }
        let left = pending.take();
        assert!(lost > 9_000, "{lost}");
        assert_eq!(left.back(), Some(&PodChange::Deleted(pod(9_999))));
    }
}
