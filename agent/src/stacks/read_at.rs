//! Reads untrusted files piece by piece. They are never mapped, because truncating a mapped file kills its reader.

use std::{fs::File, io};

/// A source of bytes.
pub(super) trait ReadAt {
    /// Reads as [`std::os::unix::fs::FileExt::read_at`] does.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize>;
}

impl ReadAt for File {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        std::os::unix::fs::FileExt::read_at(self, buffer, offset)
    }
}

impl ReadAt for [u8] {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let rest = usize::try_from(offset).ok().and_then(|offset| self.get(offset..)).unwrap_or_default();
        let length = rest.len().min(buffer.len());
        buffer[..length].copy_from_slice(&rest[..length]);
        Ok(length)
    }
}

/// Reads exactly `length` bytes; returns `None` if there are fewer.
pub(super) fn read_exact(file: &(impl ReadAt + ?Sized), offset: u64, length: u64) -> Option<Vec<u8>> {
    let mut bytes = vec![0; usize::try_from(length).ok()?];
    (read_up_to(file, offset, &mut bytes) == bytes.len()).then_some(bytes)
}

/// Fills `buffer` up to the end of the file or the first error; returns the number of bytes.
pub(super) fn read_up_to(file: &(impl ReadAt + ?Sized), offset: u64, buffer: &mut [u8]) -> usize {
    let mut filled = 0;
    while filled < buffer.len() {
        let Some(at) = offset.checked_add(filled as u64) else { break };
        match file.read_at(&mut buffer[filled..], at) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => break,
        }
    }
    filled
}

/// Returns a little-endian number of `size` bytes; zero if `bytes` is too short.
pub(super) fn number(bytes: &[u8], at: usize, size: usize) -> u64 {
    let part = at.checked_add(size).and_then(|end| bytes.get(at..end)).unwrap_or_default();
    part.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// A part of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Extent {
    pub(super) offset: u64,
    pub(super) size: u64,
}
