//! What was looked up, within a budget. Pure.

use std::{
    collections::{BTreeMap, HashMap},
    hash::Hash,
};

/// A table that forgets what the last windows did not use when it grows over its budget.
#[derive(Debug)]
pub(super) struct Remembered<K, V> {
    entries: HashMap<K, Entry<V>>,
    /// Of all entries.
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
    /// `budget` is in the unit of the costs.
    pub(super) fn new(budget: usize) -> Self {
        Self { entries: HashMap::new(), cost: 0, budget, window: 0 }
    }

    /// Looks it up, and keeps it for longer.
    pub(super) fn get(&mut self, key: &K) -> Option<&mut V> {
        let window = self.window;
        self.entries.get_mut(key).map(|entry| {
            entry.used = window;
            &mut entry.value
        })
    }

    /// Adds or replaces it. A table over its budget first forgets.
    pub(super) fn insert(&mut self, key: K, value: V, cost: usize) {
        if self.cost.saturating_add(cost) > self.budget {
            self.forget();
        }
        // An entry of its own size over the budget would empty the table again and again.
        if cost > self.budget {
            return;
        }
        self.cost += cost;
        if let Some(old) = self.entries.insert(key, Entry { value, cost, used: self.window }) {
            self.cost -= old.cost;
        }
    }

    /// Takes it out.
    pub(super) fn remove(&mut self, key: &K) -> Option<V> {
        let entry = self.entries.remove(key)?;
        self.cost -= entry.cost;
        Some(entry.value)
    }

    /// All, in no order.
    pub(super) fn values(&self) -> impl Iterator<Item = &V> {
        self.entries.values().map(|entry| &entry.value)
    }

    /// What comes now is of the next window.
    pub(super) fn next_window(&mut self) {
        self.window = self.window.wrapping_add(1);
    }

    /// Drops what was not used for longest, to three quarters of the budget: so it happens seldom.
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
        // Entries of one age go together; those of this window only where they alone are too many.
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
