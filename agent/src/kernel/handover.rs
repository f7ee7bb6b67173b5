//! A takeover: other programs than those that run are to count from now on. They are attached beside them, with maps of
//! their own but for what is remembered of each task, and one word says which of the two counts. What those before have
//! counted is read once nothing is added to it any more.

use std::{fs, io, os::fd::AsFd as _, path::PathBuf};

use aya::maps::{MapData, RingBuf};
use podperf_ebpf::abi;
use tracing::{debug, info, warn};

use super::{
    clock::monotonic_ns,
    object::Object,
    pins::{Generation, Pins},
    raw::{self, Then},
    reading::{CpuTotals, RawReading},
    records::CgroupRecord,
    rows::Rows,
    sensors::{DROPS, fd, flush, identity},
};

/// The name of the word's pin.
pub(super) const WORD: &str = "handover";

/// What programs before these have counted. Their pins are still there.
#[derive(Debug)]
pub struct Before {
    directory: PathBuf,
    /// See [`super::Sensors::identity`].
    pub identity: String,
    /// All that they have counted.
    pub reading: RawReading,
    /// Changes of the tree that nobody has taken.
    pub changes: Vec<CgroupRecord>,
}

/// The word as it is; `None` where there is none.
pub(super) fn word(pins: &Pins) -> Option<abi::podperf_handover> {
    let map = MapData::from_pin(pins.shared().join(WORD)).ok()?;
    let mut word: abi::podperf_handover = bytemuck::Zeroable::zeroed();
    raw::lookup(map.fd().as_fd(), 0_u32, std::slice::from_mut(&mut word)).ok()?;
    Some(word)
}

/// Has `object`, of this number, count from now on, and those before no more.
pub(super) fn take_over(
    pins: &Pins,
    before: Vec<Generation>,
    object: &Object,
    number: u64,
    copies: usize,
) -> io::Result<Vec<Before>> {
    let open = |generation: Generation| {
        let directory = pins.of(&generation.name);
        match Object::pinned(&directory) {
            Ok(object) => Some((directory, object)),
            Err(error) => {
                warn!(generation = generation.name, %error, "what is pinned is not whole: what it has counted is lost");
                None
            }
        }
    };
    let before: Vec<_> = before.into_iter().filter_map(open).collect();
    // What is on the CPUs is settled by those before up to here, and by these from here on.
    before.iter().for_each(|(_, object)| flush(object));
    let since_ns = word(pins).map_or(0, |word| word.since_ns);
    let shared = MapData::from_pin(pins.shared().join(WORD)).map_err(io::Error::other)?;
    raw::update(shared.fd().as_fd(), 0_u32, abi::podperf_handover { generation: number, since_ns })?;
    // It interrupts each CPU: a program that read the word before is done.
    flush(object);
    before.into_iter().map(|(directory, object)| read(directory, object, copies)).collect()
}

impl Before {
    /// Removes the pins: what they have counted is posted and kept.
    pub(super) fn forget(self) {
        match fs::remove_dir_all(&self.directory) {
            Ok(()) => info!(generation = %self.directory.display(), "taken over, and unpinned"),
            Err(error) => warn!(generation = %self.directory.display(), %error, "failed to unpin"),
        }
    }
}

fn read(directory: PathBuf, mut object: Object, copies: usize) -> io::Result<Before> {
    let slots = object.map("rows").and_then(raw::data).and_then(|data| data.info().ok());
    let rows = Rows::of_slots(slots.map_or(2, |info| info.max_entries()), copies).read(&object)?;
    let mut cpus: Vec<abi::podperf_cpu> = Vec::new();
    raw::read_all(fd(&object, "cpus")?, 1, Then::Keep, |_: u32, cpu: &[abi::podperf_cpu]| cpus.extend_from_slice(cpu))?;
    let mut drops: Vec<_> = DROPS.iter().map(|reason| (*reason, 0)).collect();
    raw::read_all(fd(&object, "drops")?, copies, Then::Keep, |reason: u32, copies: &[u64]| {
        if let Some((_, count)) = drops.get_mut(reason as usize) {
            *count = copies.iter().sum();
        }
    })?;
    let mut changes = Vec::new();
    let identity = identity(&object);
    match object.take_map("cgroup_ring").map(RingBuf::try_from) {
        Some(Ok(mut ring)) => {
            while let Some(record) = ring.next() {
                changes.extend(CgroupRecord::decode(&record));
            }
        }
        _ => debug!("no changes of the tree from before"),
    }
    let cpu = CpuTotals::of(&cpus);
    Ok(Before { directory, identity, reading: RawReading { at_ns: monotonic_ns(), rows, cpu, drops, cpus }, changes })
}
