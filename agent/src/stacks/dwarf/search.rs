//! Finds the frame description entry (FDE) of an address and its rule.

use super::{
    bytes::Bytes,
    frame_entry::{Bases, Encoding, Entry, MAX_ENTRY, size},
    image::{Image, Miss},
    instructions,
    machine::Machine,
    rule::Rule,
};
use crate::stacks::read_at::ReadAt;

/// The bytes of the first read of an entry. Nine in ten entries of `node` are shorter.
const ENTRY: usize = 256;
/// The number of entries of the search table that are read at once.
const FEW: u64 = 128;
/// The most bytes of `.eh_frame` that are read when there is no search table.
const MAX_SECTION: u64 = 4 << 20;

/// The search table of `.eh_frame_hdr`: pairs of a function's address and its FDE's address, in ascending order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SearchTable {
    /// The address of `.eh_frame_hdr`, which is the base of the pairs.
    header: u64,
    /// The address of the first pair.
    pairs: u64,
    count: u64,
    /// The format of the pairs' numbers, and their size in bytes.
    encoding: Encoding,
    size: u64,
}

/// Reads `.eh_frame_hdr` at `address`. Returns its search table, if it has one, and the address of `.eh_frame`.
pub(super) fn header<F: ReadAt + ?Sized>(image: &Image<'_, F>, address: u64) -> Option<(Option<SearchTable>, u64)> {
    let bytes = image.read(address, 32).ok()?;
    let mut bytes = Bytes::new(&bytes);
    let bases = Bases { start: address, data: Some(address) };
    let (version, section) = (bytes.u8()?, Encoding(bytes.u8()?));
    let (count, pairs) = (Encoding(bytes.u8()?), Encoding(bytes.u8()?));
    if version != 1 {
        return None;
    }
    let section = section.pointer(&mut bytes, bases)?;
    let count = count.pointer(&mut bytes, bases);
    // DW_EH_PE_datarel with udata4, sdata4, udata8 or sdata8. Linkers write sdata4.
    let size = match pairs.0 {
        0x33 | 0x3b => 4,
        0x34 | 0x3c => 8,
        _ => return Some((None, section)),
    };
    let table = count.filter(|count| *count < 1 << 32).map(|count| SearchTable {
        header: address,
        pairs: address.wrapping_add(bytes.position()),
        count,
        encoding: pairs,
        size,
    });
    Some((table, section))
}

impl SearchTable {
    #[cfg(test)]
    pub(super) fn count(&self) -> u64 {
        self.count
    }

    /// Returns the rule of `address`.
    pub(super) fn rule<F: ReadAt + ?Sized>(
        &self,
        image: &Image<'_, F>,
        machine: Machine,
        address: u64,
    ) -> Result<Rule, Miss> {
        let (mut low, mut high) = (0, self.count);
        // The pair of the address is at `low` or behind, and before `high`. There are at most 32 rounds.
        while high - low > FEW {
            let middle = low + (high - low) / 2;
            let pair = image.read(self.at(middle), self.size)?;
            if self.address(&mut Bytes::new(&pair))? <= address { low = middle } else { high = middle }
        }
        let pairs = image.read(self.at(low), (high - low) * 2 * self.size)?;
        let mut pairs = Bytes::new(&pairs);
        let mut entry = None;
        while !pairs.is_empty() {
            let (start, at) = (self.address(&mut pairs)?, self.address(&mut pairs)?);
            if start > address {
                break;
            }
            entry = Some(at);
        }
        let at = entry.ok_or(Miss::NoRule)?;
        let bytes = read_entry(image, at)?;
        let entry = Entry::new(&bytes, at).ok_or(Miss::NoRule)?;
        let at = entry.cie_address().ok_or(Miss::NoRule)?;
        let bytes = read_entry(image, at)?;
        let cie = Entry::new(&bytes, at).and_then(|cie| cie.cie(machine)).ok_or(Miss::NoRule)?;
        let fde = entry.fde(&cie).filter(|fde| fde.covers(address)).ok_or(Miss::NoRule)?;
        instructions::rule(machine, &cie, &fde, address).ok_or(Miss::NoRule)
    }

    /// Returns the address of a pair.
    pub(super) fn at(&self, index: u64) -> u64 {
        self.pairs.wrapping_add(index * 2 * self.size)
    }

    /// Reads one half of a pair.
    pub(super) fn address(&self, bytes: &mut Bytes<'_>) -> Result<u64, Miss> {
        let number = self.encoding.number(bytes).ok_or(Miss::NoRule)?;
        Ok(self.header.wrapping_add(number))
    }
}

/// Reads the entry at `address`, usually at once.
fn read_entry<F: ReadAt + ?Sized>(image: &Image<'_, F>, address: u64) -> Result<Vec<u8>, Miss> {
    let bytes = image.read_some(address, ENTRY as u64)?;
    let size = size(&bytes).filter(|size| *size <= MAX_ENTRY).ok_or(Miss::NoRule)?;
    if size <= bytes.len() { Ok(bytes) } else { image.read(address, size as u64) }
}

/// Returns the rule of `address` from the section itself, which begins at `start`. All its entries are looked at, except
/// those that are too long.
pub(super) fn rule_in_section<F: ReadAt + ?Sized>(
    image: &Image<'_, F>,
    machine: Machine,
    (start, length): (u64, u64),
    address: u64,
) -> Result<Rule, Miss> {
    let section = image.read_some(start, length.min(MAX_SECTION))?;
    let in_section = |at: u64| section.get(usize::try_from(at.checked_sub(start)?).ok()?..);
    let (mut at, mut last) = (start, None);
    while let Some(size) = in_section(at).and_then(size) {
        let entry = in_section(at).and_then(|bytes| Entry::new(bytes, at)).ok_or(Miss::NoRule)?;
        // A sequence of FDEs usually has one CIE.
        if let Some(cie_at) = entry.cie_address().filter(|_| size <= MAX_ENTRY) {
            if last.as_ref().is_none_or(|(at, _)| *at != cie_at) {
                let cie = in_section(cie_at).and_then(|bytes| Entry::new(bytes, cie_at)?.cie(machine));
                last = Some((cie_at, cie));
            }
            let cie = last.as_ref().and_then(|(_, cie)| cie.as_ref());
            let fde = cie.and_then(|cie| entry.fde(cie).filter(|fde| fde.covers(address)));
            if let (Some(cie), Some(fde)) = (cie, fde) {
                return instructions::rule(machine, cie, &fde, address).ok_or(Miss::NoRule);
            }
        }
        at = at.checked_add(size as u64).ok_or(Miss::NoRule)?;
    }
    Err(Miss::NoRule)
}
