//! Looks up code that was made at run time. Only HotSpot says how large its frames are.

use std::sync::Arc;

use super::Code;
use crate::{
    kernel::clock::thread_cpu,
    stacks::{
        dwarf::Found,
        elf::Elf,
        elf_symbols::exported_word,
        files::{Watched, open_memory},
        hotspot::{FIELDS_SYMBOL, Frame, HotSpot},
        reader::Place,
    },
};

/// The most addresses in such code that are remembered while copies are unwound together.
const MOST_FRAMES: usize = 4096;

impl<'a> Code<'a> {
    /// Returns the frame of the function at an address.
    pub(super) fn made_at_run_time(&mut self, address: u64) -> Option<Found> {
        let frame = match self.space.frames.get(&address) {
            Some(frame) => *frame,
            None => {
                let Some(machine) = self.machine()? else { return Some(Found::NoFile) };
                let frame = machine.frame(self.memory()?, address)?;
                if self.space.frames.len() < MOST_FRAMES {
                    self.space.frames.insert(address, frame);
                }
                frame
            }
        };
        Some(match frame {
            Frame::Words(words) => Found::Words(words),
            Frame::Interpreted => Found::Interpreted,
            Frame::Other => Found::NoFile,
        })
    }

    /// Returns the virtual machine of the process, or the inner `None` if there is none, or if its memory cannot be read.
    fn machine(&mut self) -> Option<Option<Arc<HotSpot>>> {
        if let Some(known) = &self.space.hotspot {
            return Some(known.clone());
        }
        let found = self.space.machine().and_then(|at| self.machine_in(at));
        // A machine that could not be read in time may be there.
        if found.is_none() && (thread_cpu() >= self.until || self.pulse.beat().is_err()) {
            return None;
        }
        self.space.hotspot = Some(found.clone());
        Some(found)
    }

    fn machine_in(&mut self, at: usize) -> Option<Arc<HotSpot>> {
        let vma = self.space.vmas.get(at)?;
        let (start, offset) = (vma.start, vma.offset);
        let file = self.file(at)?;
        let elf = Elf::parse(file)?;
        let pointer = exported_word(&elf, file, FIELDS_SYMBOL)?;
        let pointer = start.wrapping_add(pointer).wrapping_sub(elf.address(offset)?);
        HotSpot::read(self.memory()?, pointer).map(Arc::new)
    }

    /// Returns the memory of the process; `None` if it cannot be opened, or if no time is left.
    fn memory(&mut self) -> Option<&Watched<'a>> {
        if thread_cpu() >= self.until {
            return None;
        }
        self.pulse.at(Place::Own);
        if self.memory.is_none() {
            self.pulse.beat().ok()?;
            self.memory = Some(Watched { file: open_memory(self.pid).ok()?, pulse: self.pulse });
        }
        self.memory.as_ref()
    }
}
