//! The kernel's functions, kept in memory: a look into `/proc/kallsyms` takes tens of milliseconds.

use std::{
    collections::HashSet,
    sync::Arc,
    time::{Duration, Instant},
};

use tracing::debug;

use crate::kernel::symbols::{KernelFunctions, modules};

/// Addresses that may have got another function since are a reason to read again, this often at most.
const READ_AGAIN_AFTER: Duration = Duration::from_secs(60);
/// Such addresses are remembered up to this many.
const MOST_UNSURE: usize = 4_096;

/// The table that was read last, and what speaks against it.
#[derive(Debug, Default)]
pub(super) struct KnownFunctions {
    table: Arc<KernelFunctions>,
    /// The kernel's modules then, and when.
    read: Option<(String, Instant)>,
    /// Addresses that were met in what comes and goes, and whether any is new since the table was read.
    unsure: HashSet<u64>,
    unsure_is_new: bool,
}

impl KnownFunctions {
    /// As it was read last.
    pub(super) const fn table(&self) -> &Arc<KernelFunctions> {
        &self.table
    }

    /// Takes in the addresses of a stack.
    pub(super) fn meet(&mut self, kernel: &[u64]) {
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

    /// Reads the table again if it may have changed. Says whether it has.
    pub(super) fn learn(&mut self) -> bool {
        let modules = modules();
        let holds = self.read.as_ref().is_some_and(|(then, read)| {
            let may_differ = self.unsure_is_new || self.table.is_empty();
            *then == modules && !(may_differ && read.elapsed() >= READ_AGAIN_AFTER)
        });
        if holds {
            return false;
        }
        // What cannot be read is hidden: the part `stacks` says so.
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
