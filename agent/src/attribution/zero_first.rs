//! Tracks which numbers of an account scrapers have seen as zero, so that they may be shown. Pure.
//!
//! Prometheus takes the first value of a series for its beginning, and `increase()` sees only later additions. So a
//! number that grows for the first time is shown as zero until every scraper has scraped the zero. If a row was away
//! and comes back, each number is shown with its last value from before.

use std::{borrow::Cow, sync::Arc};

use crate::model::usage::Usage;

/// Numbers of a usage: a bit for each of [`Usage::numbers`].
pub type NumberSet = u128;

/// Limits the part of a usage that scrapers get.
#[derive(Clone, Debug)]
pub struct Shown {
    /// Numbers that are held back.
    held: NumberSet,
    /// Values that scrapers get for the held numbers; `None` is zero for each.
    before: Option<Arc<Usage>>,
}

/// The state of an account.
#[derive(Clone, Debug)]
pub(super) struct ZeroFirst {
    /// Numbers that are never held back again.
    revealed: NumberSet,
    /// The filter for snapshots.
    shown: Shown,
    /// Numbers that a scrape has held back, and the time of its reading.
    scraped: Option<(NumberSet, u64)>,
    /// Time by which each scraper has scraped the last revealed numbers.
    shown_by_ns: u64,
}

/// Intervals of the scrapers.
#[derive(Clone, Copy, Debug, Default)]
pub struct Scrapes {
    /// Time for which a zero is shown after its first scrape, in nanoseconds.
    pub hold_ns: u64,
    /// Longest time between two scrapes of one scraper, in nanoseconds.
    pub longest_ns: u64,
}

impl Shown {
    /// Shows everything as it is.
    pub const ALL: Self = Self { held: 0, before: None };

    /// Returns the usage as scrapers get it.
    #[must_use]
    pub fn of<'a>(&self, usage: &'a Usage) -> Cow<'a, Usage> {
        if self.held == 0 {
            return Cow::Borrowed(usage);
        }
        let (mut shown, mut before) = (usage.clone(), self.before_of(usage));
        for (index, (number, before)) in shown.numbers().zip(before.numbers()).enumerate() {
            if self.held >> index & 1 == 1 {
                *number = *before;
            }
        }
        Cow::Owned(shown)
    }

    /// Returns the numbers that have changed.
    fn changed(&self, usage: &Usage) -> NumberSet {
        let (mut usage, mut before) = (usage.clone(), self.before_of(usage));
        let pairs = usage.numbers().zip(before.numbers()).enumerate();
        pairs.filter(|(_, (now, before))| now != before).fold(0, |set, (index, _)| set | 1 << index)
    }

    /// Returns the earlier values, with as many counters as `usage` has.
    fn before_of(&self, usage: &Usage) -> Usage {
        let mut before = self.before.as_deref().cloned().unwrap_or_default();
        before.counts.resize(usage.counts.len(), 0);
        before
    }
}

impl ZeroFirst {
    /// Holds nothing back.
    pub(super) const fn off() -> Self {
        Self::restore(NumberSet::MAX)
    }

    /// Holds each number back at these values, until it was scraped.
    pub(super) fn hold(before: &Usage) -> Self {
        let before = (*before != Usage::default()).then(|| Arc::new(before.clone()));
        Self { shown: Shown { held: 0, before }, ..Self::restore(0) }
    }

    /// Continues from the numbers that the previous agent has revealed.
    pub(super) const fn restore(revealed: NumberSet) -> Self {
        Self { revealed, shown: Shown::ALL, scraped: None, shown_by_ns: 0 }
    }

    /// Returns the revealed numbers, for the next agent. `None` means all of them. It is also returned if numbers are
    /// held back at values other than zero: the next agent would show zero, and the counter would fall.
    pub(super) fn save(&self) -> Option<NumberSet> {
        (self.revealed != NumberSet::MAX && self.shown.before.is_none()).then_some(self.revealed)
    }

    /// Reveals the numbers that a scrape has held back for long enough.
    pub(super) fn reveal(&mut self, now_ns: u64, scrapes: Scrapes) {
        let scraped = self.scraped.take_if(|(_, at_ns)| now_ns.saturating_sub(*at_ns) >= scrapes.hold_ns);
        if let Some((numbers, _)) = scraped {
            self.revealed |= numbers;
            self.shown_by_ns = now_ns.saturating_add(scrapes.longest_ns);
        }
    }

