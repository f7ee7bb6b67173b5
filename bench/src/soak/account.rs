//! What counters have counted over many scrapes, also those whose series have ended meanwhile. Pure.

use std::collections::BTreeMap;

use podperf_tests::agent::{Metrics, Sample};

/// Counters' totals, ended series included.
#[derive(Clone, Debug, Default)]
pub struct Account {
    /// Of the last scrape: by family and labels.
    live: BTreeMap<Key, f64>,
    /// Of series that are gone, with what they had last.
    ended: BTreeMap<Key, f64>,
    fell: Vec<String>,
}

/// A family, and the row.
type Key = (String, BTreeMap<String, String>);

impl Account {
    /// Takes in a scrape. They must come often enough for each series to be seen at its end.
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

    /// What the series of a family have counted that are `wanted` by their labels.
    pub fn sum(&self, family: &str, wanted: impl Fn(&BTreeMap<String, String>) -> bool) -> f64 {
        let all = self.live.iter().chain(&self.ended);
        all.filter(|((name, labels), _)| name == family && wanted(labels)).map(|(_, value)| value).sum()
    }

    /// How many series have ended.
    #[must_use]
    pub fn ended(&self) -> usize {
        self.ended.len()
    }

    /// Counters that fell.
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
