//! Finds the symbol for each of a few addresses among many symbols. Pure.
//!
//! Symbols are offered one by one in any order while they are read. Only one symbol per wanted address is stored, so a
//! table of a million symbols takes time to read, but no memory.

/// The symbol that starts nearest below each wanted address.
#[derive(Debug)]
pub(super) struct Nearest<'a, T> {
    /// The wanted addresses, ascending.
    wanted: &'a [u64],
    /// The best symbol that starts at or below the address of the same index, but above the previous address.
    found: Vec<Option<Candidate<T>>>,
}

#[derive(Clone, Debug)]
struct Candidate<T> {
    start: u64,
    rank: u64,
    symbol: T,
}

impl<'a, T: Clone> Nearest<'a, T> {
    /// Starts a search for `wanted`, which must be ascending.
    pub(super) fn new(wanted: &'a [u64]) -> Self {
        Self { wanted, found: vec![None; wanted.len()] }
    }

    /// Offers a symbol. If two symbols have the same start, the higher rank wins, and the first symbol wins between
    /// equal ranks.
    pub(super) fn offer(&mut self, start: u64, rank: u64, symbol: impl FnOnce() -> T) {
        let at = self.wanted.partition_point(|wanted| *wanted < start);
        if let Some(found) = self.found.get_mut(at)
            && found.as_ref().is_none_or(|found| (found.start, found.rank) < (start, rank))
        {
            *found = Some(Candidate { start, rank, symbol: symbol() });
        }
    }

    /// Returns the start and the symbol for each wanted address, in the same order.
    pub(super) fn take(self) -> Vec<Option<(u64, T)>> {
        let mut last = None;
        let found = self.found.into_iter().map(|found| {
            if let Some(Candidate { start, symbol, .. }) = found {
                last = Some((start, symbol));
            }
            last.clone()
        });
        found.collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_nearest_is_what_a_search_through_all_finds(
            mut wanted in prop::collection::vec(0_u64..100, 0..20),
            starts in prop::collection::vec(0_u64..100, 0..50),
        ) {
            wanted.sort_unstable();
            let mut nearest = Nearest::new(&wanted);
            for start in &starts {
                nearest.offer(*start, 0, || *start);
            }
            let expected = wanted.iter().map(|wanted| {
                starts.iter().filter(|start| *start <= wanted).max().map(|start| (*start, *start))
            });
            prop_assert_eq!(nearest.take(), expected.collect::<Vec<_>>());
        }
    }

    #[test]
    fn the_rank_decides_between_symbols_with_one_start() {
        let mut nearest = Nearest::new(&[7]);
        for (rank, name) in [(1, "weak"), (2, "global"), (2, "alias"), (0, "local")] {
            nearest.offer(5, rank, || name);
        }
        assert_eq!(nearest.take(), [Some((5, "global"))]);
    }
}
