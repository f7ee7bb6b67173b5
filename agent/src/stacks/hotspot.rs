//! Frames of the code that HotSpot, the virtual machine of OpenJDK, makes at run time.
//!
//! Its compilers keep no frame pointers and write no unwind tables. But each function lies in a block of the code
//! cache, and the head of the block (`CodeBlob`) has the size of the function's frames. The library lists the offsets
//! and the addresses of such fields for debuggers (`gHotSpotVMStructs`). All of this is in the memory of a watched
//! process, which may contain anything. So each number is checked, and wrong ones spoil only the stacks of that
//! process.

use std::ops::Range;

use super::read_at::{ReadAt, number, read_exact, read_up_to};

/// The file name of the library, and its symbol for a pointer to the list of fields.
pub(super) const LIBRARY: &str = "libjvm.so";
pub(super) const FIELDS_SYMBOL: &[u8] = b"gHotSpotVMStructs";

/// The size of an entry of the list in bytes: pointers to the names of the type, the field and the field's type, a flag
/// for static fields, the offset of the field, and the address of a static field.
const ENTRY: usize = 48;
/// The most entries that are read. OpenJDK 17 has 789.
const MOST_ENTRIES: usize = 4096;
/// The number of entries in one read.
const CHUNK: usize = 64;
/// The fields that are needed, by type and name, and whether they are static. Before OpenJDK 16, the first type had
/// another name.
const FIELDS: [(&[u8], &[u8], bool); 13] = [
    (b"GrowableArrayBase", b"_len", false),
    (b"GrowableArray<int>", b"_data", false),
    (b"CodeCache", b"_heaps", true),
    (b"CodeHeap", b"_memory", false),
    (b"CodeHeap", b"_segmap", false),
    (b"CodeHeap", b"_log2_segment_size", false),
    (b"VirtualSpace", b"_low", false),
    (b"VirtualSpace", b"_high_boundary", false),
    (b"HeapBlock::Header", b"_used", false),
    (b"CodeBlob", b"_frame_size", false),
    (b"AbstractInterpreter", b"_code", true),
    (b"StubQueue", b"_stub_buffer", false),
    (b"StubQueue", b"_buffer_limit", false),
];
const OLD_ARRAY: &[u8] = b"GenericGrowableArray";
/// The longest of these names and a zero byte, in bytes.
const LONGEST_NAME: usize = 24;
/// The largest offset of a field in its structure, in bytes.
const MOST_OFFSET: u64 = 4096;
/// The most heaps of a code cache. There are up to three.
const MOST_HEAPS: u64 = 8;
/// The most steps from a segment to the first one of its block.
const MOST_HOPS: usize = 64;
/// The mark of a segment in no block.
const FREE: u8 = 0xff;
/// The largest frame, in words.
const MOST_WORDS: u64 = 1 << 14;

/// The code cache and the interpreter of a virtual machine.
#[derive(Debug)]
pub(super) struct HotSpot {
    heaps: Vec<Heap>,
    interpreter: Range<u64>,
    /// The offset of the flag for a block in use, from the start of the block.
    used: u64,
    /// The offset of the size of frames, from the start of the block.
    frame_size: u64,
}

/// A part of the code cache.
#[derive(Debug)]
struct Heap {
    code: Range<u64>,
    /// The address of the map of segments: a byte for each, with the distance to an earlier segment of the same block.
    segments: u64,
    /// The binary logarithm of the size of a segment.
    segment: u32,
}

/// The frame of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Frame {
    /// The frame has this number of words; the return address is the last one, and the frame pointer is before it.
    Words(u32),
    /// The frame of the interpreter.
    Interpreted,
    /// Code with frame pointers, or no code.
    Other,
}

impl HotSpot {
    /// Reads the list that the pointer at `list` points to; `None` if fields are missing, or if the virtual machine has
    /// not started yet.
    pub(super) fn read(memory: &(impl ReadAt + ?Sized), list: u64) -> Option<Self> {
        let fields = fields(memory, word(memory, list)?)?;
        let [length, data, heaps, code, segments, segment, low, high, used, frame_size, interpreter, stubs, limit] =
            fields;
        let pointer = |at: Option<u64>| word(memory, at?).filter(|pointer| *pointer != 0);
        let at = |base: u64, offset: u64| base.checked_add(offset);

        let array = pointer(Some(heaps))?;
        let count = number(&read_exact(memory, at(array, length)?, 4)?, 0, 4);
        let items = pointer(at(array, data))?;
        let mut found = Vec::new();
        for item in 0..count.min(MOST_HEAPS) {
            let heap = pointer(at(items, 8 * item))?;
            let (code, segments) = (at(heap, code)?, at(heap, segments)?);
            let segment = number(&read_exact(memory, at(heap, segment)?, 4)?, 0, 4);
            found.push(Heap {
                code: pointer(at(code, low))?..pointer(at(code, high))?,
                segments: pointer(at(segments, low))?,
                segment: u32::try_from(segment).ok().filter(|segment| (3..16).contains(segment))?,
            });
        }
        let interpreter = pointer(Some(interpreter))?;
        let first = pointer(at(interpreter, stubs))?;
        let size = number(&read_exact(memory, at(interpreter, limit)?, 4)?, 0, 4);
        // The header is the flag and what is before it, in words.
        let header = (used + 1).next_multiple_of(8);
        let frame_size = header + frame_size;
        Some(Self { heaps: found, interpreter: first..at(first, size)?, used, frame_size })
    }

