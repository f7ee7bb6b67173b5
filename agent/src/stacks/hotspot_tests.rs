use std::collections::HashMap;

use proptest::prelude::*;

use super::*;

const LIST: u64 = 0x100;
const INTERPRETER: u64 = 0xb000;

/// The memory of a virtual machine: its address is the offset.
struct Memory(Vec<u8>);

impl ReadAt for Memory {
    /// No read may be as long as a number in the memory says.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> std::io::Result<usize> {
        assert!(buffer.len() <= ENTRY * CHUNK, "{} bytes", buffer.len());
        self.0[..].read_at(buffer, offset)
    }
}

impl Memory {
    fn put(&mut self, at: u64, bytes: &[u8]) {
        let at = usize::try_from(at).unwrap();
        self.0[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn pointer(&mut self, at: u64, to: u64) {
        self.put(at, &to.to_le_bytes());
    }

    /// Writes a block in use with frames of this size.
    fn block(&mut self, at: u64, used: u64, words: i32) {
        self.put(at + used, &[1]);
        self.put(at + (used + 1).next_multiple_of(8) + 0x18, &words.to_le_bytes());
    }
}

/// Returns the memory of a virtual machine that has two heaps with segments of 128 bytes. Before the flag for a block in
/// use are `used` bytes.
fn machine(used: u64, array: &'static [u8]) -> Memory {
    let mut memory = Memory(vec![0; 0x1_0000]);
    memory.pointer(LIST, 0x200);
    let fields: [(&[u8], &[u8], bool, u64); 15] = [
        (b"Klass", b"_name", false, 8),
        (array, b"_len", false, 4),
        (array, b"_max", false, 8),
        (b"GrowableArray<int>", b"_data", false, 16),
        (b"CodeCache", b"_heaps", true, 0x1f00),
        (b"CodeHeap", b"_memory", false, 8),
        (b"CodeHeap", b"_segmap", false, 0x40),
        (b"CodeHeap", b"_log2_segment_size", false, 0x80),
        (b"VirtualSpace", b"_low", false, 0),
        (b"VirtualSpace", b"_high_boundary", false, 8),
        (b"HeapBlock::Header", b"_used", false, used),
        (b"CodeBlob", b"_frame_size", false, 0x18),
        (b"AbstractInterpreter", b"_code", true, 0x1f08),
        (b"StubQueue", b"_stub_buffer", false, 8),
        (b"StubQueue", b"_buffer_limit", false, 16),
    ];
    let (mut texts, mut free) = (HashMap::new(), 0x1000);
    for (at, (kind, name, is_static, place)) in (0x200_u64..).step_by(ENTRY).zip(fields) {
        for (slot, text) in [(0, kind), (8, name)] {
            let to = *texts.entry(text).or_insert(free);
            if to == free {
                memory.put(to, text);
                free += 32;
            }
            memory.pointer(at + slot, to);
        }
        memory.put(at + 24, &u32::from(is_static).to_le_bytes());
        memory.pointer(at + if is_static { 40 } else { 32 }, place);
    }
    memory.pointer(0x1f00, 0x2000);
    memory.put(0x2004, &2_u32.to_le_bytes());
    memory.pointer(0x2010, 0x2100);
    for (number, low, high, segments) in [(0, 0x8000, 0xa000, 0x3000), (1, 0xa000, 0xc000, 0x3100)] {
        let heap = 0x2200 + 0x100 * number;
        memory.pointer(0x2100 + 8 * number, heap);
        memory.pointer(heap + 8, low);
        memory.pointer(heap + 16, high);
        memory.pointer(heap + 0x40, segments);
        memory.put(heap + 0x80, &7_u32.to_le_bytes());
        memory.put(segments, &[FREE; 64]);
    }
    memory.pointer(0x1f08, 0x2400);
    memory.pointer(0x2408, INTERPRETER);
    memory.put(0x2410, &0x400_u32.to_le_bytes());
    // A block of three segments, one of 40 whose last ones are two steps away, and one whose frames have no size.
    memory.put(0x3000, &[0, 1, 2]);
    memory.block(0x8000, used, 6);
    memory.put(0x3003, &[0]);
    (1..40).for_each(|at| memory.put(0x3003 + at, &[if at < 20 { u8::try_from(at).unwrap() } else { 19 }]));
    memory.block(0x8180, used, 300);
    memory.put(0x3100, &[0]);
    memory.block(0xa000, used, 0);
    memory
}

#[test]
fn the_block_of_an_address_has_the_size_of_its_frames() {
    for (used, array) in [(4, FIELDS[0].0), (8, FIELDS[0].0), (8, OLD_ARRAY)] {
        let mut memory = machine(used, array);
        let machine = HotSpot::read(&memory, LIST).unwrap();
        for (address, frame) in [
            (0x8000, Frame::Words(6)),
            (0x817f, Frame::Words(6)),
            (0x8180, Frame::Words(300)),
            (0x8180 + 128 * 39, Frame::Words(300)),
            (0x8180 + 128 * 40, Frame::Other),
            (0xa010, Frame::Other),
            (INTERPRETER, Frame::Interpreted),
            (INTERPRETER + 0x3ff, Frame::Interpreted),
            (INTERPRETER + 0x400, Frame::Other),
            (0x7fff, Frame::Other),
            (u64::MAX, Frame::Other),
        ] {
            assert_eq!(machine.frame(&memory, address), Some(frame), "{address:#x}");
        }
        memory.0.truncate(0x3000);
        assert_eq!(machine.frame(&memory, 0x8000), None, "memory that cannot be read");
    }
}

#[test]
fn a_block_that_is_not_in_use_has_no_frames() {
    let mut memory = machine(4, FIELDS[0].0);
    memory.put(0x8004, &[0]);
    let machine = HotSpot::read(&memory, LIST).unwrap();
    assert_eq!(machine.frame(&memory, 0x8000), Some(Frame::Other));
}

#[test]
fn nothing_is_known_without_a_field_or_before_the_machine_has_started() {
    for field in (1..15).filter(|field| *field != 2) {
        let mut memory = machine(8, FIELDS[0].0);
        // The flag of a static field.
        let flag = usize::try_from(0x218 + field * ENTRY as u64).unwrap();
        memory.0[flag] ^= 1;
        assert!(HotSpot::read(&memory, LIST).is_none(), "static field {field}");
    }
    for field in (1..15).filter(|field| *field != 2) {
        let mut memory = machine(8, FIELDS[0].0);
        // The name of the field.
        memory.pointer(0x208 + field * ENTRY as u64, 0xff00);
        assert!(HotSpot::read(&memory, LIST).is_none(), "field {field}");
    }
    for pointer in [LIST, 0x1f00, 0x2010, 0x2108, 0x2208, 0x2340, 0x1f08, 0x2408] {
        let mut memory = machine(8, FIELDS[0].0);
        memory.pointer(pointer, 0);
        assert!(HotSpot::read(&memory, LIST).is_none(), "{pointer:#x}");
    }
}

/// A number that a stranger may write: an address, an offset, or any other.
fn number() -> impl Strategy<Value = u64> {
    prop_oneof![any::<u64>(), 0_u64..0x1_0000, 0_u64..64]
}

proptest! {
    #[test]
    fn no_list_and_no_memory_does_harm(
        entries in prop::collection::vec((0_u64..15, any::<bool>(), number(), number()), 0..4),
        changes in prop::collection::vec((0_u64..0xfff0, number()), 0..20),
        addresses in prop::collection::vec(prop_oneof![any::<u64>(), 0x7000_u64..0xd000], 1..20),
    ) {
        let mut memory = machine(8, FIELDS[0].0);
        for (entry, is_static, offset, address) in entries {
            let at = 0x200 + entry * ENTRY as u64;
            memory.put(at + 24, &u32::from(is_static).to_le_bytes());
            memory.pointer(at + 32, offset);
            memory.pointer(at + 40, address);
        }
        changes.iter().for_each(|(at, value)| memory.pointer(*at, *value));
        if let Some(machine) = HotSpot::read(&memory, LIST) {
            prop_assert!(machine.heaps.len() <= 8);
            for address in addresses {
                let frame = machine.frame(&memory, address);
                prop_assert!(!matches!(frame, Some(Frame::Words(words)) if u64::from(words) > MOST_WORDS));
            }
        }
    }
}
