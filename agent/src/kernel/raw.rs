//! The few `bpf(2)` commands that aya does not offer: batches, and perf counters into arrays.

use std::{
    io, mem,
    os::fd::{AsRawFd, BorrowedFd},
};

use aya::{
    maps::{Map, MapData},
    programs::{ProgramError, RawTracePoint, RawTracePointRunOptions, TestRun as _},
};
use bytemuck::Pod;

const MAP_LOOKUP_ELEM: libc::c_long = 1;
const MAP_UPDATE_ELEM: libc::c_long = 2;
const MAP_DELETE_ELEM: libc::c_long = 3;
const MAP_GET_NEXT_KEY: libc::c_long = 4;
const MAP_LOOKUP_BATCH: libc::c_long = 24;
const MAP_LOOKUP_AND_DELETE_BATCH: libc::c_long = 25;

/// `union bpf_attr`, the part for `BPF_MAP_*_BATCH`.
#[repr(C)]
struct BatchAttr {
    in_batch: u64,
    out_batch: u64,
    keys: u64,
    values: u64,
    count: u32,
    map_fd: u32,
    elem_flags: u64,
    flags: u64,
}

/// `union bpf_attr`, the part for `BPF_MAP_*_ELEM`.
#[repr(C)]
struct ElemAttr {
    map_fd: u64,
    key: u64,
    value: u64,
    flags: u64,
}

/// Number of bytes of values that one batch of large values may take.
const ROOM_BYTES: usize = 1 << 20;

/// The fate of the entries that are read.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Then {
    Keep,
    Delete,
}

/// Returns the map behind aya's typed variants.
pub(super) fn data(map: &Map) -> Option<&MapData> {
    match map {
        Map::Array(data)
        | Map::HashMap(data)
        | Map::LruHashMap(data)
        | Map::PerCpuArray(data)
        | Map::PerCpuHashMap(data)
        | Map::PerfEventArray(data)
        | Map::RingBuf(data)
        | Map::Unsupported(data) => Some(data),
        _ => None,
    }
}

/// Calls `each` with every entry of a map: its key, and its value once (`copies` 1) or once per possible CPU.
///
/// Entries that are added or removed meanwhile may be missed; no entry is returned twice.
pub(super) fn read_all<K: Pod, V: Pod>(
    map: BorrowedFd<'_>,
    copies: usize,
    then: Then,
    mut each: impl FnMut(K, &[V]),
) -> io::Result<()> {
    const { assert!(size_of::<V>().is_multiple_of(8), "per-CPU copies are padded to 8 bytes") };
    const { assert!(align_of::<V>() <= 8, "values are read as words") };
    read_words(map, copies * size_of::<V>() / 8, then, |key, words| each(key, bytemuck::cast_slice(words)))
}

/// Calls `each` with every entry of a map like [`read_all`], for values of another layout: `words` is the number of
/// 8-byte words of a value with all its copies.
pub(super) fn read_words<K: Pod>(
    map: BorrowedFd<'_>,
    words: usize,
    then: Then,
    mut each: impl FnMut(K, &[u64]),
) -> io::Result<()> {
    let command = if then == Then::Delete { MAP_LOOKUP_AND_DELETE_BATCH } else { MAP_LOOKUP_BATCH };
    let mut room = (ROOM_BYTES / (words * size_of::<u64>()).max(1)).clamp(16, 256);
    let mut keys = vec![K::zeroed(); room];
    let mut values = vec![0_u64; room * words];
    // The kernel's cursor: 4 bytes for hash maps, a key for arrays.
    let (mut cursor, mut next) = ([0_u64; 4], [0_u64; 4]);
    let mut first = true;
    loop {
        let mut attr = BatchAttr {
            in_batch: if first { 0 } else { cursor.as_ptr() as u64 },
            out_batch: next.as_mut_ptr() as u64,
            keys: keys.as_mut_ptr() as u64,
            values: values.as_mut_ptr() as u64,
            count: u32::try_from(room).unwrap_or(u32::MAX),
            map_fd: map.as_raw_fd().cast_unsigned(),
            elem_flags: 0,
            flags: 0,
        };
        // SAFETY: `keys` and `values` have room for `count` keys and for `count` values of every CPU, `cursor` and
        // `next` for the largest cursor; all outlive the call. Any bytes are a valid K (Pod).
        let result = unsafe { libc::syscall(libc::SYS_bpf, command, &raw mut attr, size_of::<BatchAttr>()) };
        let error = (result < 0).then(io::Error::last_os_error);
        match error.as_ref().and_then(io::Error::raw_os_error) {
            Some(libc::ENOSPC) if room < 1 << 20 => {
                // One bucket has more entries than there is room for.
                room *= 2;
                keys.resize(room, K::zeroed());
                values.resize(room * words, 0);
                continue;
            }
            Some(libc::EINTR) => continue,
            _ => {}
        }
        let is_end = error.as_ref().is_none_or(|error| error.raw_os_error() == Some(libc::ENOENT));
        // After another error the number is that of the entries before it, which may be deleted already. If the kernel
        // refused the command as a whole, the number is as it was.
        let count = if is_end || (attr.count as usize) < room { attr.count as usize } else { 0 };
        for (key, values) in keys.iter().zip(values.chunks_exact(words)).take(count) {
            each(*key, values);
        }
        match error {
            Some(_) if is_end => return Ok(()),
            Some(error) => return Err(error),
            None => {}
        }
        mem::swap(&mut cursor, &mut next);
        first = false;
    }
}

