//! Counts of frames with names, and of frames without names by cause; the time in BPF programs.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use super::{bpf_programs::BpfProgram, unread::FrameOwner};
use crate::model::labelled::Labelled;

/// The reason why a frame has no name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum Cause {
    /// The process had ended before its mappings were read.
    ProcessGone,
    /// No code is mapped at the address.
    NoMapping,
    /// The file, or the JIT compiler's map, has no function at the address: it is stripped.
    NoSymbol,
    /// The file cannot be read, or there was no time to read it.
    FileUnreadable,
}

impl Cause {
    /// All causes, in the order of [`SymbolStats::unsymbolized`].
    pub const ALL: [Self; 4] = [Self::ProcessGone, Self::NoMapping, Self::NoSymbol, Self::FileUnreadable];

    /// Returns the label value in metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.into()
    }
}

/// Numbers of frames with and without names so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SymbolStats {
    /// Frames with a name.
    pub symbolized: u64,
    /// Frames without a name, in the order of [`Cause::ALL`].
    pub unsymbolized: [u64; Cause::ALL.len()],
}

impl SymbolStats {
    /// Counts a frame.
    pub(super) fn count(&mut self, outcome: Result<(), Cause>) {
        match outcome {
            Ok(()) => self.symbolized += 1,
            Err(cause) => self.unsymbolized[cause as usize] += 1,
        }
    }
}

/// The counts of a symbolizer. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct SymbolCounts(Arc<(AtomicU64, [AtomicU64; Cause::ALL.len()])>, Labelled<FrameOwner>, Labelled<BpfProgram>);

impl SymbolCounts {
    /// Returns the current counts.
    #[must_use]
    pub fn stats(&self) -> SymbolStats {
        let (symbolized, unsymbolized) = &*self.0;
        SymbolStats {
            symbolized: symbolized.load(Ordering::Relaxed),
            unsymbolized: unsymbolized.each_ref().map(|count| count.load(Ordering::Relaxed)),
        }
    }

    /// Returns the frames of [`Cause::FileUnreadable`], by pod or row of cgroups.
    #[must_use]
    pub const fn unread(&self) -> &Labelled<FrameOwner> {
        &self.1
    }

    /// Returns the time on the CPU in BPF programs of the node, by name, in nanoseconds.
    #[must_use]
    pub const fn programs(&self) -> &Labelled<BpfProgram> {
        &self.2
    }

    /// Adds the frames of a stack.
    pub(super) fn add(&self, stats: &SymbolStats) {
        let (symbolized, unsymbolized) = &*self.0;
        symbolized.fetch_add(stats.symbolized, Ordering::Relaxed);
        for (count, more) in unsymbolized.iter().zip(stats.unsymbolized) {
            count.fetch_add(more, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_cause_has_its_own_count() {
        let counts = SymbolCounts::default();
        let mut stats = SymbolStats::default();
        stats.count(Ok(()));
        for (times, cause) in Cause::ALL.into_iter().enumerate() {
            (0..times).for_each(|_| stats.count(Err(cause)));
        }
        counts.add(&stats);
        counts.add(&stats);
        assert_eq!(counts.stats(), SymbolStats { symbolized: 2, unsymbolized: [0, 2, 4, 6] });
    }
}
