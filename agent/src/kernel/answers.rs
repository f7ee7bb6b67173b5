//! The maps with the agent's answers to copies of stacks. Only the agent writes them, and it removes entries when a map
//! is full.

use std::{
    cmp::Reverse,
    collections::{HashMap, HashSet, VecDeque},
    io, iter,
    os::fd::AsFd as _,
    sync::Arc,
};

use aya::maps::MapData;

use super::raw;
use crate::model::ids::{Pid, StackId};

/// The process that an answer is for, and the pod or cgroup that it belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asker {
    /// The pod or the cgroup.
    pub owner: Arc<str>,
    /// The process.
    pub process: Pid,
}

/// A map that only this agent writes.
pub(super) struct Answers {
    map: MapData,
    keys: Keys,
}

/// The keys of a map. If it is full, the owner with the most entries gives up its oldest one, so that no pod takes the
/// entries of all others. Pure.
#[derive(Debug)]
struct Keys {
    most: usize,
    known: HashMap<u64, Entry>,
    /// The keys of each owner, the oldest first.
    by_owner: HashMap<Arc<str>, VecDeque<u64>>,
}

#[derive(Debug)]
struct Entry {
    stack: StackId,
    asker: Asker,
}

impl Answers {
    /// Takes an empty map of at most `most` entries.
    pub(super) fn new(map: MapData, most: usize) -> Self {
        Self { map, keys: Keys::new(most) }
    }

    /// Returns the stack that an entry is about.
    pub(super) fn stack(&self, key: u64) -> Option<StackId> {
        self.keys.known.get(&key).map(|entry| entry.stack)
    }

    /// Reads an entry.
    pub(super) fn get<V: bytemuck::Pod>(&self, key: u64) -> io::Result<V> {
        let mut value = V::zeroed();
        raw::lookup(self.map.fd().as_fd(), key, std::slice::from_mut(&mut value))?;
        Ok(value)
    }

    /// Writes an entry about this stack. Returns the key that was removed to make room.
    pub(super) fn set<V: bytemuck::Pod>(
        &mut self,
        asker: &Asker,
        key: u64,
        stack: StackId,
        value: V,
    ) -> io::Result<Option<u64>> {
        let removed = self.keys.in_the_way(key);
        if let Some(removed) = removed {
            self.remove(&[removed])?;
        }
        raw::update(self.map.fd().as_fd(), key, value)?;
        self.keys.set(asker, key, stack);
        Ok(removed)
    }

    /// Removes the entries about these stacks. Returns their keys.
    pub(super) fn forget(&mut self, stacks: &HashSet<StackId>) -> io::Result<Vec<u64>> {
        let gone = self.keys.keys(|entry| stacks.contains(&entry.stack));
        self.remove(&gone)?;
        Ok(gone)
    }

    /// Moves the last entry of a list to each place of the list that was removed. The keys of a list are two apart.
    pub(super) fn close<V: bytemuck::Pod>(&mut self, mut removed: Vec<u64>) -> io::Result<()> {
        // The last place comes first: the entries behind the others then follow on each other.
        removed.sort_unstable_by_key(|key| Reverse(*key));
        for place in removed {
            let Some((last, stack, asker)) = self.keys.last_after(place) else { continue };
            // The map may be full, so the entry is removed before it is written again.
            let value: V = self.get(last)?;
            self.remove(&[last])?;
            self.set(&asker, place, stack, value)?;
        }
        Ok(())
    }

    /// Removes the entries of processes that have ended.
    pub(super) fn forget_ended(&mut self, has_ended: impl Fn(Pid) -> bool) -> io::Result<()> {
        let processes: HashSet<_> = self.keys.known.values().map(|entry| entry.asker.process).collect();
        let ended: HashSet<_> = processes.into_iter().filter(|process| has_ended(*process)).collect();
        let gone = self.keys.keys(|entry| ended.contains(&entry.asker.process));
        self.remove(&gone)
    }

    /// Removes entries. An entry that the kernel does not remove stays known, and is tried again when it is the oldest.
    fn remove(&mut self, keys: &[u64]) -> io::Result<()> {
        let (mut removed, mut result) = (HashSet::new(), Ok(()));
        for key in keys {
            match raw::delete(self.map.fd().as_fd(), *key) {
                Ok(()) => drop(removed.insert(*key)),
                Err(error) => result = Err(error),
            }
        }
        self.keys.remove(&removed);
        result
    }
}

impl Keys {
    fn new(most: usize) -> Self {
        Self { most, known: HashMap::new(), by_owner: HashMap::new() }
    }

    fn keys(&self, which: impl Fn(&Entry) -> bool) -> Vec<u64> {
        self.known.iter().filter(|(_, entry)| which(entry)).map(|(key, _)| *key).collect()
    }

