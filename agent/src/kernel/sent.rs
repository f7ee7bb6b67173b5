//! The ids of the stacks and wakers that the programs have sent. They are in sets, each with the ids that were sent
//! last (`stacks_sent` in `ebpf/bpf/walk.bpf.h`).

use std::io;

use podperf_ebpf::abi;

use super::{
    object::{Object, fd},
    raw,
};

const MAP: &str = "stacks_sent";

/// Returns the number of sets for `ids` ids: a power of two.
pub(super) fn sets(ids: u32) -> u32 {
    ids.div_ceil(abi::PODPERF_SENT_WAYS).clamp(1, 1 << 30).next_power_of_two()
}

/// Removes ids, so that the programs send them again at the next use. An id that is sent at this moment may be sent
/// twice.
pub(super) fn forget(object: &Object, ids: &[u64]) -> io::Result<()> {
    let map = fd(object, MAP)?;
    let sets = entries(object);
    for id in ids {
        let set = set_of(*id, sets);
        let mut sent: abi::podperf_sent = bytemuck::Zeroable::zeroed();
        raw::lookup(map, set, std::slice::from_mut(&mut sent))?;
        let there = sent.ids.iter_mut().filter(|sent| *sent == id);
        if there.map(|sent| *sent = 0).count() > 0 {
            raw::update(map, set, sent)?;
        }
    }
    Ok(())
}

/// Removes all ids, so that the programs send them again at the next use.
pub(super) fn forget_all(object: &Object) -> io::Result<()> {
    let map = fd(object, MAP)?;
    let none: abi::podperf_sent = bytemuck::Zeroable::zeroed();
    (0..entries(object)).try_for_each(|set| raw::update(map, set, none))
}

fn entries(object: &Object) -> u32 {
    let info = object.map(MAP).and_then(raw::data).and_then(|data| data.info().ok());
    info.map_or(0, |info| info.max_entries())
}

/// Returns the set of an id, by the rule of `send_once` in `ebpf/bpf/walk.bpf.h`.
fn set_of(id: u64, sets: u32) -> u32 {
    u32::try_from(id >> 1 & u64::from(sets.saturating_sub(1))).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_room_for_all_ids_and_each_has_its_set() {
        for (ids, count) in [(1, 1), (4, 1), (5, 2), (32_768, 8_192), (32_769, 16_384)] {
            assert_eq!(sets(ids), count, "{ids}");
        }
        assert_eq!([set_of(1, 4), set_of(3, 4), set_of(9, 4), set_of(u64::MAX, 4)], [0, 1, 0, 3]);
    }
}
