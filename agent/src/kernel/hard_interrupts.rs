//! Reads the hard interrupts by name from the tables of the sensor `interrupts`. They are empty while it is off.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
};

use podperf_ebpf::abi;

use super::{
    object::{Object, fd},
    raw::{self, Then},
};
use crate::model::hard_interrupts::{Handled, HardInterrupts};

/// The sensor that counts them.
pub(super) const SENSOR: &str = "interrupts";
/// The table of the handlers, which have names, and the sums of those without room in it.
const NAMED: &str = "interrupts_named";
const UNNAMED: &str = "interrupts_unnamed";

/// The hard interrupts of a series of agents.
#[derive(Debug, Default)]
pub(super) struct ByName {
    /// Sums that are no longer in any table.
    base: HardInterrupts,
    /// The names with sums of their own.
    known: BTreeSet<String>,
}

impl ByName {
    /// Adds sums that are no longer in any table, which are among `totals`. The names in `known` keep their own sums.
    pub(super) fn restore(&mut self, totals: &BTreeMap<String, u64>, known: BTreeSet<String>) {
        self.known = known;
        self.base = HardInterrupts::of_numbers(totals).bounded(&mut self.known);
    }

    /// Returns the sums that are no longer in any table.
    pub(super) const fn base(&self) -> &HardInterrupts {
        &self.base
    }

    /// Reads the sums of these programs, and adds those of earlier ones.
    pub(super) fn read(&mut self, object: &Object, copies: usize) -> io::Result<HardInterrupts> {
        let mut sums = read(object, copies)?;
        sums.add_all(&self.base);
        Ok(sums.bounded(&mut self.known))
    }
}

/// Reads the sums of the object's programs. Programs of older versions have none.
pub(super) fn read(object: &Object, copies: usize) -> io::Result<HardInterrupts> {
    let mut sums = HardInterrupts::default();
    if object.map(NAMED).is_none() || object.map(UNNAMED).is_none() {
        return Ok(sums);
    }
    raw::read_all(fd(object, NAMED)?, copies, Then::Keep, |_: abi::podperf_interrupt_handler, copies| {
        sums.add(name(copies), handled(copies));
    })?;
    raw::read_all(fd(object, UNNAMED)?, copies, Then::Keep, |_: u32, copies| sums.add(b"", handled(copies)))?;
    Ok(sums)
}

/// Returns the name, which the CPU has that made the entry.
fn name(copies: &[abi::podperf_hard_interrupts]) -> &[u8] {
    let mut names = copies.iter().map(|copy| copy.name.as_slice());
    names.find(|name| name.first().is_some_and(|byte| *byte != 0)).unwrap_or_default()
}

fn handled(copies: &[abi::podperf_hard_interrupts]) -> Handled {
    Handled { count: copies.iter().map(|copy| copy.count).sum(), ns: copies.iter().map(|copy| copy.ns).sum() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_has_the_name_of_one_cpu_and_the_sums_of_all() {
        let mut first: abi::podperf_hard_interrupts = bytemuck::Zeroable::zeroed();
        (first.count, first.ns) = (3, 30);
        let mut second = first;
        second.name[..5].copy_from_slice(b"timer");
        assert_eq!(name(&[first, second]), second.name);
        assert_eq!(handled(&[first, second]), Handled { count: 6, ns: 60 });
        assert_eq!((name(&[]), handled(&[])), (b"".as_slice(), Handled::default()));
    }
}