    /// Looks up the frame of the function at an address in code; `None` if the memory cannot be read.
    pub(super) fn frame(&self, memory: &(impl ReadAt + ?Sized), address: u64) -> Option<Frame> {
        if self.interpreter.contains(&address) {
            return Some(Frame::Interpreted);
        }
        let Some(heap) = self.heaps.iter().find(|heap| heap.code.contains(&address)) else { return Some(Frame::Other) };
        let mut segment = (address - heap.code.start) >> heap.segment;
        let mut hops = 0;
        loop {
            let mark = read_exact(memory, heap.segments.checked_add(segment)?, 1)?[0];
            hops += 1;
            segment = match mark {
                0 => break,
                FREE => return Some(Frame::Other),
                _ if hops == MOST_HOPS || u64::from(mark) > segment => return Some(Frame::Other),
                distance => segment - u64::from(distance),
            };
        }
        let block = heap.code.start.checked_add(segment << heap.segment)?;
        let is_used = read_exact(memory, block.checked_add(self.used)?, 1)?[0] != 0;
        let words = number(&read_exact(memory, block.checked_add(self.frame_size)?, 4)?, 0, 4);
        Some(match words {
            // A frame has at least a return address.
            1..=MOST_WORDS if is_used => Frame::Words(u32::try_from(words).ok()?),
            _ => Frame::Other,
        })
    }
}

/// Returns the offset, or the address if the field is static, of each of [`FIELDS`].
fn fields(memory: &(impl ReadAt + ?Sized), list: u64) -> Option<[u64; FIELDS.len()]> {
    let mut found = [None; FIELDS.len()];
    // The entries of a type follow one another, and share its name.
    let (mut last, mut kind) = (0, Vec::new());
    let mut chunk = vec![0; ENTRY * CHUNK];
    for first in (0..MOST_ENTRIES).step_by(CHUNK) {
        let length = read_up_to(memory, list.checked_add((first * ENTRY) as u64)?, &mut chunk);
        for entry in chunk[..length].chunks_exact(ENTRY) {
            let [of, name, is_static, offset, address] = [0, 8, 24, 32, 40].map(|at| number(entry, at, 8));
            if of == 0 {
                return all(found);
            }
            if of != last {
                (last, kind) = (of, text(memory, of));
                if kind == OLD_ARRAY {
                    kind = FIELDS[0].0.to_vec();
                }
            }
            if !FIELDS.iter().any(|(known, ..)| *known == kind) {
                continue;
            }
            let name = text(memory, name);
            let is_static = is_static & u64::from(u32::MAX) != 0;
            let wanted = (&kind[..], &name[..], is_static);
            if let Some(at) = FIELDS.iter().position(|field| *field == wanted) {
                found[at] = if is_static { Some(address) } else { Some(offset).filter(|offset| *offset < MOST_OFFSET) };
            }
        }
        if length < chunk.len() {
            return all(found);
        }
    }
    None
}

fn all(found: [Option<u64>; FIELDS.len()]) -> Option<[u64; FIELDS.len()]> {
    let all: Option<Vec<u64>> = found.into_iter().collect();
    all?.try_into().ok()
}

/// Reads a short text, up to its zero byte.
fn text(memory: &(impl ReadAt + ?Sized), address: u64) -> Vec<u8> {
    let mut bytes = vec![0; LONGEST_NAME];
    let length = read_up_to(memory, address, &mut bytes);
    let end = bytes[..length].iter().position(|byte| *byte == 0);
    bytes.truncate(end.unwrap_or(0));
    bytes
}

fn word(memory: &(impl ReadAt + ?Sized), address: u64) -> Option<u64> {
    read_exact(memory, address, 8).map(|bytes| number(&bytes, 0, 8))
}

#[cfg(test)]
#[path = "hotspot_tests.rs"]
mod tests;
