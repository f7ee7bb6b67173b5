//! The active filters: the filter of the agent's own profiles, and the filters of recordings.

use crate::model::slot::Slot;
use podperf_ebpf::abi;
use thiserror::Error;

use super::{Filter, Known, MAX_BITS};

/// One slot for the agent's own filter, and four for recordings.
const SLOTS: usize = 5;

/// The error for a filter that finds no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the filters of other recordings leave no room for this one (try again when one has ended, or ask for less)")]
pub struct Full;

/// The active filters, by slot.
#[derive(Debug, Default)]
pub struct Filters {
    /// Each filter with the first of its bits.
    slots: [Option<(Filter, usize)>; SLOTS],
}

impl Filters {
    /// Returns the agent's own filter in the first slot, and no other filters.
    #[must_use]
    pub fn new(own: Filter) -> Self {
        let mut filters = Self::default();
        filters.slots[0] = Some((own, 0));
        filters
    }

    /// Adds a filter. The active filters keep their bits.
    ///
    /// # Errors
    ///
    /// When there are too many filters, or when together they need too many bits or terms.
    pub fn insert(&mut self, filter: Filter) -> Result<Slot, Full> {
        let free = self.slots.iter().position(Option::is_none).ok_or(Full)?;
        let terms = self.kernel_terms().len() + filter.kernel_terms().len();
        let first = (0..=MAX_BITS - filter.bits()).find(|first| self.is_free(*first, filter.bits()));
        let first = first.filter(|_| terms <= abi::PODPERF_FILTER_TERMS as usize).ok_or(Full)?;
        self.slots[free] = Some((filter, first));
        Ok(Slot(u8::try_from(free).unwrap_or(0)))
    }

    /// Removes a filter.
    pub fn remove(&mut self, slot: Slot) {
        self.slots[usize::from(slot.0)] = None;
    }

    /// Returns the kernel terms of all filters.
    #[must_use]
    pub fn kernel_terms(&self) -> Vec<abi::podperf_filter_term> {
        let of = |(filter, first): &(Filter, usize)| {
            let first = u32::try_from(*first).unwrap_or(0);
            let moved = |term: &abi::podperf_filter_term| abi::podperf_filter_term { bit: term.bit + first, ..*term };
            filter.kernel_terms().iter().map(moved).collect::<Vec<_>>()
        };
        self.slots.iter().flatten().flat_map(of).collect()
    }

    /// Returns the filters of recordings that let a sample pass: bit n stands for slot n.
    #[must_use]
    pub fn recordings_pass(&self, bits: u16, known: &Known<'_>) -> u8 {
        (1..SLOTS).fold(0, |passed, slot| passed | self.passes(slot, bits, known))
    }

    /// Returns the bit of the agent's own filter if it lets a sample pass.
    #[must_use]
    pub fn own_passes(&self, bits: u16, known: &Known<'_>) -> u8 {
        self.passes(0, bits, known)
    }

    /// Returns true if there are filters of recordings.
    #[must_use]
    pub fn has_recordings(&self) -> bool {
        self.slots[1..].iter().any(Option::is_some)
    }

    fn passes(&self, slot: usize, bits: u16, known: &Known<'_>) -> u8 {
        let passes = |(filter, first): &(Filter, usize)| filter.passes(bits >> first, known);
        u8::from(self.slots[slot].as_ref().is_some_and(passes)) << slot
    }

    fn is_free(&self, first: usize, bits: usize) -> bool {
        let apart = |(filter, start): &(Filter, usize)| {
            first + bits <= *start || start + filter.bits() <= first || filter.bits() == 0
        };
        bits == 0 || self.slots.iter().flatten().all(apart)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{attribution::Subject, filter::StateTerm};

    fn filter(expression: &str) -> Filter {
        Filter::parse(expression).unwrap()
    }

    fn passed(filters: &Filters, bits: u16) -> u8 {
        let subject = Subject::Cgroup("/a".into());
        let known = Known { state: StateTerm::Runnable, process: 1, path: "/a", subject: &subject, reason: None };
        filters.own_passes(bits, &known) | filters.recordings_pass(bits, &known)
    }

    #[test]
    fn each_filter_looks_at_its_own_bits() {
        let mut filters = Filters::new(filter("tid == 1 || tid == 2"));
        let everything = filters.insert(Filter::default()).unwrap();
        let one = filters.insert(filter("tid == 3")).unwrap();
        assert_eq!(filters.kernel_terms().iter().map(|term| term.bit).collect::<Vec<_>>(), [0, 1, 2]);
        for (bits, expected) in
            [(0b000, [false, true, false]), (0b010, [true, true, false]), (0b100, [false, true, true])]
        {
            let found = passed(&filters, bits);
            assert_eq!([Slot::OWN, everything, one].map(|slot| slot.let_pass(found)), expected, "{bits:03b}");
        }
    }

    #[test]
    fn bits_of_a_filter_that_is_gone_are_anothers_and_the_others_keep_theirs() {
        let mut filters = Filters::new(Filter::default());
        let first = filters.insert(filter("tid == 1 || tid == 2")).unwrap();
        filters.insert(filter("tid == 3")).unwrap();
        filters.remove(first);
        filters.insert(filter("tid == 4")).unwrap();
        filters.insert(filter("tid == 5 || tid == 6")).unwrap();
        let mut bits: Vec<_> = filters.kernel_terms().iter().map(|term| (term.value, term.bit)).collect();
        bits.sort_unstable();
        assert_eq!(bits, [(3, 2), (4, 0), (5, 3), (6, 4)]);
    }

    #[test]
    fn there_is_room_for_so_many() {
        let mut filters = Filters::new(Filter::default());
        let wide = (0..10).map(|tid| format!("tid == {tid}")).collect::<Vec<_>>().join(" || ");
        filters.insert(filter(&wide)).unwrap();
        assert_eq!(filters.insert(filter(&wide)), Err(Full));
        for _ in 0..3 {
            filters.insert(Filter::default()).unwrap();
        }
        assert_eq!(filters.insert(Filter::default()), Err(Full));
    }
}
