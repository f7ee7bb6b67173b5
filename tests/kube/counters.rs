//! The counters of consecutive scrapes: none may fall, and no counter of a container may end before its grace is over.

use std::{
    collections::{BTreeMap, HashMap},
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use podperf_tests::{
    agent::{Metrics, Sample},
    cluster::SHOP,
};

/// All counters that were ever scraped, with their last values.
#[derive(Debug)]
pub(crate) struct Counters {
    since: Instant,
    grace: Duration,
    last: HashMap<Series, f64>,
}

type Series = (String, BTreeMap<String, String>);

impl Counters {
    /// Returns an empty set of counters. No series of a container may end before the grace is over.
    pub(crate) fn new(grace: Duration) -> Self {
        Self { since: Instant::now(), grace, last: HashMap::new() }
    }

    /// Adds a scrape and compares it with the previous one.
    ///
    /// # Errors
    ///
    /// When a counter has fallen, or a counter of a container is missing.
    pub(crate) fn take(&mut self, metrics: &Metrics) -> Result<()> {
        let before = std::mem::take(&mut self.last);
        for sample in metrics.samples().iter().filter(|sample| sample.name.ends_with("_total")) {
            let Sample { name, labels, value } = sample.clone();
            self.last.insert((name, labels), value);
        }
        let keeps = self.since.elapsed() < self.grace;
        for (series, value) in before {
            let now = self.last.get(&series).copied();
            ensure!(now.is_none_or(|now| now >= value), "{series:?} fell from {value} to {now:?}");
            let must_stay = keeps && series.0.starts_with("podperf_container_");
            ensure!(now.is_some() || !must_stay, "{series:?} is missing after {:?}", self.since.elapsed());
            self.last.entry(series).or_insert(value);
        }
        Ok(())
    }

    /// Returns the last value of a counter of namespace [`SHOP`].
    pub(crate) fn of_container(&self, name: &str, pod: &str, container: &str) -> Option<f64> {
        let labels = [("namespace", SHOP), ("pod", pod), ("container", container)];
        let labels = labels.map(|(label, value)| (label.to_owned(), value.to_owned())).into();
        self.last.get(&(name.to_owned(), labels)).copied()
    }
}
