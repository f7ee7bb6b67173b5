//! Reads sections of debug information from front to back. A section may be compressed by zlib.
//!
//! The file is untrusted. A compressed section is unpacked as it is read, up to a limit: a few bytes of it can stand
//! for thousands. Sections that are compressed by zstd are not read, since they would be unpacked by code in C.

use std::io::{self, Read};

use flate2::read::ZlibDecoder;
use object::{
    LittleEndian,
    elf::{CompressionHeader32, CompressionHeader64, ELFCOMPRESS_ZLIB},
};

use super::{
    elf::DebugSection,
    read_at::{Extent, ReadAt, number, read_exact, read_up_to},
};

/// The sizes of the header of a compressed section.
const HEADER_64: u64 = size_of::<CompressionHeader64<LittleEndian>>() as u64;
const HEADER_32: u64 = size_of::<CompressionHeader32<LittleEndian>>() as u64;
/// The most bytes that are read of a section, unpacked.
const MAX_BYTES: u64 = 512 << 20;
/// The most bytes of texts that are unpacked: all of them are in memory until the file is done.
const MAX_TEXTS: u64 = 4 << 20;
/// The longest text, in bytes.
pub(super) const MAX_TEXT: usize = 1024;

/// A section that is read from front to back.
pub(super) struct Stream<'a, F: ReadAt + ?Sized> {
    source: Source<'a, F>,
    /// The bytes that may still be read.
    left: u64,
}

enum Source<'a, F: ReadAt + ?Sized> {
    Plain(Part<'a, F>),
    Packed(ZlibDecoder<Part<'a, F>>),
}

/// The rest of a part of a file.
struct Part<'a, F: ReadAt + ?Sized> {
    file: &'a F,
    rest: Extent,
}

/// A section of texts, each with a zero behind it.
pub(super) struct Texts<'a, F: ReadAt + ?Sized> {
    file: &'a F,
    section: DebugSection,
    is_64: bool,
    /// The content of a compressed section, once it was needed.
    unpacked: Option<Vec<u8>>,
}

impl<'a, F: ReadAt + ?Sized> Stream<'a, F> {
    /// Opens a section of a file of 32 or 64 bits; returns `None` if it is compressed in another way.
    pub(super) fn open(file: &'a F, section: DebugSection, is_64: bool) -> Option<Self> {
        let Extent { offset, size } = section.extent;
        if !section.is_compressed {
            return Some(Self { source: Source::Plain(Part { file, rest: section.extent }), left: MAX_BYTES });
        }
        let header = if is_64 { HEADER_64 } else { HEADER_32 };
        // The kind of compression is the first word of both headers.
        if number(&read_exact(file, offset, header)?, 0, 4) != u64::from(ELFCOMPRESS_ZLIB) {
            return None;
        }
        let rest = Extent { offset: offset.checked_add(header)?, size: size.checked_sub(header)? };
        Some(Self { source: Source::Packed(ZlibDecoder::new(Part { file, rest })), left: MAX_BYTES })
    }

    /// Fills the buffer; returns `None` if the section ends before, is damaged or cannot be read.
    pub(super) fn fill(&mut self, buffer: &mut [u8]) -> Option<()> {
        self.read_exact(buffer).ok()
    }

    /// Skips bytes; returns `None` if there are fewer.
    pub(super) fn skip(&mut self, length: u64) -> Option<()> {
        if let Source::Plain(Part { rest, .. }) = &mut self.source {
            *rest = Extent { offset: rest.offset.checked_add(length)?, size: rest.size.checked_sub(length)? };
            return Some(());
        }
        let skipped = io::copy(&mut self.by_ref().take(length), &mut io::sink()).ok()?;
        (skipped == length).then_some(())
    }
}

impl<F: ReadAt + ?Sized> Read for Stream<'_, F> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = usize::try_from(self.left).map_or(buffer.len(), |left| left.min(buffer.len()));
        let read = match &mut self.source {
            Source::Plain(part) => part.read(&mut buffer[..length])?,
            Source::Packed(unpacker) => unpacker.read(&mut buffer[..length])?,
        };
        self.left -= read as u64;
        Ok(read)
    }
}

impl<F: ReadAt + ?Sized> Read for Part<'_, F> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = usize::try_from(self.rest.size).map_or(buffer.len(), |left| left.min(buffer.len()));
        let read = self.file.read_at(&mut buffer[..length], self.rest.offset)?;
        self.rest.offset = self.rest.offset.saturating_add(read as u64);
        self.rest.size -= read as u64;
        Ok(read)
    }
}

impl<'a, F: ReadAt + ?Sized> Texts<'a, F> {
    pub(super) fn new(file: &'a F, section: DebugSection, is_64: bool) -> Self {
        Self { file, section, is_64, unpacked: None }
    }

    /// Returns the text at an offset in the section; `None` if it has more than [`MAX_TEXT`] bytes, or does not end.
    pub(super) fn at(&mut self, offset: u64) -> Option<String> {
        if !self.section.is_compressed {
            return text(self.file, self.section.extent, offset);
        }
        let (file, section, is_64) = (self.file, self.section, self.is_64);
        let unpacked = self.unpacked.get_or_insert_with(|| unpack(file, section, is_64));
        text(&unpacked[..], Extent { offset: 0, size: unpacked.len() as u64 }, offset)
    }
}

/// Returns the begin of a compressed section.
fn unpack<F: ReadAt + ?Sized>(file: &F, section: DebugSection, is_64: bool) -> Vec<u8> {
    let mut unpacked = Vec::new();
    if let Some(stream) = Stream::open(file, section, is_64) {
        // The texts in front of a damaged place are good.
        stream.take(MAX_TEXTS).read_to_end(&mut unpacked).ok();
    }
    unpacked
}

fn text<F: ReadAt + ?Sized>(file: &F, section: Extent, offset: u64) -> Option<String> {
    let (room, at) = (section.size.checked_sub(offset)?, section.offset.checked_add(offset)?);
    let mut bytes = [0; MAX_TEXT + 1];
    let length = usize::try_from(room).map_or(bytes.len(), |room| room.min(bytes.len()));
    let read = read_up_to(file, at, &mut bytes[..length]);
    let end = bytes[..read].iter().position(|byte| *byte == 0)?;
    Some(String::from_utf8_lossy(&bytes[..end]).into_owned())
}
