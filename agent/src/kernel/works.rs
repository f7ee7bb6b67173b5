//! The counts of the sensor `workqueues` by function: reads them, and finds the names of the functions. The addresses
//! of functions do not leave this file.

use std::{
    collections::HashMap,
    io,
    time::{Duration, Instant},
};

use podperf_ebpf::abi;
use tracing::debug;

use super::{
    object::{Object, fd},
    raw::{self, Then},
    symbols,
};
use crate::model::works::{Work, WorkCounts};

/// The map of counts by the address of the function.
const FUNCTIONS: &str = "workqueues_functions";
/// The key of the counts of all functions without an entry.
const OTHERS: u64 = abi::PODPERF_OTHER_FUNCTIONS as u64;
/// The setting of the sensor with the largest number of series.
pub(super) const MAX_FUNCTIONS: &str = "sensors.workqueues.maxFunctions";
/// The shortest time between two reads of the kernel's symbols, which take tens of milliseconds.
const LOOK_AGAIN_AFTER: Duration = Duration::from_secs(10);

/// The counts so far, and the names of functions.
#[derive(Debug, Default)]
pub(super) struct Works {
    counts: WorkCounts,
    /// The kernel's counts at the last reading, by address.
    posted: HashMap<u64, abi::podperf_work>,
    /// The names by address; `None` for a function that the kernel does not name.
    names: HashMap<u64, Option<String>>,
    /// The time of the last read of the kernel's symbols.
    looked: Option<Instant>,
}

impl Works {
    /// Returns counts with series for at most this many functions.
    pub(super) fn at_most(functions: u64) -> Self {
        Self { counts: WorkCounts::at_most(usize::try_from(functions).unwrap_or(usize::MAX)), ..Self::default() }
    }

    /// Returns the counts, which grow with each reading.
    pub(super) fn counts(&self) -> WorkCounts {
        self.counts.clone()
    }

    /// Adds what the kernel has counted since the last reading. The counts of a new function wait for its name.
    pub(super) fn read(&mut self, object: &Object) -> io::Result<()> {
        let mut found = Vec::new();
        raw::read_all(fd(object, FUNCTIONS)?, 1, Then::Keep, |function: u64, counts: &[abi::podperf_work]| {
            found.extend(counts.first().map(|counts| (function, *counts)));
        })?;
        // The first functions have series. An agent that restarts finds them in the same order, and no sum falls.
        found.sort_by_key(|(function, counts)| (counts.since_ns, *function));
        self.find_names(&found);
        self.post(&found);
        Ok(())
    }

    /// Reads the kernel's symbols if a function is new. All names are read again, since the function of a module that
    /// was unloaded may have left its address to another one.
    fn find_names(&mut self, found: &[(u64, abi::podperf_work)]) {
        let is_new = |(function, _): &(u64, _)| *function != OTHERS && !self.names.contains_key(function);
        let is_early = self.looked.is_some_and(|looked| looked.elapsed() < LOOK_AGAIN_AFTER);
        if is_early || !found.iter().any(is_new) {
            return;
        }
        let mut names = found.iter().map(|(function, _)| (*function, None)).collect();
        if let Err(error) = symbols::name_starts(&mut names) {
            debug!(%error, "no kernel symbols");
        }
        self.names = names;
        self.looked = Some(Instant::now());
    }

    fn post(&mut self, found: &[(u64, abi::podperf_work)]) {
        for (function, counts) in found {
            let name = match self.names.get(function) {
                Some(name) => name.as_deref(),
                None if *function == OTHERS => None,
                None => continue,
            };
            let posted = self.posted.insert(*function, *counts);
            self.counts.add(name, growth(counts, &posted.unwrap_or_else(bytemuck::Zeroable::zeroed)));
        }
    }
}

/// Returns what was counted since an earlier reading. The kernel adds to one number after the other.
fn growth(counts: &abi::podperf_work, posted: &abi::podperf_work) -> Work {
    Work {
        runs: counts.runs.saturating_sub(posted.runs),
        ns: counts.ns.saturating_sub(posted.ns),
        waits: counts.waits.saturating_sub(posted.waits),
        waited_ns: counts.waited_ns.saturating_sub(posted.waited_ns),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMED: u64 = 0xffff_ffff_8100_0100;
    const NAMELESS: u64 = 0xffff_ffff_c000_0100;
    const NEW: u64 = 0xffff_ffff_8100_0200;

    fn sums(works: &Works) -> Vec<(String, Work)> {
        works.counts().sums().into_iter().map(|(function, work)| (function.name().to_owned(), work)).collect()
    }

    #[test]
    fn counts_are_added_under_names_and_an_address_without_one_is_of_the_rest() {
        let names = HashMap::from([(NAMED, Some("flush".to_owned())), (NAMELESS, None)]);
        let mut works = Works { names, ..Works::default() };
        // One item of each address was a barrier.
        let counts =
            |runs: u64, ns| abi::podperf_work { runs, ns, since_ns: 0, waits: runs - 1, waited_ns: 3 * (runs - 1) };
        works.post(&[(NAMED, counts(2, 30)), (NAMELESS, counts(1, 5)), (NEW, counts(7, 70))]);
        let sum = |name: &str, runs: u64, ns, barriers: u64| {
            let (waits, waited_ns) = (runs - barriers, 3 * (runs - barriers));
            (name.to_owned(), Work { runs, ns, waits, waited_ns })
        };
        assert_eq!(sums(&works), [sum("(other)", 1, 5, 1), sum("flush", 2, 30, 1)]);
        // The counts of the new function have waited for its name.
        works.names.insert(NEW, Some("sync".to_owned()));
        works.post(&[(OTHERS, counts(4, 40)), (NAMED, counts(3, 50)), (NEW, counts(8, 80))]);
        assert_eq!(sums(&works), [sum("(other)", 5, 45, 2), sum("flush", 3, 50, 1), sum("sync", 8, 80, 1)]);
    }
}
