//! Tracks the scrapers and their intervals: the first zero of a series is shown to each scraper. Pure.

use std::{
    net::IpAddr,
    time::{Duration, Instant},
};

use crate::attribution::Scrapes;

/// The largest number of remembered scrapers. Beyond it, a scraper that came only once is forgotten, or else the one
/// that was silent for the longest time.
const MOST: usize = 16;
/// The longest time for which a zero is shown.
const LONGEST_HOLD: Duration = Duration::from_secs(60);

/// The scrapers, by address.
#[derive(Debug, Default)]
pub(super) struct Scrapers(Vec<Scraper>);

#[derive(Debug)]
struct Scraper {
    address: IpAddr,
    last: Instant,
    /// The time between its last two scrapes; `None` after the first.
    every: Option<Duration>,
}

impl Scrapers {
    /// Notes a scrape.
    pub(super) fn note(&mut self, address: IpAddr, now: Instant) {
        if let Some(scraper) = self.0.iter_mut().find(|scraper| scraper.address == address) {
            scraper.every = Some(now.saturating_duration_since(scraper.last));
            scraper.last = now;
            return;
        }
        if self.0.len() == MOST
            && let Some(silent) = self
                .0
                .iter()
                .enumerate()
                .min_by_key(|(_, scraper)| (scraper.every.is_some(), scraper.last))
                .map(|(at, _)| at)
        {
            self.0.swap_remove(silent);
        }
        self.0.push(Scraper { address, last: now, every: None });
    }

    /// Returns how long a zero is shown after its first scrape: the longest interval of the scrapers. With a single
    /// scraper the time is zero, because that scraper has seen the zero. A scraper that was silent for two of its
    /// intervals does not count.
    pub(super) fn scrapes(&self, now: Instant) -> Scrapes {
        let scrapes = |scraper: &Scraper| {
            scraper.every.filter(|every| now.saturating_duration_since(scraper.last) <= every.saturating_mul(2))
        };
        let intervals: Vec<_> = self.0.iter().filter_map(scrapes).collect();
        let longest = intervals.iter().max().copied().unwrap_or_default().min(LONGEST_HOLD);
        let longest_ns = u64::try_from(longest.as_nanos()).unwrap_or(u64::MAX);
        Scrapes { hold_ns: if intervals.len() < 2 { 0 } else { longest_ns }, longest_ns }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hold(scrapers: &Scrapers, now: Instant) -> Duration {
        Duration::from_nanos(scrapers.scrapes(now).hold_ns)
    }

    const fn second(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn address(last: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, last])
    }

    #[test]
    fn one_scraper_waits_for_nobody() {
        let (mut scrapers, start) = (Scrapers::default(), Instant::now());
        for at in 0..5 {
            scrapers.note(address(1), start + second(15 * at));
            assert_eq!(hold(&scrapers, start + second(15 * at)), Duration::ZERO);
        }
        // A client that scrapes only once is no scraper.
        scrapers.note(address(2), start + second(61));
        assert_eq!(hold(&scrapers, start + second(62)), Duration::ZERO);
        assert_eq!(scrapers.scrapes(start + second(62)).longest_ns, 15_000_000_000);
    }

    #[test]
    fn of_two_scrapers_the_slower_one_is_waited_for_while_it_comes() {
        let (mut scrapers, start) = (Scrapers::default(), Instant::now());
        for at in [0, 15, 30] {
            scrapers.note(address(1), start + second(at));
        }
        for at in [7, 27] {
            scrapers.note(address(2), start + second(at));
        }
        assert_eq!(hold(&scrapers, start + second(31)), second(20));
        for at in [45, 60, 75] {
            scrapers.note(address(1), start + second(at));
        }
        assert_eq!(hold(&scrapers, start + second(76)), Duration::ZERO, "the other one has gone");
        scrapers.note(address(2), start + second(3600));
        scrapers.note(address(1), start + second(3600));
        assert_eq!(hold(&scrapers, start + second(3601)), LONGEST_HOLD);
    }

    #[test]
    fn many_addresses_take_no_room() {
        let (mut scrapers, start) = (Scrapers::default(), Instant::now());
        for last in 0..=255 {
            scrapers.note(address(last), start + second(last.into()));
        }
        assert_eq!(scrapers.0.len(), MOST);
        assert!(scrapers.0.iter().any(|scraper| scraper.address == address(255)));
        for at in [300, 315] {
            scrapers.note(address(1), start + second(at));
            scrapers.note(address(2), start + second(at));
        }
        for last in 10..=255 {
            scrapers.note(address(last), start + second(316));
        }
        assert_eq!(hold(&scrapers, start + second(317)), second(15), "those who come once take nobody's place");
    }
}
