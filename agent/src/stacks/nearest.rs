//! Which of many symbols each of a few addresses belongs to. Pure.
//!
//! Symbols are offered one by one and in any order, as they are read; what is kept is as much as was asked for, however
//! many there are. A table of a million symbols costs its reading, and no memory.

/// For each wanted address the symbol that starts nearest below it.
#[derive(Debug)]
pub(super) struct Nearest<'a, T> {
    /// Ascending.
    wanted: &'a [u64],
    /// The best that starts at or below the address of the same index, but above the one before.
    found: Vec<Option<Candidate<T>>>,
}

#[derive(Clone, Debug)]
struct Candidate<T> {
    start: u64,
    rank: u64,
    symbol: T,
}

impl<'a, T: Clone> Nearest<'a, T> {
    /// `wanted` must be ascending.
    pub(super) fn new(wanted: &'a [u64]) -> Self {
        Self { wanted, found: vec![None; wanted.len()] }
    }

    /// Of two symbols with one start the higher rank wins, and of equal ranks the first.
    pub(super) fn offer(&mut self, start: u64, rank: u64, symbol: impl FnOnce() -> T) {
        let at = self.wanted.partition_point(|wanted| *wanted < start);
        if let Some(found) = self.found.get_mut(at)
            && found.as_ref().is_none_or(|found| (found.start, found.rank) < (start, rank))
        {
            *found = Some(Candidate { start, rank, symbol: symbol() });
        }
    }

    /// The start and the symbol for each wanted address, in their order.
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
