//! The kernel's functions, kept in memory: reading `/proc/kallsyms` takes tens of milliseconds.

use std::{
    collections::HashSet,
    sync::Arc,
    time::{Duration, Instant},
};

use tracing::debug;

use crate::kernel::symbols::{KernelFunctions, modules};

/// The shortest time between two reads of the table because of addresses whose function may have changed.
const READ_AGAIN_AFTER: Duration = Duration::from_secs(60);
/// The largest number of such addresses that are remembered.
const MOST_UNSURE: usize = 4_096;

/// The last table, and the addresses for which it may be outdated.
#[derive(Debug, Default)]
pub(super) struct KnownFunctions {
    table: Arc<KernelFunctions>,
    /// The kernel's modules at the last read, and its time.
    read: Option<(Vec<u8>, Instant)>,
    /// Addresses in code that may be unloaded, and a flag for new ones since the last read.
    unsure: HashSet<u64>,
    unsure_is_new: bool,
}

impl KnownFunctions {
    /// Returns the table of the last read.
    pub(super) const fn table(&self) -> &Arc<KernelFunctions> {
        &self.table
    }

    /// Notes the addresses of a stack.
    pub(super) fn note(&mut self, kernel: &[u64]) {
        if self.table.is_empty() {
            return;
        }
        for address in kernel.iter().filter(|address| !self.table.is_sure_of(**address)) {
            if self.unsure.len() >= MOST_UNSURE {
                self.unsure.clear();
            }
            self.unsure_is_new |= self.unsure.insert(*address);
        }
    }

    /// Reads the table again if it may have changed. Returns whether it has changed.
    pub(super) fn learn(&mut self) -> bool {
        let modules = modules();
        let holds = self.read.as_ref().is_some_and(|(then, read)| {
            let may_differ = self.unsure_is_new || self.table.is_empty();
            *then == modules && !(may_differ && read.elapsed() >= READ_AGAIN_AFTER)
        });
        if holds {
            return false;
        }
        // The collector reports an empty table in the status part `stacks`.
        let table = KernelFunctions::read().unwrap_or_else(|error| {
            debug!(%error, "no kernel symbols");
            KernelFunctions::default()
        });
        self.read = Some((modules, Instant::now()));
        self.unsure_is_new = false;
        let has_changed = table != *self.table;
        if has_changed {
            self.table = Arc::new(table);
        }
        has_changed
    }
}