/// Reads one entry: its value on every possible CPU, as many as `copies` has room for.
pub(super) fn lookup<K: Pod, V: Pod>(map: BorrowedFd<'_>, key: K, copies: &mut [V]) -> io::Result<()> {
    const { assert!(size_of::<V>().is_multiple_of(8), "per-CPU copies are padded to 8 bytes") };
    let attr = ElemAttr {
        map_fd: u64::from(map.as_raw_fd().cast_unsigned()),
        key: (&raw const key) as u64,
        value: copies.as_mut_ptr() as u64,
        flags: 0,
    };
    element_command(MAP_LOOKUP_ELEM, &attr)
}

/// Sets one entry of a map.
pub(super) fn update<K: Pod, V: Pod>(map: BorrowedFd<'_>, key: K, value: V) -> io::Result<()> {
    let attr = ElemAttr {
        map_fd: u64::from(map.as_raw_fd().cast_unsigned()),
        key: (&raw const key) as u64,
        value: (&raw const value) as u64,
        flags: 0,
    };
    element_command(MAP_UPDATE_ELEM, &attr)
}

/// Removes one entry. A missing entry is no error.
pub(super) fn delete<K: Pod>(map: BorrowedFd<'_>, key: K) -> io::Result<()> {
    let attr = ElemAttr {
        map_fd: u64::from(map.as_raw_fd().cast_unsigned()),
        key: (&raw const key) as u64,
        value: 0,
        flags: 0,
    };
    match element_command(MAP_DELETE_ELEM, &attr) {
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(()),
        result => result,
    }
}

/// Removes all entries in one pass over the map. Entries that programs add meanwhile may stay: a map that they fill as
/// fast as this empties it has always a first entry.
pub(super) fn clear<K: Pod>(map: BorrowedFd<'_>) -> io::Result<()> {
    let mut before: Option<K> = None;
    loop {
        let mut next = K::zeroed();
        let attr = ElemAttr {
            map_fd: u64::from(map.as_raw_fd().cast_unsigned()),
            // Without a key, the kernel returns the first one.
            key: before.as_ref().map_or(0, |before| (&raw const *before) as u64),
            value: (&raw mut next) as u64,
            flags: 0,
        };
        let found = element_command(MAP_GET_NEXT_KEY, &attr);
        // Not earlier: the kernel continues after this entry, and without it at the first one.
        if let Some(before) = before {
            delete(map, before)?;
        }
        match found {
            Ok(()) => before = Some(next),
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => return Ok(()),
            Err(error) => return Err(error),
        }
    }
}

fn element_command(command: libc::c_long, attr: &ElemAttr) -> io::Result<()> {
    // SAFETY: the callers point `key` and `value` at live values of the map's key and value size, on every CPU (the
    // next key is written where the value would be).
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, &raw const *attr, size_of::<ElemAttr>()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Runs a program that is attached nowhere, on one CPU and with these arguments.
pub(super) fn run_on(program: &RawTracePoint, cpu: u32, args: [u64; 12]) -> Result<(), ProgramError> {
    program.test_run(RawTracePointRunOptions { args, cpu: Some(cpu) }).map(drop)
}

/// Returns freed memory to the system. Loading parses the kernel's types, and glibc would keep their freed memory.
pub(crate) fn return_free_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: `malloc_trim` touches only free memory.
    unsafe {
        libc::malloc_trim(0);
    }
}
