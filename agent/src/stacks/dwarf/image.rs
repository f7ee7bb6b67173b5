//! Reads a file by the addresses of its segments.

use crate::stacks::read_at::{Extent, ReadAt, read_up_to};

/// A mapped segment of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Segment {
    pub(super) extent: Extent,
    pub(super) address: u64,
    pub(super) is_code: bool,
}

/// A file and its segments.
#[derive(Debug)]
pub(super) struct Image<'a, F: ?Sized> {
    pub(super) file: &'a F,
    pub(super) segments: &'a [Segment],
}

/// The reason why there is no rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Miss {
    /// The file has no rule there, or one that is not understood.
    NoRule,
    /// The file ends too early or cannot be read.
    Unreadable,
}

impl<F: ReadAt + ?Sized> Image<'_, F> {
    /// Reads `length` bytes at `address`.
    pub(super) fn read(&self, address: u64, length: u64) -> Result<Vec<u8>, Miss> {
        let bytes = self.read_some(address, length)?;
        if bytes.len() as u64 == length { Ok(bytes) } else { Err(Miss::NoRule) }
    }

    /// Reads at most `most` bytes at `address`, up to the end of the segment.
    pub(super) fn read_some(&self, address: u64, most: u64) -> Result<Vec<u8>, Miss> {
        let place = |segment: &Segment| {
            let at = address.checked_sub(segment.address).filter(|at| *at < segment.extent.size)?;
            Some((segment.extent.offset.checked_add(at)?, most.min(segment.extent.size - at)))
        };
        let (offset, length) = self.segments.iter().find_map(place).ok_or(Miss::NoRule)?;
        let mut bytes = vec![0; usize::try_from(length).ok().ok_or(Miss::NoRule)?];
        if read_up_to(self.file, offset, &mut bytes) == bytes.len() { Ok(bytes) } else { Err(Miss::Unreadable) }
    }
}
