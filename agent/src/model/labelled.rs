//! Sums of the node with labels that are found at run time, such as names of pods or of BPF programs. Pure.

use std::{
    collections::BTreeMap,
    ops::AddAssign,
    sync::{Arc, Mutex, PoisonError},
};

/// The values of the labels of a series.
pub trait Labels: Clone + Ord {
    /// The largest number of series with labels of their own, where nobody chooses another one.
    const MOST: usize;

    /// Returns the labels of the series that all further labels share.
    fn rest() -> Self;
}

/// One sum for each of the first labels, and one for all further labels. A series is never removed, so no sum falls. A
/// sum may have several numbers. Clones share the sums.
#[derive(Clone, Debug)]
pub struct Labelled<L, S = u64> {
    sums: Arc<Mutex<BTreeMap<L, S>>>,
    /// The largest number of series with labels of their own.
    most: usize,
}

impl<L: Labels, S: Clone + Default + PartialEq + AddAssign> Default for Labelled<L, S> {
    fn default() -> Self {
        Self::at_most(L::MOST)
    }
}

impl<L: Labels, S: Clone + Default + PartialEq + AddAssign> Labelled<L, S> {
    /// Returns sums of at most `most` labels, beside that of the rest.
    #[must_use]
    pub fn at_most(most: usize) -> Self {
        Self { sums: Arc::default(), most }
    }

    /// Adds to the sum of these labels. A label without a sum of its own counts as one of the rest.
    pub fn add(&self, labels: &L, more: S) {
        if more == S::default() {
            return;
        }
        let mut sums = Mutex::lock(&self.sums).unwrap_or_else(PoisonError::into_inner);
        // The series of the rest takes no place, so it does not matter when it begins.
        let has_room = sums.contains_key(labels) || sums.len() - usize::from(sums.contains_key(&L::rest())) < self.most;
        let labels = if has_room { labels.clone() } else { L::rest() };
        *sums.entry(labels).or_default() += more;
    }

    /// Returns the sums that are not 0.
    #[must_use]
    pub fn sums(&self) -> BTreeMap<L, S> {
        Mutex::lock(&self.sums).unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the sums. The series of the rest is there even if it is 0.
    #[must_use]
    pub fn sums_and_rest(&self) -> BTreeMap<L, S> {
        let mut sums = self.sums();
        sums.entry(L::rest()).or_default();
        sums
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Labels for u64 {
        const MOST: usize = 3;

        fn rest() -> Self {
            Self::MAX
        }
    }

    #[test]
    fn the_first_labels_have_series_of_their_own_and_the_rest_shares_one() {
        let sums = Labelled::default();
        for label in 0..5_u64 {
            sums.add(&label, 10);
        }
        // A label that has a series keeps it.
        sums.add(&1, 1);
        sums.add(&4, 1);
        assert_eq!(sums.sums(), BTreeMap::from([(0, 10), (1, 11), (2, 10), (u64::MAX, 21)]));
        let sums = Labelled::at_most(1);
        [5, 6_u64].iter().for_each(|label| sums.add(label, 10));
        assert_eq!(sums.sums(), BTreeMap::from([(5, 10), (u64::MAX, 10)]));
    }

    #[test]
    fn the_rest_takes_no_place_of_others() {
        let sums = Labelled::default();
        for label in [u64::MAX, 0, 1, 2, 3] {
            sums.add(&label, 10);
        }
        assert_eq!(sums.sums(), BTreeMap::from([(0, 10), (1, 10), (2, 10), (u64::MAX, 20)]));
    }

    #[test]
    fn a_sum_of_nothing_has_no_series_but_for_the_rest_where_it_is_wanted() {
        let sums = Labelled::<u64>::default();
        sums.clone().add(&7, 0);
        assert_eq!(sums.sums(), BTreeMap::new());
        assert_eq!(sums.sums_and_rest(), BTreeMap::from([(u64::MAX, 0)]));
        sums.clone().add(&7, 2);
        assert_eq!(sums.sums_and_rest(), BTreeMap::from([(7, 2), (u64::MAX, 0)]));
    }
}