    /// Returns the key that must be removed before this one can be added.
    fn in_the_way(&self, key: u64) -> Option<u64> {
        if self.known.len() < self.most || self.known.contains_key(&key) {
            return None;
        }
        self.by_owner.values().max_by_key(|keys| keys.len())?.front().copied()
    }

    /// Returns the last entry of the list behind a key: its key, its stack, and the process that it is for.
    fn last_after(&self, key: u64) -> Option<(u64, StackId, Asker)> {
        let next = |key: &u64| Some(key.wrapping_add(2)).filter(|next| self.known.contains_key(next));
        let last = iter::successors(next(&key), next).last()?;
        let entry = self.known.get(&last)?;
        Some((last, entry.stack, entry.asker.clone()))
    }

    fn set(&mut self, asker: &Asker, key: u64, stack: StackId) {
        if let Some(entry) = self.known.get_mut(&key) {
            entry.stack = stack;
            return;
        }
        self.known.insert(key, Entry { stack, asker: asker.clone() });
        self.by_owner.entry(Arc::clone(&asker.owner)).or_default().push_back(key);
    }

    fn remove(&mut self, gone: &HashSet<u64>) {
        let owners: HashSet<_> =
            gone.iter().filter_map(|key| self.known.remove(key)).map(|entry| entry.asker.owner).collect();
        for owner in owners {
            let Some(keys) = self.by_owner.get_mut(&owner) else { continue };
            let mut left = gone.len();
            // A key that makes room is the oldest one.
            while keys.front().is_some_and(|key| gone.contains(key)) {
                keys.pop_front();
                left -= 1;
            }
            if left > 0 {
                keys.retain(|key| !gone.contains(key));
            }
            if keys.is_empty() {
                self.by_owner.remove(&owner);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asker(owner: &str, process: u32) -> Asker {
        Asker { owner: owner.into(), process: Pid(process) }
    }

    /// Adds a key as [`Answers::set`] does; returns the key that was removed for it.
    fn set(keys: &mut Keys, asker: &Asker, key: u64) -> Option<u64> {
        let removed = keys.in_the_way(key);
        keys.remove(&removed.into_iter().collect());
        keys.set(asker, key, StackId(key | 1));
        assert_eq!(keys.by_owner.values().map(VecDeque::len).sum::<usize>(), keys.known.len());
        assert!(keys.known.len() <= keys.most);
        removed
    }

    #[test]
    fn an_owner_with_many_entries_takes_none_from_one_with_few() {
        let mut keys = Keys::new(8);
        let (few, many) = (asker("few", 1), asker("many", 2));
        assert!([1, 2].iter().all(|key| set(&mut keys, &few, *key).is_none()));
        let removed: Vec<_> = (100..200).filter_map(|key| set(&mut keys, &many, key)).collect();
        assert!(removed.iter().copied().eq(100..194), "its own, the oldest first: {removed:?}");
        assert_eq!(set(&mut keys, &few, 3), Some(194), "the largest gives way");
        assert_eq!(set(&mut keys, &few, 3), None, "a new value of a key");
        assert!([1, 2, 3].iter().all(|key| keys.known.contains_key(key)));
    }

    #[test]
    fn a_full_map_takes_a_new_owner() {
        let mut keys = Keys::new(1);
        assert_eq!(set(&mut keys, &asker("a", 1), 1), None);
        assert_eq!(set(&mut keys, &asker("b", 2), 2), Some(1));
        assert_eq!(keys.by_owner.keys().map(|owner| &**owner).collect::<Vec<_>>(), ["b"]);
    }

    #[test]
    fn the_last_entry_of_a_list_is_found_behind_a_removed_one() {
        let mut keys = Keys::new(8);
        assert!([10, 12, 16, 18, 21].iter().all(|key| set(&mut keys, &asker("a", 1), *key).is_none()));
        let last = |removed| keys.last_after(removed).map(|(last, stack, _)| (last, stack.0));
        assert_eq!(last(8), Some((12, 13)));
        assert_eq!(last(14), Some((18, 19)));
        assert_eq!((last(12), last(18)), (None, None), "the last place, and one before another list");
    }

    #[test]
    fn what_is_removed_leaves_nothing() {
        let mut keys = Keys::new(8);
        assert!((0..4).all(|key| set(&mut keys, &asker("a", u32::from(key > 1)), key).is_none()));
        let ended = keys.keys(|entry| entry.asker.process == Pid(1));
        keys.remove(&ended.into_iter().collect());
        assert_eq!(keys.by_owner["a"], [0, 1]);
        keys.remove(&[0, 1, 7].into());
        assert!(keys.known.is_empty() && keys.by_owner.is_empty());
    }
}
