//! The totals of counters over many scrapes, including series that have ended. Pure.

use std::collections::BTreeMap;

use podperf_tests::agent::{Metrics, Sample};

/// Counters' totals, ended series included.
#[derive(Clone, Debug, Default)]
pub struct Account {
    /// The values of the last scrape, by family and labels.
    live: BTreeMap<Key, f64>,
    /// The last values of series that have ended.
    ended: BTreeMap<Key, f64>,
    fell: Vec<String>,
}

/// The family and the labels.
type Key = (String, BTreeMap<String, String>);

impl Account {
    /// Adds a scrape. Scrapes must be frequent enough to see the last value of each series.
    pub fn add(&mut self, metrics: &Metrics) {
        let counters = metrics.samples().iter().filter(|sample| sample.name.ends_with("_total"));
        let live: BTreeMap<Key, f64> = counters.map(of).collect();
        for (key, before) in std::mem::take(&mut self.live) {
            match live.get(&key) {
                Some(now) if *now < before => self.fell.push(format!("{}{:?}: {before} to {now}", key.0, key.1)),
                Some(_) => {}
                None => *self.ended.entry(key).or_default() += before,
            }
        }
        self.live = live;
    }

    /// Returns the total of a family's series whose labels are `wanted`.
    pub fn sum(&self, family: &str, wanted: impl Fn(&BTreeMap<String, String>) -> bool) -> f64 {
        let all = self.live.iter().chain(&self.ended);
        all.filter(|((name, labels), _)| name == family && wanted(labels)).map(|(_, value)| value).sum()
    }

    /// Returns the number of series that have ended.
    #[must_use]
    pub fn ended(&self) -> usize {
        self.ended.len()
    }

    /// Returns the counters whose value fell.
    #[must_use]
    pub fn fell(&self) -> &[String] {
        &self.fell
    }
}

fn of(sample: &Sample) -> (Key, f64) {
    ((sample.name.clone(), sample.labels.clone()), sample.value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn account(scrapes: &[&str]) -> Account {
        let mut account = Account::default();
        scrapes.iter().for_each(|text| account.add(&Metrics::parse(text)));
        account
    }

    #[test]
    fn what_has_ended_stays_counted() {
        let account = account(&["a_total{c=\"x\"} 1\na_total{c=\"y\"} 2\n", "a_total{c=\"x\"} 3\n"]);
        assert!((account.sum("a_total", |_| true) - 5.0).abs() < 1e-9 && account.ended() == 1);
        assert!((account.sum("a_total", |labels| labels["c"] == "x") - 3.0).abs() < 1e-9);
        assert!(account.fell().is_empty());
    }

    #[test]
    fn a_counter_that_falls_is_named() {
        let account = account(&["a_total 2\nb 2\n", "a_total 1\nb 1\n"]);
        assert_eq!(account.fell(), ["a_total{}: 2 to 1"]);
    }
}
