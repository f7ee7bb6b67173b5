//! The symbols that are packed into a stripped file. In Fedora, RHEL and their relatives the section `.gnu_debugdata` has
//! a compressed file with the names of functions that are not exported ("MiniDebugInfo").
//!
//! The file is untrusted. The container (the format of `xz`, version 1.2.1) is read here, as far as `xz` writes it for one
//! block with one filter, so that the size of the data is known before it is unpacked. The integrity check is not
//! computed: damage gives no names, or wrong ones of this file.

use std::{cell::RefCell, io, io::Read as _};

use lzma_rust2::Lzma2Reader;

use super::{
    demangle::FunctionName,
    elf::Elf,
    elf_symbols,
    read_at::{Extent, ReadAt, read_exact},
};

/// The most packed bytes. A large program such as QEMU has 1 MiB.
const MAX_PACKED: u64 = 4 << 20;
/// The most unpacked bytes, which are in memory for a moment, and the largest dictionary: what `xz` uses by default.
const MAX_UNPACKED: usize = 8 << 20;
const MAX_DICTIONARY: u32 = 8 << 20;
const LEAST_DICTIONARY: u32 = 4096;
/// The most chunks of packed data. Each may start anew, which takes time; `xz` makes one for 64 KiB.
const MAX_CHUNKS: usize = 1024;
/// The bytes that are unpacked between two checks of the time.
const PART: usize = 64 << 10;

const MAGIC: &[u8] = b"\xfd7zXZ\0";
const STREAM_HEADER: usize = 12;
const LZMA2: u64 = 0x21;

/// Returns the function at each of `addresses`, which are the file's own and ascending. Returns no function if there are
/// no packed symbols, they are damaged or too large, or `has_time` returns false.
pub(super) fn functions(
    elf: &Elf,
    file: &(impl ReadAt + ?Sized),
    addresses: &[u64],
    mut has_time: impl FnMut() -> bool,
) -> Vec<Option<FunctionName>> {
    let unpacked = elf.packed.and_then(|packed| unpack(&read(file, packed)?, &mut has_time)).unwrap_or_default();
    let unpacked = Unpacked { bytes: &unpacked, has_time: RefCell::new(&mut has_time) };
    let Some(mut found) = Elf::parse(&unpacked) else { return vec![None; addresses.len()] };
    // The exported functions are not in this table: like theirs, it says nothing of the code between its functions.
    found.dynamic = found.symbols.take();
    elf_symbols::functions(&found, &unpacked, addresses)
}

/// The unpacked file, which is read while there is time.
struct Unpacked<'a, F> {
    bytes: &'a [u8],
    has_time: RefCell<&'a mut F>,
}

impl<F: FnMut() -> bool> ReadAt for Unpacked<'_, F> {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        if !(self.has_time.borrow_mut())() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.bytes.read_at(buffer, offset)
    }
}

fn read(file: &(impl ReadAt + ?Sized), packed: Extent) -> Option<Vec<u8>> {
    (packed.size <= MAX_PACKED).then(|| read_exact(file, packed.offset, packed.size))?
}

/// Unpacks the first block of a stream of `xz`.
fn unpack(stream: &[u8], has_time: &mut impl FnMut() -> bool) -> Option<Vec<u8>> {
    let (dictionary, data) = block(stream)?;
    let (data, size) = chunks(data)?;
    let mut unpacked = vec![0; size];
    let mut reader = Lzma2Reader::new(data, dictionary, None);
    for part in unpacked.chunks_mut(PART) {
        if !has_time() {
            return None;
        }
        reader.read_exact(part).ok()?;
    }
    Some(unpacked)
}

/// Returns the size of the dictionary and the data of the first block.
fn block(stream: &[u8]) -> Option<(u32, &[u8])> {
    let block = stream.strip_prefix(MAGIC)?.get(STREAM_HEADER - MAGIC.len()..)?;
    let size = 4 * (usize::from(*block.first()?) + 1);
    let (header, data) = block.split_at_checked(size)?;
    let flags = *header.get(1)?;
    // One filter, and no flag that is not known.
    if flags & 0b0011_1111 != 0 {
        return None;
    }
    let mut fields = header.get(2..)?;
    for flag in [0x40, 0x80] {
        if flags & flag != 0 {
            number(&mut fields)?;
        }
    }
    let (filter, properties) = (number(&mut fields)?, number(&mut fields)?);
    let code = fields.first().copied().filter(|code| *code <= 40)?;
    // A dictionary that is larger than the data is not needed.
    let dictionary = 2_u64.wrapping_add(u64::from(code) & 1) << (code / 2 + 11);
    let dictionary = u32::try_from(dictionary).unwrap_or(u32::MAX).clamp(LEAST_DICTIONARY, MAX_DICTIONARY);
    (filter == LZMA2 && properties == 1).then_some((dictionary, data))
}

/// Takes a number of variable length.
fn number(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..63).step_by(7) {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        number |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

/// Returns the chunks that begin `data`, up to their end, and their unpacked size.
fn chunks(data: &[u8]) -> Option<(&[u8], usize)> {
    let (mut at, mut size) = (0_usize, 0_usize);
    for _ in 0..MAX_CHUNKS {
        let chunk = data.get(at..)?;
        let word = |at: usize| Some(usize::from(u16::from_be_bytes([*chunk.get(at)?, *chunk.get(at + 1)?])) + 1);
        let (length, unpacked) = match *chunk.first()? {
            0 => return data.get(..=at).map(|chunks| (chunks, size)),
            1 | 2 => (3 + word(1)?, word(1)?),
            control @ 0x80.. => {
                let header = if control >= 0xc0 { 6 } else { 5 };
                (header + word(3)?, (usize::from(control & 0x1f) << 16) + word(1)?)
            }
            _ => return None,
        };
        (at, size) = (at + length, size + unpacked);
        if size > MAX_UNPACKED {
            return None;
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The text below as `xz` packs it, up to the end of its data.
    const STREAM: &[u8] = b"\xfd7zXZ\0\0\x04\xe6\xd6\xb4\x46\x02\0\x21\x01\x16\0\0\0\x74\x2f\xe5\xa3\xe0\0\x10\0\x07\x5d\0\x30\x88\x26\x82\0\0\0\0";

    #[test]
    fn a_stream_is_unpacked_and_a_part_of_it_is_not() {
        assert_eq!(unpack(STREAM, &mut || true).unwrap(), b"a a a a a a a a a");
        assert_eq!(unpack(STREAM, &mut || false), None);
        assert!((0..STREAM.len()).all(|length| unpack(&STREAM[..length], &mut || true).is_none()));
    }

    #[test]
    fn what_would_be_too_large_is_not_unpacked() {
        // Chunks of 2 MiB each, by their own account.
        let huge = |count: usize| [vec![[0xff, 0xff, 0xff, 0, 0, 93, 0]; count].concat(), vec![0]].concat();
        assert!(chunks(&huge(4)).is_some_and(|(_, size)| size == 4 << 21) && chunks(&huge(5)).is_none());
        assert!(chunks(&[1, 0, 0, 7].repeat(MAX_CHUNKS)).is_none(), "too many chunks");
        // A block header that ends in its sizes.
        assert_eq!(block(&[MAGIC, &[0; 6], &[1, 0xc0, 1, 1, 0, 0, 0, 0]].concat()), None);
    }
}
