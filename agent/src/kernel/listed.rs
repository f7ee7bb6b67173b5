//! Looks after the list of cgroups that have rows, which the programs fill (see listed.bpf.h): names the levels of the
//! tree, counts the list again, and forgets where removed cgroups were charged.

use std::{collections::BTreeMap, io};

use podperf_ebpf::abi;

use super::{
    object::{Object, fd},
    raw::{self, Then},
};
use crate::model::ids::CgroupId;

/// The list.
pub(super) const CGROUPS: &str = "cgroups";
/// The number of cgroups in the list.
const USED: &str = "cgroups_used";
/// The map of the cgroups that found no room, each with the cgroup to which its work is charged.
pub(super) const CHARGED: &str = "charged";
/// The map of the levels that have names.
const LEVELS: &str = "named_levels";

/// The upkeep of the list.
#[derive(Debug)]
pub(super) struct List {
    /// Number of cgroups for which the list has room.
    max: u64,
    /// The levels that the programs know; `None` before the first call, and after one that failed.
    levels: Option<BTreeMap<CgroupId, u64>>,
}

impl List {
    pub(super) fn new(max_cgroups: u32) -> Self {
        Self { max: max_cgroups.into(), levels: None }
    }

    /// Writes the levels, if they are others than before: cgroup to the number of levels below it in which cgroups have
    /// names of their own. Cgroups that are charged elsewhere by the previous levels ask again.
    pub(super) fn name_levels(&mut self, object: &Object, levels: &BTreeMap<CgroupId, u64>) -> io::Result<()> {
        if self.levels.as_ref() == Some(levels) {
            return Ok(());
        }
        let map = fd(object, LEVELS)?;
        match self.levels.take() {
            Some(before) => {
                let mut gone = before.keys().filter(|id| !levels.contains_key(id));
                gone.try_for_each(|id| raw::delete(map, id.0))?;
            }
            // Adopted programs have the levels of the previous agent.
            None => raw::clear::<u64>(map)?,
        }
        // The root of the tree has the smallest id.
        for (id, named) in levels.iter().take(abi::PODPERF_NAMED_PARTS as usize) {
            raw::update(map, id.0, *named)?;
        }
        raw::clear::<u64>(fd(object, CHARGED)?)?;
        self.levels = Some(levels.clone());
        Ok(())
    }

    /// Counts the list again, after some of its entries were deleted. A cgroup that the programs add meanwhile may be
    /// missing until the next count.
    pub(super) fn recount(&self, object: &Object) -> io::Result<()> {
        let mut listed = 0_u64;
        raw::read_all(fd(object, CGROUPS)?, 1, Then::Keep, |_: u64, _: &[u64]| listed += 1)?;
        let used = fd(object, USED)?;
        let mut before = [0_u64];
        raw::lookup(used, 0_u32, &mut before)?;
        raw::update(used, 0_u32, listed)?;
        if has_room_again(before[0], listed, self.max) {
            raw::clear::<u64>(fd(object, CHARGED)?)?;
        }
        Ok(())
    }
}

/// Forgets where removed cgroups were charged.
pub(super) fn forget_charged(object: &Object, is_gone: impl Fn(CgroupId) -> bool) -> io::Result<()> {
    let charged = fd(object, CHARGED)?;
    let mut gone = Vec::new();
    raw::read_all(charged, 1, Then::Keep, |id: u64, _: &[u64]| gone.extend(is_gone(CgroupId(id)).then_some(id)))?;
    gone.into_iter().try_for_each(|id| raw::delete(charged, id))
}

/// Returns whether some cgroups that are charged elsewhere may be added to the list now: those with an outer cgroup, or
/// those that found the list full. The programs have the same limits.
fn has_room_again(before: u64, listed: u64, max: u64) -> bool {
    let (inner, most) = (max / u64::from(abi::PODPERF_INNER_SHARE), max - max / u64::from(abi::PODPERF_SPARE_SHARE));
    listed < inner || (before >= most && listed < most)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cgroups_ask_for_a_row_again_once_there_is_room() {
        // Half of 256 entries are for cgroups with an outer cgroup, and the last 16 are only for cgroups at level 1.
        for (before, listed, has_room) in
            [(130, 127, true), (130, 128, false), (240, 239, true), (239, 238, false), (256, 240, false), (0, 0, true)]
        {
            assert_eq!(has_room_again(before, listed, 256), has_room, "{before} before, {listed} now");
        }
    }
}
