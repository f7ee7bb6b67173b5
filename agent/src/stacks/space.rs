//! The executable mappings of a process, and the unwind tables of their files.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use super::{
    dwarf::Tables,
    hotspot::{self, HotSpot},
    maps::{Backing, Vma},
    process::{Life, read_vmas},
    reader::Pulse,
};
use crate::{kernel::clock::monotonic_ns, model::ids::Pid};

/// For an address in no mapping, mappings are not read again before this time. It doubles up to the longest while no new
/// mapping is found. After the longest time, mappings are read again anyway.
const SHORTEST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// The tables of a file, or the reason why it has none.
#[derive(Clone, Debug)]
pub(super) enum Known {
    /// A file with tables, and its number in the table of rules. Go's compiler keeps frame pointers in all functions.
    Tables { tables: Arc<Tables>, number: u64, is_go: bool },
    /// Not an ELF file of this machine: memory that a JIT compiler maps twice, for example. Or a file that cannot be
    /// opened.
    NoElf,
}

/// The executable mappings of a process.
#[derive(Debug)]
pub(super) struct Space {
    pub(super) program: [u64; 3],
    pub(super) vmas: Vec<Vma>,
    /// The tables of each mapping's file, once they were needed.
    pub(super) tables: Vec<Option<Known>>,
    /// The virtual machine in the process, once it was looked for. `None` if there is none.
    pub(super) hotspot: Option<Option<Arc<HotSpot>>>,
    /// The frames of its code by address, while copies are unwound together.
    pub(super) frames: HashMap<u64, hotspot::Frame>,
    /// `CLOCK_MONOTONIC` before the mappings were read, in nanoseconds.
    pub(super) read_ns: u64,
    /// The last attempt to read the mappings.
    tried: Instant,
    pub(super) pause: Duration,
}

impl Space {
    /// Reads the mappings of a process that runs this program; `None` if it has ended or runs another one.
    pub(super) fn read(pid: Pid, program: [u64; 3], pulse: &Pulse) -> Option<Self> {
        let (read_ns, tried) = (monotonic_ns(), Instant::now());
        let vmas = read_vmas(pid, || pulse.beat()).ok().filter(|vmas| !vmas.is_empty())?;
        // The life is read after the mappings: they belong to this program.
        Life::of(pid).filter(|life| life.may_be(program))?;
        let tables = vec![None; vmas.len()];
        let (hotspot, frames) = (None, HashMap::new());
        Some(Self { program, vmas, tables, hotspot, frames, read_ns, tried, pause: SHORTEST_PAUSE })
    }

    /// Returns the index of the mapping that has this address.
    pub(super) fn find(&self, address: u64) -> Option<usize> {
        let at = self.vmas.partition_point(|vma| vma.start <= address).checked_sub(1)?;
        self.vmas.get(at).is_some_and(|vma| address < vma.end).then_some(at)
    }

    /// Returns the index of the mapping of the virtual machine's library.
    pub(super) fn machine(&self) -> Option<usize> {
        let is_it = |vma: &Vma| match &vma.backing {
            Backing::File(file) => file.path.rsplit('/').next() == Some(hotspot::LIBRARY),
            Backing::Anonymous | Backing::Special(_) => false,
        };
        self.vmas.iter().position(is_it)
    }

    /// Reads the mappings again if that was not done for long.
    pub(super) fn refresh(&mut self, pid: Pid, pulse: &Pulse) {
        if self.tried.elapsed() >= LONGEST_PAUSE {
            self.read_again(pid, pulse);
        }
    }

    /// Reads the mappings again, unless that was done lately. Known files keep their tables.
    pub(super) fn read_again(&mut self, pid: Pid, pulse: &Pulse) {
        if self.tried.elapsed() < self.pause {
            return;
        }
        self.tried = Instant::now();
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        let Some(mut new) = Self::read(pid, self.program, pulse) else { return };
        for (vma, tables) in new.vmas.iter().zip(&mut new.tables) {
            let known = self.vmas.binary_search_by_key(&vma.start, |known| known.start).ok();
            let known = known.filter(|at| self.vmas.get(*at) == Some(vma));
            *tables = known.and_then(|at| self.tables.get(at).cloned().flatten());
        }
        // The fields of a machine stay where they are.
        let known = |space: &Self| space.machine().and_then(|at| space.vmas.get(at)).cloned();
        new.hotspot = self.hotspot.take().filter(|hotspot| hotspot.is_some() && known(&new) == known(self));
        if new.vmas != self.vmas {
            self.pause = SHORTEST_PAUSE;
        }
        new.pause = self.pause;
        *self = new;
    }

    /// Returns the approximate memory, in bytes.
    pub(super) fn cost(&self) -> usize {
        let path = |vma: &Vma| match &vma.backing {
            Backing::File(file) => file.path.len() + file.device.len(),
            Backing::Anonymous | Backing::Special(_) => 0,
        };
        // All that keep the tables of a file share their memory.
        let share = |known: &Option<Known>| match known {
            Some(Known::Tables { tables, .. }) => tables.cost() / Arc::strong_count(tables),
            Some(Known::NoElf) | None => 0,
        };
        let entry = size_of::<Vma>() + size_of::<Option<Known>>();
        let of_tables: usize = self.tables.iter().map(share).sum();
        size_of::<Self>() + of_tables + self.vmas.iter().map(|vma| entry + path(vma)).sum::<usize>()
    }
}
