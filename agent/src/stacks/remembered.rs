//! A table of lookups within a budget. Pure.

use std::{
    collections::{BTreeMap, HashMap},
    hash::Hash,
};

/// A table with a budget: when it grows beyond the budget, it drops the entries that the last windows did not use.
#[derive(Debug)]
pub(super) struct Remembered<K, V> {
    entries: HashMap<K, Entry<V>>,
    /// The sum of all entries' costs.
    cost: usize,
    budget: usize,
    window: u32,
}

#[derive(Debug)]
struct Entry<V> {
    value: V,
    cost: usize,
    used: u32,
}

impl<K: Eq + Hash, V> Remembered<K, V> {
    /// Creates an empty table; `budget` is in the unit of the costs.
    pub(super) fn new(budget: usize) -> Self {
        Self { entries: HashMap::new(), cost: 0, budget, window: 0 }
    }

    /// Returns the value of a key, and marks it as used in this window.
    pub(super) fn get(&mut self, key: &K) -> Option<&mut V> {
        let window = self.window;
        self.entries.get_mut(key).map(|entry| {
            entry.used = window;
            &mut entry.value
        })
    }

    /// Adds or replaces a value. If the table would exceed its budget, old entries are dropped first.
    pub(super) fn insert(&mut self, key: K, value: V, cost: usize) {
        if self.cost.saturating_add(cost) > self.budget {
            self.forget();
        }
        // An entry larger than the whole budget would empty the table each time.
        if cost > self.budget {
            return;
        }
        self.cost += cost;
        if let Some(old) = self.entries.insert(key, Entry { value, cost, used: self.window }) {
            self.cost -= old.cost;
        }
    }

    /// Removes the value of a key, and returns it.
    pub(super) fn remove(&mut self, key: &K) -> Option<V> {
        let entry = self.entries.remove(key)?;
        self.cost -= entry.cost;
        Some(entry.value)
    }

    /// Returns all values, in no order.
    pub(super) fn values(&self) -> impl Iterator<Item = &V> {
        self.entries.values().map(|entry| &entry.value)
    }

    /// Drops the entries for which `keep` returns false.
    pub(super) fn retain(&mut self, keep: impl Fn(&K, &V) -> bool) {
        let mut left = 0;
        self.entries.retain(|key, entry| {
            let is_kept = keep(key, &entry.value);
            left += if is_kept { entry.cost } else { 0 };
            is_kept
        });
        self.cost = left;
    }

    /// Starts the next window: the age of entries counts in windows.
    pub(super) fn next_window(&mut self) {
        self.window = self.window.wrapping_add(1);
    }

    /// Drops the entries that were unused for the longest time, down to three quarters of the budget, so that this
    /// happens seldom.
    fn forget(&mut self) {
        let most = self.budget / 4 * 3;
        let mut costs: BTreeMap<u32, usize> = BTreeMap::new();
        for entry in self.entries.values() {
            *costs.entry(self.window.wrapping_sub(entry.used)).or_default() += entry.cost;
        }
        let mut kept = 0;
        let fits = |(_, cost): &(&u32, &usize)| {
            kept += **cost;
            kept <= most
        };
        // Entries of the same age are dropped together. Entries of this window are dropped only if they alone exceed
        // the limit.
        let oldest = costs.iter().take_while(fits).last().map(|(age, _)| *age);
        let (window, mut left) = (self.window, 0);
        self.entries.retain(|_, entry| {
            let keep = oldest.map_or(left + entry.cost <= most / 2, |oldest| window.wrapping_sub(entry.used) <= oldest);
            left += if keep { entry.cost } else { 0 };
            keep
        });
        self.cost = left;
        self.entries.shrink_to_fit();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_used_stays_and_what_is_not_goes_first() {
        let mut table = Remembered::new(100);
        for window in 0..50 {
            for number in 0..5 {
                table.insert((window, number), window, 3);
            }
            table.insert((1000, 0), window, 3);
            assert!(table.get(&(0, 0)).is_some(), "window {window}");
            assert!(table.get(&(window, 4)).is_some(), "window {window}");
            assert!(table.cost <= 100, "{}", table.cost);
            assert_eq!(table.cost, table.values().count() * 3);
            table.next_window();
        }
        assert!(table.get(&(30, 1)).is_none());
    }

    #[test]
    fn entries_that_are_dropped_cost_nothing() {
        let mut table = Remembered::new(100);
        for number in 0..10 {
            table.insert(number, number % 2, 10);
        }
        table.retain(|number, odd| *odd == 1 && *number > 1);
        assert_eq!((table.values().count(), table.cost), (4, 40));
    }

    #[test]
    fn a_window_that_is_too_large_alone_does_not_break_the_budget() {
        let mut table = Remembered::new(100);
        for number in 0..10_000 {
            table.insert(number, (), 7);
            assert!(table.cost <= 100);
            assert!(table.get(&number).is_some());
        }
        table.insert(1, (), 1000);
        assert!(table.cost <= 100);
    }
}
