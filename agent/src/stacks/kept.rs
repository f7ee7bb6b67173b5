//! Keeps copies whose owners have no time left for unwinding, until later turns. Pure.
//!
//! A copy that is too old, or for which there is no room, is given up: its stack ends where the walk came to.

use std::{collections::VecDeque, sync::Arc};

use super::copied::Unwinding;
use crate::kernel::copies::Copy;

/// The most copies that are kept. Each takes up to 28 KiB, so together they take less than 2 MiB.
const MAX_KEPT: usize = 64;
/// The most copies of one pod or cgroup.
const MAX_OF_OWNER: usize = 8;
/// The longest time since a copy was made, in nanoseconds. The process may map other code meanwhile.
const MAX_AGE_NS: u64 = 5_000_000_000;

/// A copy, and how far it is unwound.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Tried {
    pub(super) copy: Copy,
    /// The walk, or the part of it for which there was time; `None` if no walk was begun.
    pub(super) unwinding: Option<Unwinding>,
    /// Set if the walk can come further when the owner has time again.
    pub(super) is_late: bool,
}

/// The copies that are kept, with their owners. The one that was kept first is in front.
#[derive(Debug, Default)]
pub(super) struct Kept(VecDeque<(Arc<str>, Tried)>);

impl From<Copy> for Tried {
    fn from(copy: Copy) -> Self {
        Self { copy, unwinding: None, is_late: false }
    }
}

impl Tried {
    const fn is_old(&self, now_ns: u64) -> bool {
        now_ns.saturating_sub(self.copy.at_ns) > MAX_AGE_NS
    }
}

impl Kept {
    /// Keeps a copy. Returns it if it is too old, or if there is no room.
    pub(super) fn keep(&mut self, owner: &Arc<str>, tried: Tried, now_ns: u64) -> Option<Tried> {
        let of_owner = self.0.iter().filter(|(other, _)| other == owner).count();
        if self.0.len() >= MAX_KEPT || of_owner >= MAX_OF_OWNER || tried.is_old(now_ns) {
            return Some(tried);
        }
        self.0.push_back((Arc::clone(owner), tried));
        None
    }

    /// Takes the copies that are too old, and those of owners that have time, in the order in which they were kept.
    pub(super) fn take(&mut self, now_ns: u64, mut has_time: impl FnMut(&str) -> bool) -> Vec<Tried> {
        let is_taken = |(owner, tried): &(Arc<str>, Tried)| tried.is_old(now_ns) || has_time(owner);
        let (taken, left): (VecDeque<_>, VecDeque<_>) = std::mem::take(&mut self.0).into_iter().partition(is_taken);
        self.0 = left;
        taken.into_iter().map(|(_, tried)| tried).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        kernel::copies::{CopyOf, REGISTERS},
        model::ids::{CgroupId, Pid, StackId},
    };

    const SECOND: u64 = 1_000_000_000;

    /// Returns a copy with a number that was made at this time.
    fn late(number: u32, at_ns: u64) -> Tried {
        let id = StackId(2);
        let copy = Copy {
            of: CopyOf::Wait { id, site: id, path: id, is_named: false },
            kernel: None,
            process: Pid(number),
            cgroup: CgroupId(3),
            at_ns,
            program: [0; 3],
            registers: [0; REGISTERS],
            pages: vec![],
            stack: vec![],
        };
        Tried { is_late: true, ..copy.into() }
    }

    fn numbers(taken: &[Tried]) -> Vec<u32> {
        taken.iter().map(|tried| tried.copy.process.0).collect()
    }

    #[test]
    fn one_owner_cannot_take_all_places() {
        let (mut kept, owner, other) = (Kept::default(), "a".into(), "b".into());
        let refused: Vec<_> = (0..100).filter_map(|number| kept.keep(&owner, late(number, 0), 0)).collect();
        assert_eq!(numbers(&refused), (8..100).collect::<Vec<_>>());
        assert_eq!(kept.keep(&other, late(100, 0), 0), None);
        assert_eq!(numbers(&kept.take(0, |owner| owner == "b")), [100]);
        assert_eq!(numbers(&kept.take(0, |_| true)), (0..8).collect::<Vec<_>>());
    }

    #[test]
    fn a_copy_that_gets_too_old_is_taken_though_its_owner_has_no_time() {
        let (mut kept, owner) = (Kept::default(), "a".into());
        for (number, seconds) in [(1, 1), (2, 3), (3, 2)] {
            assert_eq!(kept.keep(&owner, late(number, seconds * SECOND), 4 * SECOND), None);
        }
        assert!(kept.take(6 * SECOND, |_| false).is_empty());
        assert_eq!(numbers(&kept.take(7 * SECOND + 1, |_| false)), [1, 3]);
        assert!(kept.keep(&owner, late(4, SECOND), 7 * SECOND).is_some());
        assert_eq!(numbers(&kept.take(7 * SECOND, |_| true)), [2]);
    }

    /// Compares the queue with a list that is searched from the front, over many turns.
    #[test]
    fn the_queue_keeps_few_copies_in_their_order() {
        let owners: Vec<Arc<str>> = (0..20).map(|owner| owner.to_string().into()).collect();
        let (mut kept, mut model) = (Kept::default(), Vec::<(usize, u32, u64)>::new());
        let (mut random, mut was_full) = (1_u64, false);
        let mut next = |below: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 16) % below
        };
        for turn in 0..2000_u64 {
            let now_ns = turn * SECOND / 20;
            for number in 0..u32::try_from(next(12)).unwrap() {
                let (owner, at_ns) = (usize::try_from(next(20)).unwrap(), now_ns.saturating_sub(next(6 * SECOND)));
                let has_room = model.len() < 64 && model.iter().filter(|(other, ..)| *other == owner).count() < 8;
                let is_young = now_ns - at_ns <= 5 * SECOND;
                let refused = kept.keep(&owners[owner], late(number, at_ns), now_ns);
                assert_eq!(refused.is_none(), has_room && is_young, "turn {turn}");
                if refused.is_none() {
                    model.push((owner, number, at_ns));
                }
            }
            was_full |= model.len() == 64;
            // Some turns have time for one owner only.
            let with_time = usize::try_from(next(40)).unwrap();
            let is_taken = |owner: usize, at_ns: u64| owner == with_time || now_ns - at_ns > 5 * SECOND;
            let expected: Vec<_> = model.iter().filter(|it| is_taken(it.0, it.2)).map(|it| it.1).collect();
            model.retain(|it| !is_taken(it.0, it.2));
            let name = with_time.to_string();
            let taken = kept.take(now_ns, |owner| owner == name);
            assert_eq!(numbers(&taken), expected, "turn {turn}");
            assert_eq!(kept.0.len(), model.len());
        }
        assert!(was_full, "the bound was never reached");
    }
}