    /// Notes which numbers of the account's usage snapshots hold back from now on.
    pub(super) fn settle(&mut self, usage: &Usage) {
        self.shown.held = if self.revealed == NumberSet::MAX { 0 } else { self.shown.changed(usage) & !self.revealed };
    }

    /// Returns the filter for snapshots.
    pub(super) fn shown(&self) -> Shown {
        self.shown.clone()
    }

    /// Notes the scrape of a snapshot that was made after the last [`ZeroFirst::settle`].
    pub(super) const fn note_scrape(&mut self, at_ns: u64) {
        if self.shown.held != 0 && self.scraped.is_none() {
            self.scraped = Some((self.shown.held, at_ns));
        }
    }

    /// Returns `true` if a scraper has an earlier value of a number, and maybe not yet its present one.
    pub(super) const fn is_awaited(&self, now_ns: u64) -> bool {
        self.scraped.is_some() || now_ns < self.shown_by_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::facts::{Fact, Facts};

    const AT_ONCE: Scrapes = Scrapes { hold_ns: 0, longest_ns: 15 };

    fn usage(oncpu_ns: u128, voluntary_switches: u128) -> Usage {
        let facts = Facts::from([(Fact::ON_CPU, oncpu_ns), (Fact::VOLUNTARY_SWITCHES, voluntary_switches)]);
        Usage { facts, counts: vec![voluntary_switches], ..Usage::default() }
    }

    fn shown(account: &mut ZeroFirst, usage: &Usage) -> (u128, u128, u128) {
        account.settle(usage);
        let shown = account.shown();
        let shown = shown.of(usage);
        (shown.facts[Fact::ON_CPU], shown.facts[Fact::VOLUNTARY_SWITCHES], shown.counts[0])
    }

    #[test]
    fn each_number_is_zero_until_it_was_scraped() {
        let mut account = ZeroFirst::hold(&Usage::default());
        assert_eq!(shown(&mut account, &usage(5, 0)), (0, 0, 0));
        account.reveal(1, AT_ONCE);
        assert_eq!(shown(&mut account, &usage(6, 0)), (0, 0, 0), "nobody has scraped");
        account.note_scrape(2);
        assert!(account.is_awaited(2));
        account.reveal(3, AT_ONCE);
        assert!(account.is_awaited(17) && !account.is_awaited(18));
        assert_eq!(shown(&mut account, &usage(7, 1)), (7, 0, 0), "the switches are new");
        account.note_scrape(4);
        account.reveal(5, AT_ONCE);
        assert_eq!(shown(&mut account, &usage(8, 2)), (8, 2, 2));
        assert_eq!(account.save().map(|revealed| revealed & 0b11), Some(0b11));
        let mut next = ZeroFirst::restore(account.save().unwrap());
        assert_eq!(shown(&mut next, &usage(9, 3)), (9, 3, 3));
    }

    #[test]
    fn zero_is_shown_for_as_long_as_the_slowest_takes() {
        let mut account = ZeroFirst::hold(&Usage::default());
        assert_eq!(shown(&mut account, &usage(5, 0)).0, 0);
        account.note_scrape(100);
        let both = Scrapes { hold_ns: 15, longest_ns: 15 };
        account.reveal(114, both);
        // A number that becomes new meanwhile is held back separately.
        assert_eq!(shown(&mut account, &usage(6, 1)), (0, 0, 0));
        account.note_scrape(114);
        account.reveal(115, both);
        assert_eq!(shown(&mut account, &usage(7, 2)), (7, 0, 0));
    }

    #[test]
    fn a_row_that_comes_back_begins_where_it_was() {
        let mut account = ZeroFirst::hold(&usage(100, 7));
        assert_eq!(shown(&mut account, &usage(105, 9)), (100, 7, 7));
        assert_eq!(account.save(), None, "another agent must not show zero");
        account.note_scrape(1);
        account.reveal(2, AT_ONCE);
        assert_eq!(shown(&mut account, &usage(106, 9)), (106, 9, 9));
    }

    #[test]
    fn where_it_is_off_nothing_is_held() {
        let mut account = ZeroFirst::off();
        assert_eq!(shown(&mut account, &usage(5, 1)), (5, 1, 1));
        account.note_scrape(1);
        assert!(!account.is_awaited(2));
        assert_eq!(account.save(), None);
    }
}
